"""Health of one robot node, for /diagnostics."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from kairos_ros.core.robot_state import RobotState
from kairos_ros.robot.control_report import Report
from kairos_ros.robot.supervision.state_machine import Transition
from kairos_ros.robot.supervision.state_table import Mode


def robot_diagnostic(
    robot: str,
    now: Report,
    before: Report,
    held_s: float,
    thresholds: Mapping[str, Any],
    *,
    active: bool,
    unused: Mapping[str, int],
    last: Transition | None,
    refused: Mapping[str, int],
    strange: Sequence[str] = (),
) -> DiagnosticStatus:
    """One second of a robot, from `before` to `now`; `held_s`: how long it has been holding.

    `thresholds` are the node's parameters `diagnostics.*`. active: it takes goals. unused: answers
    of judges that were dropped at once, by reason. last: what the state machine did last. refused:
    counters of what others said in this robot's name and cannot be. strange: who publishes on its
    topics and should not.
    """
    problems = list(_problems(now, before, held_s, thresholds))
    if strange:
        problems.append((DiagnosticStatus.WARN, f"strange publishers: {'; '.join(strange)}"))
    if now.mode is Mode.WAITING:
        why = f": {last.reason}" if last else ""
        problems.append((DiagnosticStatus.ERROR, f"waits for a human{why}"))
    elif now.mode in (Mode.RETURNING, Mode.RETRYING):
        problems.append((DiagnosticStatus.WARN, now.mode.value))
    values = _values(now) | dict(refused) | {"strange publishers": "; ".join(strange)}
    values |= {f"answer unused, {why}": count for why, count in unused.items()}
    if now.mode is not None:
        said = last.reason if last else ""
        values |= {"mode": now.mode.value, "last transition": said, "retries": now.retries}
    level = max((level for level, _ in problems), default=DiagnosticStatus.OK)
    worst = [text for its_level, text in problems if its_level == level]
    fine = now.state.text if active else "inactive: it takes no goals"
    message = "; ".join(worst) or fine
    return DiagnosticStatus(
        level=level,
        name=f"kairos: {robot}",
        hardware_id=robot,
        message=message,
        values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
    )


def _problems(
    now: Report, before: Report, held_s: float, thresholds: Mapping[str, Any]
) -> Iterator[tuple[bytes, str]]:
    """Yields (level, message) of everything beyond its threshold."""
    if now.body_fault:
        yield DiagnosticStatus.ERROR, f"the body failed: {now.body_fault}"
    if now.misfit:
        yield DiagnosticStatus.ERROR, f"cannot be served: {now.misfit}"
    if now.body_absence:
        yield DiagnosticStatus.WARN, f"idle, and a task would fail now: {now.body_absence}"
    if now.state is RobotState.HOLDING and held_s >= thresholds["diagnostics.holding_warn_s"]:
        error = held_s >= thresholds["diagnostics.holding_error_s"]
        level = DiagnosticStatus.ERROR if error else DiagnosticStatus.WARN
        yield level, f"holding for want of actions for {held_s:.1f} s"
    if now.task is not None and now.why_no_server:
        yield DiagnosticStatus.WARN, f"waits for a server: {now.why_no_server}"
    if now.pauses > before.pauses:
        stood_s = now.paused_ns / 1e9
        yield DiagnosticStatus.WARN, f"stood still for {stood_s:.1f} s, so its actions were dropped"
    foreign = _rise(now, before, "other_server") + _rise(now, before, "other_policy")
    if foreign:
        yield DiagnosticStatus.WARN, f"dropped {foreign} chunks of others: {now.other_servers}"
    periods = now.periods - before.periods + now.missed_periods - before.missed_periods
    missed = now.missed_periods - before.missed_periods
    if missed > thresholds["diagnostics.missed_warn"] * periods:
        yield DiagnosticStatus.WARN, f"missed {missed} of {periods} control periods"
    dropped = sum(now.dropped.values()) - sum(before.dropped.values()) - foreign
    if dropped >= thresholds["diagnostics.dropped_warn"]:
        yield DiagnosticStatus.WARN, f"dropped {dropped} chunks"
    network_s = now.network_ns / 1e9
    if now.task is not None and network_s > thresholds["diagnostics.network_warn_s"]:
        yield DiagnosticStatus.WARN, f"the network takes {network_s:.1f} s of a round trip"
    guarded = now.actions_guarded - before.actions_guarded
    if guarded >= thresholds["diagnostics.guarded_warn"]:
        yield DiagnosticStatus.WARN, f"guarded {guarded} actions"


def _rise(now: Report, before: Report, reason: str) -> int:
    return now.dropped.get(reason, 0) - before.dropped.get(reason, 0)


def _values(report: Report) -> dict[str, object]:
    """Counts since the start of the session."""
    return {
        "state": report.state.name.lower(),
        "task": report.task.id if report.task else "",
        "server": str(report.server or report.bound or f"none: {report.why_no_server}"),
        "answers of other servers": report.other_servers,
        "tasks continued with another server": report.rebound,
        "control loop stood still": report.pauses,
        "tasks done": report.tasks_done,
        "tasks succeeded": report.tasks_succeeded,
        "actions executed": report.actions_executed,
        "control periods missed": report.missed_periods,
        "requests repeated in silence": report.silences,
        "rounds asked for early by surprise": report.surprises,
        "motions that were no numbers": report.unusable_motion,
        "network (ms)": f"{report.network_ns / 1e6:.1f}",
        **{f"body failed, {reason}": count for reason, count in report.body_faults.items()},
        **{f"body tolerated, {reason}": n for reason, n in report.body_tolerated.items()},
        **{f"guarded, {limit}": count for limit, count in report.guarded_by.items()},
        **{f"dropped, {reason}": count for reason, count in report.dropped.items()},
    }
