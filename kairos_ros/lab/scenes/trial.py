"""Episodes of a policy in one scene, in rounds as a fleet has them: one engine for all arms."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import batched

import numpy as np

from kairos_ros.core.errors import PolicyError
from kairos_ros.core.horizons.policies import HorizonContext, HorizonPolicy
from kairos_ros.engine.interface import Engine
from kairos_ros.lab.scenes.arms import SceneArms, Stood
from kairos_ros.transport.messages import InferFailure, InferRequest, InferResult

ROUNDS = 10_000
"""Most of an episode: noise is seeded by the episode's seed and the round."""


@dataclass(frozen=True, slots=True)
class Episode:
    """How one went."""

    seed: int
    success: bool
    rounds: int
    actions: np.ndarray
    """float32 [executed, D]."""


@dataclass(slots=True)
class _Arm:
    seed: int
    stood: Stood
    rounds: int = 0
    buffer: np.ndarray | None = None
    """float32 [lead, D], executed while the next chunk is made; None before the first one."""
    tail: np.ndarray | None = None
    lead: int = 0
    """The most that `buffer` has held."""
    done: list[np.ndarray] = field(default_factory=list)


def run_episodes(
    engine: Engine,
    arms: SceneArms,
    seeds: Sequence[int],
    decide: HorizonPolicy,
    *,
    lead: int = 0,
    renamed: Mapping[str, str] | None = None,
    tell: Callable[[int, int], None] = lambda done, succeeded: None,
) -> list[Episode]:
    """One episode per seed under the horizon policy `decide`; an arm takes the next seed when its
    episode is over.

    lead: actions of the running chunk, at most half its horizon, that are executed between an
    observation and the first action of the chunk made from it, which skips as many. 0: the arm
    waits for its policy, as in `lerobot-eval`. renamed: feature of the scene -> the policy's. tell:
    called with the episodes that are over, and that succeeded.

    Raises PolicyError where the policy cannot answer, or `decide` cannot judge its chunks.
    """
    waiting = iter(seeds)
    ended: dict[int, Episode] = {}
    running: dict[int, _Arm] = {}
    _begin(arms, dict(zip(range(len(arms)), waiting, strict=False)), running)
    while running:
        answers = _ask(engine, arms, running, renamed or {})
        chunks = {
            number: _cut(engine, arms, arm, answers[number], decide, lead)
            for number, arm in running.items()
        }
        resets = {}
        for number, stood in arms.go({}, chunks).items():
            arm = running[number]
            arm.stood = stood
            arm.done.append(chunks[number][: stood.executed])
            if stood.over:
                actions = np.concatenate(arm.done)
                ended[arm.seed] = Episode(arm.seed, stood.success, arm.rounds, actions)
                tell(len(ended), sum(episode.success for episode in ended.values()))
                del running[number]
                if (seed := next(waiting, None)) is not None:
                    resets[number] = seed
        _begin(arms, resets, running)
    return [ended[seed] for seed in seeds]


def _begin(arms: SceneArms, resets: Mapping[int, int], running: dict[int, _Arm]) -> None:
    for number, stood in arms.go(resets, {}).items():
        running[number] = _Arm(resets[number], stood)


def _ask(
    engine: Engine, arms: SceneArms, running: Mapping[int, _Arm], renamed: Mapping[str, str]
) -> dict[int, InferResult]:
    """The chunk of every arm."""
    requests = {
        number: _request(number, arm, arms.about.instruction, engine, renamed)
        for number, arm in running.items()
    }
    found: dict[int, InferResult] = {}
    for group in batched(requests, engine.description.max_batch):
        outcomes = engine.infer([requests[number] for number in group])
        for number, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, InferFailure):
                raise PolicyError(f"the policy cannot answer: {outcome.reason}")
            found[number] = outcome
    return found


def _request(
    number: int, arm: _Arm, instruction: str, engine: Engine, renamed: Mapping[str, str]
) -> InferRequest:
    looks = [
        type(look)(look.state, {renamed.get(k, k): image for k, image in look.images.items()})
        for look in arm.stood.looks
    ]
    *earlier, now = looks
    return InferRequest(
        robot=f"arm_{number}",
        session="",
        task=f"{arm.seed}",
        round=arm.rounds + 1,
        attempt=0,
        seed=arm.seed * ROUNDS + arm.rounds,
        instruction=instruction,
        state=now.state,
        images=now.images,
        committed=np.zeros((0, 0), np.float32) if arm.buffer is None else arm.buffer,
        earlier=tuple(earlier),
    )


def _cut(
    engine: Engine,
    arms: SceneArms,
    arm: _Arm,
    answer: InferResult,
    decide: HorizonPolicy,
    lead: int,
) -> np.ndarray:
    """The actions that are executed before the next observation, float32 [n, D]."""
    scale, chunk = engine.description.action_scale, answer.chunk
    context = HorizonContext(
        round=arm.rounds + 1,
        tail=arm.tail,
        scale=None if scale is None else np.array(scale, np.float32),
        instruction=arms.about.instruction,
        lead=arm.lead,
    )
    length = decide(answer.updates, chunk, context).length
    actions = chunk[:length]
    if arm.buffer is not None:
        actions = np.concatenate([arm.buffer, actions[len(arm.buffer) :]])
    left = min(lead, length // 2)
    arm.buffer = actions[len(actions) - left :]
    arm.tail = chunk[length - left :]
    arm.rounds, arm.lead = arm.rounds + 1, max(arm.lead, left)
    return actions[: len(actions) - left]


def horizons_of(text: str) -> tuple[str, ...]:
    """Horizon policies, separated by `;` or `,`: `static:10,static:20,confidence:t=0.4,h_min=5`."""
    found: list[str] = []
    for part in _parts(text):
        if "=" in part and ":" not in part and found:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return tuple(found)


def _parts(text: str) -> Iterator[str]:
    for part in text.replace(";", ",").split(","):
        if part.strip():
            yield part.strip()
