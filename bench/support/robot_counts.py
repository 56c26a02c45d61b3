"""What virtual robots count, as their process tells it."""

from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class Window:
    """What a process of robots did in a stretch of time."""

    acted: int = 0
    held: int = 0
    round_trip_ms: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)
    """How late control periods began: whether the client could keep up."""
    cloud: int = 0
    """Chunks that came from an engine in the cloud."""


@dataclass(slots=True)
class Totals:
    """What happened to the rounds of a robot since `start`."""

    requests: int = 0
    """Rounds, and newer observations of the same round."""
    rounds: int = 0
    actions: int = 0
    """Rounds answered by actions."""
    refused: int = 0
    refetched: int = 0
    """Answers that asked for a newer observation of the round."""
    repeated: int = 0
    """Answers to rounds that had been answered, or to those of an earlier task."""
    wrong: int = 0
    """Answers for another robot, session or round, or made from another robot's observation."""
    unanswered: int = 0
    """Rounds without actions or refusal some seconds after the last request."""
    abandoned: int = 0
    """Rounds that the robot itself gave up: it stood still for too long, on a busy machine."""
    silences: int = 0
    """Requests that were sent again because nothing had come for seconds."""

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(**{key: n + getattr(other, key) for key, n in asdict(self).items()})


@dataclass(frozen=True, slots=True)
class Report:
    """Of a process of robots that come and go."""

    window: Window
    totals: Totals
    """Of all that ever ran here; those that run still count no round as unanswered."""
    robots: int
