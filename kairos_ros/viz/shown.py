"""What of a layer has to be sent now: what changed, what is due again, what has to go."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from kairos_ros.viz.shape import Shape

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Changes:
    """Of one layer since the last call."""

    draw: tuple[Shape, ...]
    delete: tuple[Shape, ...]
    """As they were last drawn."""


class Shown:
    """Remembers what is on the screen of whoever watches a layer.

    again_s: a shape that has not changed is sent again after so long, because viewers drop what
    they do not hear of (markers have a lifetime, so that nothing stays when this node dies).
    """

    def __init__(self, again_s: float) -> None:
        self._again_s = again_s
        self._shown: dict[Key, tuple[Shape, float]] = {}

    def send_all(self) -> None:
        """Somebody new watches: everything is sent with the next call, and what has to go from the
        screens of others is told them, too."""
        self._shown = {key: (shape, -inf) for key, (shape, _) in self._shown.items()}

    def update(self, shapes: Sequence[Shape], now_s: float) -> Changes:
        """Raises ValueError where two shapes have the same key: one of them would never be seen."""
        wanted = {shape.key: shape for shape in shapes}
        if len(wanted) < len(shapes):
            keys = [shape.key for shape in shapes]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"two shapes are called {twice}")
        gone = [key for key in self._shown if key not in wanted]
        deleted = tuple(self._shown.pop(key)[0] for key in gone)
        due = []
        for key, shape in wanted.items():
            before = self._shown.get(key)
            if before is None or before[0] != shape or now_s - before[1] >= self._again_s:
                self._shown[key] = shape, now_s
                due.append(shape)
        return Changes(tuple(due), deleted)
