"""What clients want of a worker, and whom to answer."""

from dataclasses import dataclass

from kairos_ros.transport.language_messages import LanguageQuestion
from kairos_ros.transport.messages import InferRequest


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A batch to infer. Equal to itself only."""

    client: bytes
    policy: str
    """Name in the worker's registry."""
    batch: int
    requests: tuple[InferRequest, ...]


@dataclass(frozen=True, slots=True, eq=False)
class QuestionJob:
    """A question to answer. Equal to itself only."""

    client: bytes
    policy: str
    """Name in the worker's registry."""
    number: int
    question: LanguageQuestion
