"""With which profile of Fast DDS a program of the package begins, and what that changes."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from kairos_ros.host.discovery import KILTED, PROFILES, use_fastdds_profile
from kairos_ros.host.share import share

OURS = str(share() / "config" / "fastdds.xml")


def named(**variables: str) -> dict[str, str]:
    """What profiles a program finds named after its start; this process's own names stay."""
    with patch.dict(os.environ, variables):
        for name in set(PROFILES) - set(variables):
            os.environ.pop(name, None)
        use_fastdds_profile()
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
    broken = tmp_path / "broken.xml"
    broken.write_text(Path(OURS).read_text().replace("leaseAnnouncement", "leaseNonsense"))
    assert said_by_a_node("", OURS) == ""
    assert "leaseNonsense" in said_by_a_node("", str(broken))


@pytest.mark.slow
def test_nobody_is_asked_about_types(tmp_path):
    """Fast DDS 3 has threads for that, unless it is told not to ask: an answer that does not come
    would hide every endpoint of the type. A node that asks is planted."""
    asks = tmp_path / "asks.xml"
    asks.write_text(Path(OURS).read_text().replace("disabled", "enabled"))
    threads = (
        "from pathlib import Path; "
        "print(*(t.read_text().strip() for t in Path('/proc/self/task').glob('*/comm')))"
    )
    assert "dds.tls" not in said_by_a_node(threads, OURS)
    if tuple(named()) == PROFILES[:1]:
        assert "dds.tls" in said_by_a_node(threads, str(asks))


@pytest.mark.slow
def test_no_thread_delivers_to_another_participant_of_its_process(tmp_path):
    """Fast DDS can deadlock where one does so, with locks of both participants. What it delivered
    is there as soon as it has published, which a planted file shows; else another thread has to
    come to it first."""
    delivers = tmp_path / "delivers.xml"
    delivers.write_text(Path(OURS).read_text().replace(">OFF<", ">FULL<"))
    assert int(said_by_a_node(THERE_AT_ONCE, str(delivers))) == 100
    assert int(said_by_a_node(THERE_AT_ONCE, OURS)) < 100


THERE_AT_ONCE = """
import time
from std_msgs.msg import String
other = rclpy.Context()
rclpy.init(context=other)
reader = rclpy.create_node("hears", context=other)
subscription = reader.create_subscription(String, "said", lambda _: None, 1)
publisher = node.create_publisher(String, "said", 1)
while not (publisher.get_subscription_count() and subscription.get_publisher_count()):
    time.sleep(0.01)
at_once = 0
for _ in range(100):
    publisher.publish(String(data="now"))
    with subscription.handle:
        taken = first = subscription.handle.take_message(String, False)
        while not taken:
            taken = subscription.handle.take_message(String, False)
    at_once += first is not None
print(at_once)
rclpy.shutdown(context=other)
"""
"""How many of 100 messages the other participant has when `publish` returns."""


def said_by_a_node(program: str, profiles: str) -> str:
    """What a process prints that has one node and these profiles, and runs a line of Python;
    without what Fast DDS's shared memory says about other processes of this host."""
    lines = ["import rclpy", "rclpy.init()", "node = rclpy.create_node('reads')", program]
    (name,) = named()
    said = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, "rclpy.shutdown()"])],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {name: profiles},
        timeout=60,
        check=True,
    ).stdout
    return "\n".join(line for line in said.splitlines() if "RTPS_TRANSPORT_SHM" not in line)
