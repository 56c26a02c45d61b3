"""A training run's state on disk: resumable, written atomically, in safetensors (no pickle)."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from kairos_ros.core.errors import ConfigError

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class RunPosition:
    """How far a run got."""

    step: int = 0
    elapsed_s: float = 0.0


def save_run(
    path: Path,
    model: nn.Module,
    average: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    position: RunPosition,
    settings: str,
) -> None:
    """Write weights, their average, Adam's moments, the position, and whose settings these are."""
    tensors = {f"average/{name}": value for name, value in average.items()}
    for name, parameter in _trained(model):
        tensors[f"model/{name}"] = parameter.detach()
        for moment in _MOMENTS:
            tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment]
    partial = path.with_suffix(".partial")
    metadata = {
        "step": str(position.step),
        "elapsed_s": repr(position.elapsed_s),
        "settings": settings,
    }
    save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, partial, metadata)
    partial.replace(path)


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]


def load_run(
    path: Path,
    model: nn.Module,
    average: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    settings: str,
) -> RunPosition:
    """Restore in place what `save_run` wrote; a fresh position where there is no file.

    Raises ConfigError when the file belongs to other settings.
    """
    if not path.exists():
        return RunPosition()
    with safe_open(path, "pt") as run:
        metadata = run.metadata()
        if metadata["settings"] != settings:
            raise ConfigError(
                f"{path} belongs to a run with other settings ({metadata['settings']}); delete it"
                " to start over, or choose another --work folder"
            )
        step = int(metadata["step"])
        for name, parameter in _trained(model):
            with torch.no_grad():
                parameter.copy_(run.get_tensor(f"model/{name}"))
            average[name].copy_(run.get_tensor(f"average/{name}"))
            optimizer.state[parameter] = {
                "step": torch.tensor(float(step), device=parameter.device),
                **{m: run.get_tensor(f"{m}/{name}").to(parameter.device) for m in _MOMENTS},
            }
    return RunPosition(step, float(metadata["elapsed_s"]))
