"""Trains the demo policy: demonstrations in, a LeRobot policy folder out."""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.processor import PolicyProcessorPipeline
from torch import Tensor

from kairos_ros.core.errors import ConfigError
from kairos_ros.engine.flow_mlp.configuration_flow_mlp import FlowMLPConfig
from kairos_ros.engine.flow_mlp.modeling_flow_mlp import FlowMLPPolicy
from kairos_ros.engine.flow_mlp.processor_flow_mlp import make_flow_mlp_pre_post_processors
from kairos_ros.lab.training.checkpoint import RunPosition, load_run, save_run
from kairos_ros.lab.training.dataset import ChunkDataset
from kairos_ros.lab.training.demonstrations import Demonstrations, collect
from kairos_ros.lab.training.subject import instructions, subject_of
from kairos_ros.recording.runs.run_files import make_folder
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.serving.calibration_file import NAME as CALIBRATION

WARM_UP_STEPS = 300
AVERAGE_DECAY = 0.9995
REPORT_EVERY_STEPS = 200
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

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ConfigError("set exactly one of --minutes and --steps")
        subject_of(self.scenes)


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
    demos = collect(
        settings.scenes,
        settings.episodes,
        settings.seed,
        work / "demonstrations",
        processes,
        report,
        subject_of(settings.scenes).record,
    )
    run = _Run(settings, demos, device, work / "run.safetensors", out)
    run.restore()
    report(
        f"training on {run.device}: {len(run.data.starts)} chunks of {len(settings.scenes)} tasks,"
        f" {sum(p.numel() for p in run.policy.parameters()) / 1e6:.1f} M parameters,"
        f" from step {run.position.step}"
    )
    saved = time.monotonic()
    try:
        while (done := run.fraction_done()) < 1.0:
            run.step(done)
            if run.position.step % REPORT_EVERY_STEPS == 0:
                report(
                    f"step {run.position.step}  {done:.0%}  loss {run.smooth_loss:.4f}"
                    f"  {run.position.elapsed_s / 60:.1f} min"
                )
            if time.monotonic() - saved > save_every_s:
                run.save()
                saved = time.monotonic()
    except KeyboardInterrupt:
        run.save()
        report(f"stopped at step {run.position.step}; run the same command again to continue")
        return run.position
    run.save()
    report(f"trained {run.position.step} steps in {run.position.elapsed_s / 60:.1f} min: {out}")
    return run.position


def new_policy(settings: TrainSettings, device: str) -> FlowMLPPolicy:
    """An untrained policy for the settings' scenes."""
    subject = subject_of(settings.scenes)
    state = PolicyFeature(FeatureType.STATE, (subject.state_dim,))
    action = PolicyFeature(FeatureType.ACTION, (subject.action_dim,))
    config = FlowMLPConfig(
        device=device,
        instructions=instructions(settings.scenes),
        width=settings.width,
        blocks=settings.blocks,
        predicts=subject.predicts,
        optimizer_lr=settings.learning_rate,
        license="apache-2.0",
        input_features={"observation.state": state},
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
    averaged.load_state_dict(dict(average))
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


class _Run:
    """A training in progress."""

    def __init__(
        self,
        settings: TrainSettings,
        demos: Mapping[str, Demonstrations],
        device: str,
        state: Path,
        out: Path,
    ) -> None:
        torch.manual_seed(settings.seed)
        self.settings, self.device = settings, device
        self.policy = new_policy(settings, device)
        self.data = ChunkDataset(demos, self.policy.config.chunk_size)
        self.position = RunPosition()
        self.smooth_loss = math.nan
        self._processors = make_flow_mlp_pre_post_processors(
            self.policy.config, self.data.statistics()
        )
        self._optimizer = torch.optim.AdamW(
            self.policy.get_optim_params(), settings.learning_rate, weight_decay=1e-4, fused=True
        )
        self._parameters = [p.detach() for p in self.policy.parameters()]
        self._average = {n: p.detach().clone() for n, p in self.policy.named_parameters()}
        self._state, self._out = state, out
        self._identity = json.dumps(asdict(settings))
        self._resumed_at = time.monotonic()
        self._demonstrations = {
            scene: {"episodes": d.episodes, "attempts": d.attempts, "steps": len(d.state)}
            for scene, d in demos.items()
        }

    def restore(self) -> None:
        self.position = load_run(
            self._state, self.policy, self._average, self._optimizer, self._identity
        )
        self._resumed_at = time.monotonic() - self.position.elapsed_s

    def save(self) -> None:
        """The resumable state, and the policy as it is so far."""
        save_run(
            self._state, self.policy, self._average, self._optimizer, self.position, self._identity
        )
        record = {
            "settings": asdict(self.settings),
            "steps": self.position.step,
            "training_minutes": round(self.position.elapsed_s / 60, 1),
            "device": self.device,
            "cpu_threads": torch.get_num_threads(),
            "demonstrations": self._demonstrations,
        }
        export(self.policy, self._average, self._processors, record, self._out)

    def fraction_done(self) -> float:
        if self.settings.steps is not None:
            return self.position.step / self.settings.steps
        minutes = cast(float, self.settings.minutes)  # without steps there are some
        return self.position.elapsed_s / (60.0 * minutes)

    def step(self, done: float) -> None:
        """One optimizer step; what is random in it follows from the seed and the step's number."""
        settings, at = self.settings, self.position.step
        torch.manual_seed(settings.seed * 1_000_003 + at)
        batch = self._processors[0](self.data.batch(settings.batch_size))
        warm_up = min(1.0, (at + 1) / WARM_UP_STEPS)
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * warm_up * 0.5 * (1 + math.cos(math.pi * done))
        loss, _ = self.policy.forward(batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self._optimizer.step()
        decay = min(AVERAGE_DECAY, (1 + at) / (10 + at))
        torch._foreach_lerp_(list(self._average.values()), self._parameters, 1 - decay)
        value = loss.item()
        first = math.isnan(self.smooth_loss)  # of this run, which may have been resumed
        self.smooth_loss = value if first else 0.98 * self.smooth_loss + 0.02 * value
        self.position = RunPosition(at + 1, time.monotonic() - self._resumed_at)


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
