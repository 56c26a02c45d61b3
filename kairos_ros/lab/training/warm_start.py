"""Begins training with the weights of a policy that there is.

A camera policy begins with what one that reads the simulator's state knows about acting. Both
compute the same chunks, as long as the eyes are right and nothing but the body moves: what the
camera policy cannot know, such as how fast objects move, is taken as nothing.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from lerobot.processor import NormalizerProcessorStep, PolicyProcessorPipeline
from torch import Tensor

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.flow_mlp.modeling_flow_mlp import FlowMLPPolicy
from kairos_ros.lab.training.subject import instructions, subject_of, vision_of

HARDLY_VARIES = 0.02
"""Of what the eyes tell, values with a smaller standard deviation are left out: the eyes' errors in
them would be blown up."""


@torch.no_grad()
def begin_with(
    policy: FlowMLPPolicy, folder: Path, scenes: Sequence[str]
) -> dict[str, dict[str, Tensor]]:
    """Gives `policy`, which has cameras, all other weights of the state policy in `folder`.

    Returns the statistics that its normalisers need. Raises ConfigError where the policies' sizes
    differ or `folder` does not know an instruction.
    """
    known = _known(folder)
    ours, theirs = policy.config, known.config
    for name in ("chunk_size", "width", "blocks", "predicts"):
        if getattr(ours, name) != getattr(theirs, name):
            raise ConfigError(
                f"--start {folder} has {name} {getattr(theirs, name)}, and this policy has"
                f" {getattr(ours, name)}; train them alike"
            )
    _check_knows(known, folder, scenes)
    vision, state_dim = vision_of(scenes), subject_of(scenes).state_dim
    own, places = list(vision.own), list(vision.places)
    unseen = sorted(set(range(state_dim)) - set(own) - set(places))
    statistics = _statistics(folder)
    mean, std = statistics["observation.state"]["mean"], statistics["observation.state"]["std"]
    old = known.model.state_dict()
    weight, bias = old.pop("read_state.0.weight"), old.pop("read_state.0.bias").clone()
    of_state = weight[:, :state_dim]
    bias -= of_state[:, unseen] @ (mean[unseen] / std[unseen])  # as where these are 0
    offset, unit = (torch.from_numpy(values) for values in vision.units())
    seen = of_state[:, places] / std[places]
    seen[:, std[places] < HARDLY_VARIES] = 0.0
    bias += seen @ (offset - mean[places])
    tasks = [state_dim + theirs.instructions.index(text) for text in ours.instructions]
    columns = [of_state[:, own], seen * unit, weight[:, tasks]]
    new = old | {"read_state.0.weight": torch.cat(columns, 1), "read_state.0.bias": bias}
    eyes = {n: v for n, v in policy.model.state_dict().items() if n.startswith("eyes.")}
    policy.model.load_state_dict(eyes | new)
    kept = {"mean": mean[own], "std": std[own]}
    return {"observation.state": kept, "action": statistics["action"]}


def go_on_with(
    folder: Path, scenes: Sequence[str], device: str
) -> tuple[FlowMLPPolicy, dict[str, dict[str, Tensor]]]:
    """The policy in `folder`, to be trained further, and the statistics of its normalisers.

    Raises ConfigError where it is none, reads cameras, or does not know an instruction.
    """
    policy = _known(folder)
    _check_knows(policy, folder, scenes)
    policy.config.device = device
    return policy.to(device), _statistics(folder)


def _check_knows(policy: FlowMLPPolicy, folder: Path, scenes: Sequence[str]) -> None:
    config, subject = policy.config, subject_of(scenes)
    if config.image_features or config.robot_state_feature.shape != (subject.state_dim,):
        raise ConfigError(
            f"--start {folder} does not read the {subject.state_dim} values of these tasks' state"
            " and nothing else"
        )
    if unknown := [text for text in instructions(scenes) if text not in config.instructions]:
        raise ConfigError(f"--start {folder} does not know the instructions {unknown}")


def _known(folder: Path) -> FlowMLPPolicy:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} holds no policy (config.json); give --start a folder")
    return FlowMLPPolicy.from_pretrained(str(folder))


def _statistics(folder: Path) -> dict[str, dict[str, Tensor]]:
    pipeline = PolicyProcessorPipeline.from_pretrained(
        str(folder), config_filename="policy_preprocessor.json"
    )
    step = next(s for s in pipeline.steps if isinstance(s, NormalizerProcessorStep))
    return {
        key: {name: torch.as_tensor(values).float() for name, values in of.items()}
        for key, of in step.stats.items()
    }
