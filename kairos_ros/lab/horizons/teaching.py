"""Episodes that teach a critic: horizons of rounds are drawn at random.

So whether an episode failed depends on the horizon of a round, beside what was seen in it, only by
what that horizon does. In the first lesson all rounds are drawn. In the second one half of them has
the horizon that the critic of the first lesson allows, so that most rounds see what robots will.
Rounds before a critic judges (`CriticOptions.careful_rounds`) teach nothing, and fail no task that
its critic could not have saved.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.horizons.critic import Array, features, packed, unpacked
from kairos_ros.core.horizons.policies import Floats, Horizon, HorizonContext, HorizonPolicy
from kairos_ros.lab.horizons.cells import horizon_policy
from kairos_ros.lab.metrics.cells import Key
from kairos_ros.lab.training.bench import arms, policy_under_test

CAREFUL_SHARES = (0.3, 0.2)
"""Of the two shortest horizons; all others share the rest equally. Most of the other rounds of an
episode should not fail it, so that it tells what the one did."""
DRAWN = 0.5
"""Share of rounds that are drawn in the second lesson."""


@dataclass(frozen=True, slots=True)
class Taught:
    """Rounds of all episodes of a task, in any order."""

    seen: Array
    """[R, F], `critic.features`."""
    horizon: NDArray[np.int64]
    """[R], which of the horizons was drawn; however much of it was executed."""
    failed: NDArray[np.bool_]
    """[R], of the round's episode."""
    episode: NDArray[np.int64]
    """[R], its number."""
    second: NDArray[np.bool_]
    """[R], of the second lesson."""


def shares(horizons: int) -> NDArray[np.float64]:
    """Probability of each of so many horizons, ascending; two or more."""
    careful = CAREFUL_SHARES if horizons > len(CAREFUL_SHARES) else (1 / horizons,) * horizons
    rest = horizons - len(careful)
    return np.array([*careful, *[(1 - sum(careful)) / max(1, rest)] * rest])


@dataclass
class Drawn:
    """Draws a horizon for every round, and keeps what was seen. A HorizonPolicy of one scene."""

    horizons: tuple[int, ...]
    offset: Array
    """As in `critic.features`."""
    careful: tuple[int, ...] = ()
    """Horizons of the rounds before the first that is drawn."""
    base: HorizonPolicy | None = None
    """Whose horizons all rounds after these have that are not drawn; None: all are."""
    rounds: dict[int, list[tuple[Array, int]]] = field(default_factory=lambda: defaultdict(list))
    """Seed of an episode -> features and which horizon, of each of its rounds."""

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        if context.round <= len(self.careful):
            length = self.careful[context.round - 1]
            return Horizon(length, np.ones(len(chunk), np.float32), f"careful {length}")
        seed = int(context.task_id.split()[-1])
        rng = np.random.default_rng((seed, context.round, 3))
        drawn = int(rng.choice(len(self.horizons), p=shares(len(self.horizons))))
        if self.base is not None and rng.random() >= DRAWN:
            length = self.base(updates, chunk, context).length
            drawn = max(0, int(np.searchsorted(self.horizons, length, side="right")) - 1)
        self.rounds[seed].append((features(chunk, context, self.offset), drawn))
        length = self.horizons[drawn]
        return Horizon(length, np.ones(len(chunk), np.float32), f"drawn {length}")


def run_teaching_cell(key: Key) -> list[dict[str, Any]]:
    """key: folder, task, horizons, careful (horizons of the first rounds), rule (of the second
    lesson, as in `cells.horizon_policy`; empty: the first one), disturbance, lead, first_seed,
    episodes. Of every episode: success, and of its rounds after the careful ones which horizons,
    and `packed` features."""
    from kairos_ros.lab.training.rollout import run_episodes

    under_test = policy_under_test(key["folder"])
    base = horizon_policy(key["folder"], key["rule"]) if key["rule"] else None
    decide = Drawn(tuple(key["horizons"]), under_test.action_offset, tuple(key["careful"]), base)
    episodes = run_episodes(
        under_test,
        key["task"],
        range(key["first_seed"], key["first_seed"] + key["episodes"]),
        decide,
        arms(key["folder"], key["task"], key["episodes"]),
        key["disturbance"],
        key["lead"],
    )
    return [
        {
            "success": int(episode.success),
            "horizons": [drawn for _, drawn in decide.rounds[episode.seed]],
            "seen": packed(np.array([seen for seen, _ in decide.rounds[episode.seed]])),
        }
        for episode in episodes
    ]


def failed_by_first_round(
    lesson: list[dict[str, Any]], horizons: tuple[int, ...]
) -> dict[int, NDArray[np.bool_]]:
    """Horizon of the first drawn round -> which of its episodes failed. Where long ones fail many
    more, more careful rounds are worth a try."""
    first = {
        horizon: np.array(
            [not e["success"] for e in lesson if e["horizons"][:1] == [index]], np.bool_
        )
        for index, horizon in enumerate(horizons)
    }
    return {horizon: failed for horizon, failed in first.items() if failed.size}


def taught(*lessons: list[dict[str, Any]]) -> Taught:
    """Rounds of the episodes of the first lesson, and of the second where there is one. An episode
    that ended before a round was drawn is left out."""
    kept = [[episode for episode in lesson if episode["horizons"]] for lesson in lessons]
    episodes = [episode for lesson in kept for episode in lesson]
    counts = [len(episode["horizons"]) for episode in episodes]
    return Taught(
        np.concatenate(
            [unpacked(e["seen"]).reshape(n, -1) for e, n in zip(episodes, counts, strict=True)]
        ),
        np.concatenate([episode["horizons"] for episode in episodes]),
        np.repeat([not episode["success"] for episode in episodes], counts),
        np.repeat(np.arange(len(episodes)), counts),
        np.repeat([number > 0 for number, of in enumerate(kept) for _ in of], counts),
    )
