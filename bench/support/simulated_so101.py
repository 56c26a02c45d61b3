"""An SO-101 of simulated motors in a process of its own, for tests of whoever drives it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = """
import os, signal, typer
from kairos_ros.host.orphan import die_with_parent
from kairos_ros.lab.commands.demos.sim_so101 import sim_so101_command
die_with_parent(os.getppid(), signal.SIGTERM)
typer.run(sim_so101_command)
"""


class SimulatedArm:
    """`kairos sim-so101`, and what a person beside an arm can do to it, and see.

    The port is `folder/name`, the calibration `folder/name.json`.
    """

    def __init__(self, folder: Path, name: str = "so101") -> None:
        self.port = folder / name
        self.options = {"port": str(self.port), "id": name, "calibration_dir": str(folder)}
        """As LeRobot names them."""
        calibration = folder / f"{name}.json"
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "--link", self.port, "--calibration", calibration],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        assert "six motors" in self._out.readline()

    def tell(self, *commands: str) -> dict[str, Any]:
        """Carries commands of `kairos sim-so101` out; what the arm shows afterwards."""
        self._in.write("\n".join([*commands, "show", ""]))
        self._in.flush()
        shown: dict[str, Any] = json.loads(self._out.readline())
        return shown

    def motors(self, what: str) -> dict[str, int | bool]:
        """`position` or `goal` in steps, or `torque`, of every motor."""
        return {name: motor[what] for name, motor in self.tell()["motors"].items()}

    def heard(self) -> int:
        """Packets so far."""
        return sum(self.tell()["packets"].values())

    def pause(self) -> None:
        """From now on it hears and answers nothing; it keeps what comes until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._in.close()
        self._out.close()
