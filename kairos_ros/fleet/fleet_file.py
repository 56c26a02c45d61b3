"""What a fleet file says (Rosa §3.3, Figure 3), plus what our robots and schedulers need.

The names and the layout are the paper's. Ours are optional: of a robot group its names, adapter,
rate, safe state and host; of a task its scene, horizon and scheduling policy, value and least rate;
of a judge its cameras; the memory and the hosts of GPUs; where models are served; and the gateway
before them.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from kairos_ros.core.calls.dispatch import DISPATCHES
from kairos_ros.core.calls.orders import ORDERS
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import COMMON, is_robot_name
from kairos_ros.core.pipeline import (
    ESCALATIONS,
    FALLBACKS,
    Component,
    ComponentRules,
    TaskRules,
)
from kairos_ros.core.wire_check import NAME_CHARS, printable
from kairos_ros.fleet.server_cluster import ServerCluster, Text

ROBOT_NAME = r"^[A-Za-z][A-Za-z0-9_]*(/[A-Za-z][A-Za-z0-9_]*)*$"
RobotName = Annotated[
    str,
    Field(
        pattern=ROBOT_NAME,
        max_length=NAME_CHARS,
        description="a ROS name, or several with / between them, such as cell_1/arm_1",
    ),
]
ENDPOINT = "openai:"
"""Prefix of a model that an OpenAI-compatible server is asked for."""
GATEWAY = "gateway:"
"""Prefix of a model that the fleet's own gateway is asked for."""
Escalation = Literal[*ESCALATIONS]  # type: ignore[valid-type]  # mypy reads no unpacked tuple


def check_robot_name(text: str) -> None:
    """Raises ConfigError for what a robot of a fleet file cannot be called."""
    if not (is_robot_name(text) and re.fullmatch(ROBOT_NAME, text)):
        raise ConfigError(
            f"'{printable(text)}' is no name of a robot: use a ROS name of letters, digits and _, "
            "first a letter, or several with / between them, such as cell_1/arm_1, none of them "
            f"{COMMON}, of at most {NAME_CHARS} characters together"
        )


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RobotGroup(_Section):
    """Robots that do the same task."""

    task: Annotated[str, Field(description="name of a task of this file")]
    num_robots: Annotated[
        int | None, Field(ge=1, le=10_000, description="how many; may be left out with names")
    ] = None
    names: Annotated[
        list[RobotName] | None, Field(min_length=1, description="TASK_1, TASK_2 ... without it")
    ] = None
    adapter: Annotated[Text, Field(description="their body: sim, or an installed adapter")] = "sim"
    adapter_options: Annotated[
        dict[str, Any], Field(description="of the adapter, see config/robot.yaml")
    ] = {}
    params_file: Annotated[
        str,
        Field(
            description="ROS parameters of these robots, guard limits above all; robot.yaml without"
        ),
    ] = ""
    control_rate_hz: Annotated[float, Field(ge=1, le=1000, description="actions per second")] = 30.0
    camera_rate_hz: Annotated[
        float,
        Field(ge=0, le=100, description="pictures per second to record; judges get what they need"),
    ] = 0.0
    safe_state: Annotated[
        list[FiniteFloat],
        Field(description="where return_to_safe_state goes, in the units of the body's state"),
    ] = []
    host: Annotated[
        str, Field(description="of server_cluster.hosts, where they run; the first one without it")
    ] = ""

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.names is None and self.num_robots is None:
            raise ValueError("say num_robots, or give their names")
        if self.names is not None and self.num_robots not in (None, len(self.names)):
            raise ValueError(
                f"num_robots is {self.num_robots}, but there are {len(self.names)} names"
            )
        return self

    @property
    def robots(self) -> list[str]:
        """Their names."""
        if self.names is not None:
            return list(self.names)
        return [f"{self.task}_{i}" for i in range(1, (self.num_robots or 0) + 1)]

    @property
    def is_metaworld(self) -> bool:
        """Whether their body is Meta-World's simulated arm."""
        return self.adapter == "sim" and not {"env_id", "scene"} & self.adapter_options.keys()


class Pipeline(_Section):
    """How System 1 and System 2 follow each other."""

    action_period_ms: Annotated[
        float,
        Field(gt=0, le=600_000, description="execution that follows each System 1 prediction"),
    ]
    system2_to_system1_call_ratio: Annotated[
        int | None,
        Field(ge=1, le=100_000, description="System 1 predictions per call of System 2"),
    ] = None


class TaskRetry(_Section):
    """What happens when the monitor says that the task has failed."""

    max_task_retries: Annotated[int, Field(ge=0, le=1000)]
    on_max_task_retries: Escalation


class SafetyAndSloViolation(_Section):
    """How often in a row a violation is answered by the component's fallback."""

    max_consecutive_safety_replan: Annotated[
        int, Field(ge=0, le=1_000_000, description="unsafe verdicts in a row")
    ]
    max_consecutive_slo_violation: Annotated[
        int, Field(ge=0, le=1_000_000, description="missed answers of a component in a row")
    ]
    on_max_violation: Escalation


class _Model(_Section):
    model: Annotated[
        Text, Field(description="embedded:NAME, a folder, a hub id, ... (docs/fleet.md)")
    ]
    prompt: Text
    slo_ms: Annotated[
        float, Field(ge=1, le=600_000, description="latency that 99 of 100 answers keep")
    ]


class _Judge(_Model):
    freq_hz: Annotated[float, Field(ge=0.01, le=100, description="judgements per second and robot")]
    cameras: Annotated[
        list[Text] | None, Field(min_length=1, description="to judge by; all of a robot without it")
    ] = None


class System1(_Model):
    """Action model; its prompt is the task's instruction."""

    options: Annotated[
        dict[str, bool | int | str],
        Field(
            description="of its engine, such as rtc: true; the same wherever a task has this model"
        ),
    ] = {}
    fallback: Literal[*FALLBACKS[Component.SYSTEM1]]  # type: ignore[valid-type]  # mypy reads no unpacked tuple


class System2(_Model):
    """Planner."""

    skills: Annotated[
        list[Text] | None,
        Field(
            min_length=2,
            max_length=64,
            description="what may be planned; the instructions of the policy that ships without it",
        ),
    ] = None
    fallback: Literal[*FALLBACKS[Component.SYSTEM2]]  # type: ignore[valid-type]  # mypy reads no unpacked tuple


class Safety(_Judge):
    """Is the cell safe? Its fallback answers warnings, too."""

    fallback: Literal[*FALLBACKS[Component.SAFETY]]  # type: ignore[valid-type]  # mypy reads no unpacked tuple


class Monitor(_Judge):
    """Is the task ongoing, done or failed?"""

    fallback: Literal[*FALLBACKS[Component.MONITOR]]  # type: ignore[valid-type]  # mypy reads no unpacked tuple


class Components(_Section):
    """The models of a task; only System 1 must be there."""

    system1: System1
    system2: System2 | None = None
    safety: Safety | None = None
    monitor: Monitor | None = None

    @property
    def used(self) -> Mapping[Component, System1 | System2 | Safety | Monitor]:
        every = {component: getattr(self, component.value) for component in Component}
        return {component: one for component, one in every.items() if one is not None}


class TaskClass(_Section):
    """One class of tasks."""

    pipeline: Pipeline
    task_retry: TaskRetry
    safety_and_slo_violation: SafetyAndSloViolation
    components: Components
    scene: Annotated[str, Field(description="simulated scene; real robots ignore it")] = ""
    horizon: Annotated[
        str, Field(description="horizon policy; static, one action period long, without it")
    ] = ""
    scheduling: Annotated[
        str, Field(description="scheduling policy; the same in all tasks, the server's without it")
    ] = ""
    value: Annotated[
        float, Field(gt=0, le=1e9, description="what one action is worth to `kairos fleet plan`")
    ] = 1.0
    min_actions_per_s: Annotated[
        float, Field(ge=0, le=1e6, description="that all robots of this task together must get")
    ] = 0.0

    @property
    def rules(self) -> TaskRules:
        """What a robot does during this task when a model says no, or nothing."""
        limits = self.safety_and_slo_violation
        return TaskRules(
            components={
                component: ComponentRules(
                    slo_ns=round(one.slo_ms * 1e6),
                    fallback=one.fallback,
                    period_ns=round(1e9 / one.freq_hz) if isinstance(one, _Judge) else 0,
                    asks_system1=one.model == Component.SYSTEM1,
                )
                for component, one in self.components.used.items()
            },
            max_task_retries=self.task_retry.max_task_retries,
            on_max_task_retries=self.task_retry.on_max_task_retries,
            max_consecutive_safety_replan=limits.max_consecutive_safety_replan,
            max_consecutive_slo_violation=limits.max_consecutive_slo_violation,
            on_max_violation=limits.on_max_violation,
            system2_ratio=self.pipeline.system2_to_system1_call_ratio or 1,
        )

    def horizon_policy(self, control_rate_hz: float) -> str:
        """Its own, else the whole actions of one action period at this rate, at least one."""
        actions = round(self.pipeline.action_period_ms / 1000 * control_rate_hz)
        return self.horizon or f"static:{max(1, actions)}"


class GatewaySection(_Section):
    """One queue before the models that judge and plan (docs/gateway.md): `gateway:MODEL`."""

    servers: Annotated[
        list[Text],
        Field(
            min_length=1,
            description="behind it: http://HOST:PORT/v1 of a server, or embedded:NAME",
        ),
    ]
    order: Annotated[
        Literal[*ORDERS],  # type: ignore[valid-type]  # mypy reads no unpacked tuple
        Field(description="which call goes first"),
    ] = "latest_start"
    dispatch: Annotated[
        Literal[*DISPATCHES],  # type: ignore[valid-type]  # mypy reads no unpacked tuple
        Field(description="which server gets it"),
    ] = "fewest_calls"
    port: Annotated[int, Field(ge=1, le=65535, description="of this host, where it listens")] = 8380

    @property
    def endpoint(self) -> str:
        """Of its models, as a judge is named."""
        return f"openai:http://127.0.0.1:{self.port}/v1#"


class FleetFile(BaseModel):
    """Every section besides the fields below is a task, by its name."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    __pydantic_extra__: dict[str, TaskClass]

    server_cluster: ServerCluster
    robot_fleet: Annotated[list[RobotGroup], Field(min_length=1)]
    models: Annotated[
        dict[str, Text],
        Field(
            description="model name -> where it is: a folder, openai:URL#NAME, ...; of replicas, "
            "openai:URL#NAME|URL#NAME"
        ),
    ] = {}

    gateway: GatewaySection | None = None

    @property
    def tasks(self) -> Mapping[str, TaskClass]:
        return self.__pydantic_extra__

    @property
    def robots(self) -> dict[str, RobotGroup]:
        """Every robot's name, with its group."""
        return {name: group for group in self.robot_fleet for name in group.robots}

    def located(self, model: str) -> str:
        """Where a model is: as `models` says, else its name itself; behind the gateway, if there
        is one, where it is named so. Of several places, the first."""
        return self.places(model)[0]

    def places(self, model: str) -> tuple[str, ...]:
        """As `located`, all of `openai:URL#NAME|URL#NAME`: one for each replica of the model."""
        located = self.models.get(model, model)
        if self.gateway is not None and located.startswith(GATEWAY):
            return (self.gateway.endpoint + located.removeprefix(GATEWAY),)
        if located.startswith(ENDPOINT):
            urls = located.removeprefix(ENDPOINT).split("|")
            return tuple(f"{ENDPOINT}{url.strip()}" for url in urls)
        return (located,)


SECTIONS = tuple(FleetFile.model_fields)
"""Names that no task can have."""


def fleet_schema() -> dict[str, Any]:
    """The JSON schema of fleet files, for editors: what `config/fleets/fleet.schema.json` holds.

    Every unknown section is a task.
    """
    schema = FleetFile.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Fleet file of kairos_ros",
    }
