"""Simulated episodes for a policy folder: many arms of one scene share each policy call."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors

import kairos_ros.engine.flow_mlp.configuration_flow_mlp  # noqa: F401  registers the policy type
from kairos_ros.core.horizon import HorizonContext, parse_horizon
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.metaworld_scenes import SCENES
from kairos_ros.robot.sim import SimAdapter

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
class EpisodeResult:
    """What one simulated episode came to."""

    scene: str
    seed: int
    success: bool
    rounds: int
    actions: int


@dataclass(slots=True)
class UpdateRecorder:
    """Records velocities where LeRobot's flow samplers offer them (`model.rtc_processor`)."""

    velocities: list[torch.Tensor] = field(default_factory=list)

    def is_debug_enabled(self) -> bool:
        return True

    def track(self, *, time: float, x_t: torch.Tensor, v_t: torch.Tensor) -> None:
        self.velocities.append(v_t)


class PolicyUnderTest:
    """A LeRobot flow policy folder with its saved processors."""

    def __init__(self, folder: Path) -> None:
        config = PreTrainedConfig.from_pretrained(folder)
        self._policy = get_policy_class(config.type).from_pretrained(folder, strict=True)
        self._before, self._after = make_pre_post_processors(
            self._policy.config, pretrained_path=str(folder)
        )
        self.instructions = tuple(config.instructions)
        self._shape = (config.chunk_size, config.action_feature.shape[0])

    def __call__(
        self, states: np.ndarray, instruction: str, seeds: Sequence[tuple[int, int]]
    ) -> Chunks:
        """Chunks for `states` float32 [B, S]; row b's noise depends on `seeds[b]` alone."""
        noise = np.stack(
            [np.random.default_rng(seed).standard_normal(self._shape, np.float32) for seed in seeds]
        )
        recorder = UpdateRecorder()
        self._policy.model.rtc_processor = recorder
        batch = self._before(
            {"observation.state": torch.from_numpy(states), "task": [instruction] * len(states)}
        )
        chunk = self._policy.predict_action_chunk(batch, noise=torch.from_numpy(noise))
        updates = torch.stack(recorder.velocities) * (-1.0 / len(recorder.velocities))
        return Chunks(updates.numpy(), chunk.numpy(), self._after(chunk).numpy())


@dataclass(slots=True)
class _Arm:
    body: SimAdapter
    seed: int
    rounds: int = 0
    actions: int = 0
    tail: np.ndarray | None = None

    @property
    def over(self) -> bool:
        return self.body.succeeded() or self.actions >= MAX_ACTIONS


def run_episodes(
    policy: PolicyUnderTest,
    scene: str,
    seeds: Sequence[int],
    horizon: str,
    bodies: Sequence[SimAdapter],
    disturbance: float = 0.0,
) -> list[EpisodeResult]:
    """One episode per seed under the horizon policy `horizon`, up to `len(bodies)` at a time.

    `disturbance`: standard deviation of white noise on the hand's motion at each action, in action
    units. Everything is a function of the seeds, whatever the number of bodies.
    """
    results = []
    for at in range(0, len(seeds), len(bodies)):
        arms = [_Arm(b, s) for b, s in zip(bodies, seeds[at : at + len(bodies)], strict=False)]
        for arm in arms:
            arm.body.reset(TaskGoal(SCENES[scene], scene, arm.seed))
        while running := [arm for arm in arms if not arm.over]:
            _one_round(policy, SCENES[scene], running, horizon, disturbance)
        results += [
            EpisodeResult(scene, arm.seed, arm.body.succeeded(), arm.rounds, arm.actions)
            for arm in arms
        ]
    return results


def _one_round(
    policy: PolicyUnderTest, instruction: str, arms: list[_Arm], horizon: str, disturbance: float
) -> None:
    decide = parse_horizon(horizon)
    states = np.stack([arm.body.observe().state for arm in arms])
    chunks = policy(states, instruction, [(arm.seed, arm.rounds) for arm in arms])
    for row, arm in enumerate(arms):
        chunk = chunks.normalised[row]
        context = HorizonContext(instruction, arm.rounds, arm.tail)
        length = decide(chunks.updates[:, row], chunk, context).length
        rng = np.random.default_rng((arm.seed, arm.rounds, 1))
        noise = disturbance * rng.standard_normal((length, chunk.shape[1]))
        noise[:, -1] = 0.0  # the gripper is left alone
        for action in np.clip(chunks.actions[row, :length] + noise, -1, 1).astype(np.float32):
            arm.body.act(action)
            arm.actions += 1
            if arm.over:
                break
        arm.rounds += 1
        arm.tail = chunk[length:]
