"""How many robots so many GPUs serve."""

from kairos_ros.core.errors import ConfigError
from kairos_ros.planning.sizing import Sizing
from kairos_ros.planning.workload import PlanOptions, Workload

MOST_ROBOTS = 100_000


def most_robots(
    workload: Workload, memory_mib: float, options: PlanOptions, gpus: int, share: float
) -> int:
    """The largest fleet with the workload's mixture of classes in which every robot gets this
    share of its ceiling, on so many GPUs; 0 where not even one robot per class does."""

    def fits(robots: int) -> bool:
        sizing = Sizing(workload.with_robots(robots), memory_mib, options)
        obligations = sizing.obligations()
        goal = sizing.goal([share * sizing.ceiling_hz(one) for one in sizing.classes])
        return (
            obligations is not None and goal is not None and obligations.total + goal.total <= gpus
        )

    low, high = len(workload.classes), 2 * len(workload.classes)
    if not 0 < share <= 1:
        raise ConfigError(f"share {share:g} of a robot's most actions; give more than 0, at most 1")
    if not fits(low):
        return 0
    while fits(high) and high < MOST_ROBOTS:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
