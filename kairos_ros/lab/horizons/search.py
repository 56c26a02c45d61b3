"""Finds a task's horizon plan from simulated episodes: what costs no success, on paired seeds.

A candidate is compared with a safe reference on the same scenes, block by block, and given up as
soon as it has lost too many that the reference solved. First the longest static horizon that loses
nothing; then, round by round, longer horizons where the task bears them; what was chosen by looking
at many candidates has to hold once more on scenes that chose nothing.

Beside the plans, on scenes of their own: the largest static horizon at the highest accuracy
(000 §5.1), the baseline of all horizon policies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonPlan

Trial = Callable[[HorizonPlan, Sequence[int]], Sequence[tuple[bool, int]]]
"""Plan, seeds -> success and rounds of one episode per seed; repeatable."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How much evidence is asked for. Raises ConfigError where the numbers do not fit."""

    ladder: tuple[int, ...] = (5, 10, 15, 20, 30, 40, 50)
    """Horizons to choose from, ascending; the first one is the reference."""
    episodes: int = 128
    """Paired episodes that a candidate must pass."""
    block: int = 32
    """Episodes between two looks at the count."""
    allowance: int = 2
    """Episodes that a candidate may lose net of those that it wins."""
    planned_rounds: int = 8
    """Rounds of a task that get a horizon of their own."""
    first_seed: int = 2_000_000
    static_seed: int = 2_500_000
    """First of the seeds that static horizons are tuned on; those of plans end before it."""

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.ladder, self.ladder[1:], strict=False))
        if not self.ladder or self.ladder[0] < 1 or not ascending:
            raise ConfigError(f"ladder: horizons must ascend from 1 or more, not {self.ladder}")
        for name in ("episodes", "block"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        plans = range(self.first_seed, self.first_seed + 2 * self.episodes)
        if self.static_seed < plans.stop and self.static_seed + self.episodes > plans.start:
            raise ConfigError(
                f"static_seed: {self.episodes} seeds from {self.static_seed} on are not apart from "
                f"those of the plans, {plans.start} to {plans.stop - 1}"
            )
        if self.allowance < 0:
            raise ConfigError(f"allowance must not be negative, not {self.allowance}")


@dataclass(frozen=True, slots=True)
class Found:
    """A task's plan and what it came from."""

    plan: HorizonPlan
    static: int
    """Longest static horizon that lost nothing."""
    reference_rounds: float
    """Rounds per episode with the reference."""
    rounds_per_episode: float
    """Rounds per episode with the plan."""
    reference_success: float
    success: float
    episodes: int
    """Simulated for this task in all."""


def static_successes(trial: Trial, options: SearchOptions) -> dict[int, int]:
    """Successful episodes of each static horizon of the ladder, on the same scenes."""
    seeds = range(options.static_seed, options.static_seed + options.episodes)
    return {h: sum(ok for ok, _ in trial(HorizonPlan((), h), seeds)) for h in options.ladder}


def longest_best(successes: Mapping[int, int]) -> int:
    """The largest horizon at the highest accuracy (000 §5.1)."""
    return max(successes, key=lambda h: (successes[h], h))


@dataclass(slots=True)
class _Bench:
    """Runs plans on seeds, each pair once."""

    trial: Trial
    known: dict[tuple[HorizonPlan, int], tuple[bool, int]] = field(default_factory=dict)

    def run(self, plan: HorizonPlan, seeds: Sequence[int]) -> list[tuple[bool, int]]:
        new = [seed for seed in seeds if (plan, seed) not in self.known]
        for seed, result in zip(new, self.trial(plan, new) if new else (), strict=True):
            self.known[plan, seed] = result
        return [self.known[plan, seed] for seed in seeds]

    def holds(
        self,
        plan: HorizonPlan,
        reference: HorizonPlan,
        seeds: Sequence[int],
        options: SearchOptions,
    ) -> bool:
        """Whether `plan` loses at most the allowance against `reference` at every look."""
        lost = 0
        for at in range(0, len(seeds), options.block):
            block = seeds[at : at + options.block]
            pairs = zip(self.run(reference, block), self.run(plan, block), strict=True)
            lost += sum(before - after for (before, _), (after, _) in pairs)
            if lost > options.allowance:
                return False
        return True

    def rounds(self, plan: HorizonPlan, seeds: Sequence[int]) -> float:
        return sum(rounds for _, rounds in self.run(plan, seeds)) / len(seeds)

    def success(self, plan: HorizonPlan, seeds: Sequence[int]) -> float:
        return sum(success for success, _ in self.run(plan, seeds)) / len(seeds)


def find_plan(
    trial: Trial, options: SearchOptions, report: Callable[[str], None] = lambda _: None
) -> Found:
    """The plan with the fewest rounds that this search finds without losing success."""
    bench = _Bench(trial)
    seeds = range(options.first_seed, options.first_seed + options.episodes)
    fresh = range(seeds.stop, seeds.stop + options.episodes)
    reference = HorizonPlan((), options.ladder[0])
    static = next(
        h
        for h in reversed(options.ladder)
        if h == options.ladder[0] or bench.holds(HorizonPlan((), h), reference, seeds, options)
    )
    report(f"static {static} loses nothing")
    base = plan = HorizonPlan((), static)
    if static < options.ladder[-1]:
        longer = _longer_rounds(bench, base, reference, seeds, options, report)
        holding = (p for p in reversed(longer) if bench.holds(p, reference, fresh, options))
        plan = next(holding, base)
        report(f"{plan} holds on fresh episodes")
    return Found(
        plan=plan,
        static=static,
        reference_rounds=bench.rounds(reference, seeds),
        rounds_per_episode=bench.rounds(plan, seeds),
        reference_success=bench.success(reference, seeds),
        success=bench.success(plan, seeds),
        episodes=len(bench.known),
    )


def _longer_rounds(
    bench: _Bench,
    base: HorizonPlan,
    reference: HorizonPlan,
    seeds: Sequence[int],
    options: SearchOptions,
    report: Callable[[str], None],
) -> list[HorizonPlan]:
    """Every step of: from the first round on, the longest horizon that holds and saves rounds."""
    steps = []
    plan = base
    for at in range(options.planned_rounds):
        before = (*plan.rounds, *[base.after] * (at - len(plan.rounds)))
        fewest = bench.rounds(plan, seeds)
        if fewest <= at + 1:
            break  # the task is usually over by then
        for h in (h for h in reversed(options.ladder) if h > base.after):
            longer = HorizonPlan((*before, h), base.after)
            if bench.holds(longer, reference, seeds, options) and (
                bench.rounds(longer, seeds) < fewest
            ):
                plan = longer
                steps.append(plan)
                report(f"{plan}: {bench.rounds(plan, seeds):.1f} rounds, before {fewest:.1f}")
                break
    return steps
