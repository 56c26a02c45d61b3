"""`kairos calibrate` as its user types it, on a policy that sees."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lerobot")
pytest.importorskip("metaworld")

from kairos_ros.core.horizons.calibration import HorizonPlan
from kairos_ros.serving.calibration_file import read_calibration

pytestmark = pytest.mark.slow

KAIROS = Path(sys.prefix, "bin", "kairos")
TASKS = ("button-press-topdown-v3", "window-open-v3")


def test_static_horizons_alone_are_a_calibration_of_a_policy_that_has_none(tmp_path, pytestconfig):
    policy, out = pytestconfig.rootpath / "models/metaworld_cameras", tmp_path / "horizons.json"
    options = ["--episodes", "8", "--ladder", "40", "--out", out, "--work", tmp_path]
    done = subprocess.run(
        [KAIROS, "calibrate", policy, "--static-only", "--tasks", ",".join(TASKS), *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found = read_calibration(out)
    assert found.static is not None
    assert [names[0] for names in found.static.tasks] == list(TASKS)
    assert set(found.tasks.values()) == {HorizonPlan((), 40)} == {found.unknown}
    assert found.static.how["successes"]["all"]["40"] > 8
    assert "Traceback" not in done.stderr, "renderers are freed before their display is"
