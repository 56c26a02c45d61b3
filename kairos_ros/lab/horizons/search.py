"""Finds a task's horizon plan from simulated episodes: what costs next to no success, on pairs.

The reference is the task's tuned static horizon: the largest at the highest accuracy (Dai et al.
§5.1), found on scenes of its own. The search looks at many plans on the same scenes, which proves
nothing. Then the few that it found are tested on scenes that chose nothing, the one with the fewest
rounds first, by a sequential test that ends as soon as it is sure (`core/horizons/evidence.py`).
The errors that all tests of all tasks are allowed add up to the error of the whole calibration.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonPlan
from kairos_ros.core.horizons.evidence import PairedOutcomes

Trial = Callable[[HorizonPlan, Sequence[int]], Sequence[tuple[bool, int]]]
"""Plan, seeds -> success and rounds of one episode per seed; repeatable."""

GIVEN_UP = 20.0
"""Evidence that a plan loses more than the slack, at which its test is given up."""
PROGRESS = 500
"""Episodes between two lines that say how many there were."""
TESTED_FIRST, TESTED_LATER = 2, 3
"""Plans with longer first rounds and with longer later ones that are tested: each further one makes
the test of all stricter."""
CAREFUL_ROUNDS = (2, 4, 6, 8, 12, 16, 20, 24, 32)
"""After so many rounds, longer ones are tried."""
LATER_ROUNDS = 2
"""So many of them."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How much evidence is asked for. Raises ConfigError where the numbers do not fit."""

    ladder: tuple[int, ...] = (5, 10, 15, 20, 30, 40, 50)
    """Horizons to choose from, ascending."""
    episodes: int = 128
    """Paired episodes of the search, and of each static horizon that is tuned."""
    block: int = 32
    """Episodes between two looks at the count."""
    worst_loss: float = 0.02
    """Share of success that no task may lose."""
    slack: float = 0.0
    """Share of success that a plan may lose by the estimate of its test."""
    error: float = 0.05
    """Probability that any task loses `worst_loss` or more after all."""
    most_episodes: int = 3000
    """Paired episodes of one test."""
    planned_rounds: int = 8
    """Rounds of a task that get a horizon of their own."""
    first_seed: int = 2_000_000
    static_seed: int = 2_500_000
    """First of the seeds that static horizons are tuned on."""
    test_seed: int = 2_600_000
    """First of the seeds that plans are tested on."""

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in pairwise(self.ladder))
        if not self.ladder or self.ladder[0] < 1 or not ascending:
            raise ConfigError(f"ladder: horizons must ascend from 1 or more, not {self.ladder}")
        for name in ("episodes", "block", "most_episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("worst_loss", "error"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name} must be a share in (0, 1), not {getattr(self, name)}")
        if not 0 <= self.slack < self.worst_loss:
            raise ConfigError(
                f"slack must be a share from 0 to below worst_loss ({self.worst_loss:g}), not "
                f"{self.slack:g}: a plan that loses as much cannot be told from one that loses more"
            )
        used = sorted(
            [
                (self.first_seed, self.episodes, "first_seed"),
                (self.static_seed, self.episodes, "static_seed"),
                (self.test_seed, self.most_episodes, "test_seed"),
            ]
        )
        for (first, count, name), (next_first, _, next_name) in pairwise(used):
            if first + count > next_first:
                raise ConfigError(
                    f"{next_name} {next_first} is among the {count} seeds from {name} {first} on; "
                    "search, tuning and test need seeds of their own"
                )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the pairs of a test say so far."""

    evidence: float
    holds: bool
    ended: bool
    """It holds, or is given up."""


def judged(outcomes: PairedOutcomes, options: SearchOptions, needed: float) -> Verdict:
    """Whether the pairs show a loss below the worst one, and one up to the slack by their estimate.

    needed: 1 / the error that the test is allowed.
    """
    evidence = outcomes.evidence(options.worst_loss)
    holds = evidence >= needed and outcomes.loss <= options.slack
    given_up = outcomes.exchanged.evidence(-options.slack) >= GIVEN_UP
    return Verdict(evidence, holds, holds or given_up)


@dataclass(frozen=True, slots=True)
class TestedPlan:
    """What one sequential test came to."""

    plan: HorizonPlan
    outcomes: PairedOutcomes
    evidence: float
    needed: float
    """1 / the error that this test was allowed."""
    holds: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A task's plan and what it came from."""

    plan: HorizonPlan
    reference: int
    """The tuned static horizon."""
    static: int
    """Longest static horizon that holds; the reference, where none that is longer does."""
    reference_rounds: float
    """Rounds per episode with the reference, on the searched scenes, as the following."""
    rounds_per_episode: float
    """Rounds per episode with the plan."""
    reference_success: float
    success: float
    episodes: int
    """Simulated for this task in all, those of `static_successes` not counted."""
    tests: tuple[TestedPlan, ...] = ()


def static_successes(trial: Trial, options: SearchOptions) -> dict[int, int]:
    """Successful episodes of each static horizon of the ladder, on the same scenes."""
    seeds = range(options.static_seed, options.static_seed + options.episodes)
    return {h: sum(ok for ok, _ in trial(HorizonPlan((), h), seeds)) for h in options.ladder}


def longest_best(successes: Mapping[int, int]) -> int:
    """The largest horizon at the highest accuracy (Dai et al. §5.1)."""
    return max(successes, key=lambda h: (successes[h], h))


@dataclass(slots=True)
class _Bench:
    """Runs plans on seeds, each pair once."""

    trial: Trial
    reference: HorizonPlan
    options: SearchOptions
    report: Callable[[str], None]
    known: dict[tuple[HorizonPlan, int], tuple[bool, int]] = field(default_factory=dict)
    tests: list[TestedPlan] = field(default_factory=list)

    @property
    def searched(self) -> Sequence[int]:
        return range(self.options.first_seed, self.options.first_seed + self.options.episodes)

    def run(self, plan: HorizonPlan, seeds: Sequence[int]) -> list[tuple[bool, int]]:
        new = [seed for seed in seeds if (plan, seed) not in self.known]
        for seed, result in zip(new, self.trial(plan, new) if new else (), strict=True):
            self.known[plan, seed] = result
            if len(self.known) % PROGRESS == 0:
                self.report(f"{len(self.known)} episodes so far")
        return [self.known[plan, seed] for seed in seeds]

    def promises(self, plan: HorizonPlan) -> bool:
        """Whether `plan` loses at most the worst loss on the searched scenes, at every look."""
        allowed = self.options.worst_loss * self.options.episodes
        outcomes = PairedOutcomes()
        for block in self._blocks(self.searched):
            outcomes = self._compared(outcomes, plan, block)
            if outcomes.lost - outcomes.won > allowed:
                return False
        return True

    def holds(self, plan: HorizonPlan, error: float) -> bool:
        """Whether scenes that chose nothing show that `plan` loses less than the worst loss, and
        no more than the slack by their estimate. Wrong with a probability of at most `error`."""
        options, outcomes, needed = self.options, PairedOutcomes(), 1 / error
        verdict = judged(outcomes, options, needed)
        seeds = range(options.test_seed, options.test_seed + options.most_episodes)
        for block in self._blocks(seeds):
            outcomes = self._compared(outcomes, plan, block)
            verdict = judged(outcomes, options, needed)
            if verdict.ended:
                break
        self.tests.append(TestedPlan(plan, outcomes, verdict.evidence, needed, verdict.holds))
        self.report(
            f"{plan} {'holds' if verdict.holds else 'does not hold'} against {self.reference}: in "
            f"{outcomes.pairs} pairs of episodes it lost {outcomes.lost} and won {outcomes.won}"
        )
        return verdict.holds

    def rounds(self, plan: HorizonPlan) -> float:
        return sum(rounds for _, rounds in self.run(plan, self.searched)) / len(self.searched)

    def success(self, plan: HorizonPlan) -> float:
        return sum(success for success, _ in self.run(plan, self.searched)) / len(self.searched)

    def _blocks(self, seeds: Sequence[int]) -> list[Sequence[int]]:
        block = self.options.block
        return [seeds[at : at + block] for at in range(0, len(seeds), block)]

    def _compared(
        self, outcomes: PairedOutcomes, plan: HorizonPlan, seeds: Sequence[int]
    ) -> PairedOutcomes:
        pairs = zip(self.run(self.reference, seeds), self.run(plan, seeds), strict=True)
        for (before, _), (after, _) in pairs:
            outcomes = outcomes.and_pair(before, after)
        return outcomes


def find_plan(
    trial: Trial,
    options: SearchOptions,
    tuned: int,
    error: float,
    report: Callable[[str], None] = lambda _: None,
) -> Found:
    """The plan with the fewest rounds that this search finds and that holds in a test.

    tuned: the task's tuned static horizon, the reference. error: of all tests of this task.
    """
    bench = _Bench(trial, HorizonPlan((), tuned), options, report)
    longer = [HorizonPlan((), h) for h in reversed(options.ladder) if h > tuned]
    candidates = [plan for plan in longer if bench.promises(plan)]
    base = _first_that_holds(bench, candidates, error / 2) or bench.reference
    found = [*_spread(_longer_rounds(bench, base), TESTED_FIRST), *_longer_later(bench, base)]
    plan = _first_that_holds(bench, sorted(found, key=bench.rounds), error / 2) or base
    return Found(
        plan=plan,
        reference=tuned,
        static=base.after,
        reference_rounds=bench.rounds(bench.reference),
        rounds_per_episode=bench.rounds(plan),
        reference_success=bench.success(bench.reference),
        success=bench.success(plan),
        episodes=len(bench.known),
        tests=tuple(bench.tests),
    )


def _first_that_holds(
    bench: _Bench, candidates: Sequence[HorizonPlan], error: float
) -> HorizonPlan | None:
    """None of them may be accepted wrongly with a probability of more than `error` in all."""
    return next((plan for plan in candidates if bench.holds(plan, error / len(candidates))), None)


def _spread(steps: Sequence[HorizonPlan], most: int) -> list[HorizonPlan]:
    """At most so many of them, the last one always."""
    picked = range(len(steps) - 1, -1, -max(1, -(-len(steps) // most)))
    return [steps[at] for at in reversed(picked)]


def _longer_rounds(bench: _Bench, base: HorizonPlan) -> list[HorizonPlan]:
    """Every step of: from the first round on, the longest horizon that promises to lose nothing
    and saves rounds."""
    steps = []
    plan = base
    for at in range(bench.options.planned_rounds):
        before = (*plan.rounds, *[base.after] * (at - len(plan.rounds)))
        fewest = bench.rounds(plan)
        if fewest <= at + 1:
            break  # the task is usually over by then
        for h in (h for h in reversed(bench.options.ladder) if h > base.after):
            longer = HorizonPlan((*before, h), base.after)
            if bench.promises(longer) and bench.rounds(longer) < fewest:
                plan = longer
                steps.append(plan)
                bench.report(f"{plan}: {bench.rounds(plan):.1f} rounds, before {fewest:.1f}")
                break
    return steps


def _longer_later(bench: _Bench, base: HorizonPlan) -> list[HorizonPlan]:
    """The plan with the fewest rounds that promises to lose nothing and is as careful as the base
    for some rounds, then longer; and some that are careful for longer.

    A task that has a delicate phase is often over it after some rounds, whatever the first ones
    were.
    """
    usual = bench.rounds(base)
    careful = [k for k in CAREFUL_ROUNDS if k < usual - 1]
    best: list[HorizonPlan] = []
    for h in (h for h in reversed(bench.options.ladder) if h > base.after):
        plans = [HorizonPlan((base.after,) * k + (h,) * LATER_ROUNDS, base.after) for k in careful]
        promising = next((at for at, plan in enumerate(plans) if bench.promises(plan)), None)
        if promising is None:
            continue
        fewest = bench.rounds(plans[promising])
        if fewest < min([usual, *map(bench.rounds, best)]):
            best = plans[promising : promising + TESTED_LATER]
            bench.report(f"{best[0]}: {fewest:.1f} rounds, before {usual:.1f}")
    return best
