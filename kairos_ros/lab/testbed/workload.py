"""The tasks of a demo: which scene, which seed, wanted when. The same for every configuration."""

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kairos_ros.core.errors import ConfigError

FIRST_SCENE_SEED = 2_000_000
"""Demo scenes use seeds from here up: neither demonstrations nor the model card's episodes do."""
SEEDS_PER_RUN = 10_000
BACK_TO_BACK = "back_to_back"


@dataclass(frozen=True, slots=True)
class SceneTask:
    """One task, not yet given to a robot."""

    number: int
    scene: str
    seed: int
    wanted_s: float
    """Arrival, in seconds since the run began; 0 when tasks follow each other back to back."""


def parse_arrivals(text: str) -> float | None:
    """Tasks per second of `poisson:RATE`, None for `back_to_back`. Raises ConfigError."""
    if text == BACK_TO_BACK:
        return None
    name, _, value = text.partition(":")
    try:
        rate = float(value)
    except ValueError:
        rate = 0.0
    if name != "poisson" or not 0 < rate < 1000:
        raise ConfigError(
            f"arrivals {text!r} are neither {BACK_TO_BACK!r} nor 'poisson:RATE' with the rate in "
            "tasks per second, for example poisson:0.8"
        )
    return rate


def scene_tasks(
    scenes: Sequence[str], seed: int, rate: float | None, first: int = 0
) -> Iterator[SceneTask]:
    """An endless list of tasks, numbered from `first`, that depends on its arguments only."""
    gaps = random.Random(f"{seed}/{first}")
    wanted_s = 0.0
    for number in itertools.count(first):
        if rate is not None:
            wanted_s += gaps.expovariate(rate)
        yield SceneTask(
            number=number,
            scene=scenes[number % len(scenes)],
            seed=FIRST_SCENE_SEED + seed * SEEDS_PER_RUN + number,
            wanted_s=wanted_s,
        )


class Arrivals:
    """Tasks that have arrived and that no robot has taken yet, oldest first."""

    def __init__(self, source: Iterator[SceneTask], *, poisson: bool) -> None:
        self._source = source
        self._poisson = poisson
        self._next = next(source)
        self._waiting: deque[SceneTask] = deque()

    def waiting(self, now_s: float) -> int:
        """How many tasks have arrived and wait for a robot; 0 when tasks follow back to back."""
        while self._poisson and self._next.wanted_s <= now_s:
            self._waiting.append(self._next)
            self._next = next(self._source)
        return len(self._waiting)

    def take(self, now_s: float) -> SceneTask | None:
        """The oldest waiting task; back to back there is always one."""
        if self._poisson:
            return self._waiting.popleft() if self.waiting(now_s) else None
        job, self._next = self._next, next(self._source)
        return job
