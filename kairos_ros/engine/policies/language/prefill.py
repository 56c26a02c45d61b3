"""The keys and values that a policy computed of its observations, taken where it denoises on them.

Nothing is computed for it: the steps of the sampler are handed the prefill anyway, and they copy it
before they change it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Prefill:
    """Of one batch of observations: what the language model of the policy saw."""

    keys: tuple[Tensor, ...]
    """[B, heads, P, dim] for every layer, with rotary positions applied."""
    values: tuple[Tensor, ...]
    """As `keys`."""
    valid: Tensor
    """bool [B, P]: which of its positions are no padding."""


class PrefillTap:
    """A context in which a batch is denoised: the model's prefill of it can be taken then. Outside
    it the model is as it was, compiled steps included."""

    def __init__(self, model: Any) -> None:
        """model: of LeRobot's pi0 or pi05, whose `denoise_step` takes the prefill by name."""
        self._model = model
        self._step: Callable[..., Any] = model.denoise_step
        self._prefill: Prefill | None = None

    def take(self) -> Prefill:
        """That of the newest batch, once: it is large."""
        prefill, self._prefill = self._prefill, None
        assert prefill is not None, "nothing was denoised"
        return prefill

    def __enter__(self) -> "PrefillTap":
        self._prefill = None
        self._step = self._model.denoise_step
        self._model.denoise_step = self._listen
        return self

    def __exit__(self, *_: object) -> None:
        self._model.denoise_step = self._step

    def _listen(self, **given: Any) -> Any:
        if self._prefill is None:
            layers = list(given["past_key_values"])
            self._prefill = Prefill(
                tuple(layer[0] for layer in layers),
                tuple(layer[1] for layer in layers),
                given["prefix_pad_masks"],
            )
        return self._step(**given)
