"""Faults of the serving node while a standby waits for its robots."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kairos_ros.lab.drill.drill_testbed import BACK_WITHIN_S, DrillTestbed
from kairos_ros.msg import ServerStatus

STANDBY_AFTER_S = 1.0
SERVES_S = 5.0
"""How long the standby serves before the other server is back."""
FROZEN_S = 6.0
ONE_AGAIN_WITHIN_S = 20.0


def standby_takes_over(drill: DrillTestbed) -> None:
    """The serving node dies; the next one is a standby, until the first standby ends."""
    with _standby(drill) as standby:
        drill.begins("SIGKILL to the serving node; a standby has its policy loaded")
        process = drill.testbed.fleet.processes["serving"]
        drill.testbed.killed.add("serving")
        process.kill()
        process.wait()
        _taken_over(drill, standby)
        drill.run_for(SERVES_S, "the standby serves")
        drill.start_serving()
        took_s = drill.until(
            lambda: _is(drill, drill.serving_pid(), ServerStatus.STANDBY),
            2 * BACK_WITHIN_S,
            "waiting for the next serving node",
        )
        drill.expect("the next one stands by", True, f"after {took_s:.1f} s")
    took_s = drill.until_served_by("edge", BACK_WITHIN_S)
    has_them = _is(drill, drill.serving_pid(), ServerStatus.ACTIVE)
    drill.expect("robots handed back", has_them, f"a chunk {took_s:.1f} s after the standby's end")
    drill.repaired()
    drill.until(lambda: drill.cloud_up, BACK_WITHIN_S, "waiting for the cloud engine")


def frozen_with_standby(drill: DrillTestbed) -> None:
    """The serving node stands still for longer than the standby waits, and then goes on: for a
    moment there are two that believe to have the robots."""
    with _standby(drill) as standby:
        pid = drill.serving_pid()
        drill.begins(f"the serving node stands still for {FROZEN_S:.0f} s")
        os.kill(pid, signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            _taken_over(drill, standby)
            drill.run_for(began_s + FROZEN_S - time.monotonic(), "the standby serves")
        finally:
            os.kill(pid, signal.SIGCONT)
        drill.repaired("it goes on")
        took_s = drill.until(
            lambda: len([p for p in (pid, standby) if _is(drill, p, ServerStatus.ACTIVE)]) == 1,
            ONE_AGAIN_WITHIN_S,
            "waiting for one of the two to give up",
        )
        drill.expect("one gives up", True, f"after {took_s:.1f} s")
        drill.run_for(SERVES_S, "one of the two serves")
    drill.until_served_by("edge", BACK_WITHIN_S)


@contextmanager
def _standby(drill: DrillTestbed) -> Iterator[int]:
    """A standby of the fleet's serving node that has loaded what that one has; its process id."""
    drill.until(lambda: drill.edge_up, BACK_WITHIN_S, "waiting for the edge engine")
    own = drill.testbed.parameters(drill.own.serving)
    own = {name: value for name, value in own.items() if name not in ("engines", "keys")}
    with drill.another_server(**own, standby_after_s=STANDBY_AFTER_S) as pid:
        drill.until(
            lambda: _is(drill, pid, ServerStatus.STANDBY) and _loaded(drill, pid),
            2 * BACK_WITHIN_S,
            "waiting for the standby",
        )
        yield pid


def _taken_over(drill: DrillTestbed, standby: int) -> None:
    took_s = drill.until(
        lambda: _is(drill, standby, ServerStatus.ACTIVE), BACK_WITHIN_S, "waiting for the standby"
    )
    drill.expect("the standby takes over", True, f"after {took_s:.1f} s")


def _is(drill: DrillTestbed, pid: int, state: int) -> bool:
    return any(s.pid == pid and s.state == state for s in drill.exchange.servers.values())


def _loaded(drill: DrillTestbed, pid: int) -> bool:
    return any(s.pid == pid and s.policy for s in drill.exchange.servers.values())
