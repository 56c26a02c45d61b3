"""The faults of a drill: what is done, what must come of it, in the order of docs/drill.md."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kairos_ros import bringup
from kairos_ros.core.errors import ConfigError
from kairos_ros.demo.cloud import NAME, WAN
from kairos_ros.drill.door import WorkerDoor
from kairos_ros.drill.intruders import (
    await_ready,
    knock,
    resident_mb,
    send_garbage,
    send_oversized,
    shout,
)
from kairos_ros.drill.lifecycle import pause, resume
from kairos_ros.drill.stage import BACK_WITHIN_S, Stage
from kairos_ros.drill.verdict import Limits
from kairos_ros.transport.key_file import Role
from kairos_ros.transport.key_folder import KeyFolder

NOTICED_WITHIN_S = 8.0
"""Silence of 1.5 s and four round trips, and a machine that is busy."""
CUT_S = 5.0
FOR_GOOD_S = 12.0
SLOW = {"delay_s": 0.5, "bits_per_s": 1e6}
MEMORY_MB = 150.0
"""What a worker may grow by while it is sent more than it may be."""
IMPOSTOR = "emulated:latency_ms=1,chunk=50,dim=4,state=39"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: a script, and what robots may feel of it."""

    name: str
    title: str
    script: Callable[[Stage], None]
    limits: Limits = field(default_factory=Limits)
    quick: bool = False
    """Part of `--quick`."""
    victim: str = ""
    """The robot whose own process is ended."""
    needs: str = ""
    """What it does to the fleet that a drill must not do to one that somebody else runs."""
    door: bool = False
    """It is made at a worker's door."""


def cloud_killed(stage: Stage) -> None:
    stage.until_served_by("cloud", BACK_WITHIN_S)
    downs, requeued = stage.counter("link_down"), stage.counter("requeued")
    worker = stage.cloud.worker
    assert worker is not None
    # Stopped first, so that what is under way then is still there when it dies.
    worker.send_signal(signal.SIGSTOP)
    stage.until(lambda: stage.engine(NAME).in_flight > 0, 1.2, "waiting for a batch under way")
    stage.begins("SIGKILL to the cloud worker, with a batch in it")
    stage.cloud.kill()
    _noticed(stage, lambda: stage.counter("link_down") > downs)
    again = stage.counter("requeued") - requeued
    stage.expect("batch queued again", again > 0, f"{again} requests")
    stage.repaired("another worker starts")
    stage.cloud.start()
    _cloud_back(stage)


def link_cut(stage: Stage) -> None:
    _cut(stage, "both", f"the link is cut for {CUT_S:.0f} s")


def half_open_there(stage: Stage) -> None:
    _cut(stage, "out", "half open: what the edge sends is lost")


def half_open_back(stage: Stage) -> None:
    _cut(stage, "back", "half open: what the cloud sends is lost")


def cut_for_good(stage: Stage) -> None:
    stage.until_served_by("cloud", BACK_WITHIN_S)
    downs = stage.counter("link_down")
    stage.begins("the link is cut, for good")
    stage.cloud.change(cut="both")
    _noticed(stage, lambda: stage.counter("link_down") > downs)
    noticed_s = time.monotonic()
    stage.run_for(FOR_GOOD_S, "everything is served at the edge")
    late = len(stage.chunks("cloud", noticed_s))
    edge = len(stage.chunks("edge", noticed_s))
    stage.expect("served by the edge alone", edge > 0 and not late, f"{edge} chunks")
    stage.repaired()


def slow_link(stage: Stage) -> None:
    stage.until_served_by("cloud", BACK_WITHIN_S)
    stage.begins("the link gets slow: 1 s there and back, 1 Mbit/s")
    stage.cloud.change(**SLOW)
    took_s = stage.until(
        lambda: stage.engine(NAME).rtt_s > 0.5, NOTICED_WITHIN_S, "waiting for it to be measured"
    )
    stage.expect("measured", True, f"over 0.5 s there and back after {took_s:.1f} s")
    began_s = time.monotonic()
    stage.run_for(CUT_S, "the link is slow")
    edge, cloud = (len(stage.chunks(tier, began_s)) for tier in ("edge", "cloud"))
    stage.expect("the edge is preferred", edge > cloud, f"{edge} chunks, {cloud} from the cloud")
    stage.repaired("the link is as before")
    stage.cloud.change(**{name: getattr(WAN, name) for name in SLOW})
    _cloud_back(stage)


def wrong_key(stage: Stage) -> None:
    """The edge meets a server with another key, and the worker a client with another one."""
    stage.until_served_by("cloud", BACK_WITHIN_S)
    impostor = KeyFolder(stage.cloud.there.path.with_name(f"impostor_{time.monotonic_ns()}"))
    impostor.new("cloud", Role.SERVER)
    impostor.trust(stage.cloud.here.public("edge"))
    stranger = replace(stage.door("stranger"), client=impostor.new("stranger", Role.CLIENT))
    got = stage.meanwhile(lambda: knock(stranger, CUT_S), "a stranger knocks")
    heard = "is answered" if got.heard else f"gets nothing in {CUT_S:.0f} s"
    stage.expect("a client with an unknown key", not got.heard and stage.cloud_up, heard)
    other = stage.cloud.start_other(policy=IMPOSTOR, keys=impostor)
    stage.run_for(CUT_S, "an impostor starts")
    stage.begins("the link leads to an impostor with another key")
    stage.cloud.lead_to(other)
    stage.until(lambda: not stage.cloud_up, NOTICED_WITHIN_S, "waiting for the worker to be missed")
    missed_s = time.monotonic()
    stage.run_for(CUT_S, "the impostor waits for the edge")
    served = len(stage.chunks("cloud", missed_s))
    state = stage.engine(NAME).state
    stage.expect("nobody listens to the impostor", not served and not stage.cloud_up, state)
    stage.repaired("the link leads to the right worker")
    stage.cloud.lead_to(stage.cloud.port)
    stage.cloud.end_others()
    _cloud_back(stage)


def garbage(stage: Stage) -> None:
    door = stage.door("noisy")
    stage.cloud_in_use()
    stage.begins("noise without a key, and messages that are none with one")
    noise = stage.meanwhile(lambda: shout(*door.address), "sending noise")
    got = stage.meanwhile(lambda: send_garbage(door), "sending nonsense")
    refused = f"{got.refused} of {got.sent} messages, and {noise} bytes of noise"
    stage.expect("refused", noise > 0 and got.refused == got.sent > 0, refused)
    _unharmed(stage, door)


def oversized(stage: Stage) -> None:
    door = stage.door("greedy")
    stage.cloud_in_use()
    before_mb = resident_mb(door.pid) if door.pid else 0.0
    stage.begins("frames that are too large, and claims of more than any memory")
    got = stage.meanwhile(lambda: send_oversized(door), "sending too much")
    all_but_last = got.sent > 1 and got.refused >= got.sent - 1  # the last is not even read
    stage.expect("refused", all_but_last, f"{got.refused} of {got.sent} messages")
    if door.pid:
        grown_mb = resident_mb(door.pid) - before_mb
        stage.expect("memory", grown_mb < MEMORY_MB, f"grown by {grown_mb:.0f} MB")
    _unharmed(stage, door)


def other_policy(stage: Stage) -> None:
    other = stage.cloud.start_other(policy=IMPOSTOR)
    stage.until_served_by("cloud", BACK_WITHIN_S)
    refused = stage.counter("refused_engine")
    stage.begins("the link leads to a worker with another policy")
    stage.cloud.lead_to(other)
    took_s = stage.until(
        lambda: stage.engine(NAME).state == "refused", BACK_WITHIN_S, "waiting for the refusal"
    )
    counted = stage.counter("refused_engine") - refused
    stage.expect("refused and counted", counted == 1, f"after {took_s:.1f} s")
    refused_s = time.monotonic()
    stage.run_for(CUT_S, "the other policy is never asked")
    served = len(stage.chunks("cloud", refused_s))
    stage.expect("never asked", not served, f"{served} chunks")
    stage.repaired("the link leads to the right worker")
    stage.cloud.lead_to(stage.cloud.port)
    stage.cloud.end_others()
    _cloud_back(stage)


def clock_skew(stage: Stage) -> None:
    prefix = [sys.executable, "-m", "kairos_ros.drill.skewed", "-10", "86400"]
    door = stage.door("early", stage.cloud.start_other(prefix=prefix))
    ready = stage.meanwhile(lambda: await_ready(door, BACK_WITHIN_S), "a skewed worker starts")
    stage.expect("the skewed worker is ready", ready, "yes" if ready else "no")
    stage.until_served_by("cloud", BACK_WITHIN_S)
    stage.begins("the cloud's clocks jump: wall clock 10 s back, monotonic clock a day ahead")
    stage.cloud.lead_to(door.address[1])
    stage.until(lambda: not stage.cloud_up, NOTICED_WITHIN_S, "waiting for the worker to be missed")
    took_s = stage.until_served_by("cloud", BACK_WITHIN_S)
    stage.expect("used all the same", True, f"a chunk after {took_s:.1f} s")
    rtt_s = stage.engine(NAME).rtt_s
    stage.expect("round trip measured", 0.09 < rtt_s < 1.0, f"{1e3 * rtt_s:.0f} ms")
    stage.run_for(CUT_S, "served by a host with other clocks")
    stage.repaired()


def edge_killed(stage: Stage) -> None:
    stage.until_served_by("edge", BACK_WITHIN_S)
    stage.cloud_in_use()
    downs = stage.counter("engine_down")
    stage.begins("SIGKILL to the edge engine's worker")
    os.kill(stage.edge_worker_pid(), signal.SIGKILL)
    _noticed(stage, lambda: stage.counter("engine_down") > downs)
    stage.expect(
        "served meanwhile", True, f"cloud after {stage.until_served_by('cloud', 10):.1f} s"
    )
    took_s = stage.until(lambda: stage.edge_up, BACK_WITHIN_S, "waiting for the edge engine")
    stage.expect("edge engine back", True, f"after {took_s:.1f} s")
    stage.repaired()


def serving_killed(stage: Stage) -> None:
    stage.until(lambda: stage.edge_up, BACK_WITHIN_S, "waiting for the edge engine")
    before = stage.session.live.server
    stage.begins("SIGKILL to the serving node")
    process = stage.session.fleet.processes["kairos"]
    stage.meant.add("kairos")
    process.kill()
    process.wait()
    stage.run_for(1.0, "nobody serves")
    stage.start_serving()
    took_s = stage.until(
        lambda: stage.session.live.active and stage.session.live.server != before,
        2 * BACK_WITHIN_S,
        "waiting for the next serving node",
    )
    stage.expect("the next one is active", True, f"after {took_s + 1:.1f} s")
    stage.until_served_by("edge", BACK_WITHIN_S)
    stage.repaired()
    stage.until(lambda: stage.cloud_up, BACK_WITHIN_S, "waiting for the cloud engine")


def serving_paused(stage: Stage) -> None:
    stage.until(lambda: stage.session.live.active, BACK_WITHIN_S, "waiting for the serving node")
    refused = stage.counter("refused_not_active")
    stage.begins(f"the serving node is deactivated for {CUT_S:.0f} s")
    pause(stage)
    try:
        stage.run_for(CUT_S, "every request is refused")
        counted = stage.counter("refused_not_active") - refused
        stage.expect("refused and counted", counted > 0, f"{counted} requests")
    finally:
        resume(stage)
    stage.repaired("it is active again")


def robot_killed(stage: Stage) -> None:
    stage.until(lambda: stage.edge_up, BACK_WITHIN_S, "waiting for the edge engine")
    session, name = stage.session, next(iter(stage.session.live.robots))
    stage.begins(f"SIGKILL to the node of {name}")
    process = session.fleet.processes[name]
    process.kill()
    process.wait()
    session.driver.lose(name)
    stage.run_for(1.0, f"{name} is gone")
    session.fleet.start(bringup.robot(name, **session.robot_parameters))
    session.driver.regain(name)
    sessions = len(stage.exchange.sessions(name))
    took_s = stage.until(
        lambda: len(stage.exchange.sessions(name)) > sessions,
        BACK_WITHIN_S,
        f"waiting for the next task of {name}",
    )
    stage.expect("back with a session of its own", True, f"after {took_s + 1:.1f} s")
    stage.run_for(CUT_S, f"{name} is served again")
    stage.repaired()


KILLS = "ends a process"
LINKS = "changes the link"
REPLACES = "puts another worker in the place of one"
FAULTS = (
    Fault("cloud_killed", "cloud worker killed mid-batch", cloud_killed, quick=True, needs=KILLS),
    Fault("link_cut", "link cut for 5 s", link_cut, quick=True, needs=LINKS),
    Fault("half_open_there", "half-open link, edge to cloud", half_open_there, needs=LINKS),
    Fault(
        "half_open_back", "half-open link, cloud to edge", half_open_back, quick=True, needs=LINKS
    ),
    Fault("slow_link", "slow link", slow_link, needs=LINKS),
    Fault("wrong_key", "wrong keys", wrong_key, needs=REPLACES),
    Fault("garbage", "garbage", garbage, quick=True, door=True),
    Fault("oversized", "oversized frames", oversized, quick=True, door=True),
    Fault("other_policy", "worker with another policy", other_policy, needs=REPLACES),
    Fault("clock_skew", "clock skew", clock_skew, needs=REPLACES),
    Fault("edge_killed", "edge worker dies, cloud lives", edge_killed, quick=True, needs=KILLS),
    Fault("cut_for_good", "link cut for good", cut_for_good, needs=LINKS),
    Fault("serving_paused", "serving node deactivated for 5 s", serving_paused),
    Fault(
        "serving_killed", "serving node killed", serving_killed, Limits(wait_s=240.0), needs=KILLS
    ),
    Fault(
        "robot_killed",
        "robot process killed",
        robot_killed,
        Limits(wait_s=240.0),
        victim="arm_1",
        needs=KILLS,
    ),
)


def choose(only: str, *, quick: bool) -> list[Fault]:
    """Named ones, the quick ones, or all. Raises ConfigError for a name that is none."""
    if not only:
        return [fault for fault in FAULTS if fault.quick or not quick]
    known = {fault.name: fault for fault in FAULTS}
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no fault {name!r}; choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def _cut(stage: Stage, direction: str, what: str) -> None:
    stage.until_served_by("cloud", BACK_WITHIN_S)
    downs = stage.counter("link_down")
    stage.begins(what)
    began = time.monotonic()
    stage.cloud.change(cut=direction)
    _noticed(stage, lambda: stage.counter("link_down") > downs)
    stage.run_for(max(0.0, began + CUT_S - time.monotonic()), "the link is cut")
    stage.repaired("the link is whole again")
    stage.cloud.change(cut="")
    _cloud_back(stage)


def _noticed(stage: Stage, true: Callable[[], bool]) -> None:
    took_s = stage.until(true, NOTICED_WITHIN_S, "waiting for it to be noticed")
    stage.expect("noticed", True, f"after {took_s:.1f} s")


def _cloud_back(stage: Stage) -> None:
    took_s = stage.until_served_by("cloud", BACK_WITHIN_S)
    stage.expect("cloud serves again", True, f"after {took_s:.1f} s")


def _unharmed(stage: Stage, door: WorkerDoor) -> None:
    """The same worker goes on serving."""
    stage.run_for(1.0, "looking at what became of the worker")
    got = stage.meanwhile(lambda: knock(door, BACK_WITHIN_S), "greeting the worker properly")
    took_s = stage.cloud_in_use()
    same = not door.pid or "cloud" not in stage.cloud.dead()
    stage.expect("the worker serves on", got.heard and same, f"after {took_s:.1f} s")
    stage.repaired()
