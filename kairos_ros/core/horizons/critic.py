"""Horizons by what the robot sees: the risk that executing more of a chunk adds to the task.

A critic is a small network that has learned from success and failure alone. It reads the robot's
state, the chunk in a few bins, and how far the chunk departs from the previous one. It was trained
on tasks in which every round had a horizon drawn at random (`kairos calibrate --critic`), so the
risk that it learned of a horizon is an effect of that horizon.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.policies import Floats, Horizon, HorizonContext, tail_distance

BINS = 10
"""Of actions: their means stand for the chunk."""
NEAR = 10
"""Actions over which the distance to the previous chunk's tail is averaged."""
CLIP = 5.0
"""Standard deviations: what lies further out counts as so far out."""

Array = NDArray[np.float32]


def features(chunk: Floats, context: HorizonContext, offset: Floats) -> Array:
    """What a critic reads, float32 [S + bins · D + 2]: the state, the means of the chunk's bins,
    whether there is a tail of the previous chunk, and how far it is on average.

    chunk: [N, D]. context.state: [S]. offset: [D], chunk units at normalised zero; not used where
    the chunk is normalised (no `scale`). Raises PolicyError for a tail or scale that does not fit.
    """
    chunk = np.asarray(chunk)
    normalised = chunk if context.scale is None else (chunk - offset) / context.scale
    starts = np.linspace(0, len(chunk), min(BINS, len(chunk)), endpoint=False).astype(int)
    sizes = np.diff(starts, append=len(chunk))
    means = np.add.reduceat(normalised, starts, axis=0) / sizes[:, None]
    tail = [0.0, 0.0]
    if context.tail is not None and len(context.tail):
        tail = [1.0, float(tail_distance(chunk[:NEAR], context.tail, context.scale).mean())]
    state = np.zeros(0) if context.state is None else np.ravel(context.state)
    return np.concatenate([state, means.ravel(), tail], dtype=np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Critic:
    """Learned risks of a task's horizons. Raises ConfigError for parts that do not fit."""

    horizons: tuple[int, ...]
    """Actions, ascending. The risk of a longer one is what it adds to that of the first."""
    allowed: float
    """Risk, a probability, up to which a horizon is executed."""
    offset: Array
    """[D], see `features`."""
    mean: Array
    spread: Array
    """[F] each, of the features: what it was trained on."""
    layers: tuple[tuple[Array, Array], ...]
    """Weights [members, inputs, outputs] and biases [members, 1, outputs] of several networks,
    which are averaged; the last ones have an output for every horizon but the first."""

    def __post_init__(self) -> None:
        if len(self.horizons) < 2 or any(a >= b for a, b in pairwise((0, *self.horizons))):
            raise ConfigError(f"critic: two or more ascending horizons, not {self.horizons}")
        if not 0 <= self.allowed < 1:
            raise ConfigError(f"critic: allowed is a risk in [0, 1), not {self.allowed}")
        widths = [self.mean.size]
        for weights, biases in self.layers:
            if (
                weights.ndim != 3
                or weights.shape[1] != widths[-1]
                or biases.shape != (weights.shape[0], 1, weights.shape[2])
            ):
                raise ConfigError(
                    f"critic: weights of shape {weights.shape} and biases of shape {biases.shape} "
                    f"do not fit {widths[-1]} inputs"
                )
            widths.append(weights.shape[2])
        fits = self.offset.ndim == 1 and self.spread.shape == self.mean.shape
        if not fits or self.state_dim < 1:
            raise ConfigError(
                f"critic: features of shape {self.mean.shape} and {self.spread.shape}, and actions "
                f"of shape {self.offset.shape}"
            )
        if not self.layers or widths[-1] != len(self.horizons) - 1:
            raise ConfigError(
                f"critic: {widths[-1]} outputs, not one for each of the {len(self.horizons) - 1} "
                "horizons after the first"
            )
        every = [self.offset, self.mean, self.spread, *(x for pair in self.layers for x in pair)]
        if not all(np.isfinite(x).all() for x in every) or not (self.spread > 0).all():
            raise ConfigError("critic: its numbers must be finite, and spreads above 0")
        largest = CLIP
        for weights, biases in self.layers:
            inputs = np.abs(weights).sum(axis=1, dtype=np.float64).max()
            largest = largest * float(inputs) + float(np.abs(biases).max())
        if largest > float(np.finfo(np.float32).max):
            raise ConfigError("critic: its weights are so large that risks would be no numbers")

    @property
    def state_dim(self) -> int:
        """Entries of the state that it reads."""
        return self.mean.size - 2 - BINS * self.offset.size

    def risks(self, seen: Array) -> NDArray[np.float64]:
        """Probability that a horizon fails the task where the first one would not, for each
        horizon, ascending from 0. seen: `features`, [F]."""
        x: Array = np.clip((seen - self.mean) / self.spread, -CLIP, CLIP)[None, None]
        for weights, biases in self.layers[:-1]:
            x = np.maximum(x @ weights + biases, 0)
        weights, biases = self.layers[-1]
        steps = np.logaddexp(0.0, (x @ weights + biases).astype(np.float64)).mean(axis=0)[0]
        risks: NDArray[np.float64] = -np.expm1(-np.concatenate([[0.0], steps.cumsum()]))
        return risks

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` reads it back. Arrays are base64 of little-endian float32."""
        return {
            "horizons": list(self.horizons),
            "allowed": self.allowed,
            "offset": self.offset.tolist(),
            "mean": packed(self.mean),
            "spread": packed(self.spread),
            "layers": [
                {"shape": list(w.shape), "weights": packed(w), "biases": packed(b)}
                for w, b in self.layers
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Critic":
        """Reads what `to_dict` wrote. Raises ConfigError, KeyError, TypeError or ValueError for
        anything else."""
        layers = []
        for layer in data["layers"]:
            members, inputs, outputs = map(int, layer["shape"])
            weights = unpacked(layer["weights"]).reshape(members, inputs, outputs)
            layers.append((weights, unpacked(layer["biases"]).reshape(members, 1, outputs)))
        return cls(
            horizons=tuple(map(int, data["horizons"])),
            allowed=float(data["allowed"]),
            offset=np.array(data["offset"], np.float32),
            mean=unpacked(data["mean"]),
            spread=unpacked(data["spread"]),
            layers=tuple(layers),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ByRisk:
    """Executes the longest horizon whose risk is allowed; `careful` actions where the critic cannot
    judge: no state, one of another size, or numbers that are not finite. A HorizonPolicy; reads no
    updates."""

    critic: Critic
    careful: int
    """Actions; the task's tuned static horizon."""

    def __call__(self, updates: Floats, chunk: Floats, context: HorizonContext) -> Horizon:
        critic, n = self.critic, len(chunk)
        seen = None if (why := self._unusable(context)) else features(chunk, context, critic.offset)
        if seen is None or not np.isfinite(seen).all():
            why = why or "chunk or tail not finite"
            confidence = (np.arange(n) < self.careful).astype(np.float32)
            reason = f"tuned horizon of {self.careful} actions, no risk known: {why}"
            return Horizon(self.careful, confidence, reason)
        risks = critic.risks(seen)
        at = int(np.searchsorted(risks, critic.allowed, side="right")) - 1
        length = critic.horizons[at]
        added = np.interp(np.arange(1, n + 1), (0, *critic.horizons), (0.0, *risks))
        reason = f"risk {risks[at]:.2g} of {length} actions, {critic.allowed:.2g} allowed"
        return Horizon(length, (1.0 - added).astype(np.float32), reason)

    def _unusable(self, context: HorizonContext) -> str:
        """Why the state cannot be judged; empty: it can."""
        if context.state is None:
            return "no state"
        if np.shape(context.state) != (self.critic.state_dim,):
            return f"state of shape {np.shape(context.state)}, not ({self.critic.state_dim},)"
        return "" if np.isfinite(context.state).all() else "state not finite"


def packed(array: Array) -> str:
    """Base64 of little-endian float32."""
    return base64.b64encode(array.astype("<f4").tobytes()).decode()


def unpacked(text: str) -> Array:
    """float32 [n]. Raises ValueError for text that is no such array."""
    flat: Array = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    return flat
