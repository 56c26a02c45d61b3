"""Rules of a task for tests of the robot: round numbers, in milliseconds."""

from kairos_ros.core.pipeline import Component, ComponentRules, Fallback, TaskRules

MS = 1_000_000
SYSTEM1, SYSTEM2, SAFETY, MONITOR = Component


def rules(
    system1=Fallback.STOP_AND_RESEND,
    system2=Fallback.USE_LAST_PLAN,
    safety=Fallback.STOP_AND_REPLAN,
    monitor=Fallback.STOP_AND_RESEND,
    asks_system1=False,
    **changes,
):
    """System 1 and 2 within 200 and 1000 ms, safety each 500 and monitor each 2000 ms with SLOs
    as long. None leaves a component out. asks_system1: monitor and planner ask the policy."""
    given = {
        SYSTEM1: system1 and ComponentRules(200 * MS, system1),
        SYSTEM2: system2 and ComponentRules(1000 * MS, system2, asks_system1=asks_system1),
        SAFETY: safety and ComponentRules(500 * MS, safety, period_ns=500 * MS),
        MONITOR: monitor
        and ComponentRules(2000 * MS, monitor, period_ns=2000 * MS, asks_system1=asks_system1),
    }
    limits = {
        "max_task_retries": 2,
        "on_max_task_retries": Fallback.STOP_AND_CALL_HUMAN,
        "max_consecutive_safety_replan": 3,
        "max_consecutive_slo_violation": 2,
        "on_max_violation": Fallback.STOP_AND_CALL_HUMAN,
    }
    return TaskRules({c: r for c, r in given.items() if r}, **(limits | changes))
