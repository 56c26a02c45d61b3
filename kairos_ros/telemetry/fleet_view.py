"""What a fleet is now, as plain data: fed with events, live or of a bag, and read by every view."""

from dataclasses import dataclass, field

from kairos_ros.core.server_status import FleetServer
from kairos_ros.core.wire_check import TEXT_BYTES, printable
from kairos_ros.telemetry.events import (
    CellJudged,
    ChunkAnswered,
    EngineReported,
    Event,
    ExecutionReported,
    FleetReported,
    Health,
    HealthReported,
    ModeChanged,
    RobotReported,
    RobotScheduled,
)

MOST_CHUNKS = 8
"""Of one robot, that are remembered."""
MOST_HEALTH = 1000
"""Lines of health; more are not kept."""


@dataclass(slots=True)
class RobotView:
    """One robot: its own status, how the scheduler sees it, and what its judges cause."""

    name: str
    status: RobotReported | None = None
    """The newest one; None before the first, and while the robot is known to be away."""
    scheduled: RobotScheduled | None = None
    """None before a serving node has named it."""
    execution: ExecutionReported | None = None
    verdict: CellJudged | None = None
    transition: ModeChanged | None = None
    """The newest one."""
    mode: str = ""
    """Of its state machine, as its last transition or its diagnostics say; empty for a robot that
    has none."""
    chunks: dict[int, ChunkAnswered] = field(default_factory=dict)
    """Newest chunks with actions of one task, by round."""

    @property
    def chunk(self) -> ChunkAnswered | None:
        """The one that is executed."""
        return self.chunks.get(self.status.round) if self.status else None

    def answer(self, chunk: ChunkAnswered) -> None:
        """Keeps a chunk; those of other tasks go."""
        if chunk.refused or (self.status and self.status.server not in ("", chunk.server)):
            return  # a robot drops the chunk of a server that it has not asked
        if any(old.key != chunk.key for old in self.chunks.values()):
            self.chunks.clear()
        self.chunks[chunk.round] = chunk
        while len(self.chunks) > MOST_CHUNKS:
            self.chunks.pop(next(iter(self.chunks)))


@dataclass(slots=True)
class FleetView:
    """Everything that robots and serving nodes have said. Times: those of the events."""

    robots: dict[str, RobotView] = field(default_factory=dict)
    engines: tuple[EngineReported, ...] = ()
    server: str = ""
    """Id of the serving node; empty before the first word from it."""
    server_heard_s: float = 0.0
    active: bool = False
    scheduling: str = ""
    horizon: str = ""
    plan: str = ""
    """That the serving node follows; empty: none."""
    staged_plan: str = ""
    """That it changes to."""
    queue: int = 0
    requests_per_s: float = 0.0
    chunks_per_s: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)
    """Refusals and faults since the serving node started."""
    health: dict[str, Health] = field(default_factory=dict)
    """By name."""
    _shown: FleetServer = field(default_factory=FleetServer, repr=False)

    def take(self, event: Event) -> None:
        """Robots come with their first status; what is said of others before it is dropped."""
        match event:
            case RobotReported():
                self._report(event)
            case FleetReported():
                self._schedule(event)
            case HealthReported():
                self._examine(event)
            case ExecutionReported():
                if robot := self.robots.get(event.robot):
                    robot.execution = event
            case CellJudged():
                if robot := self.robots.get(event.key.robot):
                    robot.verdict = event
            case ModeChanged():
                if robot := self.robots.get(event.key.robot):
                    robot.transition, robot.mode = event, printable(event.after, TEXT_BYTES)
            case ChunkAnswered():
                if robot := self.robots.get(event.key.robot):
                    robot.answer(event)

    def forget(self, before_s: float) -> None:
        """Drops the robots and the health that were last heard before that time."""
        self.robots = {
            name: robot
            for name, robot in self.robots.items()
            if robot.status is None or robot.status.at_s >= before_s
        }
        self.health = {name: one for name, one in self.health.items() if one.at_s >= before_s}

    def _report(self, status: RobotReported) -> None:
        robot = self.robots.get(status.robot)
        if robot is None or (robot.status and robot.status.session != status.session):
            robot = self.robots[status.robot] = RobotView(status.robot)
        robot.status = status

    def _schedule(self, fleet: FleetReported) -> None:
        if not self._shown.shows(fleet.server, round(fleet.at_s * 1e9), active=fleet.active):
            return
        self.server, self.server_heard_s = fleet.server, fleet.at_s
        self.active, self.queue = fleet.active, fleet.queue
        self.scheduling, self.horizon = fleet.scheduling, fleet.horizon
        self.plan, self.staged_plan = fleet.plan, fleet.staged_plan
        self.requests_per_s, self.chunks_per_s = fleet.requests_per_s, fleet.chunks_per_s
        self.counters, self.engines = dict(fleet.counters), fleet.engines
        for scheduled in fleet.robots:
            if robot := self.robots.get(scheduled.robot):
                robot.scheduled = scheduled

    def _examine(self, report: HealthReported) -> None:
        for part in report.parts:
            if part.name in self.health or len(self.health) < MOST_HEALTH:
                self.health[part.name] = part
            robot = self.robots.get(part.hardware)
            if robot and part.name == f"kairos: {robot.name}" and part.values.get("mode"):
                robot.mode = part.values["mode"]  # may be older than the first transition heard
