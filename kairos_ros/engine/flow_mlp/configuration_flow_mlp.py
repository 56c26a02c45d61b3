"""Configuration of the flow-matching MLP policy."""

from dataclasses import dataclass, field

from lerobot.configs import NormalizationMode, PreTrainedConfig
from lerobot.optim import AdamWConfig

from kairos_ros.core.errors import ConfigError

_SMALLEST_CROP_PX = 16


@PreTrainedConfig.register_subclass("flow_mlp")
@dataclass
class FlowMLPConfig(PreTrainedConfig):
    """A residual MLP that turns noise into an action chunk, given the state and the instruction,
    and, where it has cameras, what they see."""

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
    sees: int = 0
    """Values that the pictures are turned into (`eyes.py`); 0 without cameras."""
    crops: dict[str, list[int]] = field(default_factory=dict)
    """Camera feature -> top, left, height and width, in pixels, of the part that is looked at; the
    whole picture of a camera that is not here."""
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            "VISUAL": NormalizationMode.IDENTITY,
            "STATE": NormalizationMode.MEAN_STD,
            "ACTION": NormalizationMode.MEAN_STD,
        }
    )
    optimizer_lr: float = 1e-3
    push_to_hub: bool = False

    @property
    def looked_at(self) -> list[list[int]]:
        """Top, left, height and width of what is looked at, per camera."""
        return [
            self.crops.get(key, [0, 0, *feature.shape[1:]])
            for key, feature in self.image_features.items()
        ]

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
        for key, feature in self.image_features.items():
            if len(feature.shape) != 3 or feature.shape[0] != 3:
                shape = list(feature.shape)
                raise ConfigError(f"{key} has shape {shape}; a picture is [3, height, width]")
        if (self.sees > 0) != bool(self.image_features):
            raise ConfigError(
                f"flow_mlp has {len(self.image_features)} cameras and sees {self.sees} values; give"
                " both in config.json, or neither"
            )
        for key, feature in self.image_features.items():
            top, left, height, width = self.crops.get(key, [0, 0, *feature.shape[1:]])
            whole = feature.shape[1:]
            inside = min(top, left) >= 0 and top + height <= whole[0] and left + width <= whole[1]
            if not inside or min(height, width) < _SMALLEST_CROP_PX:
                raise ConfigError(
                    f"flow_mlp's crop of {key!r} is {self.crops[key]} of {whole[0]}x{whole[1]}"
                    f" pixels; give top, left, height and width inside of it, at least"
                    f" {_SMALLEST_CROP_PX} high and wide"
                )
        if self.predicts not in ("velocity", "actions"):
            raise ConfigError(f"flow_mlp predicts {self.predicts!r}; choose velocity or actions")
        if not self.instructions:
            raise ConfigError("flow_mlp needs at least one entry in 'instructions'")
        if len(set(self.instructions)) != len(self.instructions):
            raise ConfigError(f"flow_mlp's instructions repeat themselves: {self.instructions}")
