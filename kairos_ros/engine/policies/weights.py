"""Are the weights in memory the weights in the file? LeRobot does not always say when not.

pi0's and pi05's `from_pretrained` swallow every loading error and return random weights.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from kairos_ros.core.errors import PolicyError

_SHOWN = 5

Renaming = Callable[[dict[str, Any]], dict[str, Any]]


def verify_weights(policy: nn.Module, file: Path, renamed: Renaming | None = None) -> None:
    """Compares every parameter and buffer of the loaded policy with the file, value by value.

    `renamed`: what LeRobot does to the weights of the file, by name, before it loads them.

    Raises PolicyError for missing or unexpected names, other shapes, other values, or values that
    are not finite. A parameter that shares its memory with a saved one (tied weights) is saved.
    """
    state = policy.state_dict()
    try:
        with safe_open(file, framework="pt") as saved:
            source = _source_names(policy, saved.offset_keys(), renamed)
            unexpected = source.keys() - state.keys()
            if unexpected:
                raise PolicyError(
                    f"{file} holds weights that the policy lacks: {_some(unexpected)}"
                )
            _refuse_missing(state, source, file)
            for name, key in source.items():
                tensor = saved.get_tensor(key)
                _compare(name, state[name], tensor.T if key.transposed else tensor, file)
    except (SafetensorError, OSError) as error:
        raise PolicyError(f"{file} cannot be read: {error}") from error


class _Name(str):
    """A saved name in the place of its tensor, so that LeRobot's own renaming can be replayed."""

    __slots__ = ("transposed",)
    transposed: bool

    def __new__(cls, name: str, transposed: bool = False) -> "_Name":
        made = super().__new__(cls, name)
        made.transposed = transposed
        return made

    def clone(self) -> "_Name":
        return self

    def contiguous(self) -> "_Name":
        return self

    def transpose(self, _first: int, _second: int) -> "_Name":
        return _Name(self, not self.transposed)


def _source_names(
    policy: nn.Module, saved: list[str], renamed: Renaming | None
) -> dict[str, _Name]:
    """Name in the policy -> name in the file, renamed as the policy's `from_pretrained` does."""
    names = {name: _Name(name) for name in saved}
    if renamed is not None:
        return renamed(names)
    rename = getattr(policy, "_fix_pytorch_state_dict_keys", None)  # pi0 and pi05
    if rename is None:
        return names
    return {
        name if name.startswith("model.") else f"model.{name}": key
        for name, key in rename(names, policy.config).items()
    }


def _refuse_missing(state: dict[str, torch.Tensor], source: dict[str, _Name], file: Path) -> None:
    saved_memory = {_memory(state[name]) for name in source}
    missing = [
        name
        for name, tensor in state.items()
        if name not in source and _memory(tensor) not in saved_memory
    ]
    if missing:
        raise PolicyError(
            f"{file} lacks weights of the policy, which would start at random: {_some(missing)}"
        )


def _memory(tensor: torch.Tensor) -> tuple[int, torch.Size]:
    return tensor.data_ptr(), tensor.shape


def _compare(name: str, loaded: torch.Tensor, saved: torch.Tensor, file: Path) -> None:
    if loaded.shape != saved.shape:
        raise PolicyError(
            f"{name} is {list(loaded.shape)} in the policy but {list(saved.shape)} in {file}"
        )
    if not torch.isfinite(saved).all():
        raise PolicyError(f"{name} in {file} is not finite")
    if not torch.equal(loaded.cpu(), saved.to(loaded.dtype)):
        raise PolicyError(f"{name} was not loaded from {file}: its values in memory differ")


def _some(names: Iterable[str]) -> str:
    names = sorted(names)
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
