"""From the view of the fleet to what there is to see."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from std_msgs.msg import String

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.nodes import qos
from kairos_ros.nodes.viz.parameters import ArmEntry
from kairos_ros.nodes.viz.subscriptions import (
    JOINTS,
    Drawn,
    Source,
    Subscriptions,
    read_description,
)
from kairos_ros.robot.adapters.contract.contract_file import contract_path, read_contract
from kairos_ros.telemetry.events import CellJudged, ModeChanged, RobotReported, TaskKey
from kairos_ros.telemetry.fleet_view import FleetView, RobotView
from kairos_ros.viz.bodies import Body, MetaWorldBody, UrdfBody
from kairos_ros.viz.places import Grid, Slots
from kairos_ros.viz.scene import (
    LastTransition,
    LastVerdict,
    RobotDrawing,
    RobotPaths,
    Scene,
    Serving,
)
from kairos_ros.viz.shape import Point


class SceneBuilder:
    """Gives robots their places and looks, and tells how everything stands.

    arms: how to draw those with a URDF. Raises ConfigError for files that cannot be read.
    """

    def __init__(
        self,
        frame: str,
        grid: Grid,
        arms: Mapping[str, ArmEntry],
        names: FleetNames = ROOT,
    ) -> None:
        self.problems: dict[str, str] = {}
        """Robots that cannot be drawn, and why."""
        self._names, self._frame = names, frame
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
            topic = self._names.resolve(self._contracts[robot].arms[0].topic("robot_description"))
            yield Source(JOINTS, topic, String, qos.ANNOUNCEMENT, read_description)

    def scene(self, subscriptions: Subscriptions) -> Scene:
        now_s, view = time.monotonic(), subscriptions.view
        self._slots.update(view.robots)
        for name in (self._bodies.keys() | self.problems.keys()) - view.robots.keys():
            self._bodies.pop(name, None)
            self.problems.pop(name, None)
        serving = _serving(now_s, view)
        known = serving is not None and not serving.silent
        robots = {
            name: self._robot(now_s, robot, robot.status, subscriptions.drawn[name], known)
            for name, robot in view.robots.items()
            if robot.status is not None
        }
        return Scene(
            frame=self._frame,
            robots=robots,
            serving=serving,
            origins={
                view.frame: self._origin(view)
                for view in robots.values()
                if view.frame not in subscriptions.placed
            },
            back=self._grid.back(self._slots.size),
        )

    def _origin(self, view: RobotDrawing) -> Point:
        x, y, _ = self._grid.at(view.slot, self._slots.size)
        middle = view.body.centre if view.body else (0.0, 0.0, 0.0)
        return round(x - middle[0], 4), round(y - middle[1], 4), 0.0

    def _robot(
        self, now_s: float, view: RobotView, status: RobotReported, drawn: Drawn, known: bool
    ) -> RobotDrawing:
        """known: the serving node is not silent."""
        name, scheduled = view.name, view.scheduled if known else None
        body = self._body(status, drawn)
        entry = self._arms.get(name)
        told = {**drawn.state, **drawn.joints}
        asks = ""
        if scheduled is not None:
            asks = "queued" if scheduled.pending else "computed" if scheduled.running else ""
        return RobotDrawing(
            name=name,
            slot=self._slots.of[name],
            frame=(entry.frame if entry else "") or f"{self._names.prefix}{name}/base",
            state=status.state.text,
            instruction=status.instruction,
            round=status.round,
            horizon=status.horizon,
            buffered=status.buffered,
            stalled_s=status.stalled_s,
            tasks_done=status.tasks_done,
            tasks_succeeded=status.tasks_succeeded,
            wait_ratio=scheduled.wait_ratio if scheduled else None,
            asks=asks,
            surprise=_surprise(view),
            policy=scheduled.policy_name if scheduled else "",
            body=body,
            joint_names=tuple(told),
            joints=np.array(list(told.values())),
            chunks=_chunks(now_s, status, view, drawn, body)
            if body and status.task
            else RobotPaths(),
            judged=_judged(now_s, status, view.verdict),
            transition=_transition(now_s, status, view.transition),
            machine=view.mode,
        )

    def _body(self, status: RobotReported, drawn: Drawn) -> Body | None:
        robot = status.robot
        if robot not in self._arms:
            fits = MetaWorldBody.fits(status.state_dim, status.action_dim)
            return MetaWorldBody() if fits else None
        text = self._urdfs.get(robot, drawn.description)
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


def _chunks(
    now_s: float, status: RobotReported, view: RobotView, drawn: Drawn, body: Body
) -> RobotPaths:
    """The round that is executed, and the one after it if it has come.

    An arm that holds executes none: what was stopped is not to come any more.
    """
    execution = view.execution
    if execution is None:
        return RobotPaths()
    key = status.session, status.task
    following = drawn.paths.path((*key, execution.round + 1), body)
    if not execution.started or execution.holding:
        return RobotPaths(next=following)
    since_s = now_s - execution.at_s
    made = min(since_s * execution.control_rate_hz, float(execution.remaining))
    return RobotPaths(
        running=drawn.paths.path((*key, execution.round), body),
        done=execution.chunk_index + made,
        end=execution.chunk_index + execution.remaining,
        next=following,
    )


def _surprise(view: RobotView) -> str:
    """Of the robot's own word, which is the newest, or the serving node's, which lasts longer."""
    for told in (view.execution, view.scheduled):
        if told is not None and told.surprised:
            return f"{told.surprise_joint} {told.surprise:.1f}"
    return ""


def _judged(now_s: float, status: RobotReported, verdict: CellJudged | None) -> LastVerdict | None:
    if verdict is None or verdict.key != TaskKey(status.robot, status.session, status.task):
        return None
    return LastVerdict(verdict.safe, verdict.probability, verdict.latency_s, now_s - verdict.at_s)


def _transition(
    now_s: float, status: RobotReported, event: ModeChanged | None
) -> LastTransition | None:
    if event is None or event.key.session != status.session:
        return None
    return LastTransition(event.reason, now_s - event.at_s, told=bool(event.component))


def _serving(now_s: float, view: FleetView) -> Serving | None:
    if not view.server_heard_s:
        return None
    return Serving(
        active=view.active,
        ago_s=now_s - view.server_heard_s,
        queue=view.queue,
        chunks_per_s=view.chunks_per_s,
        scheduling=view.scheduling,
        horizon=view.horizon,
        engines=view.engines,
    )
