"""One training in progress: a model, its loss, and how far it got."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from kairos_ros.lab.training.checkpoint import RunPosition, load_run, save_run

AVERAGE_DECAY = 0.9995
REPORT_EVERY_STEPS = 200


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long it takes and how fast it learns."""

    minutes: float | None
    """Of training; the learning rate reaches zero then."""
    steps: int | None
    """Exactly one of `minutes` and `steps` is set."""
    learning_rate: float
    seed: int
    warm_up_steps: int = 300


class Course:
    """Trains the parameters of `model` that require gradients by AdamW, and averages them.

    `loss` draws a batch; whatever it draws from torch's global generator follows from the seed and
    the step's number. `state` is the resumable file, `identity` says whose settings it has.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[], Tensor],
        schedule: Schedule,
        state: Path,
        identity: str,
    ) -> None:
        self._model, self._loss, self._schedule = model, loss, schedule
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._parameters = [p.detach() for _, p in named]
        self.average = {name: parameter.detach().clone() for name, parameter in named}
        self._optimizer = torch.optim.AdamW(
            [p for _, p in named], schedule.learning_rate, weight_decay=1e-4, fused=True
        )
        self._state, self._identity = state, identity
        self.position = RunPosition()
        self._smooth_loss = math.nan
        self._resumed_at = time.monotonic()

    def restore(self) -> None:
        """Raises ConfigError where the file belongs to other settings."""
        self.position = load_run(
            self._state, self._model, self.average, self._optimizer, self._identity
        )
        self._resumed_at = time.monotonic() - self.position.elapsed_s

    def save(self) -> None:
        save_run(
            self._state,
            self._model,
            self.average,
            self._optimizer,
            self.position,
            self._identity,
        )

    def run(
        self,
        name: str,
        save_every_s: float,
        report: Callable[[str], None],
        saved: Callable[[], None] = lambda: None,
    ) -> bool:
        """To the end, saving meanwhile and, at each save, calling `saved`; False after Ctrl-C."""
        at = time.monotonic()
        try:
            while (done := self._fraction_done()) < 1.0:
                self._step(done)
                if self.position.step % REPORT_EVERY_STEPS == 0:
                    report(
                        f"{name}: step {self.position.step}  {done:.0%}"
                        f"  loss {self._smooth_loss:.4f}  {self.position.elapsed_s / 60:.1f} min"
                    )
                if time.monotonic() - at > save_every_s:
                    self.save()
                    saved()
                    at = time.monotonic()
        except KeyboardInterrupt:
            self.save()
            saved()
            report(f"stopped at step {self.position.step}; run the same command again to continue")
            return False
        self.save()
        saved()
        return True

    def _fraction_done(self) -> float:
        steps, minutes = self._schedule.steps, self._schedule.minutes
        if steps is not None:
            return self.position.step / steps
        assert minutes is not None  # one of both is set
        return self.position.elapsed_s / (60.0 * minutes)

    def _step(self, done: float) -> None:
        schedule, at = self._schedule, self.position.step
        torch.manual_seed(schedule.seed * 1_000_003 + at)
        warm_up = min(1.0, (at + 1) / schedule.warm_up_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = schedule.learning_rate * warm_up * 0.5 * (1 + math.cos(math.pi * done))
        loss = self._loss()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(
            [p for group in self._optimizer.param_groups for p in group["params"]], 1.0
        )
        self._optimizer.step()
        decay = min(AVERAGE_DECAY, (1 + at) / (10 + at))
        torch._foreach_lerp_(list(self.average.values()), self._parameters, 1 - decay)
        value = loss.item()
        first = math.isnan(self._smooth_loss)  # of this run, which may have been resumed
        self._smooth_loss = value if first else 0.98 * self._smooth_loss + 0.02 * value
        self.position = RunPosition(at + 1, time.monotonic() - self._resumed_at)


def identity(settings: dict[str, object]) -> str:
    """Of the settings of a run: what a resumed one must agree with."""
    return json.dumps(settings)
