"""The programs of docs/ros.md, run as they are written there against a real fleet."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from wire import until

from kairos_ros.bringup.plan import serving
from kairos_ros.bringup.robot import one_robot

DOCS = Path(__file__).parents[3] / "docs" / "ros.md"
POLICY = "emulated:latency_ms=5,chunk=20,state=3,dim=1"
SHORT = "max_duration_s=2.0"

pytestmark = pytest.mark.slow


def program(name: str) -> str:
    blocks = re.findall(r"```python\n(# (\S+\.py) .*?)```", DOCS.read_text(), re.DOTALL)
    (text,) = (text for text, called in blocks if called == name)
    assert "max_duration_s=30.0" in text
    return text.replace("max_duration_s=30.0", SHORT)


@pytest.fixture(scope="module", autouse=True)
def fleet(start_for_module, wire):
    start_for_module(serving(policy=POLICY, horizon="static:10"))
    start_for_module(one_robot("arm_1", adapter_options="env_id=Pendulum-v1"))
    wire.serving_since()


def run(name: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / name
    path.write_text(program(name))
    line = [sys.executable, path, *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=90)


def test_a_list_of_tasks_ends_with_the_first_that_is_aborted(tmp_path, wire):
    """A simulator knows success, and at its limit a task without it is aborted."""
    done = run("follow_tasks.py", tmp_path, "arm_1", "swing up", "swing down")
    assert done.stdout.startswith("swing up: max_duration, "), done.stderr
    assert "swing down" not in done.stdout
    assert done.returncode == 1
    gone = run("follow_tasks.py", tmp_path, "arm_2", "swing up")
    assert gone.stderr.splitlines()[-1] == "no robot arm_2 takes tasks here"  # DDS may say more


def test_a_behaviour_tree_tries_a_task_twice(tmp_path, wire):
    pytest.importorskip("py_trees", reason="py_trees is not among the dependencies")
    until(lambda: [status for status in wire.statuses if status.robot == "arm_1"])
    before = wire.status_of("arm_1").tasks_done
    done = run("task_tree.py", tmp_path, "arm_1")
    assert done.stdout == "FAILURE: max_duration\n", done.stderr
    until(lambda: wire.status_of("arm_1").tasks_done == before + 2)
