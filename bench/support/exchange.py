"""How a virtual robot talks to a server, whichever server it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kairos_ros.core.exchange import Answer, Request

Images = Mapping[str, Any]
"""Camera key -> JPEG bytes or uint8 [height, width, 3], as the exchange sends them."""


@dataclass(frozen=True, slots=True)
class Received:
    answer: Answer
    now_ns: int
    """Arrival, on the machine's monotonic clock."""


class Exchange(Protocol):
    """The connections of all virtual robots of one process. Used from one thread."""

    def open(self, robot: str) -> str:
        """Connects a robot and returns its session."""
        ...

    def ready(self, robot: str) -> bool:
        """Whether a server would hear it now."""
        ...

    def send(self, robot: str, request: Request, state: np.ndarray, images: Images) -> None: ...

    def poll(self) -> list[Received]:
        """What has arrived since the last call."""
        ...

    def wait(self, timeout_s: float) -> list[Received]:
        """Waits for at least one answer; empty after `timeout_s`."""
        ...

    def close(self, robot: str) -> None: ...
