"""A planned fleet's serving node and judges, seen and told from outside."""

import time
from collections.abc import Mapping
from typing import Any

from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.parameter_client import AsyncParameterClient
from rclpy.task import Future

from kairos_ros.core.errors import KairosError, UnansweredError
from kairos_ros.core.fleet_names import ROOT, FleetNames
from kairos_ros.core.placement.served_plan import PlannedEngine, ServedPlan
from kairos_ros.core.server_status import ENGINE_UP
from kairos_ros.msg import EngineState, FleetState, RobotState
from kairos_ros.nodes import qos
from kairos_ros.nodes.bounded import subscribe
from kairos_ros.nodes.clients.standalone_node import StandaloneNode

SERVING = "serving"
FRESH_S = 3.0
"""A fleet state that is older says nothing of now."""
MOST_SERVERS = 100


class FleetClient:
    """Somebody must call `spin` again and again."""

    def __init__(self, program: str, names: FleetNames = ROOT, domain: int | None = None) -> None:
        """program: what the node is called. Raises KairosError where ROS cannot start."""
        self._names = names
        self._standalone = StandaloneNode(program, domain, names)
        self._clients: dict[str, AsyncParameterClient] = {}
        self._states: dict[str, tuple[FleetState, float]] = {}
        """Server -> its newest state, and when it came."""
        subscribe(
            self._standalone.node,
            FleetState,
            names.common("fleet_state"),
            self._on_state,
            qos.TELEMETRY,
            refused=lambda error, raw: None,
        )

    def close(self) -> None:
        self._standalone.close()

    def spin(self, for_s: float) -> None:
        """Takes in what comes within so long."""
        until = time.monotonic() + for_s
        while (left_s := until - time.monotonic()) > 0:
            self._standalone.spin(left_s)

    @property
    def node(self) -> Node:
        """Which `spin` spins."""
        return self._standalone.node

    @property
    def state(self) -> FleetState | None:
        """The newest fleet state of the serving node that follows a plan; None: none lately."""
        return next(iter(self.states), None)

    @property
    def states(self) -> list[FleetState]:
        """As `state`, of every serving node that follows a plan, the one that serves first."""
        now_s = time.monotonic()
        fresh = [state for state, heard_s in self._states.values() if now_s - heard_s < FRESH_S]
        return sorted(fresh, key=lambda state: not state.active)

    def _on_state(self, state: FleetState) -> None:
        if not state.plan:
            return  # of a standby without a plan, or of a server of other robots
        now_s = time.monotonic()
        self._states = {
            server: known for server, known in self._states.items() if now_s - known[1] < FRESH_S
        }
        if state.server in self._states or len(self._states) < MOST_SERVERS:
            self._states[state.server] = state, now_s

    def client(self, node: str) -> AsyncParameterClient:
        """Of the parameters of `serving`, or of a judge by its name. To be there when it is used:
        DDS needs a moment to find the node."""
        if node not in self._clients:
            name = self._names.common(node)
            self._clients[node] = AsyncParameterClient(self._standalone.node, name)
        return self._clients[node]

    def set(self, node: str, values: Mapping[str, Any]) -> "Setting":
        """Sets parameters of a node, all or none of them."""
        return Setting(self.client(node), self._names.common(node), values)


class Setting:
    """Parameters on their way to a node; somebody spins meanwhile."""

    LONGEST_S = 15.0

    def __init__(self, client: AsyncParameterClient, node: str, values: Mapping[str, Any]) -> None:
        self._client, self._node, self._values = client, node, values
        self._began_s = time.monotonic()
        self._future: Future | None = None

    def is_done(self) -> bool:
        """Whether the node has taken them. Raises KairosError where it refuses, in its words, and
        UnansweredError where it says nothing."""
        if self._future is None and self._client.services_are_ready():
            # a list that is empty has a type, too
            asked = [Parameter(name, value=value) if not isinstance(value, list) else
                     Parameter(name, Parameter.Type.STRING_ARRAY, value)
                     for name, value in self._values.items()]  # fmt: skip
            self._future = self._client.set_parameters_atomically(asked)
        answer = self._future.result() if self._future and self._future.done() else None
        if answer is not None:
            result = answer.result
            if not result.successful:
                raise KairosError(f"{self._node}: {result.reason}")
            return True
        if time.monotonic() - self._began_s > self.LONGEST_S:
            raise UnansweredError(f"{self._node} does not answer")
        return False


def disagreements(plan: ServedPlan, state: FleetState) -> list[str]:
    """How a serving node and its robots differ from the plan, for people; empty: in nothing."""
    found = []
    if state.plan != plan.identity:
        found.append(f"the serving node follows {state.plan}, not {plan.identity}")
    if state.staged_plan:
        reason = state.plan_reason or "its engines are up"
        found.append(f"it changes to {state.staged_plan}: {reason}")
    if not state.active:
        found.append(f"robots are not served: {state.reason}")
    engines = list(state.engines)
    for one in plan.engines:
        mine = [engine for engine in engines if is_of(engine, one)]
        engines = [engine for engine in engines if engine not in mine]
        if not any(engine.state in ENGINE_UP for engine in mine):
            why = "; ".join(f"{e.state} {e.last_error}".strip() for e in mine) or "not there"
            found.append(f"engine {one.name} is {why}")
        found += [
            f"engine {one.name} forms batches up to {engine.max_batch}, not {one.batch}"
            for engine in mine
            if engine.state in ENGINE_UP and engine.max_batch > one.batch
        ]
    found += [f"engine {e.engine} is not in the plan ({e.state})" for e in engines]
    routes, robots = plan.routes, {robot.robot: robot for robot in state.robots}
    found += [f"robot {name} is not here" for name in routes if name not in robots]
    for name, robot in robots.items():
        if name not in routes:
            found.append(f"robot {name} is not in the plan")
        else:
            found += _robot(robot, routes[name], plan.periods_s.get(name, 0.0))
    return found


def _robot(robot: RobotState, engine: str, period_s: float) -> list[str]:
    found = []
    if not _is_called(robot.planned_engine, engine):
        found.append(
            f"robot {robot.robot} is routed to {robot.planned_engine or 'any engine'}, not {engine}"
        )
    if abs(robot.planned_period_s - period_s) > 1e-3:
        found.append(
            f"robot {robot.robot} may ask every {robot.planned_period_s:.3f} s, not every "
            f"{period_s:.3f} s"
        )
    if robot.over_rate:
        found.append(f"robot {robot.robot} asks more often than it may, and is served last")
    return found


def is_of(engine: EngineState, planned: PlannedEngine) -> bool:
    """Whether an engine is this one of the plan."""
    return _is_called(engine.engine, planned.name)


def _is_called(engine: str, planned: str) -> bool:
    """The name of an engine may have a number behind that of the plan."""
    name, _, number = engine.rpartition(".")
    return planned in (engine, name if number.isdecimal() else engine)
