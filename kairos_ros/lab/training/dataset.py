"""Demonstrations of all scenes as one LeRobot-style training set with its statistics."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kairos_ros.engine.flow_mlp.modeling_flow_mlp import SEEN
from kairos_ros.lab.training.demonstrations import Demonstrations
from kairos_ros.lab.training.subject import instructions

SMALLEST_STD = 1e-3
"""Values that never change in the demonstrations must not be blown up by normalisation."""
SHORTEST_TARGET = 4
"""Starts with fewer valid positions than this teach next to nothing and are left out."""

ERRORS = 1024
"""Of the eyes in each scene, from which batches draw."""


class ChunkDataset:
    """Draws (state, task, action chunk, padding) batches."""

    def __init__(self, demos: Mapping[str, Demonstrations], chunk_size: int) -> None:
        self.instructions = instructions(list(demos))
        self.state = torch.from_numpy(np.concatenate([d.state for d in demos.values()]))
        self.action = torch.from_numpy(np.concatenate([d.action for d in demos.values()]))
        self.follows = torch.from_numpy(np.concatenate([d.follows for d in demos.values()]))
        lengths = torch.tensor([len(d.state) for d in demos.values()])
        self.task = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        self.starts = torch.nonzero(self.follows >= SHORTEST_TARGET)[:, 0]
        self._ahead = torch.arange(chunk_size)
        seen = [d.seen for d in demos.values() if d.seen is not None]
        self._seen = torch.from_numpy(np.concatenate(seen)) if seen else None
        self._errors: Tensor | None = None

    def see(self, errors: Mapping[str, Tensor]) -> None:
        """From now on, what batches hold in place of pictures is as wrong as eyes are.

        errors: scene -> float32 [T, S], drawn at random.
        """
        each = [e[torch.randint(len(e), (ERRORS,))] for e in errors.values()]
        self._errors = torch.stack(each)

    def prepared(self, preprocess: Callable[[dict[str, Any]], dict[str, Any]], size: int) -> Any:
        """A batch as `FlowMLPPolicy.forward` wants it, normalised."""
        batch = self.batch(size)
        seen = batch.pop(SEEN, None)
        ready = preprocess(batch)
        return ready if seen is None else ready | {SEEN: seen.to(ready["action"].device)}

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Mean and standard deviation per feature, as LeRobot's normalisers read them."""
        return {
            "observation.state": _mean_std(self.state),
            "action": _mean_std(self.action),
        }

    def batch(self, size: int) -> dict[str, Any]:
        """A random training batch (torch's global generator), not normalised; LeRobot's keys."""
        start = self.starts[torch.randint(len(self.starts), (size,))]
        index = (start[:, None] + self._ahead).clamp(max=len(self.action) - 1)
        seen: dict[str, Tensor] = {}
        if self._seen is not None and self._errors is not None:
            wrong = self._errors[self.task[start], torch.randint(ERRORS, (size,))]
            seen = {SEEN: self._seen[start] + wrong}
        return seen | {
            "observation.state": self.state[start],
            "action": self.action[index],
            "action_is_pad": self._ahead >= self.follows[start, None],
            "task": [self.instructions[i] for i in self.task[start].tolist()],
        }


def _mean_std(values: Tensor) -> dict[str, Tensor]:
    return {"mean": values.mean(0), "std": values.std(0).clamp(min=SMALLEST_STD)}
