"""The processes of a run: a plan's nodes, a cloud worker beside them, and one Ctrl-C for all."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.errors import KairosError
from kairos_ros.host.interrupt import Interrupt
from kairos_ros.lab.testbed.cloud import Cloud

READY_WITHIN_S = 240.0
"""From the start of the processes; loading a policy takes most of it on a busy machine."""
LAST_LINES = 15
"""Of its log, that are shown of a process that ended."""


class FleetError(KairosError):
    """A process of the fleet ended, or something did not happen in time."""


class TookTooLongError(FleetError):
    """Something that is waited for did not happen in time."""


class Interrupted(KairosError):  # noqa: N818 - it is none
    """Ctrl-C."""


def wait_until(
    true: Callable[[], object],
    within_s: float,
    what: str | Callable[[], str],
    step: Callable[[str], None],
    hint: str = "",
) -> float:
    """Calls `step` with a line of progress until `true()`; returns the seconds it took.

    what: what is waited for, as it is now. hint: ends the text of the error. Raises
    TookTooLongError after `within_s`, and whatever `step` raises.
    """
    began = time.monotonic()
    while not true():
        waited_s = time.monotonic() - began
        text = what if isinstance(what, str) else what()
        if waited_s > within_s:
            raise TookTooLongError(f"{text}: not after {within_s:.0f} s{hint}")
        step(f"{text} ({waited_s:.0f} s)")
    return time.monotonic() - began


def describe_exit(name: str, code: int | None, log: Path) -> str:
    """Exit code and last lines of a process that ended."""
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    last = "\n".join(f"  {line}" for line in lines)
    return f"{name} ended with exit code {code}; its last output ({log}):\n{last}"


class Processes:
    """A context manager: on leaving nothing runs any more, and signals are as they were before."""

    def __init__(
        self,
        logs: Path,
        specs: Sequence[ProcessSpec] = (),
        cloud: Cloud | None = None,
        kill_others: Callable[[], None] = lambda: None,
    ) -> None:
        """specs: started on entering. kill_others: what else the second Ctrl-C ends at once."""
        self.logs, self.cloud = logs, cloud
        self.fleet = Fleet(specs, logs, {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"})
        self.interrupt = Interrupt(at_once=self._kill)
        self._kill_others = kill_others
        self._stack = ExitStack()

    def __enter__(self) -> "Processes":
        with ExitStack() as stack:
            stack.enter_context(self.interrupt)
            if self.cloud is not None:
                stack.enter_context(self.cloud)
            stack.enter_context(self.fleet)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def dead(self) -> dict[str, int]:
        """Exit codes of the processes that ended."""
        return self.fleet.dead() | (self.cloud.dead() if self.cloud is not None else {})

    def log(self, key: str) -> Path:
        """Where a process writes its output."""
        in_cloud = self.cloud is not None and key in self.cloud.dead()
        return self.cloud.log if self.cloud is not None and in_cloud else self.fleet.log(key)

    def describe_exit(self, key: str) -> str:
        """Exit code and last lines of a process that ended."""
        return describe_exit(key, self.dead().get(key), self.log(key))

    def check(self) -> None:
        """Raises Interrupted after Ctrl-C, FleetError where a process ended."""
        if dead := list(self.dead()):
            also = f"\nalso ended: {', '.join(dead[1:])}" if dead[1:] else ""
            raise FleetError(self.describe_exit(dead[0]) + also)
        if self.interrupt.requested:
            raise Interrupted("interrupted")

    def _kill(self) -> None:
        self._kill_others()
        if self.cloud is not None:
            self.cloud.kill_all()
        self.fleet.kill()
