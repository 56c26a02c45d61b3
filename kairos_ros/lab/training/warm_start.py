"""Begins training with the weights of a policy that there is.

A camera policy begins with what one that reads the simulator's state knows about acting. Both
compute the same chunks, as long as the eyes are right and nothing but the hand moves: what the
camera policy cannot know, how fast objects move, is taken as nothing.
"""

from pathlib import Path

import torch
from lerobot.processor import NormalizerProcessorStep, PolicyProcessorPipeline
from torch import Tensor

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.flow_mlp.modeling_flow_mlp import FlowMLPPolicy
from kairos_ros.lab.training.eyes import units
from kairos_ros.robot.adapters.sim.metaworld_scenes import (
    HAND_ENTRIES,
    PLACES_ENTRIES,
    STATE_DIM,
)

HARDLY_VARIES = 0.02
"""Of what the eyes tell, values with a smaller standard deviation are left out: the eyes' errors in
them would be blown up."""
UNSEEN = sorted(set(range(STATE_DIM)) - set(HAND_ENTRIES) - set(PLACES_ENTRIES))
"""Of the state: how fast objects move, and what no scene has."""


@torch.no_grad()
def begin_with(policy: FlowMLPPolicy, folder: Path) -> dict[str, dict[str, Tensor]]:
    """Gives `policy`, which has cameras, all other weights of the state policy in `folder`.

    Returns the statistics that its normalisers need. Raises ConfigError where the policies' sizes
    differ or `folder` does not know an instruction.
    """
    known = _known(policy, folder)
    ours, theirs = policy.config, known.config
    if theirs.image_features or theirs.robot_state_feature.shape != (STATE_DIM,):
        raise ConfigError(f"--start {folder} does not read Meta-World's state and nothing else")
    unknown = [text for text in ours.instructions if text not in theirs.instructions]
    if unknown:
        raise ConfigError(f"--start {folder} does not know the instructions {unknown}")
    statistics = _statistics(folder)
    mean, std = statistics["observation.state"]["mean"], statistics["observation.state"]["std"]
    old = known.model.state_dict()
    weight, bias = old.pop("read_state.0.weight"), old.pop("read_state.0.bias").clone()
    of_state = weight[:, :STATE_DIM]
    bias -= of_state[:, UNSEEN] @ (mean[UNSEEN] / std[UNSEEN])  # as where these are 0
    offset, unit = units()
    seen = of_state[:, PLACES_ENTRIES] / std[PLACES_ENTRIES]
    seen[:, std[PLACES_ENTRIES] < HARDLY_VARIES] = 0.0
    bias += seen @ (offset - mean[PLACES_ENTRIES])
    tasks = [STATE_DIM + theirs.instructions.index(text) for text in ours.instructions]
    columns = [of_state[:, HAND_ENTRIES], seen * unit, weight[:, tasks]]
    new = old | {"read_state.0.weight": torch.cat(columns, 1), "read_state.0.bias": bias}
    eyes = {n: v for n, v in policy.model.state_dict().items() if n.startswith("eyes.")}
    policy.model.load_state_dict(eyes | new)
    hand = {"mean": mean[HAND_ENTRIES], "std": std[HAND_ENTRIES]}
    return {"observation.state": hand, "action": statistics["action"]}


def go_on_with(policy: FlowMLPPolicy, folder: Path) -> dict[str, dict[str, Tensor]]:
    """Gives `policy`, which reads the simulator's state, the weights of the one in `folder`.

    Returns the statistics of that one's normalisers. Raises ConfigError where they differ in sizes
    or instructions.
    """
    known = _known(policy, folder)
    if known.config.instructions != policy.config.instructions or known.config.image_features:
        raise ConfigError(
            f"--start {folder} knows the instructions {known.config.instructions}, and this policy "
            f"{policy.config.instructions}; choose the same --tasks, of a policy without cameras"
        )
    policy.model.load_state_dict(known.model.state_dict())
    return _statistics(folder)


def _known(policy: FlowMLPPolicy, folder: Path) -> FlowMLPPolicy:
    """The policy in `folder`. Raises ConfigError where it is none, or of other sizes."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} holds no policy (config.json); give --start a folder")
    known = FlowMLPPolicy.from_pretrained(str(folder))
    for name in ("chunk_size", "width", "blocks", "predicts"):
        mine, its = getattr(policy.config, name), getattr(known.config, name)
        if mine != its:
            raise ConfigError(
                f"--start {folder} has {name} {its}, and this policy has {mine}; train them alike"
            )
    return known


def _statistics(folder: Path) -> dict[str, dict[str, Tensor]]:
    pipeline = PolicyProcessorPipeline.from_pretrained(
        str(folder), config_filename="policy_preprocessor.json"
    )
    step = next(s for s in pipeline.steps if isinstance(s, NormalizerProcessorStep))
    return {
        key: {name: torch.as_tensor(values).float() for name, values in of.items()}
        for key, of in step.stats.items()
    }
