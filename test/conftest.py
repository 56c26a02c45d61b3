"""Fixtures for tests that talk over DDS and start real node processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import rclpy
from hypothesis import HealthCheck, settings
from wire import Wire

from kairos_ros.bringup.process_spec import ProcessSpec, command
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.host.dds_deadlock import end_when_stuck
from kairos_ros.host.discovery import use_fastdds_profile
from kairos_ros.host.domain import claim_domain
from kairos_ros.host.orphan import LAUNCHER_PID
from kairos_ros.host.shared_memory import keep_ports_open

pytest_plugins = ["slow_mark"]
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ["ROS_DOMAIN_ID"] = str(claim_domain())
use_fastdds_profile()  # as programs of the package do
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# How long an example takes is this machine's affair, and what else it does.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
# A shell lets what it runs in the background ignore Ctrl-C, and so would every command under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

LEAVES_WITH_US = {LAUNCHER_PID: str(os.getpid())}
"""Tests that are killed leave no nodes behind, which would answer the next ones in their domain."""
ALONE = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1"}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    """What every node said, also one that a whole module shares, beside the test that failed, and
    what it is doing now."""
    report = yield
    if report.failed:
        for starter in Starter.living:
            starter.ask_stacks()
        time.sleep(0.2)
        report.sections += [said for starter in Starter.living for said in starter.said()]
    return report


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
    keep_ports_open()
    end_when_stuck()
    return int(os.environ["ROS_DOMAIN_ID"])


def catches(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


class Starter:
    """Starts node processes, each in a session of its own with its output in a file."""

    living: ClassVar[list["Starter"]] = []

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.started: list[NodeProcess] = []
        Starter.living.append(self)

    def run(
        self, command: Sequence[str | Path], env: Mapping[str, str] | None = None
    ) -> NodeProcess:
        log = self.logs / f"{Path(command[0]).name}_{len(self.started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ | ALONE | (env or {}),
                start_new_session=True,
            )
        self.started.append(NodeProcess(process, log))
        return self.started[-1]

    def start(
        self,
        spec: ProcessSpec,
        *,
        prefix: Sequence[str | Path] = (),
        env: Mapping[str, str] | None = None,
        names: FleetNames = ROOT,
    ) -> NodeProcess:
        # what runs a prefix is not always the parent of the node
        launcher = {} if prefix else LEAVES_WITH_US
        return self.run([*prefix, *command(spec, names)], launcher | dict(env or {}))

    def end(self) -> None:
        """Ends what still runs.

        Gently at first: others take a killed participant for alive for another 20 s. Who does not
        end says where it hangs.
        """
        running = [node for node in self.started if node.process.poll() is None]
        for node in running:
            node.send(signal.SIGTERM)
        for node in running:
            try:
                node.process.wait(20.0)  # which takes a second where nothing else runs
            except subprocess.TimeoutExpired:
                node.send(signal.SIGABRT)  # PYTHONFAULTHANDLER
                time.sleep(0.5)
                node.process.kill()
                node.process.wait()
        Starter.living.remove(self)

    def ask_stacks(self) -> None:
        """Who can writes the stacks of its threads to its log."""
        for node in self.started:
            if node.process.poll() is None and catches(node.process.pid, signal.SIGUSR1):
                node.send(signal.SIGUSR1)

    def said(self) -> Iterator[tuple[str, str]]:
        """(title, text) of every node: which log, whether the node runs, and the end of the log."""
        for node in self.started:
            code = node.process.poll()
            how = "runs" if code is None else f"has ended: {code}"
            yield f"{node.log.name} ({how})", node.output()[-8000:]


@pytest.fixture
def start_node(tmp_path):
    """Starts `lib/kairos_ros/<executable>` with ROS arguments; kills it after the test.

    `start_node("robot_node", "-r", "__ns:=/arm_1", "-p", "adapter:=sim")`. Output of every process
    is shown when the test fails.
    """
    starter = Starter(tmp_path)

    def start(executable: str, *ros_args: str, env: dict[str, str] | None = None) -> NodeProcess:
        program = Path(sys.prefix, "lib", "kairos_ros", executable)
        return starter.run([program, "--ros-args", *ros_args], LEAVES_WITH_US | (env or {}))

    yield start
    starter.end()


@pytest.fixture
def start(tmp_path):
    """Starts a node of a plan: `start(bringup.robot("arm_1"))`; kills it after the test.

    `prefix` is a command that runs the node, such as `unshare`.
    """
    starter = Starter(tmp_path)
    yield starter.start
    starter.end()


@pytest.fixture(scope="module")
def starter_for_module(tmp_path_factory):
    """For nodes and commands that all tests of a module share."""
    starter = Starter(tmp_path_factory.mktemp("logs"))
    yield starter
    starter.end()


@pytest.fixture(scope="module")
def start_for_module(starter_for_module):
    """As `start`, for nodes that all tests of a module share."""
    return starter_for_module.start


@pytest.fixture(scope="module")
def wire(domain_id):
    """Talks to the nodes of this module's tests and watches them."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain_id)
    wire = Wire(context)
    yield wire
    wire.close()
    rclpy.shutdown(context=context)
