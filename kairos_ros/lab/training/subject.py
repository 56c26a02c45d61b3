"""What a policy can be trained on: tasks of one body, and who shows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.training.arm.demonstrations import record_reach
from kairos_ros.lab.training.arm.pictures import SO101_VISION
from kairos_ros.lab.training.camera.metaworld import METAWORLD_VISION
from kairos_ros.lab.training.camera.vision import Vision
from kairos_ros.lab.training.demonstrations import Record, record_scene
from kairos_ros.lab.world.reach import INSTRUCTION, state_names
from kairos_ros.robot.adapters.sim import metaworld_scenes as metaworld
from kairos_ros.robot.description.arm import ARMS


@dataclass(frozen=True, slots=True)
class Subject:
    """Tasks that share a body, so that one policy can learn them all."""

    policy: str
    """Name of the policy that ships for it."""
    scenes: Mapping[str, str]
    """Scene -> the instruction that the policy reads."""
    state_dim: int
    action_dim: int
    record: Record
    predicts: str
    """What the network tells (`FlowMLPConfig.predicts`)."""
    vision: Vision | None = None
    """Of a policy with cameras; None: none is learned for this body."""


METAWORLD = Subject(
    "metaworld_flow",
    metaworld.SCENES,
    metaworld.STATE_DIM,
    metaworld.ACTION_DIM,
    record_scene,
    "velocity",
    METAWORLD_VISION,
)
REACHING = tuple(
    Subject(
        f"{name}_reach",
        {f"{name}-reach": INSTRUCTION},
        len(state_names(arm)),
        len(arm.joints),
        record_reach,
        "actions",
        SO101_VISION if name == "so101" else None,
    )
    for name, arm in ARMS.items()
)
SUBJECTS = (METAWORLD, *REACHING)


def subject_of(scenes: Sequence[str]) -> Subject:
    """Of the body that does all these scenes. Raises ConfigError where no one body does."""
    for subject in SUBJECTS:
        if scenes and set(scenes) <= set(subject.scenes):
            return subject
    known = [scene for subject in SUBJECTS for scene in subject.scenes]
    if unknown := [scene for scene in scenes if scene not in known] or not scenes:
        raise ConfigError(f"unknown tasks {unknown}; choose from {', '.join(known)}")
    raise ConfigError(f"tasks {', '.join(scenes)} are not all done by one body; train them apart")


def vision_of(scenes: Sequence[str]) -> Vision:
    """What a policy of these scenes sees. Raises ConfigError as `subject_of`, and where cameras are
    not learned for them."""
    vision = subject_of(scenes).vision
    if vision is None:
        able = [scene for subject in SUBJECTS if subject.vision for scene in subject.scenes]
        raise ConfigError(
            f"cameras are not learned for {', '.join(scenes)}; they are for {', '.join(able)}"
        )
    return vision


def instructions(scenes: Sequence[str]) -> list[str]:
    """One per scene. Raises ConfigError as `subject_of`."""
    subject = subject_of(scenes)
    return [subject.scenes[scene] for scene in scenes]
