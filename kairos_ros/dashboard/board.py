"""What the page shows, as plain data: written by the watch, drawn by the page."""

from dataclasses import dataclass, field

SILENT_AFTER_S = 3.0
"""Who is unheard for this long is shown as lost, its health as stale: all nodes speak each second.
Older pictures are not shown."""


@dataclass(slots=True)
class RobotCard:
    """One robot: its own status, and how the scheduler sees it. Times are `time.monotonic`."""

    name: str
    session: str = ""
    """Of the process that speaks: nothing of one before it is shown."""
    activity: str = "starting"
    """idle, running, holding or gone."""
    mode: str = ""
    """Of its state machine; empty for a robot without a pipeline."""
    instruction: str = ""
    round: int = 0
    horizon: int = 0
    buffered_s: float = 0.0
    """Actions left in the buffer, as time at the control rate."""
    stalled_s: float = 0.0
    """In this task."""
    tasks_done: int = 0
    tasks_succeeded: int = 0
    dropped: int = 0
    guarded: int = 0
    wait_ratio: float = 0.0
    """Share of the task's life spent waiting for compute, 0..1."""
    waits: str = ""
    """`in an engine`, `queued` or empty."""
    reason: str = ""
    """Of the last decision about this robot."""
    horizon_reason: str = ""
    event: str = ""
    """What its state machine did last, and why."""
    event_at_s: float = 0.0
    cameras: tuple[str, ...] = ()
    heard_at_s: float = 0.0

    def state(self, now_s: float) -> str:
        """In one word."""
        if self.activity == "gone" or now_s - self.heard_at_s > SILENT_AFTER_S:
            return "lost"
        if self.mode and self.mode not in ("running", "holding"):
            return self.mode.replace("_", " ")
        return self.activity


@dataclass(frozen=True, slots=True)
class EngineRow:
    name: str
    tier: str
    state: str
    policy: str
    load: float
    batch: int
    max_batch: int
    requests: int
    restarts: int
    rtt_s: float
    error: str


@dataclass(frozen=True, slots=True)
class Health:
    """One diagnostic status."""

    name: str
    level: str
    """ok, warn, error or stale."""
    message: str
    heard_at_s: float


@dataclass(slots=True)
class Board:
    """Everything."""

    robots: dict[str, RobotCard] = field(default_factory=dict)
    engines: tuple[EngineRow, ...] = ()
    health: dict[str, Health] = field(default_factory=dict)
    server: str = ""
    """Id of the serving node; empty before the first word from it."""
    server_heard_at_s: float = 0.0
    active: bool = False
    scheduling: str = ""
    horizon: str = ""
    queue: int = 0
    requests_per_s: float = 0.0
    chunks_per_s: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    """Refusals and faults since start."""
