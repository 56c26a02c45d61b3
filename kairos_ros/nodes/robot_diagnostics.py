"""Health of one robot node, for /diagnostics."""

from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from kairos_ros.robot.control_report import Report, RobotState
from kairos_ros.robot.state_machine import Transition
from kairos_ros.robot.state_table import Mode


def robot_diagnostic(
    robot: str,
    now: Report,
    before: Report,
    held_s: float,
    thresholds: Mapping[str, Any],
    *,
    unused: Mapping[str, int],
    last: Transition | None,
) -> DiagnosticStatus:
    """One second of a robot, from `before` to `now`; `held_s`: how long it has been holding.

    `thresholds` are the node's parameters `diagnostics.*`. unused: answers of judges that were
    dropped at once, by reason. last: what the state machine did last.
    """
    problems = list(_problems(now, before, held_s, thresholds))
    if now.mode is Mode.WAITING:
        why = f": {last.reason}" if last else ""
        problems.append((DiagnosticStatus.ERROR, f"waits for a human{why}"))
    elif now.mode in (Mode.RETURNING, Mode.RETRYING):
        problems.append((DiagnosticStatus.WARN, now.mode.value))
    values = _values(now) | {f"answer unused, {why}": count for why, count in unused.items()}
    if now.mode is not None:
        said = last.reason if last else ""
        values |= {"mode": now.mode.value, "last transition": said, "retries": now.retries}
    level, message = max(problems, default=(DiagnosticStatus.OK, now.state.name.lower()))
    return DiagnosticStatus(
        level=level,
        name=f"kairos: {robot}",
        hardware_id=robot,
        message=message,
        values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
    )


def _problems(now: Report, before: Report, held_s: float, thresholds: Mapping[str, Any]):
    """Yields (level, message) of everything beyond its threshold."""
    if now.body_fault:
        yield DiagnosticStatus.ERROR, f"the body failed: {now.body_fault}"
    if now.state is RobotState.HOLDING and held_s >= thresholds["diagnostics.holding_warn_s"]:
        error = held_s >= thresholds["diagnostics.holding_error_s"]
        level = DiagnosticStatus.ERROR if error else DiagnosticStatus.WARN
        yield level, f"holding for want of actions for {held_s:.1f} s"
    periods = now.periods - before.periods + now.missed_periods - before.missed_periods
    missed = now.missed_periods - before.missed_periods
    if missed > thresholds["diagnostics.missed_warn"] * periods:
        yield DiagnosticStatus.WARN, f"missed {missed} of {periods} control periods"
    dropped = sum(now.dropped.values()) - sum(before.dropped.values())
    if dropped >= thresholds["diagnostics.dropped_warn"]:
        yield DiagnosticStatus.WARN, f"dropped {dropped} chunks"
    network_s = now.network_ns / 1e9
    if now.task is not None and network_s > thresholds["diagnostics.network_warn_s"]:
        yield DiagnosticStatus.WARN, f"the network takes {network_s:.1f} s of a round trip"
    guarded = now.actions_guarded - before.actions_guarded
    if guarded >= thresholds["diagnostics.guarded_warn"]:
        yield DiagnosticStatus.WARN, f"guarded {guarded} actions"


def _values(report: Report) -> dict[str, object]:
    """Counts since the start of the session."""
    return {
        "state": report.state.name.lower(),
        "task": report.task.id if report.task else "",
        "tasks done": report.tasks_done,
        "tasks succeeded": report.tasks_succeeded,
        "actions executed": report.actions_executed,
        "control periods missed": report.missed_periods,
        "requests repeated in silence": report.silences,
        "network (ms)": f"{report.network_ns / 1e6:.1f}",
        **{f"body failed, {reason}": count for reason, count in report.body_faults.items()},
        **{f"body tolerated, {reason}": n for reason, n in report.body_tolerated.items()},
        **{f"guarded, {limit}": count for limit, count in report.guarded_by.items()},
        **{f"dropped, {reason}": count for reason, count in report.dropped.items()},
    }
