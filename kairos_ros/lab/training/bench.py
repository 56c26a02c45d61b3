"""A policy and its simulated arms, kept between the cells that one process runs."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kairos_ros.core.fit import camera_name
from kairos_ros.engine.policies.saved_policy import policy_inputs

if TYPE_CHECKING:
    from kairos_ros.lab.training.rollout import PolicyUnderTest
    from kairos_ros.robot.adapters.sim.sim import SimAdapter

ARMS = 16
"""Arms that share a policy call; loading their scenes costs 0.3 s each, once per process."""


EPISODES = (
    "core/horizons/calibration.py",
    "core/horizons/critic.py",
    "core/horizons/policies.py",
    "engine/flow_mlp",
    "engine/policies/policy.py",
    "engine/policies/families/euler.py",
    "engine/policies/sampler.py",
    "robot/adapters/sim/metaworld_scenes.py",
    "robot/adapters/sim/sim.py",
    "robot/adapters/sim/sim_cameras.py",
    "lab/training/rollout.py",
)
"""Sources, below the package, that decide how an episode goes, besides the policy itself."""


@lru_cache(maxsize=1)
def policy_under_test(folder: str) -> "PolicyUnderTest":
    import torch

    from kairos_ros.lab.training.rollout import PolicyUnderTest

    torch.set_num_threads(1)
    return PolicyUnderTest(Path(folder))


@lru_cache(maxsize=1)
def arms(folder: str, scene: str, most: int = ARMS) -> "list[SimAdapter]":
    """At most `most` arms for `scene` that send what the policy in `folder` reads: each keeps what
    it loaded.

    Raises ConfigError where it reads cameras and they cannot be rendered here.
    """
    from kairos_ros.robot.adapters.sim.sim import SimAdapter, metaworld_body

    features = policy_inputs(folder).cameras or {}
    cameras = {camera_name(feature): size for feature, size in features.items()}
    return [
        SimAdapter(metaworld_body(proprioception=bool(cameras)), images=cameras)
        for _ in range(min(most, ARMS))
    ]
