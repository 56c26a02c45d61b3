"""What is known about the running fleet, as plain data: written by the driver, read by the view."""

from collections import deque
from dataclasses import dataclass, field

from kairos_ros.demo.tiers import ServedChunk
from kairos_ros.evaluation.run import Activity

MOST_CHUNKS = 8
"""Of one robot, that are remembered."""


@dataclass(slots=True)
class LiveRobot:
    """One robot: its own status, and how the scheduler sees it."""

    activity: Activity | None = None
    """None before its first status."""
    task: str = ""
    round: int = 0
    horizon: int = 0
    buffered_s: float = 0.0
    """Actions left in the buffer, as time at the control rate."""
    stalled_s: float = 0.0
    """In this task."""
    wait_ratio: float = 0.0
    horizon_reason: str = ""
    done: int = 0
    succeeded: int = 0
    pending: bool = False
    running: bool = False
    chunks: dict[int, ServedChunk] = field(default_factory=dict)
    """Newest chunks of the running task by round, where it is watched where they come from."""

    @property
    def served(self) -> ServedChunk | None:
        """The chunk that is executed."""
        return self.chunks.get(self.round)

    def serve(self, chunk: ServedChunk) -> None:
        """A chunk has come."""
        if any(old.task != chunk.task for old in self.chunks.values()):
            self.chunks.clear()
        self.chunks[chunk.round] = chunk
        while len(self.chunks) > MOST_CHUNKS:
            self.chunks.pop(next(iter(self.chunks)))


@dataclass(frozen=True, slots=True)
class LiveEngine:
    name: str
    tier: str
    state: str
    batch: int
    max_batch: int
    load: float
    batches: int
    restarts: int
    error: str
    rtt_s: float = 0.0
    """Of the link to it, as the next three; all 0 for an engine of the serving node's own host."""
    mbps: float = 0.0
    in_flight: int = 0
    """Batches sent and not answered."""
    request_bytes: float = 0.0

    @property
    def remote(self) -> bool:
        return self.tier == "cloud"


@dataclass(slots=True)
class LiveFleet:
    """Everything the view shows."""

    robots: dict[str, LiveRobot]
    engines: tuple[LiveEngine, ...] = ()
    server: str = ""
    active: bool = False
    scheduling: str = ""
    horizon: str = ""
    queue: int = 0
    requests_per_s: float = 0.0
    chunks_per_s: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    decisions: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=5))
    """(robot, reason) of the newest decisions, newest last."""
    link: str = ""
    """What the emulated link to the cloud does now; empty without one."""
    tasks_waiting: int = 0
    left_s: float = 0.0
    phase: str = ""
    """What goes on, for people: "comparing 2/4: baseline"."""
    notices: list[str] = field(default_factory=list)
    """What went wrong so far."""

    @property
    def done(self) -> int:
        return sum(robot.done for robot in self.robots.values())

    @property
    def succeeded(self) -> int:
        return sum(robot.succeeded for robot in self.robots.values())

    def doing(self, activity: Activity) -> int:
        return sum(robot.activity == activity for robot in self.robots.values())
