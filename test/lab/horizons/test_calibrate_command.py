"""`kairos calibrate` as its user types it, on a policy that sees."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("lerobot")
pytest.importorskip("metaworld")

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonPlan
from kairos_ros.engine.policies.calibration_file import NAME, read_calibration, write_calibration
from kairos_ros.lab.commands.calibrate import calibrate_command

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
    assert set(found.tasks.values()) == {HorizonPlan((), 40)}
    assert found.unknown is None, "two tasks say nothing of others"
    assert found.static.how["successes"]["all"]["40"] > 8
    assert "Traceback" not in done.stderr, "renderers are freed before their display is"


def test_a_plan_that_fails_with_a_longer_lead_is_not_used_with_it(tmp_path, pytestconfig, capsys):
    """Two plans of the shipped policy, of which one does not bear a long lead."""
    policy, out = pytestconfig.rootpath / "models/metaworld_flow", tmp_path / "horizons.json"
    write_calibration(out, replace(read_calibration(policy / NAME), critics={}, how={"lead": 2}))

    def limit(leads, tasks="", **options):
        calibrate_command(
            policy, tasks=tasks, longer_leads=leads, out=out, work=tmp_path, **options
        )

    tasks = "peg-insert-side-v3", "button-press-topdown-v3"
    limit("20", ",".join(tasks), episodes=8)
    found = read_calibration(out)
    plans = {names[0]: plan for names, plan in found.tasks.items()}
    assert [plans[task].longest_lead for task in tasks] == [2, None]
    assert found.how["leads"].keys() == {*tasks}
    assert "40, lead up to 2" in capsys.readouterr().out
    for leads, why in (
        ("10,5", "more than 2 actions"),
        ("2", "more than 2"),
        ("x", "whole numbers"),
    ):
        with pytest.raises(ConfigError, match=f"leads.*{why}"):
            limit(leads)
    with pytest.raises(ConfigError, match="--critic and --longer-leads: say one"):
        limit("9", critic=True)
    assert read_calibration(out) == found
