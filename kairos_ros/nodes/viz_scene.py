"""From what was heard to what there is to see."""

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from std_msgs.msg import String

from kairos_ros.core.errors import ConfigError
from kairos_ros.msg import FleetState, RobotState
from kairos_ros.nodes import qos
from kairos_ros.nodes.viz_ears import (
    JOINTS,
    Ears,
    Heard,
    Source,
    hear_description,
)
from kairos_ros.nodes.viz_parameters import ArmEntry
from kairos_ros.robot.contract_file import contract_path, read_contract
from kairos_ros.viz.bodies import Body, MetaWorldBody, UrdfBody
from kairos_ros.viz.places import Grid, Slots
from kairos_ros.viz.scene import (
    STATES,
    Chunks,
    EngineView,
    Judged,
    RobotView,
    Scene,
    Serving,
    Transition,
)
from kairos_ros.viz.shape import Point


class Stage:
    """Gives robots their places and looks, and tells how everything stands.

    arms: how to draw those with a URDF. Raises ConfigError for files that cannot be read.
    """

    def __init__(self, frame: str, grid: Grid, arms: Mapping[str, ArmEntry]) -> None:
        self.problems: dict[str, str] = {}
        """Robots that cannot be drawn, and why."""
        self._frame = frame
        self._grid = grid
        self._arms = arms
        self._contracts = {
            robot: read_contract(contract_path(entry.contract)) for robot, entry in arms.items()
        }
        self._urdfs = {
            robot: _text(Path(entry.urdf).expanduser())
            for robot, entry in arms.items()
            if entry.urdf
        }
        self._slots = Slots()
        self._bodies: dict[str, tuple[str, Body | None]] = {}  # by URDF

    def sources(self, robot: str) -> Iterable[Source]:
        """Topics beyond those of every robot node."""
        entry = self._arms.get(robot)
        if entry is not None and not entry.urdf:
            topic = self._contracts[robot].arms[0].topic("robot_description")
            yield Source(JOINTS, topic, String, qos.ANNOUNCEMENT, hear_description)

    def scene(self, ears: Ears) -> Scene:
        now_ns = time.monotonic_ns()
        self._slots.update(ears.robots)
        for robot in (self._bodies.keys() | self.problems.keys()) - ears.robots.keys():
            self._bodies.pop(robot, None)
            self.problems.pop(robot, None)
        serving = _serving(now_ns, ears.fleet, ears.fleet_ns) if ears.fleet else None
        known = ears.fleet.robots if serving and not serving.silent else ()
        scheduled = {one.robot: one for one in known}
        robots = {
            name: self._robot(now_ns, name, heard, scheduled.get(name))
            for name, heard in ears.robots.items()
        }
        return Scene(
            frame=self._frame,
            robots=robots,
            serving=serving,
            origins={
                view.frame: self._origin(view)
                for view in robots.values()
                if view.frame not in ears.placed
            },
            back=self._grid.back(self._slots.size),
        )

    def _origin(self, view: RobotView) -> Point:
        x, y, _ = self._grid.at(view.slot, self._slots.size)
        middle = view.body.centre if view.body else (0.0, 0.0, 0.0)
        return round(x - middle[0], 4), round(y - middle[1], 4), 0.0

    def _robot(
        self, now_ns: int, name: str, heard: Heard, scheduled: RobotState | None
    ) -> RobotView:
        status = heard.status
        body = self._body(name, heard)
        entry = self._arms.get(name)
        asks = ""
        if scheduled is not None:
            asks = "queued" if scheduled.pending else "computed" if scheduled.running else ""
        return RobotView(
            name=name,
            slot=self._slots.of[name],
            frame=(entry.frame if entry else "") or f"{name}/base",
            state=STATES[status.state] if status.state < len(STATES) else "unknown",
            instruction=status.instruction,
            round=status.round,
            horizon=status.horizon,
            buffered=status.buffered,
            stalled_s=status.stalled_s,
            tasks_done=status.tasks_done,
            tasks_succeeded=status.tasks_succeeded,
            wait_ratio=scheduled.wait_ratio if scheduled else None,
            asks=asks,
            body=body,
            joint_names=heard.joint_names,
            joints=heard.joints,
            chunks=_chunks(now_ns, heard, body) if body and status.task else Chunks(),
            judged=_judged(now_ns, heard),
            transition=_transition(now_ns, heard),
            machine=heard.mode,
        )

    def _body(self, robot: str, heard: Heard) -> Body | None:
        if robot not in self._arms:
            fits = MetaWorldBody.fits(heard.status.state_dim, heard.status.action_dim)
            return MetaWorldBody() if fits else None
        text = self._urdfs.get(robot, heard.description)
        if not text:
            return None
        known = self._bodies.get(robot)
        if known is None or known[0] != text:
            known = self._bodies[robot] = text, self._made(robot, text)
        return known[1]

    def _made(self, robot: str, urdf: str) -> Body | None:
        entry = self._arms[robot]
        zone = (entry.zone.low, entry.zone.high) if entry.zone else None
        self.problems.pop(robot, None)
        try:
            return UrdfBody.from_urdf(urdf, entry.tips, self._contracts[robot].joints, zone)
        except ConfigError as error:
            self.problems[robot] = str(error)
            return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"the URDF {path} cannot be read: {error.strerror}") from error


def _chunks(now_ns: int, heard: Heard, body: Body) -> Chunks:
    """The round that is executed, and the one after it if it has come.

    An arm that holds executes none: what was stopped is not to come any more.
    """
    status, execution = heard.status, heard.execution
    key = status.session, status.task
    round, left = execution.round, execution.actions_remaining
    following = heard.book.path((*key, round + 1), body)
    if not execution.started or execution.holding:
        return Chunks(next=following)
    since_s = (now_ns - heard.execution_ns) / 1e9
    return Chunks(
        running=heard.book.path((*key, round), body),
        done=execution.chunk_index + min(since_s * execution.control_rate_hz, float(left)),
        end=execution.chunk_index + left,
        next=following,
    )


def _judged(now_ns: int, heard: Heard) -> Judged | None:
    verdict, status = heard.verdict, heard.status
    if verdict is None or (verdict.session, verdict.task) != (status.session, status.task):
        return None
    ago_s = (now_ns - heard.verdict_ns) / 1e9
    return Judged(verdict.safe, verdict.probability, verdict.latency_s, ago_s)


def _transition(now_ns: int, heard: Heard) -> Transition | None:
    event = heard.event
    if event is None or event.session != heard.status.session:
        return None
    ago_s = (now_ns - heard.event_ns) / 1e9
    return Transition(event.reason, ago_s, told=bool(event.component))


def _serving(now_ns: int, fleet: FleetState, heard_ns: int) -> Serving:
    return Serving(
        active=fleet.active,
        ago_s=(now_ns - heard_ns) / 1e9,
        queue=fleet.queue_length,
        chunks_per_s=fleet.chunks_per_s,
        scheduling=fleet.scheduling,
        horizon=fleet.horizon,
        engines=tuple(
            EngineView(
                engine.engine,
                engine.tier,
                engine.state,
                engine.load if math.isfinite(engine.load) else 0.0,
                engine.batch_size,
                engine.max_batch,
                engine.rtt_s,
            )
            for engine in fleet.engines
        ),
    )
