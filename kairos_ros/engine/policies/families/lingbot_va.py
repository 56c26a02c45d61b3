"""LingBot-VA: a video-action world model that goes on from the pictures and actions of its task.

Time of a task is counted in executed actions. LeRobot's frame 0 is the first observation; every
later one is `action_per_frame` actions with the four keyframes observed after a quarter of them
each. Whole frames are fed back; the chunk begins at the first action that was not.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.policy_source import one_line
from kairos_ros.engine.policies.sampler import FamilyCode, RowDraws
from kairos_ros.transport.messages import InferRequest

KEYFRAMES = 4
"""Of a frame: what the VAE makes one latent frame of."""
SAME = 1e-4
"""Normalised units: an executed number that is nearer than this to the chunk's is the chunk's, and
differs by the way to the robot's units and back."""
SHARE = 4
"""States take up to one part in so many of the device's memory."""
CACHE = "pos"
"""LeRobot's name of the cache of keys and values."""
ENCODERS = ("streaming_vae", "streaming_vae_half")
"""LeRobot's names of the encoders that carry something over."""


@dataclass(slots=True)
class _State:
    """What a policy object holds after a chunk. It is not changed any more."""

    at: int
    """Actions executed in the task before the first one of its next frame."""
    frame: int
    """Number of that frame; 0: only the first observation was read."""
    first: Tensor
    """Latent of the first observation."""
    actions: Tensor
    """Its chunk as the model made it, [1, action_dim, frames, action_per_frame, 1]."""
    keys_values: list[dict[str, Tensor]]
    """One per block of the transformer."""
    encoders: dict[str, list[Tensor | None]]
    """What the streaming encoders carry over, by name."""
    prompt: str
    embedded: tuple[Tensor, Tensor | None]

    @property
    def size_bytes(self) -> int:
        return sum(part.nbytes for block in self.keys_values for part in block.values())


@dataclass(slots=True)
class _Task:
    """The states of the newest task of one robot."""

    name: str
    rounds: dict[int, _State] = field(default_factory=dict)


class States:
    """States by robot and session, the least recently used first. Of a task there are two: one of
    the newest round, and the one that it went on from, for whoever asks for that round again."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._tasks: OrderedDict[tuple[str, str], _Task] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    def before(self, request: InferRequest) -> _State | None:
        """That of the newest earlier round of the request's task. Older ones are dropped, and so is
        everything of the robot's earlier task."""
        task = self._tasks.get((request.robot, request.session))
        if task is None or task.name != request.task:
            self._tasks.pop((request.robot, request.session), None)
            return None
        newest = max((one for one in task.rounds if one < request.round), default=None)
        task.rounds = {one: state for one, state in task.rounds.items() if one == newest}
        return None if newest is None else task.rounds[newest]

    def keep(self, request: InferRequest, state: _State) -> None:
        """After `before`. Others make room. Warming up, without a task, leaves none."""
        if not request.task:
            return
        robot = request.robot, request.session
        task = self._tasks.setdefault(robot, _Task(request.task))
        task.rounds[request.round] = state
        self._tasks.move_to_end(robot)
        while self.size_bytes > self._most_bytes and len(self._tasks) > 1:
            self._tasks.popitem(last=False)

    @property
    def size_bytes(self) -> int:
        return sum(
            state.size_bytes for task in self._tasks.values() for state in task.rounds.values()
        )


class LingbotSampler:
    """The tap wraps the `step` of the action scheduler. Each task has a state, and weights are
    shared: what a policy object holds is exchanged before a chunk."""

    def __init__(self, policy: Any) -> None:
        config = policy.config
        try:
            policy._ensure_frozen_modules()
        except (OSError, ValueError) as error:
            raise PolicyError(f"{config.wan_pretrained_path}: {one_line(error)}") from error
        self._policy = policy
        self._used = config.used_action_channel_ids
        self._per_frame = config.action_per_frame
        self._blocks = policy.transformer.blocks
        self.chunk_size = config.chunk_size
        self.action_dim = len(self._used)
        self.keyframe_stride = self._per_frame // KEYFRAMES
        self.observations = config.frame_chunk_size * KEYFRAMES
        self.states_bytes = device_bytes(torch.device(config.device)) // SHARE
        self.states = States(self.states_bytes)

    def go_on(
        self, batch: dict[str, Any], request: InferRequest, executed: Tensor
    ) -> tuple[Tensor, Tensor, str]:
        """executed: as in the request, in the model's units.

        Returns the chunk [1, N, D], its updates [K, 1, N, D], and why the state was begun anew in
        the middle of a task, if it was. N is smaller than `chunk_size` where the chunk begins in
        the middle of a frame, or is the first.
        """
        now, seen = request.task_actions, self._seen(batch, request)
        state = self.states.before(request)
        frames = (now - state.at) // self._per_frame if state else 0
        missing = self._missing(state, frames, seen, executed, now)
        with RowDraws([request.seed]):
            if state is None or missing or state.frame + frames == 0:
                at, first = self._begin(seen, now, batch["task"][0])
            else:
                at, first = state.at + frames * self._per_frame, state.first
                self._enter(state, batch["task"][0])
                self._feed(state, frames, seen, executed[len(executed) - (now - state.at) :])
            frame = self._policy._frame_st_id
            actions, updates = self._infer(None if frame else first, frame)
        self.states.keep(request, self._left(at, first, actions))
        rows = torch.stack([actions.float(), *updates])[:, :, self._used]
        rows = rows[:, :, :, 1:] if frame == 0 else rows  # what was before the first observation
        rows = rows.squeeze(-1).flatten(3).transpose(2, 3)[:, :, now - at :]
        return rows[0], rows[1:], missing

    def _seen(self, batch: dict[str, Any], request: InferRequest) -> dict[int, dict[str, Tensor]]:
        """Actions executed before an observation -> its pictures, as LeRobot keeps them."""
        now, stride = request.task_actions, self.keyframe_stride
        keyframes = range((now - 1) // stride * stride, -1, -stride)
        counts = [now, *keyframes[: len(request.earlier)]]
        keys = self._policy.config.obs_cam_keys
        return {
            count: {key: batch[key][:, -1 - ago] for key in keys}
            for ago, count in enumerate(counts)
        }

    def _needed(self, state: _State, frames: int) -> list[int]:
        """Keyframes of the frames that follow a state."""
        first = state.at + self.keyframe_stride
        return list(range(first, state.at + frames * self._per_frame + 1, self.keyframe_stride))

    def _missing(
        self,
        state: _State | None,
        frames: int,
        seen: dict[int, dict[str, Tensor]],
        executed: Tensor,
        now: int,
    ) -> str:
        """Why the task cannot go on from `state`; empty where it can, or begins."""
        if state is None:
            return f"there is no state of its {now} actions" if now else ""
        most = self._policy.config.frame_chunk_size - (state.frame == 0)
        if not 0 <= frames <= most:
            return f"{now - state.at} actions were executed since its last chunk began"
        if frames and len(executed) < now - state.at:
            return f"{len(executed)} of {now - state.at} executed actions were sent"
        if not seen.keys() >= set(needed := self._needed(state, frames)):
            return f"not all of the {len(needed)} keyframes were sent"
        return ""

    def _begin(
        self, seen: dict[int, dict[str, Tensor]], now: int, prompt: str
    ) -> tuple[int, Tensor]:
        """A new state, from the newest keyframe. Returns which that is, and its latent."""
        policy = self._policy
        at = max((count for count in seen if count % self.keyframe_stride == 0), default=now)
        policy.reset()
        self._prompt(prompt)
        first: Tensor = policy._encode_frames([seen[at]])
        policy._init_streaming_cache(first)
        return at, first

    def _enter(self, state: _State, prompt: str) -> None:
        """Makes a copy of a state the policy object's."""
        policy = self._policy
        for block, cache in zip(self._blocks, state.keys_values, strict=True):
            block.attn1.attn_caches[CACHE] = {name: part.clone() for name, part in cache.items()}
        for name, carried in state.encoders.items():
            policy._frozen[name].feat_cache = list(carried)
        policy._frame_st_id, policy._init_latent = state.frame, state.first
        policy._prompt = state.prompt
        policy._prompt_embeds, policy._negative_prompt_embeds = state.embedded
        if prompt != state.prompt:  # a planner's new instruction
            self._prompt(prompt)

    def _left(self, at: int, first: Tensor, actions: Tensor) -> _State:
        """What the policy object holds now; to be entered before it computes again."""
        policy = self._policy
        return _State(
            at,
            policy._frame_st_id,
            first,
            actions,
            [block.attn1.attn_caches[CACHE] for block in self._blocks],
            {name: policy._frozen[name].feat_cache for name in ENCODERS if name in policy._frozen},
            policy._prompt,
            (policy._prompt_embeds, policy._negative_prompt_embeds),
        )

    def _prompt(self, prompt: str) -> None:
        policy = self._policy
        policy._prompt = prompt
        policy._prompt_embeds, policy._negative_prompt_embeds = policy._encode_prompt(prompt)

    def _feed(
        self,
        state: _State,
        frames: int,
        seen: dict[int, dict[str, Tensor]],
        executed: Tensor,
    ) -> None:
        """Whole frames that were observed and executed since `state`: LeRobot's own feedback.

        executed: [frames * action_per_frame or more, D], from the first one on.
        """
        policy = self._policy
        if frames == 0:
            policy.transformer.clear_pred_cache(CACHE)
            return
        skipped = int(state.frame == 0)
        fed = state.actions[:, :, : skipped + frames].clone()
        said = fed[0, self._used, skipped:, :, 0].float()
        did = executed[: frames * self._per_frame].to(said).T.unflatten(1, (frames, -1))
        differs = did.isfinite() & ((did - said).abs() > SAME)  # a constant number has no unit
        did = torch.where(differs, did, said)
        fed[0, self._used, skipped:, :, 0] = did.to(fed.dtype)
        policy._compute_kv_cache([seen[count] for count in self._needed(state, frames)], fed)

    def _infer(self, first: Tensor | None, frame: int) -> tuple[Tensor, list[Tensor]]:
        """Actions as the model makes them, and what every step of their sampler changed."""
        scheduler = self._policy._action_scheduler
        step: Callable[..., Tensor] = type(scheduler).step.__get__(scheduler)
        updates: list[Tensor] = []

        def tapped(output: Tensor, timestep: Tensor, sample: Tensor, **options: Any) -> Tensor:
            after = step(output, timestep, sample, **options)
            updates.append(after.float() - sample.float())
            return after

        scheduler.step = tapped
        try:
            actions, _ = self._policy._infer(first, frame_st_id=frame)
        finally:
            del scheduler.step
        return actions, updates


def device_bytes(device: torch.device) -> int:
    """All the memory of a device; of a CPU, the host's."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def configure(config: Any) -> None:
    config.save_predicted_video = False  # it would copy every chunk's video to the host


CODE = FamilyCode(LingbotSampler, configure=configure, largest_batch=1)
