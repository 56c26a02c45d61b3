"""Configuration of the flow-matching MLP policy."""

from dataclasses import dataclass, field

from lerobot.configs import NormalizationMode, PreTrainedConfig
from lerobot.optim import AdamWConfig

from kairos_ros.core.errors import ConfigError


@PreTrainedConfig.register_subclass("flow_mlp")
@dataclass
class FlowMLPConfig(PreTrainedConfig):
    """A residual MLP that turns noise into an action chunk, given the state and the instruction."""

    instructions: list[str] = field(default_factory=list)
    """The closed list of instructions it was trained on, one input each; others are refused."""
    chunk_size: int = 50
    num_steps: int = 10
    """Euler steps from noise to actions."""
    width: int = 512
    blocks: int = 3
    predicts: str = "velocity"
    """What the network tells: `velocity`, for which it must carry all of the noise, or `actions`,
    the chunk itself, which a network narrower than its chunks can carry."""
    time_alpha: float = 1.5
    """Training times are Beta(time_alpha, 1), times one being noise (openpi's convention)."""
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            "STATE": NormalizationMode.MEAN_STD,
            "ACTION": NormalizationMode.MEAN_STD,
        }
    )
    optimizer_lr: float = 1e-3
    push_to_hub: bool = False

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> list[int]:
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> None:
        return None

    def get_optimizer_preset(self) -> AdamWConfig:
        return AdamWConfig(lr=self.optimizer_lr, weight_decay=1e-4)

    def get_scheduler_preset(self) -> None:
        return None

    def validate_features(self) -> None:
        """Raises ConfigError where the model could not be built."""
        if self.robot_state_feature is None or self.action_feature is None:
            raise ConfigError(
                "flow_mlp needs the features 'observation.state' and 'action' in config.json"
            )
        if self.predicts not in ("velocity", "actions"):
            raise ConfigError(f"flow_mlp predicts {self.predicts!r}; choose velocity or actions")
        if not self.instructions:
            raise ConfigError("flow_mlp needs at least one entry in 'instructions'")
        if len(set(self.instructions)) != len(self.instructions):
            raise ConfigError(f"flow_mlp's instructions repeat themselves: {self.instructions}")
