"""Trains the demo policies: demonstrations in, a LeRobot policy folder out."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.processor import PolicyProcessorPipeline
from torch import Tensor

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.flow_mlp.configuration_flow_mlp import FlowMLPConfig
from kairos_ros.engine.flow_mlp.modeling_flow_mlp import FlowMLPPolicy
from kairos_ros.engine.flow_mlp.processor_flow_mlp import make_flow_mlp_pre_post_processors
from kairos_ros.engine.policies.calibration_file import NAME as CALIBRATION
from kairos_ros.lab.training.camera.eyes import (
    EyesSettings,
    Sights,
    eyes_record,
    image_key,
    train_eyes,
)
from kairos_ros.lab.training.camera.pictures import Pictures, collect_pictures
from kairos_ros.lab.training.camera.vision import Vision
from kairos_ros.lab.training.checkpoint import RunPosition
from kairos_ros.lab.training.corrections import FleetTask, corrections, fleet_tasks, joined
from kairos_ros.lab.training.course import Course, Schedule
from kairos_ros.lab.training.dataset import ChunkDataset
from kairos_ros.lab.training.demonstrations import Demonstrations, collect, load, save
from kairos_ros.lab.training.subject import METAWORLD, instructions, subject_of, vision_of
from kairos_ros.lab.training.warm_start import begin_with, go_on_with
from kairos_ros.recording.runs.run_files import make_folder
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES

MEASURED = (
    CALIBRATION,
    "evaluation*.json",
    "README.md",
    "success_vs_horizon.png",
    "episode.png",
)
"""What `kairos calibrate` and `kairos evaluate` write beside the weights."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What defines a run; a resumed run must agree."""

    scenes: tuple[str, ...] = tuple(SCENES)
    episodes: int = 500
    """Demonstrations per scene."""
    minutes: float | None = 25.0
    """Training time, without the demonstrations; the learning rate reaches zero then."""
    steps: int | None = None
    """Training steps; exactly one of `minutes` and `steps` is set."""
    batch_size: int = 512
    learning_rate: float = 1e-3
    width: int = 512
    blocks: int = 3
    seed: int = 0
    eyes: EyesSettings | None = None
    """Of a policy that reads cameras and what the arm knows of itself; None: one that reads the
    simulator's state."""
    start: str = ""
    """Folder of a policy that reads the simulator's state: training goes on from it, whatever its
    width; with cameras, from what it knows of acting. Empty: it begins with nothing."""
    failed: str = ""
    """Dataset of `kairos bag export`: the expert takes over in its tasks (`corrections`), and what
    it does is learned beside the demonstrations. Empty: none."""

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ConfigError("set exactly one of --minutes and --steps")
        subject = subject_of(self.scenes)
        if self.eyes:
            vision_of(self.scenes)
        if self.failed and (self.eyes or subject is not METAWORLD):
            raise ConfigError(
                "--from-dataset is for policies of Meta-World that read the simulator's state"
            )

    @property
    def identity(self) -> str:
        """What a resumed run must agree with."""
        told = asdict(self)
        if not self.failed:
            del told["failed"]  # runs from before there was such a thing go on
        return json.dumps(told)


def train(
    settings: TrainSettings,
    *,
    out: Path,
    work: Path,
    device: str = "auto",
    processes: int = 2,
    save_every_s: float = 180.0,
    report: Callable[[str], None] = print,
) -> RunPosition:
    """Train and write the policy folder `out`; `work` keeps demonstrations and the resumable state.

    A rerun with the same settings continues where the last one stopped, also after Ctrl-C. For a
    run limited by steps on one CPU the result does not depend on interruptions. Every checkpoint
    also refreshes `out`, so a policy can be tried before its training ends.
    """
    device = _device(device)
    for folder in (out, work):
        make_folder(folder)
    kept = work / "corrections"
    failed = fleet_tasks(Path(settings.failed)) if settings.failed and not kept.exists() else []
    demos = collect(
        settings.scenes,
        settings.episodes,
        settings.seed,
        work / "demonstrations",
        processes,
        report,
        subject_of(settings.scenes).record,
    )
    if settings.failed:
        demos = _corrected(demos, failed, kept, report)
    torch.manual_seed(settings.seed)
    statistics = None
    if settings.start and not settings.eyes:
        policy, statistics = go_on_with(Path(settings.start), settings.scenes, device)
    else:
        policy = new_policy(settings, device)
    sights = errors = None
    if settings.eyes:
        vision = vision_of(settings.scenes)
        sights = Sights(vision, _pictures(settings, vision, work, processes, report))
        demos = {scene: vision.by_eye(d) for scene, d in demos.items()}
    data = ChunkDataset(demos, policy.config.chunk_size)
    if statistics is None and settings.start:
        statistics = begin_with(policy, Path(settings.start), settings.scenes)
    statistics = statistics or data.statistics()
    if settings.eyes and sights:
        state = {n: v.to(device) for n, v in statistics["observation.state"].items()}
        eyes = policy.model.eyes
        path = work / "eyes.safetensors"
        if not train_eyes(settings, eyes, sights, state, path, save_every_s, report):
            return RunPosition()
        errors = sights.errors(eyes, state["mean"], state["std"])
        torch.manual_seed(settings.seed)
        data.see(errors)
        eyes.requires_grad_(False)
    processors = make_flow_mlp_pre_post_processors(policy.config, statistics)

    def loss() -> Tensor:
        loss, _ = policy.forward(data.prepared(processors[0], settings.batch_size))
        return loss

    course = Course(
        policy,
        loss,
        Schedule(settings.minutes, settings.steps, settings.learning_rate, settings.seed),
        work / "run.safetensors",
        settings.identity,
    )
    course.restore()

    def saved() -> None:
        record = {
            "settings": asdict(settings),
            "steps": course.position.step,
            "training_minutes": round(course.position.elapsed_s / 60, 1),
            "device": device,
            "cpu_threads": torch.get_num_threads(),
            "demonstrations": {
                scene: {"episodes": d.episodes, "attempts": d.attempts, "steps": len(d.state)}
                for scene, d in demos.items()
            },
        }
        if errors and sights:
            record["eyes"] = eyes_record(errors, sights)
        export(policy, course.average, processors, record, out)

    report(
        f"training on {device}: {len(data.starts)} chunks of {len(settings.scenes)} tasks,"
        f" {sum(p.numel() for p in policy.parameters()) / 1e6:.1f} M parameters,"
        f" from step {course.position.step}"
    )
    if course.run("policy", save_every_s, report, saved):
        position = course.position
        report(f"trained {position.step} steps in {position.elapsed_s / 60:.1f} min: {out}")
    return course.position


def _corrected(
    demos: Mapping[str, Demonstrations],
    failed: Iterable[FleetTask],
    kept: Path,
    report: Callable[[str], None],
) -> dict[str, Demonstrations]:
    """The demonstrations, and the expert's corrections of a fleet's tasks of the same scenes; what
    the folder `kept` has is not made again."""
    if not kept.exists():
        found = corrections([task for task in failed if task.scene in demos], report)
        if not found:
            scenes = ", ".join(demos)
            raise ConfigError(f"--from-dataset has no task of {scenes} that the expert solves")
        partial = kept.with_name(f"{kept.name}.partial")
        partial.mkdir(exist_ok=True)
        for scene, shown in found.items():
            save(shown, partial / f"{scene}.npz")
        partial.rename(kept)
    more = {path.stem: load(path) for path in kept.glob("*.npz")}
    return {scene: joined(d, more[scene]) if scene in more else d for scene, d in demos.items()}


def _pictures(
    settings: TrainSettings,
    vision: Vision,
    work: Path,
    processes: int,
    report: Callable[[str], None],
) -> dict[str, list[Pictures]]:
    return collect_pictures(
        settings.scenes,
        settings.eyes.episodes if settings.eyes else 0,
        settings.seed,
        vision.cameras,
        vision.record,
        work / "pictures",
        processes,
        report,
    )


def new_policy(settings: TrainSettings, device: str) -> FlowMLPPolicy:
    """An untrained policy for the settings' scenes."""
    subject = subject_of(settings.scenes)
    vision = vision_of(settings.scenes) if settings.eyes else None
    state_dim = len(vision.own) if vision else subject.state_dim
    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (state_dim,))} | {
        image_key(name): PolicyFeature(FeatureType.VISUAL, (3, *size))
        for name, size in (vision.cameras.items() if vision else ())
    }
    action = PolicyFeature(FeatureType.ACTION, (subject.action_dim,))
    config = FlowMLPConfig(
        device=device,
        instructions=instructions(settings.scenes),
        width=settings.width,
        blocks=settings.blocks,
        predicts=subject.predicts,
        sees=len(vision.places) if vision else 0,
        crops={image_key(k): list(crop) for k, crop in vision.crops.items()} if vision else {},
        optimizer_lr=settings.learning_rate,
        license="apache-2.0",
        input_features=inputs,
        output_features={"action": action},
    )
    return FlowMLPPolicy(config).to(device)


def export(
    policy: FlowMLPPolicy,
    average: Mapping[str, Tensor],
    processors: Iterable[PolicyProcessorPipeline],
    record: Mapping[str, Any],
    out: Path,
) -> None:
    """Write the averaged weights, the config and both processors as LeRobot saves them.

    `record` (how it was trained) becomes training.json beside them. What was measured of other
    weights goes: it is not true of these, and horizons calibrated for others are refused.
    """
    partial = out.with_name(out.name + ".partial")
    averaged = FlowMLPPolicy(policy.config)
    averaged.load_state_dict(policy.state_dict() | dict(average))
    averaged.save_pretrained(partial)
    for processor in processors:
        processor.save_pretrained(partial)
    (partial / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    out.mkdir(parents=True, exist_ok=True)
    weights = "model.safetensors"
    before = (out / weights).read_bytes() if (out / weights).exists() else b""
    if before and before != (partial / weights).read_bytes():
        for old in [path for pattern in MEASURED for path in out.glob(pattern)]:
            old.unlink()
    for path in partial.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read
        path.replace(out / path.name)
    partial.rmdir()


def _device(name: str) -> str:
    """Raises ConfigError for a device that is not here."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here: {reason}") from None
    return name
