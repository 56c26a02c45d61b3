"""What the serving node knows, as messages for people and tools."""

from collections import Counter
from collections.abc import Iterable, Mapping

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from kairos_ros.core.placement.served_plan import ServedPlan
from kairos_ros.core.server_status import ServerState, ServerStatus
from kairos_ros.msg import EngineState, FleetState, RobotState
from kairos_ros.serving.dispatcher import Dispatcher
from kairos_ros.serving.engines.slot import EngineSlot
from kairos_ros.serving.rates import over_rate
from kairos_ros.serving.sessions import Session


def fleet_state(now_ns: int, dispatcher: Dispatcher, ignored: Counter[str]) -> FleetState:
    """Everything but what only the node knows: stamp, rates, names of policies.

    ignored: counters of what did not come to the dispatcher.
    """
    running = {entry.key for entry in dispatcher.in_engines()}
    counters = sorted((dispatcher.counters + ignored).items())
    return FleetState(
        queue_length=len(dispatcher.pending),
        robots=[
            _robot(now_ns, dispatcher, session, running) for session in dispatcher.sessions.values()
        ],
        engines=[_engine(now_ns, slot) for slot in dispatcher.engines.values()],
        counter_names=[name for name, _ in counters],
        counter_values=[value for _, value in counters],
    )


def _robot(now_ns: int, dispatcher: Dispatcher, session: Session, running: set[str]) -> RobotState:
    key = session.task_key
    entry = dispatcher.pending.get(key)
    known = key in dispatcher.tasks
    served = dispatcher.policies.description(session.policy)
    return RobotState(
        robot=session.robot,
        task=session.task,
        instruction=session.instruction,
        round=session.newest_round,
        horizon=session.horizon,
        horizon_reason=session.horizon_reason,
        wait_ratio=float(dispatcher.tasks.wait_ratio(key, now_ns)) if known else session.wait_ratio,
        pending=entry is not None,
        running=key in running,
        queued_s=(now_ns - entry.received_ns) / 1e9 if entry else session.queued_s,
        skipped=int(dispatcher.tasks.skipped[dispatcher.tasks.row(key)]) if known else 0,
        reason=dispatcher.reason(session),
        rounds_served=session.rounds_served,
        refused=session.refused,
        policy=served.policy_id if served else "",
        request_period_s=session.told_period_ns / 1e9,
        asked_early=session.asked_early,
        policy_name=session.policy or "",
        planned_period_s=dispatcher.rates.planned_ns(session.robot) / 1e9,
        planned_engine=dispatcher.route_of(session.robot),
        over_rate=over_rate(now_ns, session),
        surprised=session.surprised,
        surprise=session.surprise,
        surprise_joint=session.surprise_joint,
        surprises=session.surprises,
    )


def _engine(now_ns: int, slot: EngineSlot) -> EngineState:
    described, running, link = slot.description, slot.running, slot.link
    state: str = slot.state
    if state == "ready":
        state = "busy" if running else "standby" if slot.standby else state
    return EngineState(
        engine=slot.name,
        tier=slot.tier,
        state=state,
        policy=described.policy_id if described else "",
        device=f"{described.device} {described.dtype}" if described else "",
        batch_size=len(running.entries) if running else 0,
        max_batch=len(slot.latency_ns),
        busy_s=(now_ns - running.submitted_ns) / 1e9 if running else 0.0,
        load=slot.load(now_ns),
        batches=slot.batches,
        requests=slot.requests,
        restarts=slot.restarts,
        last_error=slot.trouble(now_ns) or slot.last_error,
        rtt_s=link.rtt_s if link else 0.0,
        bandwidth_mbps=8e-6 * link.bytes_per_s if link else 0.0,
        loss=link.loss if link else 0.0,
        request_bytes=link.request_bytes if link else 0.0,
        in_flight=len(slot.flight),
        policy_name=slot.policy,
    )


def diagnostics(
    now_ns: int,
    dispatcher: Dispatcher,
    ignored: Counter[str],
    before: Mapping[str, int],
    warn_queued_s: float,
    warn_load: float,
) -> list[DiagnosticStatus]:
    """The queue, the refusals and faults since start, and every engine.

    ignored: counters of what did not come to the dispatcher. before: all counters at the last
    report; what was refused since is a warning.
    """
    oldest = min((e.received_ns for e in dispatcher.pending.values()), default=now_ns)
    queued_s = (now_ns - oldest) / 1e9
    queue = _status(
        "queue",
        DiagnosticStatus.WARN if queued_s > warn_queued_s else DiagnosticStatus.OK,
        f"{len(dispatcher.pending)} pending, the oldest for {queued_s:.2f} s",
        [("robots", len(dispatcher.sessions))],
    )
    counters = sorted((dispatcher.counters + ignored).items())
    refused = {
        name.removeprefix("refused_"): value - before.get(name, 0)
        for name, value in counters
        if name.startswith("refused_") and value > before.get(name, 0)
    }
    refusals = _status(
        "requests",
        DiagnosticStatus.WARN if refused else DiagnosticStatus.OK,
        ", ".join(f"refused {count}: {name}" for name, count in refused.items()) or "none refused",
        counters,
    )
    engines = [_engine_status(now_ns, slot, warn_load) for slot in dispatcher.engines.values()]
    rates, swaps = _rates(now_ns, dispatcher), _swaps(dispatcher)
    return [queue, refusals, *rates, *swaps, *_memory(now_ns, dispatcher), *engines]


def _rates(now_ns: int, dispatcher: Dispatcher) -> list[DiagnosticStatus]:
    """How often robots may ask, where that is limited, and who asks more often."""
    if not dispatcher.rates.limiting:
        return []
    sessions = dispatcher.sessions.values()
    limited = [session for session in sessions if session.told_period_ns]
    early = [session for session in sessions if over_rate(now_ns, session)]
    values = [(f"{s.robot} may ask every (s)", f"{s.told_period_ns / 1e9:.2f}") for s in limited]
    values += [(f"{s.robot} asked too soon", str(s.asked_early)) for s in early]
    if early:
        names = ", ".join(session.robot for session in early)
        message = f"served last, because they ask more often than they were told: {names}"
        return [_status("rates", DiagnosticStatus.WARN, message, values)]
    message = f"{len(limited)} robots are limited" if limited else "no robot is limited"
    return [_status("rates", DiagnosticStatus.OK, message, values)]


def _swaps(dispatcher: Dispatcher) -> list[DiagnosticStatus]:
    """Which policy new tasks get in the place of which."""
    swaps = sorted(dispatcher.policies.swaps.items())
    if not swaps:
        return []
    text = ", ".join(f"new tasks of {old} get {new}" for old, new in swaps)
    return [_status("policy swaps", DiagnosticStatus.OK, text, swaps)]


def _memory(now_ns: int, dispatcher: Dispatcher) -> list[DiagnosticStatus]:
    """What the policies of this host take, where they have a budget."""
    keeper = dispatcher.memory
    if not keeper.budget_mib:
        return []
    slots = {s.name: s.memory for s in dispatcher.engines.values() if s.memory}
    values: list[tuple[str, object]] = [("budget (MiB)", keeper.budget_mib)]
    values += [(f"{name} takes (MiB)", memory.needs_mib) for name, memory in slots.items()]
    values += [(f"{n} loads in (s)", f"{m.load_ns / 1e9:.1f}") for n, m in slots.items()]
    contention = keeper.contention(now_ns)
    level = DiagnosticStatus.WARN if contention else DiagnosticStatus.OK
    return [_status("memory", level, contention or "all policies that are needed fit", values)]


def plan_diagnostic(
    applied: ServedPlan, staged: ServedPlan | None, reason: str
) -> DiagnosticStatus:
    """Which plan is followed, and what became of the last change."""
    values = [(one.name, f"{len(one.robots)} robots, batches up to {one.batch}")
              for one in applied.engines]  # fmt: skip
    values += [(f"not admitted, {robot}", why) for robot, why in applied.refused.items()]
    values += [("admitted by force", ", ".join(applied.forced))] if applied.forced else []
    text = f"follows {applied.identity}"
    if staged:
        text += f"; changes to {staged.identity}: {reason or 'its engines are up'}"
    elif reason:
        return _status("plan", DiagnosticStatus.WARN, f"{text}; {reason}", values)
    return _status("plan", DiagnosticStatus.OK, text, values)


def server_diagnostic(
    problem: str, waiting: Iterable[ServerStatus], served: Iterable[str], *, stands_by: bool
) -> DiagnosticStatus:
    """Whether this server has its robots for itself.

    problem: why it serves nobody although it should. waiting: other servers that want the robots.
    served: name patterns of its robots. stands_by: it is to serve nobody for now.
    """
    standby = [str(one) for one in waiting if one.state is ServerState.STANDBY]
    kept_out = [str(one) for one in waiting if one.state is not ServerState.STANDBY]
    values = [("robots", ", ".join(served) or "all"), ("standby", "; ".join(standby))]
    if stands_by:
        return _status("server that stands by", DiagnosticStatus.OK, problem, values)
    if problem:
        return _status("server that serves nobody", DiagnosticStatus.ERROR, problem, values)
    if kept_out:
        message = f"another server wants the same robots and is kept out: {'; '.join(kept_out)}"
        return _status("server", DiagnosticStatus.WARN, message, values)
    message = f"{'; '.join(standby)} stands by" if standby else "the only one of its robots"
    return _status("server", DiagnosticStatus.OK, message, values)


def _engine_status(now_ns: int, slot: EngineSlot, warn_load: float) -> DiagnosticStatus:
    load = slot.load(now_ns)
    values = [
        ("tier", slot.tier),
        ("policy", slot.description.policy_id if slot.description else ""),
        ("load", f"{load:.2f}"),
        ("largest_batch", len(slot.latency_ns)),
        ("batches", slot.batches),
        ("requests", slot.requests),
        ("restarts", slot.restarts),
        ("last_error", slot.last_error),
    ]
    if link := slot.link:
        values += [
            ("rtt (ms)", f"{1e3 * link.rtt_s:.1f}"),
            ("bandwidth (Mbit/s)", f"{8e-6 * link.bytes_per_s:.1f}"),
            ("loss", f"{link.loss:.4f}"),
            ("bytes per request", f"{link.request_bytes:.0f}"),
            ("in flight", len(slot.flight)),
        ]
    if asked := slot.language:
        values += [
            ("questions waiting", asked.waiting),
            ("questions being answered", f"{asked.answering} of {asked.slots}"),
            ("questions put off", asked.put_off),
            ("questions begun anew", asked.restarts),
        ]
    trouble = slot.trouble(now_ns)
    if trouble or slot.state in ("down", "refused", "unreachable"):
        between = " " if slot.state == "unreachable" else ": "
        message = f"{slot.state}{between}{trouble or slot.last_error}"
        return _status(slot.name, DiagnosticStatus.ERROR, message, values)
    if load > warn_load:
        return _status(slot.name, DiagnosticStatus.WARN, f"saturated: load {load:.2f}", values)
    return _status(slot.name, DiagnosticStatus.OK, slot.state, values)


def _status(
    part: str, level: bytes, message: str, values: Iterable[tuple[str, object]]
) -> DiagnosticStatus:
    return DiagnosticStatus(
        level=level,
        name=f"kairos serving: {part}",
        hardware_id="kairos",
        message=message,
        values=[KeyValue(key=key, value=str(value)) for key, value in values],
    )
