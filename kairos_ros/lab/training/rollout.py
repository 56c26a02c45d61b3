"""Simulated episodes for a policy folder: many arms of one scene share each policy call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from kairos_ros.core.fit import camera_name
from kairos_ros.core.horizons.policies import (
    DEFAULT_SURPRISED_HORIZON,
    HorizonContext,
    HorizonPolicy,
    after_surprise,
)
from kairos_ros.core.horizons.surprise import SurpriseWatch, Trigger
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.policies.families.guidance import GuidedSampler, committed_of
from kairos_ros.engine.policies.policy import load_policy
from kairos_ros.engine.policies.sampler import Sampler
from kairos_ros.lab.training.events import Event
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.robot.adapters.sim.sim import SimAdapter

MAX_ACTIONS = 500
"""Meta-World's own limit on an episode."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """One policy call for B observations."""

    updates: np.ndarray
    """float32 [K, B, N, D], what each sampler step changed, normalised."""
    normalised: np.ndarray
    """float32 [B, N, D]."""
    actions: np.ndarray
    """float32 [B, N, D], in the robot's units."""


@dataclass(frozen=True, slots=True)
class RoundLog:
    """One round of an episode, in actions."""

    observed_at: int
    """Executed in the whole episode when the round's observation was taken."""
    horizon: int
    """Counted from there."""
    begun: int
    """The first of the chunk that was executed: those before it were the running chunk's."""


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """What one simulated episode came to."""

    scene: str
    seed: int
    success: bool
    rounds: int
    actions: int
    seams: tuple[float, ...] = ()
    """Jump of the hand's commanded motion at each switch of chunks, in action units."""
    steps: tuple[float, ...] = ()
    """The same jump between two actions of one chunk."""
    jerk: float = 0.0
    """Of the hand's commanded motion, root mean square: second difference of its speed, in action
    units per control period squared."""
    log: tuple[RoundLog, ...] = ()
    surprises: int = 0
    """Chunks that were given up, because the arm did not move as they say."""


class PolicyUnderTest:
    """A policy folder, loaded and sampled as the engine does it."""

    def __init__(self, folder: Path, *, rtc: bool = False) -> None:
        self._loaded = load_policy(EngineOptions(str(folder), device="cpu"), lambda _: None)
        self._rtc = rtc
        self._sampler = self._loaded.family.sampler(self._loaded.policy)
        self.policy_id = self._loaded.policy_id
        self.chunk_size = self._sampler.chunk_size
        self._units = self._loaded.units(self._sampler.action_dim)
        self.action_offset = self._units[0].numpy()
        """float32 [D], robot units at normalised zero."""
        features = self._loaded.inputs.cameras or {}
        self._cameras = {camera_name(feature): feature for feature in features}

    @torch.inference_mode()
    def __call__(
        self,
        states: np.ndarray,
        instruction: str,
        seeds: Sequence[int],
        committed: Sequence[np.ndarray] = (),
        pictures: Sequence[Mapping[str, bytes]] = (),
    ) -> Chunks:
        """Chunks for `states` float32 [B, S]; row b's noise depends on `seeds[b]` alone.

        pictures: JPEG per camera, of each row. committed: float32 [L_b, D] each, for real-time
        chunking; without `rtc` it is not used.
        """
        seen = {
            feature: torch.stack([_decoded(row[camera]) for row in pictures])
            for camera, feature in self._cameras.items()
        }
        batch = self._loaded.preprocess(
            seen
            | {"observation.state": torch.from_numpy(states), "task": [instruction] * len(states)}
        )
        chunk, updates = self._sample(batch, seeds, committed)
        return Chunks(updates.numpy(), chunk.numpy(), self._loaded.postprocess(chunk).numpy())

    def _sample(
        self, batch: dict[str, Any], seeds: Sequence[int], committed: Sequence[np.ndarray]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._rtc:
            return cast(Sampler, self._sampler).sample(batch, seeds)
        shape = self._sampler.chunk_size, self._sampler.action_dim
        rows = [torch.from_numpy(actions) for actions in committed]
        told = committed_of(rows, shape, *self._units)
        return cast(GuidedSampler, self._sampler).sample(batch, seeds, told)


def _decoded(jpeg: bytes) -> torch.Tensor:
    """float32 [3, height, width] in 0..1."""
    from PIL import Image

    pixels = np.array(Image.open(BytesIO(jpeg)))
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


@dataclass(frozen=True, slots=True)
class Delay:
    """How late a chunk comes, in control periods, in which the arm holds and the world goes on."""

    held: int = 0
    """After the running chunk is executed, before the first action of this one."""
    observed: int | None = None
    """So many of them before that first action, the observation is taken again and the chunk made
    from it; None: it is made from what was observed `lead` actions before the running chunk ended.
    """


NO_DELAY = Delay()


@dataclass(slots=True)
class Arm:
    """A simulated body in the middle of an episode."""

    body: SimAdapter
    seed: int
    decide: HorizonPolicy
    surprised_horizon: int = DEFAULT_SURPRISED_HORIZON
    rounds: int = 0
    actions: int = 0
    tail: np.ndarray | None = None
    buffer: np.ndarray | None = None
    """float32 [lead, D], executed while the next chunk is made; None before the first one."""
    committed: np.ndarray | None = None
    """The same as the policy gave it, before disturbance."""
    seams: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    log: list[RoundLog] = field(default_factory=list)
    moves: list[np.ndarray] = field(default_factory=list)
    """float32 [3] each: the hand's commanded speed in every control period, before disturbance."""
    chunk: np.ndarray | None = None
    """float32 [N, D], the newest one, whole, in the robot's units."""
    executed: list[np.ndarray] = field(default_factory=list)
    """float32 [D] each, of the whole episode."""
    event: Event | None = None
    watch: SurpriseWatch | None = None
    trigger: Trigger | None = None
    surprises: int = 0
    surprised: bool = False
    """Its next observation is taken early."""

    @property
    def over(self) -> bool:
        return self.body.succeeded() or self.actions >= MAX_ACTIONS

    def act(self, actions: np.ndarray, meant: np.ndarray, *, watched: bool = False) -> int | None:
        """Executes float32 [n, D] until the episode is over; `meant`: before disturbance.

        watched: also until the arm departs from them. Returns after how many actions; else None.
        """
        for number, (action, clean) in enumerate(zip(actions, meant, strict=True), start=1):
            if self.over:
                break
            if self.event is not None:
                self.event.happen(self.body, self.actions)
            self.body.act(action)
            self.moves.append(clean[:3])
            self.executed.append(action)
            self.actions += 1
            if self.watch is None or self.trigger is None:
                continue
            surprise = self.trigger.step(self.watch.step(action, self.body.state()))
            if watched and number >= self.watch.settle and surprise:
                self.surprises += 1
                return number
        return None

    def hold(self, periods: int) -> None:
        """Lets the world go on without an action."""
        for _ in range(periods):
            if self.over:
                break
            self.body.hold()

    def drain(self) -> None:
        """Executes what is left of the running chunk."""
        if self.buffer is not None and self.committed is not None:
            self.act(self.buffer, self.committed)
        self.buffer = self.committed = None


def run_episodes(
    policy: PolicyUnderTest,
    scene: str,
    seeds: Sequence[int],
    decide: HorizonPolicy,
    bodies: Sequence[SimAdapter],
    disturbance: float = 0.0,
    lead: int = 0,
    delays: Mapping[int, Sequence[Delay]] | None = None,
    dress: Callable[[SimAdapter, int], None] = lambda arm, seed: None,
    events: Mapping[int, Event] | None = None,
    watch: Callable[[], SurpriseWatch] | None = None,
    surprised_horizon: int = DEFAULT_SURPRISED_HORIZON,
) -> list[EpisodeResult]:
    """One episode per seed under the horizon policy `decide`, up to `len(bodies)` at a time.

    `dress` is called for each arm and seed after the scene was laid out: it may change its look.

    `lead`: actions of the running chunk, at most half its horizon, that are executed between an
    observation and the first action of the chunk made from it, which skips as many: so robots plan
    while they move (`core.execution.latency.lead_actions`). 0: the arm waits for its policy.

    `disturbance`: standard deviation of white noise on the hand's motion at each action, in action
    units. Everything is a function of the seeds, whatever the number of bodies.

    `delays`: seed -> how late the chunk of each round comes; an episode with more rounds begins
    with the first delay again.

    `events`: seed -> what happens in its episode. `watch`: makes what follows the arm of one
    episode, which asks early where it does not move as its chunk says, and then executes the first
    `surprised_horizon` actions at most (`core.horizons.policies.after_surprise`).
    """
    results = []
    for at in range(0, len(seeds), len(bodies)):
        some = seeds[at : at + len(bodies)]
        arms = [
            Arm(body, seed, decide, surprised_horizon)
            for body, seed in zip(bodies, some, strict=False)
        ]
        for arm in arms:
            arm.body.reset(TaskGoal(SCENES[scene], scene, arm.seed))
            arm.event = events.get(arm.seed) if events else None
            arm.watch = watch() if watch else None
            arm.trigger = Trigger(arm.watch) if arm.watch else None
            dress(arm.body, arm.seed)
        while running := [arm for arm in arms if not arm.over]:
            late = [_delay(delays, arm) for arm in running]
            one_round(policy, scene, running, disturbance, lead, late)
        results += [
            EpisodeResult(
                scene,
                arm.seed,
                arm.body.succeeded(),
                arm.rounds,
                arm.actions,
                tuple(arm.seams),
                tuple(arm.steps),
                _jerk(arm.moves),
                tuple(arm.log),
                arm.surprises,
            )
            for arm in arms
        ]
    return results


def _delay(delays: Mapping[int, Sequence[Delay]] | None, arm: Arm) -> Delay:
    of = delays.get(arm.seed) if delays else None
    return of[arm.rounds % len(of)] if of else NO_DELAY


def one_round(
    policy: PolicyUnderTest,
    scene: str,
    arms: Sequence[Arm],
    disturbance: float = 0.0,
    lead: int = 0,
    delays: Sequence[Delay] = (),
) -> None:
    """Every arm observes, gets its chunk in one call of the policy, and executes its horizon but
    for the last `lead` actions; see `run_episodes`. An arm may be over before it gets its chunk."""
    delays = delays or [NO_DELAY] * len(arms)
    for arm, late in zip(arms, delays, strict=True):
        if late.observed is not None:
            arm.drain()
            arm.hold(late.held - late.observed)
    seen = [arm.body.observe() for arm in arms]
    states = np.stack([observation.state for observation in seen])
    seeds = [arm.seed * MAX_ACTIONS + arm.rounds for arm in arms]
    nothing = np.zeros((0, 0), np.float32)
    told = [nothing if arm.committed is None else arm.committed for arm in arms]
    pictures = [observation.images for observation in seen]
    shown = (pictures,) if any(pictures) else ()
    chunks = policy(states, SCENES[scene], seeds, told, *shown)
    for row, (arm, late) in enumerate(zip(arms, delays, strict=True)):
        chunk = chunks.normalised[row]
        begun = 0 if arm.buffer is None else len(arm.buffer)
        context = HorizonContext(
            scene,
            arm.rounds + 1,
            arm.tail,
            task_id=f"{scene} {arm.seed}",
            state=states[row],
            lead=max((begun, *(one.begun for one in arm.log))),
            surprised=arm.surprised,
        )
        horizon = arm.decide(chunks.updates[:, row], chunk, context)
        length = after_surprise(horizon, arm.surprised_horizon, context).length
        rng = np.random.default_rng((arm.seed, arm.rounds, 1))
        noise = disturbance * rng.standard_normal((length, chunk.shape[1]))
        noise[:, -1] = 0.0  # the gripper is left alone
        clean = chunks.actions[row, :length]
        actions = np.clip(clean + noise, -1, 1).astype(np.float32)
        arm.log.append(RoundLog(arm.actions, length, begun))
        if arm.committed is not None:
            _note_jumps(arm, arm.committed, clean[begun:])
        arm.drain()
        arm.hold(late.held if late.observed is None else late.observed)
        left = min(lead, length // 2)
        last = max(begun, length - left)
        stopped = arm.act(actions[begun:last], clean[begun:last], watched=True)
        observed = length - left
        arm.surprised = stopped is not None
        if stopped is not None:
            observed = last = begun + stopped
            left = min(lead, length - last)
        arm.buffer, arm.committed = actions[last : last + left], clean[last : last + left]
        arm.rounds += 1
        arm.tail, arm.chunk = chunk[observed:], chunks.actions[row]


def _jerk(moves: Sequence[np.ndarray]) -> float:
    if len(moves) < 3:
        return 0.0
    return float(np.sqrt(np.mean(np.sum(np.diff(moves, n=2, axis=0) ** 2, axis=1))))


def _note_jumps(arm: Arm, before: np.ndarray, after: np.ndarray) -> None:
    """Of the hand's motion, whose first three numbers are its speed; `before` and `after` meet at a
    switch of chunks."""
    if len(before) and len(after):
        arm.seams.append(float(np.linalg.norm(after[0, :3] - before[-1, :3])))
    arm.steps += np.linalg.norm(np.diff(after[:, :3], axis=0), axis=1).tolist()
