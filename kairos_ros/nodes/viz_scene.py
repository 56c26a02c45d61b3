"""From what was heard to what there is to see."""

import math
import time
from collections.abc import Iterable, Mapping

from sensor_msgs.msg import JointState
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
    hear_joints,
)
from kairos_ros.nodes.viz_parameters import ArmEntry
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

    arms: how to draw those with a URDF.
    """

    def __init__(self, frame: str, grid: Grid, arms: Mapping[str, ArmEntry]) -> None:
        self.problems: dict[str, str] = {}
        """Robots that cannot be drawn, and why."""
        self._frame = frame
        self._grid = grid
        self._arms = arms
        self._slots = Slots()
        self._bodies: dict[str, tuple[str, Body | None]] = {}  # by URDF

    def sources(self, robot: str) -> Iterable[Source]:
        """Topics beyond those of every robot node."""
        if entry := self._arms.get(robot):
            yield Source(JOINTS, entry.description, String, qos.ANNOUNCEMENT, hear_description)
            if not entry.own_units:
                yield Source(JOINTS, entry.joint_states, JointState, qos.TELEMETRY, hear_joints)

    def scene(self, ears: Ears) -> Scene:
        now_ns = time.monotonic_ns()
        for robot in self._slots.of.keys() - ears.robots.keys():
            self._slots.free(robot)
            self._bodies.pop(robot, None)
            self.problems.pop(robot, None)
        fleet = ears.fleet
        scheduled = {one.robot: one for one in fleet.robots} if fleet else {}
        for robot in sorted(ears.robots, key=lambda name: (len(name), name)):
            self._slots.take(robot)
        robots = {
            name: self._robot(now_ns, name, heard, scheduled.get(name))
            for name, heard in ears.robots.items()
        }
        return Scene(
            frame=self._frame,
            robots=robots,
            serving=_serving(now_ns, fleet, ears.fleet_ns) if fleet else None,
            origins={
                view.frame: self._origin(view)
                for view in robots.values()
                if not self._placed_by_others(ears, view.frame)
            },
            back=self._grid.back(self._slots.size),
        )

    def _placed_by_others(self, ears: Ears, frame: str) -> bool:
        placed = ears.placed.get(frame)
        return placed is not None and placed.header.frame_id != self._frame

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
            asks = "queued" if scheduled.pending else "in an engine" if scheduled.running else ""
        return RobotView(
            name=name,
            slot=self._slots.of[name],
            frame=entry.frame if entry else f"{name}/base",
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
        )

    def _body(self, robot: str, heard: Heard) -> Body | None:
        entry = self._arms.get(robot)
        if entry is None:
            fits = MetaWorldBody.fits(heard.status.state_dim, heard.status.action_dim)
            return MetaWorldBody() if fits else None
        if not heard.description:
            return None
        known = self._bodies.get(robot)
        if known is None or known[0] != heard.description:
            known = self._bodies[robot] = heard.description, self._made(robot, entry, heard)
        return known[1]

    def _made(self, robot: str, entry: ArmEntry, heard: Heard) -> Body | None:
        self.problems.pop(robot, None)
        try:
            return UrdfBody.from_urdf(
                heard.description,
                entry.tip,
                entry.joints,
                degrees=entry.degrees,
                own_units=entry.own_units,
                zone=entry.zone,
            )
        except ConfigError as error:
            self.problems[robot] = str(error)
            return None


def _chunks(now_ns: int, heard: Heard, body: Body) -> Chunks:
    """The round that is executed, and the one after it if it has come."""
    status, execution = heard.status, heard.execution
    key = status.session, status.task
    round = execution.round if heard.execution_ns else status.round
    since_s = (now_ns - heard.execution_ns) / 1e9
    moved = 0.0
    if execution.started and not execution.holding:
        moved = min(since_s * execution.control_rate_hz, float(execution.actions_remaining))
    running = heard.book.path((*key, round), body) if round else None
    return Chunks(
        running=running,
        done=execution.chunk_index + moved,
        next=heard.book.path((*key, round + 1), body),
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
    return Transition(event.after, event.reason, (now_ns - heard.event_ns) / 1e9)


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
