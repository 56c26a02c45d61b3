"""What the generate-execute loop needs of a robot's body, in hardware or simulation."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from kairos_ros.core.exchange import Observation
from kairos_ros.robot.guard import GuardLimits


@dataclass(frozen=True, slots=True)
class RobotSpec:
    """What a robot senses and accepts."""

    state_dim: int
    """Length of the state vector given to the policy."""
    action_dim: int
    control_rate_hz: float
    images: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Camera key -> (height_px, width_px)."""
    state_names: tuple[str, ...] = ()
    """One per entry of the state, for people and bags; empty: state_0, state_1, ..."""


@dataclass(frozen=True, slots=True)
class TaskGoal:
    """What to do: the instruction as the policy reads it, and the scene a simulator shall build."""

    instruction: str
    scene: str = ""
    """Simulated scene, for example a Meta-World task name; ignored by real robots."""
    seed: int = 0
    """Seed of the simulated scene; ignored by real robots."""


@runtime_checkable
class RobotAdapter(Protocol):
    """A robot's body. Called from one thread only, at the control rate.

    `act` and `hold` each consume one control period of simulated time; neither blocks for longer
    than a small part of a real one. `hold` keeps the arm where it is and may be called for ever.
    """

    @property
    def spec(self) -> RobotSpec: ...

    def reset(self, goal: TaskGoal) -> None:
        """Prepare the body for a new task. May take seconds.

        Raises ConfigError for a goal it cannot do.
        """

    def observe(self) -> Observation: ...

    def state(self) -> np.ndarray:
        """The state of `observe` alone, float32 [state_dim]: cheap enough for every period."""

    def act(self, action: np.ndarray) -> None:
        """Execute one action, float32 [action_dim], already checked by the action guard."""

    def hold(self) -> None: ...

    def succeeded(self) -> bool | None:
        """Whether the task is done, where the body can tell (a simulator does), else None."""

    def close(self) -> None: ...


@runtime_checkable
class Homing(Protocol):
    """What a body offers besides `RobotAdapter` if it knows a safe state and the way there."""

    has_safe_state: bool
    """False where the body, as it is configured, has none."""

    def toward_safe_state(self) -> np.ndarray | None:
        """The next action on the way to the safe state, float32 [action_dim]; None once there.

        It goes through the action guard and `act`, one per control period, and may be given up
        after any of them.
        """


@runtime_checkable
class Limited(Protocol):
    """What a body offers besides `RobotAdapter` if it knows how far and how fast it may move."""

    limits: GuardLimits
    """The action guard enforces them; parameters `guard.*` can only tighten them."""


@runtime_checkable
class Jointed(Protocol):
    """What a body offers besides `RobotAdapter` if it knows the joints of its description."""

    joint_names: tuple[str, ...]
    """As in the URDF; empty where the body, as it is configured, has no known description."""

    def joint_positions(self) -> np.ndarray | None:
        """float64 [joints], rad or m, as its sensors tell; None while they do not.

        Also before the first `reset` and after a fault. It reads and does nothing else: what it
        does not find is no fault, and nothing moves or is let go.
        """


@runtime_checkable
class Tolerating(Protocol):
    """What a body offers besides `RobotAdapter` if it lives with failures that may pass."""

    tolerated: Counter[str]
    """How many so far, by reason."""
