"""The programs of a planned fleet's hosts, all on this one, as real processes."""

import json
import signal
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import typer
import yaml
from host_fleets import three_hosts
from kairos_ros.msg import FleetState
from ports import free_ports
from wire import until

from kairos_ros.commands.fleets.planned import status_command
from kairos_ros.host.child_processes import children, command_line
from kairos_ros.robot.body_log import read_body_log

KAIROS = Path(sys.prefix, "bin", "kairos")
patiently = partial(until, timeout_s=240.0)
"""Eight processes load, beside whatever else this machine does."""


class Hosts:
    """`kairos fleet up --host` of two hosts; the third one is never started. A context manager that
    ends them.

    gpus: that are planned for. arms: those that swing. standby: with a second serving node."""

    def __init__(self, folder, wire, gpus, arms, *, standby=False):
        self.folder, self.wire, self.gpus, self.arms = folder, wire, gpus, arms
        self.bodies = folder / "bodies"
        robot = {"guard.tolerance": 0.0, "body_log": str(self.bodies)}
        (folder / "robot.yaml").write_text(yaml.safe_dump({"/**": {"ros__parameters": robot}}))
        self.file = three_hosts(
            folder, free_ports(8), params=folder / "robot.yaml", swings=len(arms), standby=standby
        )
        self.processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for host, process in self.processes.items():
            process.wait(120.0)
            print(f"--- {host}\n{self.said(host)[-4000:]}")

    def up(self, host):
        with self.log(host).open("ab") as log:
            self.processes[host] = subprocess.Popen(
                [KAIROS, "fleet", "up", self.file, "--host", host, "--gpus", str(self.gpus),
                 "--device", "cpu", "--out", self.folder],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def applies(self, gpus):
        """`kairos fleet apply` as a program of its own."""
        return subprocess.Popen(
            [KAIROS, "fleet", "apply", self.file, "--gpus", str(gpus), "--device", "cpu"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def log(self, host):
        return self.folder / f"{host}.log"

    def said(self, host):
        return self.log(host).read_text(errors="replace")

    def child(self, host, word):
        """The process of a host whose command line has a word."""
        found = [pid for pid in children(self.processes[host].pid) if word in command_line(pid)]
        return found[0] if found else None

    def status(self):
        """What `kairos fleet status` says."""
        file = self.folder / "status.json"
        with pytest.raises(typer.Exit):
            status_command(json_=file)
        return json.loads(file.read_text())

    @property
    def state(self) -> FleetState:
        return self.wire.fleet[-1]

    def active(self) -> FleetState | None:
        """The newest state of the serving node that serves."""
        return next((one for one in reversed(self.wire.fleet) if one.active), None)

    def acts(self, robot):
        """How many actions its body has executed."""
        return sum(e.kind == "act" for log in self.bodies.glob(f"{robot}.*")
                   for e in read_body_log(log))  # fmt: skip

    def gap_s(self, began_s):
        """The longest time between two executed actions of any arm that swings since then."""
        gaps = []
        for robot in self.arms:
            (log,) = self.bodies.glob(f"{robot}.*")
            times = [e.at_ns / 1e9 for e in read_body_log(log) if e.kind == "act"]
            times = [began_s, *(at for at in times if at > began_s)]
            gaps += [b - a for a, b in pairwise(times)]
        return max(gaps)

    def go_on(self):
        """Waits until every arm that swings has executed more actions."""
        before = {robot: self.acts(robot) for robot in self.arms}
        patiently(lambda: all(self.acts(r) > n + 15 for r, n in before.items()), what="for actions")
