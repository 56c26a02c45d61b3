"""Fixtures for tests that talk over DDS and start real node processes."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ["ROS_DOMAIN_ID"] = str(10 + os.getpid() % 90)  # one per test process
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A node running in its own process and session; signals go to that process only."""

    process: subprocess.Popen
    log: Path

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def send(self, sig: signal.Signals) -> None:
        self.process.send_signal(sig)

    def stop(self, sig: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        """Ends the process and returns its exit code."""
        if self.process.poll() is None:
            self.send(sig)
        return self.process.wait(timeout_s)


@pytest.fixture(scope="session")
def domain_id() -> int:
    return int(os.environ["ROS_DOMAIN_ID"])


@pytest.fixture
def start_node(tmp_path):
    """Starts `lib/kairos_ros/<executable>` with ROS arguments; kills it after the test.

    `start_node("robot_node", "-r", "__ns:=/arm_1", "-p", "adapter:=sim")`. Output of every process
    is shown when the test fails.
    """
    started: list[NodeProcess] = []

    def start(executable: str, *ros_args: str, env: dict[str, str] | None = None) -> NodeProcess:
        program = Path(sys.prefix, "lib", "kairos_ros", executable)
        log = tmp_path / f"{executable}_{len(started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [program, "--ros-args", *ros_args],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"} | (env or {}),
                start_new_session=True,
            )
        started.append(NodeProcess(process, log))
        return started[-1]

    yield start
    for node in started:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait()
        print(f"--- {node.log.name} ---\n{node.output()[-4000:]}")
