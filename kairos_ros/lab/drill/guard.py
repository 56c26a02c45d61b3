"""What the guard of the drill's robots makes of an action, worked out again after the fact."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.drill.proof.evidence import Guard
from kairos_ros.nodes.robot.parameters import guard_limits
from kairos_ros.robot.adapters.sim.metaworld_scenes import ACTION_DIM, STATE_DIM
from kairos_ros.robot.guard import ActionGuard

_NOTHING: Mapping[str, Any] = {
    "guard.minimum": (),
    "guard.maximum": (),
    "guard.max_rate": (),
    "guard.measured_by": (),
    "guard.tolerance": 0.0,
    "guard.workspace.action": (),
    "guard.workspace.state": (),
    "guard.workspace.scale": 1.0,
    "guard.workspace.low": (),
    "guard.workspace.high": (),
}


def guard_of(params_file: Path) -> Guard:
    """The guard of a robot with these parameters. Raises ConfigError for limits with a memory."""
    given = yaml.safe_load(params_file.read_text())["/**"]["ros__parameters"]
    limits = guard_limits({**_NOTHING, **given})
    if len(limits.max_rate):
        raise ConfigError(
            f"{params_file} sets guard.max_rate, so that what an action becomes depends on the one "
            "before it; the drill cannot check that. Take it out for the drill"
        )
    guard = ActionGuard(limits, ACTION_DIM, STATE_DIM, given["control_rate_hz"])

    def passed(action: np.ndarray, state: np.ndarray) -> np.ndarray | None:
        return guard.check(action, lambda: state)

    return passed
