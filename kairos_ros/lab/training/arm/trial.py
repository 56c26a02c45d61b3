"""How often a policy touches the ball: episodes through the simulated arm's own driver."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from kairos_ros.lab.training.arm.demonstrations import begin
from kairos_ros.lab.training.arm.senses import Senses
from kairos_ros.lab.training.rollout import PolicyUnderTest
from kairos_ros.lab.world.driver import SimulatedDriver
from kairos_ros.lab.world.reach import CONTROL_RATE_HZ, INSTRUCTION, distances, done, expert
from kairos_ros.recording.runs.summary import wilson_95
from kairos_ros.robot.description.arm import ArmDescription

MAX_ACTIONS = 300
ARMS_PER_CALL = 25


@dataclass(frozen=True, slots=True)
class Trial:
    """Episodes under one executed horizon."""

    horizon: int
    """Actions executed per chunk; 0: the expert instead of a policy."""
    episodes: int
    successes: int
    median_s: float
    """From the start to the touch, over successful episodes; NaN without any."""
    median_miss_mm: float
    """From tip to ball when an episode ended, the farther hand."""
    worst_miss_mm: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the success rate (Wilson)."""
        return wilson_95(self.successes, self.episodes)


@dataclass(slots=True)
class _Episode:
    driver: SimulatedDriver
    seed: int
    goal: np.ndarray
    actions: int = 0
    rounds: int = 0
    succeeded: bool = field(default=False)

    @property
    def over(self) -> bool:
        return self.succeeded or self.actions >= MAX_ACTIONS

    def act(self, action: np.ndarray) -> None:
        self.driver.act(action, CONTROL_RATE_HZ)
        self.actions += 1
        self.succeeded = done(self.driver.world)


def try_policy(
    policy: PolicyUnderTest, senses: Senses, seeds: Sequence[int], horizon: int
) -> Iterator[Trial]:
    """One episode per seed; yields the score so far after each group, last the whole.

    The arm waits while the policy thinks. Everything is a function of the seeds.
    """
    arm = senses.arm
    ended: list[_Episode] = []
    for episodes in _groups(arm, seeds):
        while running := [one for one in episodes if not one.over]:
            states, pictures = senses.observe([(one.driver.world, one.seed) for one in running])
            noise = [one.seed * MAX_ACTIONS + one.rounds for one in running]
            chunks = policy(states, INSTRUCTION, noise, (), pictures)
            for one, chunk in zip(running, chunks.actions, strict=True):
                one.rounds += 1
                for action in chunk[:horizon]:
                    one.act(action)
                    if one.over:
                        break
        ended += episodes
        yield _score(horizon, ended)


def try_expert(arm: ArmDescription, seeds: Sequence[int]) -> Trial:
    """The same episodes by whoever showed the policy how."""
    ended: list[_Episode] = []
    for episodes in _groups(arm, seeds):
        for one in episodes:
            while not one.over:
                one.act(expert(one.driver.world, one.goal))
        ended += episodes
    return _score(0, ended)


def _groups(arm: ArmDescription, seeds: Sequence[int]) -> Iterator[list[_Episode]]:
    for at in range(0, len(seeds), ARMS_PER_CALL):
        group = []
        for seed in seeds[at : at + ARMS_PER_CALL]:
            driver = SimulatedDriver(arm)
            group.append(_Episode(driver, seed, begin(driver, seed)))
        yield group


def _score(horizon: int, ended: Sequence[_Episode]) -> Trial:
    times = [one.actions / CONTROL_RATE_HZ for one in ended if one.succeeded]
    misses = [1000.0 * float(distances(one.driver.world).max()) for one in ended]
    return Trial(
        horizon,
        len(ended),
        len(times),
        float(np.median(times)) if times else float("nan"),
        float(np.median(misses)),
        max(misses),
    )
