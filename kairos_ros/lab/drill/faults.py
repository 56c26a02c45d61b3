"""The faults of a drill: what is done, what must come of it, in the order of docs/drill.md."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kairos_ros.bringup import plan as bringup
from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.drill.drill_testbed import BACK_WITHIN_S, DrillTestbed
from kairos_ros.lab.drill.hostile_clients import (
    WorkerAccess,
    await_ready,
    greet,
    resident_mb,
    send_garbage,
    send_noise,
    send_oversized,
)
from kairos_ros.lab.drill.policy_swap import policy_swap
from kairos_ros.lab.drill.proof.verdict import FaultLimits
from kairos_ros.lab.drill.rival_servers import rogue_publisher, second_server
from kairos_ros.lab.drill.standby_server import frozen_with_standby, standby_takes_over
from kairos_ros.lab.testbed.cloud import NAME, WAN
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
class DrillFault:
    """One fault: a script, and what robots may feel of it."""

    name: str
    title: str
    script: Callable[[DrillTestbed], None]
    limits: FaultLimits = field(default_factory=FaultLimits)
    quick: bool = False
    """Part of `--quick`."""
    victim: str = ""
    """The robot whose own process is ended."""
    needs: str = ""
    """What it does to the fleet that a drill must not do to one that somebody else runs."""
    access: bool = False
    """It is made as a client of a worker."""


def cloud_killed(drill: DrillTestbed) -> None:
    drill.until_served_by("cloud", BACK_WITHIN_S)
    downs, requeued = drill.counter("link_down"), drill.counter("requeued")
    worker = drill.cloud.worker
    assert worker is not None
    # Stopped first, so that what is under way then is still there when it dies.
    worker.send_signal(signal.SIGSTOP)
    drill.until(lambda: drill.engine(NAME).in_flight > 0, 1.2, "waiting for a batch under way")
    drill.begins("SIGKILL to the cloud worker, with a batch in it")
    drill.cloud.kill()
    _noticed(drill, lambda: drill.counter("link_down") > downs)
    again = drill.counter("requeued") - requeued
    drill.expect("batch queued again", again > 0, f"{again} requests")
    drill.repaired("another worker starts")
    drill.cloud.start()
    _cloud_back(drill)


def link_cut(drill: DrillTestbed) -> None:
    _cut(drill, "both", f"the link is cut for {CUT_S:.0f} s")


def half_open_there(drill: DrillTestbed) -> None:
    _cut(drill, "out", "half open: what the edge sends is lost")


def half_open_back(drill: DrillTestbed) -> None:
    _cut(drill, "back", "half open: what the cloud sends is lost")


def cut_for_good(drill: DrillTestbed) -> None:
    drill.until_served_by("cloud", BACK_WITHIN_S)
    downs = drill.counter("link_down")
    drill.begins("the link is cut, for good")
    drill.cloud.change(cut="both")
    _noticed(drill, lambda: drill.counter("link_down") > downs)
    noticed_s = time.monotonic()
    drill.run_for(FOR_GOOD_S, "everything is served at the edge")
    late = len(drill.chunks("cloud", noticed_s))
    edge = len(drill.chunks("edge", noticed_s))
    drill.expect("served by the edge alone", edge > 0 and not late, f"{edge} chunks")
    drill.repaired()


def slow_link(drill: DrillTestbed) -> None:
    drill.until_served_by("cloud", BACK_WITHIN_S)
    drill.begins("the link gets slow: 1 s there and back, 1 Mbit/s")
    drill.cloud.change(**SLOW)
    took_s = drill.until(
        lambda: drill.engine(NAME).rtt_s > 0.5, NOTICED_WITHIN_S, "waiting for it to be measured"
    )
    drill.expect("measured", True, f"over 0.5 s there and back after {took_s:.1f} s")
    began_s = time.monotonic()
    drill.run_for(CUT_S, "the link is slow")
    edge, cloud = (len(drill.chunks(tier, began_s)) for tier in ("edge", "cloud"))
    drill.expect("the edge is preferred", edge > cloud, f"{edge} chunks, {cloud} from the cloud")
    drill.repaired("the link is as before")
    drill.cloud.change(**{name: getattr(WAN, name) for name in SLOW})
    _cloud_back(drill)


def wrong_key(drill: DrillTestbed) -> None:
    """The edge meets a server with another key, and the worker a client with another one."""
    drill.until_served_by("cloud", BACK_WITHIN_S)
    impostor = KeyFolder(drill.cloud.there.path.with_name(f"impostor_{time.monotonic_ns()}"))
    impostor.new("cloud", Role.SERVER)
    impostor.trust(drill.cloud.here.public("edge"))
    unknown = replace(drill.access("stranger"), client=impostor.new("stranger", Role.CLIENT))
    got = drill.meanwhile(lambda: greet(unknown, CUT_S), "a client with an unknown key greets it")
    heard = "is answered" if got.heard else f"gets nothing in {CUT_S:.0f} s"
    drill.expect("a client with an unknown key", not got.heard and drill.cloud_up, heard)
    other = drill.cloud.start_other(policy=IMPOSTOR, keys=impostor)
    drill.run_for(CUT_S, "an impostor starts")
    drill.begins("the link leads to an impostor with another key")
    drill.cloud.lead_to(other)
    drill.until(lambda: not drill.cloud_up, NOTICED_WITHIN_S, "waiting for the worker to be missed")
    missed_s = time.monotonic()
    drill.run_for(CUT_S, "the impostor waits for the edge")
    served = len(drill.chunks("cloud", missed_s))
    state = drill.engine(NAME).state
    drill.expect("nobody listens to the impostor", not served and not drill.cloud_up, state)
    drill.repaired("the link leads to the right worker")
    drill.cloud.lead_to(drill.cloud.port)
    drill.cloud.end_others()
    _cloud_back(drill)


def garbage(drill: DrillTestbed) -> None:
    access = drill.access("noisy")
    drill.cloud_in_use()
    drill.begins("noise without a key, and messages that are none with one")
    noise = drill.meanwhile(lambda: send_noise(*access.address), "sending noise")
    got = drill.meanwhile(lambda: send_garbage(access), "sending nonsense")
    refused = f"{got.refused} of {got.sent} messages, and {noise} bytes of noise"
    drill.expect("refused", noise > 0 and got.refused == got.sent > 0, refused)
    _unharmed(drill, access)


def oversized(drill: DrillTestbed) -> None:
    access = drill.access("greedy")
    drill.cloud_in_use()
    before_mb = resident_mb(access.pid) if access.pid else 0.0
    drill.begins("frames that are too large, and claims of more than any memory")
    got = drill.meanwhile(lambda: send_oversized(access), "sending too much")
    all_but_last = got.sent > 1 and got.refused >= got.sent - 1  # the last is not even read
    drill.expect("refused", all_but_last, f"{got.refused} of {got.sent} messages")
    if access.pid:
        grown_mb = resident_mb(access.pid) - before_mb
        drill.expect("memory", grown_mb < MEMORY_MB, f"grown by {grown_mb:.0f} MB")
    _unharmed(drill, access)


def other_policy(drill: DrillTestbed) -> None:
    other = drill.cloud.start_other(policy=IMPOSTOR)
    drill.until_served_by("cloud", BACK_WITHIN_S)
    refused = drill.counter("refused_engine")
    drill.begins("the link leads to a worker with another policy")
    drill.cloud.lead_to(other)
    took_s = drill.until(
        lambda: drill.engine(NAME).state == "refused", BACK_WITHIN_S, "waiting for the refusal"
    )
    counted = drill.counter("refused_engine") - refused
    drill.expect("refused and counted", counted == 1, f"after {took_s:.1f} s")
    refused_s = time.monotonic()
    drill.run_for(CUT_S, "the other policy is never asked")
    served = len(drill.chunks("cloud", refused_s))
    drill.expect("never asked", not served, f"{served} chunks")
    drill.repaired("the link leads to the right worker")
    drill.cloud.lead_to(drill.cloud.port)
    drill.cloud.end_others()
    _cloud_back(drill)


def clock_skew(drill: DrillTestbed) -> None:
    access = drill.access("early", drill.cloud.start_other(clocks_s=(-10.0, 86_400.0)))
    ready = drill.meanwhile(lambda: await_ready(access, BACK_WITHIN_S), "a skewed worker starts")
    drill.expect("the skewed worker is ready", ready, "yes" if ready else "no")
    drill.until_served_by("cloud", BACK_WITHIN_S)
    drill.begins("the cloud's clocks jump: wall clock 10 s back, monotonic clock a day ahead")
    drill.cloud.lead_to(access.address[1])
    drill.until(lambda: not drill.cloud_up, NOTICED_WITHIN_S, "waiting for the worker to be missed")
    took_s = drill.until_served_by("cloud", BACK_WITHIN_S)
    drill.expect("used all the same", True, f"a chunk after {took_s:.1f} s")
    rtt_s = drill.engine(NAME).rtt_s
    drill.expect("round trip measured", 0.09 < rtt_s < 1.0, f"{1e3 * rtt_s:.0f} ms")
    drill.run_for(CUT_S, "served by a host with other clocks")
    drill.repaired()


def edge_killed(drill: DrillTestbed) -> None:
    drill.until_served_by("edge", BACK_WITHIN_S)
    drill.cloud_in_use()
    downs = drill.counter("engine_down")
    drill.begins("SIGKILL to the edge engine's worker")
    os.kill(drill.edge_worker_pid(), signal.SIGKILL)
    _noticed(drill, lambda: drill.counter("engine_down") > downs)
    drill.expect(
        "served meanwhile", True, f"cloud after {drill.until_served_by('cloud', 10):.1f} s"
    )
    took_s = drill.until(lambda: drill.edge_up, BACK_WITHIN_S, "waiting for the edge engine")
    drill.expect("edge engine back", True, f"after {took_s:.1f} s")
    drill.repaired()


def serving_killed(drill: DrillTestbed) -> None:
    drill.until(lambda: drill.edge_up, BACK_WITHIN_S, "waiting for the edge engine")
    before = drill.testbed.live.server
    drill.begins("SIGKILL to the serving node")
    process = drill.testbed.fleet.processes["serving"]
    drill.testbed.killed.add("serving")
    process.kill()
    process.wait()
    drill.run_for(1.0, "nobody serves")
    drill.start_serving()
    took_s = drill.until(
        lambda: drill.testbed.live.active and drill.testbed.live.server != before,
        2 * BACK_WITHIN_S,
        "waiting for the next serving node",
    )
    drill.expect("the next one is active", True, f"after {took_s + 1:.1f} s")
    drill.until_served_by("edge", BACK_WITHIN_S)
    drill.repaired()
    drill.until(lambda: drill.cloud_up, BACK_WITHIN_S, "waiting for the cloud engine")


def serving_paused(drill: DrillTestbed) -> None:
    drill.until(lambda: drill.testbed.live.active, BACK_WITHIN_S, "waiting for the serving node")
    refused = drill.counter("refused_not_active")
    drill.begins(f"the serving node is deactivated for {CUT_S:.0f} s")
    drill.pause()
    try:
        drill.run_for(CUT_S, "every request is refused")
        counted = drill.counter("refused_not_active") - refused
        drill.expect("refused and counted", counted > 0, f"{counted} requests")
    finally:
        drill.resume()
    drill.repaired("it is active again")


def robot_killed(drill: DrillTestbed) -> None:
    drill.until(lambda: drill.edge_up, BACK_WITHIN_S, "waiting for the edge engine")
    testbed, name = drill.testbed, next(iter(drill.testbed.live.robots))
    drill.begins(f"SIGKILL to the node of {name}")
    process = testbed.fleet.processes[name]
    process.kill()
    process.wait()
    testbed.client.lose(name)
    drill.run_for(1.0, f"{name} is gone")
    testbed.fleet.start(bringup.robot(name, **testbed.robot_parameters))
    testbed.client.regain(name)
    sessions = len(drill.exchange.sessions(name))
    took_s = drill.until(
        lambda: len(drill.exchange.sessions(name)) > sessions,
        BACK_WITHIN_S,
        f"waiting for the next task of {name}",
    )
    drill.expect("back with a session of its own", True, f"after {took_s + 1:.1f} s")
    drill.run_for(CUT_S, f"{name} is served again")
    drill.repaired()


KILLS = "ends a process"
LINKS = "changes the link"
REPLACES = "puts another worker in the place of one"
ANSWERS = "starts something that answers the robots"
SWAPS = "changes which policy tasks get"
FAULTS = (
    DrillFault(
        "cloud_killed", "cloud worker killed mid-batch", cloud_killed, quick=True, needs=KILLS
    ),
    DrillFault("link_cut", "link cut for 5 s", link_cut, quick=True, needs=LINKS),
    DrillFault("half_open_there", "half-open link, edge to cloud", half_open_there, needs=LINKS),
    DrillFault(
        "half_open_back", "half-open link, cloud to edge", half_open_back, quick=True, needs=LINKS
    ),
    DrillFault("slow_link", "slow link", slow_link, needs=LINKS),
    DrillFault("wrong_key", "wrong keys", wrong_key, needs=REPLACES),
    DrillFault("garbage", "garbage", garbage, quick=True, access=True),
    DrillFault("oversized", "oversized frames", oversized, quick=True, access=True),
    DrillFault("other_policy", "worker with another policy", other_policy, needs=REPLACES),
    DrillFault("clock_skew", "clock skew", clock_skew, needs=REPLACES),
    DrillFault(
        "edge_killed", "edge worker dies, cloud lives", edge_killed, quick=True, needs=KILLS
    ),
    DrillFault("cut_for_good", "link cut for good", cut_for_good, needs=LINKS),
    DrillFault("serving_paused", "serving node deactivated for 5 s", serving_paused),
    DrillFault(
        "serving_killed",
        "serving node killed",
        serving_killed,
        FaultLimits(wait_s=240.0),
        needs=KILLS,
    ),
    DrillFault(
        "standby_takes_over",
        "serving node killed, with a standby",
        standby_takes_over,
        FaultLimits(wait_s=5.0),
        needs=KILLS,
    ),
    DrillFault(
        "frozen_with_standby",
        "serving node frozen for 6 s, with a standby",
        frozen_with_standby,
        FaultLimits(wait_s=5.0),
        needs=KILLS,
    ),
    DrillFault("second_server", "second serving node", second_server, quick=True, needs=ANSWERS),
    DrillFault("rogue_publisher", "rogue publisher", rogue_publisher, quick=True, needs=ANSWERS),
    DrillFault("policy_swap", "policy swapped and restored", policy_swap, needs=SWAPS),
    DrillFault(
        "robot_killed",
        "robot process killed",
        robot_killed,
        FaultLimits(wait_s=240.0),
        victim="arm_1",
        needs=KILLS,
    ),
)


def choose(only: str, *, quick: bool) -> list[DrillFault]:
    """Named ones, the quick ones, or all. Raises ConfigError for a name that is none."""
    if not only:
        return [fault for fault in FAULTS if fault.quick or not quick]
    known = {fault.name: fault for fault in FAULTS}
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no fault {name!r}; choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def _cut(drill: DrillTestbed, direction: str, what: str) -> None:
    drill.until_served_by("cloud", BACK_WITHIN_S)
    downs = drill.counter("link_down")
    drill.begins(what)
    began = time.monotonic()
    drill.cloud.change(cut=direction)
    _noticed(drill, lambda: drill.counter("link_down") > downs)
    drill.run_for(max(0.0, began + CUT_S - time.monotonic()), "the link is cut")
    drill.repaired("the link is whole again")
    drill.cloud.change(cut="")
    _cloud_back(drill)


def _noticed(drill: DrillTestbed, true: Callable[[], bool]) -> None:
    took_s = drill.until(true, NOTICED_WITHIN_S, "waiting for it to be noticed")
    drill.expect("noticed", True, f"after {took_s:.1f} s")


def _cloud_back(drill: DrillTestbed) -> None:
    took_s = drill.until_served_by("cloud", BACK_WITHIN_S)
    drill.expect("cloud serves again", True, f"after {took_s:.1f} s")


def _unharmed(drill: DrillTestbed, access: WorkerAccess) -> None:
    """The same worker goes on serving."""
    drill.run_for(1.0, "looking at what became of the worker")
    got = drill.meanwhile(lambda: greet(access, BACK_WITHIN_S), "greeting the worker properly")
    took_s = drill.cloud_in_use()
    same = not access.pid or "cloud" not in drill.cloud.dead()
    drill.expect("the worker serves on", got.heard and same, f"after {took_s:.1f} s")
    drill.repaired()
