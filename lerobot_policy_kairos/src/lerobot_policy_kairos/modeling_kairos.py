"""The policy type `kairos`: LeRobot's scripts ask it, it asks a serving node."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies.pretrained import PreTrainedPolicy
from numpy.typing import NDArray
from torch import Tensor

from lerobot_policy_kairos.configuration_kairos import TRAINED_ELSEWHERE, KairosConfig
from lerobot_policy_kairos.features import (
    Seen,
    check_features,
    input_features,
    instructions_of,
    output_features,
    seen_of,
)
from lerobot_policy_kairos.leftover import LeftOver
from lerobot_policy_kairos.remote_robot import RemoteRobot

LOG = logging.getLogger(__name__)
TOKEN = "KAIROS_TOKEN"
"""Environment variable: the robot's token, as in the file of --tokens; of several environments in
one process the tokens of all, separated by commas."""

Begin = Callable[[RemoteRobot, Seen, str], None]
Step = Callable[[RemoteRobot], NDArray[np.float32] | None]


class KairosPolicy(PreTrainedPolicy):
    """Has no weights. Every row of a batch is a robot of the fleet, with a connection of its own.

    Raises ConnectionError where there is no server, or it refuses the robot; ValueError where the
    served policy does not fit the robot; RuntimeError where no action comes.
    """

    config_class = KairosConfig
    name = "kairos"

    def __init__(self, config: KairosConfig, **_: Any) -> None:
        """Connects, and takes over the features of the served policy."""
        super().__init__(config)
        config.validate_features()
        self.config: KairosConfig = config
        self._asking = threading.Lock()
        """Held while actions are awaited: LeRobot's engine for real-time chunking asks in a thread
        of its own, and resets in another."""
        self._resets = 0
        self.robots: list[RemoteRobot] = []
        """One for each row of a batch so far."""
        self._connect(1)
        self._policy = self.robots[0].served_policy()
        given_in, given_out = config.input_features or {}, config.output_features or {}
        check_features(self._policy, given_in, given_out)
        config.input_features = input_features(self._policy, given_in)
        config.output_features = output_features(self._policy)
        self.reset()

    @classmethod
    def from_pretrained(
        cls,
        pretrained_name_or_path: str | Path,
        *,
        config: PreTrainedConfig | None = None,
        **kwargs: Any,
    ) -> Self:
        """There are no weights to load: the configuration says it all."""
        if config is None:
            config = PreTrainedConfig.from_pretrained(pretrained_name_or_path)
        policy = cls(config)
        policy.eval()
        return policy

    def reset(self) -> None:
        """An episode begins: what was asked before is not executed any more. Whoever still waits
        for it, in another thread, gets a RuntimeError."""
        self._resets += 1
        with self._asking:
            for robot in self.robots:
                robot.end_task()

    def supports_rtc(self) -> bool:
        """lerobot-rollout may run it with --inference.type=rtc."""
        return True

    def init_rtc_processor(self) -> None:
        """LeRobot has set `config.rtc_config`. Raises ValueError for what would not be executed as
        it is served."""
        if not self.config.rtc_config.enabled:
            raise ValueError(
                "--inference.rtc.enabled=false would execute chunks late, after those before them; "
                "use --inference.type=sync, which asks in time by itself"
            )
        LOG.info(
            "the server guides chunks if it runs with rtc (docs/rtc.md); prefix_attention_schedule "
            "and max_guidance_weight of --inference.rtc are those of the server"
        )

    @torch.no_grad()
    def select_action(self, batch: dict[str, Tensor], **_: Any) -> Tensor:
        """The next action of every row, float32 [B, action_dim], in the robot's units.

        Waits while a row has none; its arm holds, or its simulator stands still.
        """
        rows = self._each(
            batch,
            lambda robot, seen, task: robot.begin(seen, task, self._policy),
            RemoteRobot.step,
        )
        return torch.from_numpy(np.stack(rows)).to(self.config.device)

    @torch.no_grad()
    def predict_action_chunk(
        self,
        batch: dict[str, Tensor],
        inference_delay: int | None = None,
        prev_chunk_left_over: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """A chunk from this observation for every row, float32 [B, H, action_dim], as long as the
        shortest of the served ones. Index 0 belongs to the moment of the observation.

        inference_delay: of LeRobot's engine for real-time chunking, as in `LeftOver`; None: the
        caller does not say what it executes.
        """
        told = None
        if inference_delay is not None:
            left = prev_chunk_left_over
            told = LeftOver(None if left is None else left.cpu().numpy(), inference_delay)
        rows = self._each(
            batch,
            lambda robot, seen, task: robot.begin_chunk(seen, task, self._policy, told),
            RemoteRobot.step_chunk,
        )
        shortest = min(map(len, rows))
        return torch.from_numpy(np.stack([row[:shortest] for row in rows])).to(self.config.device)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any] | None]:
        raise NotImplementedError(TRAINED_ELSEWHERE)

    def get_optim_params(self) -> dict[str, Any]:
        raise NotImplementedError(TRAINED_ELSEWHERE)

    def close(self) -> None:
        """The robots leave the fleet, as they do when the process ends."""
        for robot in self.robots:
            robot.close()
        self.robots = []

    def _save_pretrained(self, save_directory: Path, **_: Any) -> None:
        self.config._save_pretrained(save_directory)

    def _each(self, batch: dict[str, Any], begin: Begin, step: Step) -> list[NDArray[np.float32]]:
        """What every row answers; all of them are asked before one is waited for."""
        seen = seen_of(batch, self._policy)
        tasks = instructions_of(batch, len(seen))
        with self._asking:
            resets = self._resets
            self._connect(len(seen))
            robots = self.robots[: len(seen)]
            for robot, shown, task in zip(robots, seen, tasks, strict=True):
                begin(robot, shown, task)
            found: list[NDArray[np.float32] | None] = [None] * len(robots)
            while True:
                for row, robot in enumerate(robots):
                    if found[row] is None:
                        found[row] = step(robot)
                if self._resets != resets:
                    raise RuntimeError("the policy was reset while an action was awaited")
                waiting = [robot for robot, done in zip(robots, found, strict=True) if done is None]
                if not waiting:
                    return [done for done in found if done is not None]
                waiting[0].wait()

    def _connect(self, rows: int) -> None:
        """A robot for every row."""
        tokens = [t.strip() for t in os.environ.get(TOKEN, "").split(",") if t.strip()]
        while len(self.robots) < rows:
            n = len(self.robots)
            if tokens and n >= len(tokens):
                raise ValueError(
                    f"{rows} environments need {rows} tokens in {TOKEN}, separated by commas; it "
                    f"has {len(tokens)}"
                )
            name = self.config.robot
            if name and n:
                name = f"{name}_{n + 1}"
            token = tokens[n] if tokens else ""
            self.robots.append(RemoteRobot(self.config, name, token, n))
