"""The flow-matching MLP policy: from noise to an action chunk in a few Euler steps."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from lerobot.policies.common.flow_matching import (
    euler_integrate,
    sample_noise,
    sample_time_beta,
)
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.utils.constants import ACTION, OBS_STATE
from torch import Tensor, nn

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.flow_mlp.configuration_flow_mlp import FlowMLPConfig
from kairos_ros.engine.flow_mlp.eyes import Eyes

SEEN = "observation.seen"
"""Key of a training batch, float32 [B, sees]: what the eyes would see, in place of pictures."""
_TIME_FEATURES = 64


class UnknownInstructionError(PolicyError):
    """An instruction outside the closed list that the policy was trained on."""


class FlowMLPPolicy(PreTrainedPolicy):
    """LeRobot policy around `FlowMLP`. Actions are in normalised units, as LeRobot expects."""

    config_class = FlowMLPConfig
    name = "flow_mlp"

    def __init__(self, config: FlowMLPConfig, **kwargs: Any) -> None:
        super().__init__(config)
        config.validate_features()
        self.model = FlowMLP(config)
        self._cameras = list(config.image_features)
        self._task_index = {text: i for i, text in enumerate(config.instructions)}
        self.reset()

    def get_optim_params(self) -> Any:
        return self.parameters()

    def reset(self) -> None:
        self._queue: list[Tensor] = []

    def tasks(self, instructions: Sequence[str]) -> Tensor:
        """One-hot float32 [B, T] of the instructions. Raises UnknownInstructionError."""
        for text in instructions:
            if text not in self._task_index:
                known = ", ".join(repr(t) for t in self.config.instructions)
                raise UnknownInstructionError(
                    f"instruction {text!r} is not one this policy knows; use one of {known}"
                )
        index = torch.tensor([self._task_index[text] for text in instructions])
        return F.one_hot(index, len(self._task_index)).to(self._device, torch.float32)

    @property
    def _device(self) -> torch.device:
        return self.model.read_noise.weight.device

    def _condition(self, batch: dict[str, Any]) -> Tensor:
        """What the chunk of each row depends on, [B, width]."""
        state, task = batch[OBS_STATE], self.tasks(batch["task"])
        if not self._cameras:
            return self.model.condition(state, task)
        seen = batch.get(SEEN)
        if seen is None:
            seen = self.model.eyes([batch[key] for key in self._cameras], state, task)
        return self.model.condition(torch.cat([state, seen], -1), task)

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, dict[str, float]]:
        """Flow-matching loss over the valid positions.

        `batch`: observation.state [B, S], task list[str], action [B, N, D], all normalised, and
        action_is_pad bool [B, N], True where a position is not a target. With cameras: a picture
        [B, 3, H, W] in 0..1 under each one's key, or SEEN.
        """
        actions = batch[ACTION]
        valid = ~batch["action_is_pad"]
        noise = torch.randn_like(actions)
        time = sample_time_beta(
            len(actions),
            actions.device,
            alpha=self.config.time_alpha,
            beta=1.0,
            scale=0.999,
            offset=0.001,
        )
        mix = time[:, None, None]
        condition = self._condition(batch)
        told = self.model(mix * noise + (1 - mix) * actions, time, condition)
        wanted = actions if self.model.predicts_actions else noise - actions
        error = (told - wanted).square().mean(-1)
        loss = (error * valid).sum() / valid.sum()
        return loss, {"loss": loss.item()}

    @torch.no_grad()
    def predict_action_chunk(
        self,
        batch: dict[str, Any],
        noise: Tensor | None = None,
        num_steps: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Action chunks float32 [B, N, D], normalised; rows do not depend on one another.

        `batch`: observation.state [B, S] (normalised), task list[str] of length B, and a picture
        [B, 3, H, W] in 0..1 of each camera. `noise` [B, N, D] makes it deterministic. Raises
        UnknownInstructionError.
        """
        self.eval()
        condition = self._condition(batch)
        shape = (len(condition), self.config.chunk_size, self.config.action_feature.shape[0])
        if noise is None:
            noise = sample_noise(shape, condition.device)
        return self.model.sample(condition, noise, num_steps or self.config.num_steps)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], **kwargs: Any) -> Tensor:
        """The next action of the current chunk, [B, D]; asks for a new chunk when it is used up."""
        if not self._queue:
            self._queue = list(self.predict_action_chunk(batch, **kwargs).unbind(1))
        return self._queue.pop(0)


class FlowMLP(nn.Module):
    """Velocity field over flattened chunks: a residual MLP conditioned on state, what cameras see,
    task and time."""

    def __init__(self, config: FlowMLPConfig) -> None:
        super().__init__()
        state_dim = config.robot_state_feature.shape[0]
        flat = config.chunk_size * config.action_feature.shape[0]
        width = config.width
        self.predicts_actions = config.predicts == "actions"
        self.rtc_processor = None
        """Observes sampler steps, as in LeRobot's other flow policies, by `is_debug_enabled()` and
        `track(time=, x_t=, v_t=)`, and guides them if it has `denoise_step`."""
        tasks = len(config.instructions)
        if config.sees:
            self.eyes = Eyes(config.looked_at, state_dim, tasks, config.sees)
        self.read_state = nn.Sequential(
            nn.Linear(state_dim + config.sees + tasks, width),
            nn.SiLU(),
            nn.Linear(width, width),
        )
        self.read_time = nn.Linear(_TIME_FEATURES, width)
        self.read_noise = nn.Linear(flat, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(width)
        self.write = nn.Linear(width, flat)

    def condition(self, state: Tensor, task: Tensor) -> Tensor:
        """What does not change over the sampler's steps, [B, width]; `state` ends with what cameras
        see, where there are any."""
        return self.read_state(torch.cat([state, task], -1))

    def velocity(self, x_t: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """Velocity [B, N, D] at the noisy chunk `x_t` [B, N, D] and `time` [B], 1 being noise."""
        told: Tensor = self(x_t, time, condition)
        return (x_t - told) / time[:, None, None] if self.predicts_actions else told

    def forward(self, x_t: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """What the network tells, [B, N, D]: the velocity, or the actions."""
        context = F.silu(condition + self.read_time(time_features(time)))
        hidden = self.read_noise(x_t.flatten(1)) + context
        for block in self.blocks:
            hidden = block(hidden, context)
        return self.write(F.silu(self.norm(hidden))).view_as(x_t)

    def sample(self, condition: Tensor, noise: Tensor, num_steps: int) -> Tensor:
        """Integrate from `noise` [B, N, D] at time 1 to actions at time 0."""
        return euler_integrate(
            lambda x_t, time: self.velocity(x_t, time, condition),
            noise,
            num_steps,
            rtc_processor=self.rtc_processor,
            rtc_enabled=hasattr(self.rtc_processor, "denoise_step"),
        )


class Block(nn.Module):
    """Residual block that reads the context anew."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, hidden: Tensor, context: Tensor) -> Tensor:
        return hidden + self.out(F.silu(self.mix(torch.cat([self.norm(hidden), context], -1))))


def time_features(time: Tensor) -> Tensor:
    """Sines and cosines of `time` [B] in [0, 1] at periods from 4e-3 to 4, float32 [B, 64]."""
    half = _TIME_FEATURES // 2
    period = torch.logspace(math.log10(4e-3), math.log10(4.0), half, device=time.device)
    angle = 2 * math.pi * time[:, None] / period
    return torch.cat([angle.sin(), angle.cos()], -1)
