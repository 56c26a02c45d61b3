"""What the dispatcher wants done: answers to robots, batches to engines."""

from dataclasses import dataclass

from kairos_ros.serving.exchange import Answer
from kairos_ros.transport.messages import InferRequest


@dataclass(frozen=True, slots=True)
class Submit:
    """Hand these requests to the engine as one batch."""

    engine: str
    batch: int
    requests: list[InferRequest]
    expected_s: float
    history_bytes: int = 0
    """Of histories that must go with it, because other engines have them."""


Effect = Answer | Submit
