"""Options of the policy type `kairos`: which server, which robot, how it executes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lerobot.configs import FeatureType, PreTrainedConfig
from lerobot.optim import LRSchedulerConfig, OptimizerConfig
from lerobot.utils.constants import OBS_STATE

PROCESSORS = Path(__file__).parent / "processors"
"""What LeRobot loads in place of a checkpoint's processors, and applies its --rename_map to."""
TRAINED_ELSEWHERE = "policy type kairos is not trained; train the policy that the server serves"


@PreTrainedConfig.register_subclass("kairos")
@dataclass
class KairosConfig(PreTrainedConfig):
    """One robot of a fleet. Its features are those of the served policy, told by the server."""

    server: str = "ws://127.0.0.1:8000"
    """URL of `kairos doors`; wss:// beyond this host."""
    robot: str = ""
    """Its name in the fleet; empty: that of its token, or one that the server gives. Of several
    environments in one process, the second one is NAME_2, and so on."""
    served_policy: str = ""
    """One of the server's policies; empty: its default."""
    horizon: str = ""
    """Horizon policy, such as static:10 or confidence:t=0.4; empty: the server's."""
    synchronous: bool = False
    """Ask when all actions are executed, and wait; else ask while they are executed."""
    control_rate_hz: float = 30.0
    """Actions per second that the robot executes: --fps of lerobot-rollout."""
    picture_format: Literal["jpeg", "png"] = "jpeg"
    """png: pixels arrive as they are, in about ten times as many bytes."""
    absent_cameras: list[str] = field(default_factory=list)
    """Cameras of the served policy that the robot is without, where the policy can do without."""
    seed: int = 0
    """Of the policy's noise; every episode has another one."""
    answer_s: float = 30.0
    """An action that does not come within this time is an error."""
    max_pause_s: float = 1.0
    """Actions are not executed any more if nobody asked for one for longer than this, unless
    `synchronous`: the world has gone on. Raise it for simulators with slower steps."""
    latency_margin_s: float = 0.03
    """The next request leaves this much earlier than it has to."""

    pretrained_path: Path | None = PROCESSORS
    device: str | None = "cpu"
    push_to_hub: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("control_rate_hz", "answer_s", "max_pause_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"--policy.{name} is {getattr(self, name)}; it must be above 0")
        if self.picture_format not in ("jpeg", "png"):
            raise ValueError(f"--policy.picture_format is {self.picture_format}, not jpeg or png")
        if self.seed < 0 or self.latency_margin_s < 0:
            raise ValueError("--policy.seed and --policy.latency_margin_s must not be negative")
        if not self.server.startswith(("ws://", "wss://")):
            raise ValueError(
                f"--policy.server is {self.server!r}; it begins with ws:// or wss://, as what "
                "`kairos doors` prints when it starts"
            )

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> None:
        return None

    @property
    def reward_delta_indices(self) -> None:
        return None

    def validate_features(self) -> None:
        """Raises ValueError for what a served policy cannot read."""
        for name, feature in (self.input_features or {}).items():
            if feature.type is FeatureType.ENV:
                raise ValueError(
                    f"{name} cannot be sent: a served policy reads {OBS_STATE} and pictures; "
                    "choose another obs_type of the environment"
                )

    def get_optimizer_preset(self) -> OptimizerConfig:
        raise NotImplementedError(TRAINED_ELSEWHERE)

    def get_scheduler_preset(self) -> LRSchedulerConfig | None:
        raise NotImplementedError(TRAINED_ELSEWHERE)
