"""Which announcements of DDS a program of the package makes."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from kairos_ros.host.discovery import KILTED, PROFILES, announce_each_second
from kairos_ros.host.share import share

OURS = str(share() / "config" / "fastdds.xml")


def named(**variables: str) -> dict[str, str]:
    """What profiles a program finds named after its start; this process's own names stay."""
    with patch.dict(os.environ, variables):
        for name in set(PROFILES) - set(variables):
            os.environ.pop(name, None)
        announce_each_second()
        return {name: os.environ[name] for name in PROFILES if name in os.environ}


@pytest.mark.parametrize(("rclpy", "name"), [("9.1.2", PROFILES[0]), ("7.1.5", PROFILES[1])])
def test_the_name_is_the_one_that_the_distribution_reads(monkeypatch, rclpy, name):
    monkeypatch.setattr("importlib.metadata.version", {"rclpy": rclpy}.__getitem__)
    assert named() == {name: OURS}


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_of_the_user_stay(name):
    assert named(**{name: "/mine.xml"}) == {name: "/mine.xml"}


def test_without_ros_nothing_is_set(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "unknown")
    assert named() == {}
    assert KILTED == 9


@pytest.mark.slow
def test_dds_reads_the_file_without_a_word(tmp_path):
    """A file that it cannot read is an error in its output, as a planted one shows."""
    (name,) = named()
    broken = tmp_path / "broken.xml"
    broken.write_text(Path(OURS).read_text().replace("leaseAnnouncement", "leaseNonsense"))
    program = "import rclpy; rclpy.init(); rclpy.create_node('reads'); rclpy.shutdown()"
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {name: file},
            timeout=60,
            check=True,
        ).stdout
        for file in (OURS, str(broken))
    ]
    assert said[0] == ""
    assert "leaseNonsense" in said[1]
