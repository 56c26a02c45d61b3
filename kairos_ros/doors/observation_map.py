"""An observation map: what a client calls its observations, and what the policy reads of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fit import PolicyInterface, RobotInterface, misfit
from kairos_ros.core.horizons.policies import CALIBRATED, TUNED, parse_horizon
from kairos_ros.core.wire_check import CAMERAS, TEXT_BYTES
from kairos_ros.document.faults import FaultyFileError, fault_at, read_document, read_model
from kairos_ros.document.marked_yaml import Path as FieldPath
from kairos_ros.host.share import yaml_path

WHOLE, SERVER = "whole", "server"
GROOT = "groot"

Key = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        description="the client's key; those of nested dictionaries joined by /",
    ),
]
Name = Annotated[
    str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=80, description="a ROS name")
]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class VectorPart(_Section):
    """Some values of the policy's state, or of its actions."""

    key: Key
    size: Annotated[int, Field(ge=1, le=1000, description="values")]


class Picture(_Section):
    """A picture of one camera of the policy."""

    key: Key
    layout: Annotated[
        Literal["hwc", "chw"], Field(description="order of height, width and channels")
    ] = "hwc"


class ObservationMap(_Section):
    """The file."""

    dialect: Annotated[
        Literal["openpi", "groot"],
        Field(description="openpi_client's WebsocketClientPolicy, or Isaac-GR00T's PolicyClient"),
    ]
    robot: Annotated[Name, Field(description="clients without a name are NAME_1, NAME_2, ...")]
    policy: Annotated[
        str, Field(max_length=200, description="one of the server's policies; empty: its default")
    ] = ""
    control_rate_hz: Annotated[
        float, Field(gt=0, le=1000, description="actions per second that the client executes")
    ]
    state: Annotated[
        list[VectorPart], Field(min_length=1, description="concatenated in this order")
    ]
    images: Annotated[
        dict[Name, Picture],
        Field(max_length=CAMERAS, description="camera of the policy -> the client's picture"),
    ] = {}
    absent_cameras: Annotated[
        list[Name], Field(description="cameras of the policy that the clients are without")
    ] = []
    prompt: Key = "prompt"
    instruction: Annotated[
        str, Field(max_length=TEXT_BYTES // 4, description="for clients that send no prompt")
    ] = ""
    action_dim: Annotated[int, Field(ge=1, le=1000, description="values of one action")]
    actions: Annotated[
        list[VectorPart],
        Field(description="dialect groot: how an action is split up for the client, in this order"),
    ] = []
    horizon: Annotated[
        str,
        Field(
            max_length=200,
            description="whole: all actions of a chunk; server: as the server trims it; or a "
            "horizon policy, such as confidence:t=0.4",
        ),
    ] = WHOLE
    executes: Annotated[
        int | None,
        Field(ge=1, le=10_000, description="actions of each chunk that the client executes"),
    ] = None
    new_task_after_s: Annotated[
        float,
        Field(gt=0, le=3600, description="a client that paused for longer begins a new task"),
    ] = 10.0
    metadata: Annotated[
        dict[str, Any], Field(description="more of what clients are told when they connect")
    ] = {}

    @property
    def keys(self) -> list[str]:
        """That are read of an observation."""
        pictures = [picture.key for picture in self.images.values()]
        return [*(part.key for part in self.state), *pictures, self.prompt]

    @property
    def interface(self) -> RobotInterface:
        """What requests of its clients bring; pictures get the size that the policy reads."""
        size = sum(part.size for part in self.state)
        return RobotInterface(
            size, self.action_dim, dict.fromkeys(self.images), frozenset(self.absent_cameras)
        )

    @property
    def horizon_policy(self) -> str:
        """A horizon policy; empty for the server's, or the whole chunk."""
        return "" if self.horizon in (WHOLE, SERVER) else self.horizon

    def misfit(self, policy: PolicyInterface, chunk_size: int) -> str:
        """Why clients with this map cannot be served by a policy; empty if they can."""
        if policy.keyframe_stride:
            return (
                f"policy {policy.name} goes on from what was executed, which clients of this "
                "dialect do not tell; serve it to robot nodes"
            )
        if self.executes is not None and self.executes > chunk_size:
            return (
                f"the client executes {self.executes} actions of each chunk, policy {policy.name} "
                f"gives {chunk_size}; lower `executes`, and the client's own setting"
            )
        return misfit(self.interface, policy)


def map_path(name: str) -> Path:
    """The file itself, or the shipped map of that name. Raises ConfigError where it is neither."""
    return yaml_path(name, "doors", "observation map")


def read_map(path: Path) -> ObservationMap:
    """Raises FaultyFileError with the place of everything that is wrong, and ConfigError for a file
    that cannot be read."""
    document = read_document(path)
    if not isinstance(document.data, dict):
        text = f"an observation map has the fields {', '.join(ObservationMap.model_fields)}"
        raise FaultyFileError(path, [fault_at(document, (), text)])
    read = read_model(path, document, ObservationMap)
    faults = [fault_at(document, at, text) for at, text in _contradictions(read)]
    if faults:
        raise FaultyFileError(path, faults)
    return read


def _contradictions(read: ObservationMap) -> Iterator[tuple[FieldPath, str]]:
    owners: dict[str, str] = {}
    fields: list[tuple[FieldPath, str]] = [(("prompt",), read.prompt)]
    fields += [(("state", i, "key"), part.key) for i, part in enumerate(read.state)]
    fields += [(("images", name, "key"), picture.key) for name, picture in read.images.items()]
    for at, key in fields:
        if key in owners:
            yield at, f"{key!r} is read as {owners[key]} already"
        owners.setdefault(key, ".".join(map(str, at)))
    yield from _groot(read) if read.dialect == GROOT else _openpi(read)
    if read.horizon_policy not in ("", CALIBRATED, TUNED):  # the server knows what it has
        try:
            parse_horizon(read.horizon_policy)
        except ConfigError as error:
            yield ("horizon",), f"{error}; or write {WHOLE} or {SERVER}"
    for i, name in enumerate(read.absent_cameras):
        if name in read.images:
            yield ("absent_cameras", i), f"{name!r} is among the images"


def _openpi(read: ObservationMap) -> Iterator[tuple[FieldPath, str]]:
    if read.actions:
        yield ("actions",), "clients of this dialect get whole actions; leave it out"


def _groot(read: ObservationMap) -> Iterator[tuple[FieldPath, str]]:
    """Keys are those of modalities, and so are those of actions."""
    fields: list[tuple[FieldPath, str, str]] = [(("prompt",), "language/", read.prompt)]
    fields += [(("state", i, "key"), "state/", part.key) for i, part in enumerate(read.state)]
    for name, picture in read.images.items():
        fields.append((("images", name, "key"), "video/", picture.key))
        if picture.layout != "hwc":
            yield ("images", name, "layout"), "clients of this dialect send hwc; leave it out"
    for at, before, key in fields:
        if not key.startswith(before) or key == before:
            yield at, f"{key!r} must be {before}NAME, as clients of this dialect send it"
    if read.metadata:
        yield ("metadata",), "clients of this dialect are told none; leave it out"
    if not read.actions:
        yield ("action_dim",), "write `actions` besides, as clients of this dialect get them"
        return
    size = sum(part.size for part in read.actions)
    if size != read.action_dim:
        yield ("actions",), f"they have {size} values, action_dim is {read.action_dim}"
    keys = [part.key for part in read.actions]
    for i, key in enumerate(keys):
        if key in keys[:i]:
            yield ("actions", i, "key"), f"{key!r} is among them already"
