"""Reads bags of `kairos record` and of `ros2 bag record`: in order of time, decoded, repaired."""

import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rosbags.interfaces import MessageDefinition, MessageDefinitionFormat
from rosbags.rosbag2 import Reader, ReaderError
from rosbags.rosbag2.storage_mcap import ReaderError as McapReaderError
from rosbags.rosbag2.storage_mcap import zstd
from rosbags.typesys import (
    Stores,
    TypesysError,
    get_types_from_idl,
    get_types_from_msg,
    get_typestore,
)
from rosbags.typesys.store import Typestore

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames, fleets_among
from kairos_ros.recording.definition import Definitions, installed_prefixes
from kairos_ros.recording.repair import repair
from kairos_ros.recording.runs.run_source import BAG
from kairos_ros.recording.validity import fault

log = logging.getLogger(__name__)

OURS = "kairos_ros/msg/"
LONGEST_REASON = 200
"""Characters."""
_UNREADABLE = (
    *(ReaderError, McapReaderError, zstd.ZstdError, OSError, ValueError, AssertionError),
    *(LookupError, MemoryError, OverflowError, struct.error, RecursionError),
)
"""What rosbags raises about files that are not as they should be."""


@dataclass(frozen=True, slots=True)
class BagTopic:
    name: str
    type: str
    messages: int


@dataclass(frozen=True, slots=True)
class BagMessage:
    topic: str
    type: str
    at_s: float
    """Received, since the first message of the bag."""
    body: Any
    """Fields as attributes, arrays as NumPy."""


class Bag:
    """An open bag of one fleet; a context manager.

    path: the bag's folder, its .mcap file, or the folder of a run that has it. A bag that its
    recorder could not end is repaired first, and `tell` is told so. Raises ConfigError for what is
    no bag or cannot be read.
    """

    def __init__(self, path: Path, tell: Callable[[str], None] = log.warning) -> None:
        if not path.exists():
            raise ConfigError(f"{path}: there is no such bag")
        self.path = path.parent if path.is_file() and path.suffix == ".mcap" else path
        if (self.path / BAG).is_dir():
            self.path /= BAG
        if (done := repair(self.path)) is not None:
            tell(f"{self.path} was not ended by its recorder: {done}")
        try:
            self._reader = Reader(self.path)
            self._reader.open()
        except _UNREADABLE as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from error
        fleets = fleets_among(connection.topic for connection in self._reader.connections)
        if len(fleets) > 1:
            found = ", ".join(fleet.namespace or "/" for fleet in fleets)
            raise ConfigError(
                f"{path} holds several fleets, in namespaces {found}; "
                "record each of them into a bag of its own"
            )
        self.names = fleets[0] if fleets else FleetNames()
        self.start_ns = self._reader.start_time if self._reader.message_count else 0
        self.length_s = self._reader.duration / 1e9 if self._reader.message_count else 0.0
        """First message to last."""
        self._left_out: dict[str, Counter[str]] = {}

    def __enter__(self) -> "Bag":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def topics(self) -> list[BagTopic]:
        """By name."""
        found = [BagTopic(c.topic, c.msgtype, c.msgcount) for c in self._reader.connections]
        return sorted(found, key=lambda t: t.name)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was passed over by `messages`, and why: a line for each topic and reason."""
        counted = Counter[str]()
        for of_type in self._left_out.values():
            counted += of_type
        return tuple(
            f"{count} message{'s' if count > 1 else ''} of {where}"
            for where, count in counted.most_common()
        )

    def leave_out(self, message: BagMessage, reason: str) -> None:
        """Counts a message that makes no sense to whoever reads it."""
        where = f"{message.topic} ({message.type}): {reason[:LONGEST_REASON]}"
        self._left_out.setdefault(message.type, Counter())[where] += 1

    def messages(self, types: tuple[str, ...]) -> Iterator[BagMessage]:
        """All messages of these types that can be decoded and make sense, in order of time.

        Others are counted (`left_out`). Raises ConfigError at damage of the file.
        """
        for kind in types:
            self._left_out.pop(kind, None)  # they are counted again
        wanted = [c for c in self._reader.connections if c.msgtype in types]
        if not wanted:
            return
        store = get_typestore(Stores.EMPTY)
        for connection in wanted:
            store.register(_types(connection.msgdef, connection.msgtype))
        try:
            for connection, stamp_ns, data in self._reader.messages(wanted):
                kind, at_s = connection.msgtype, (stamp_ns - self.start_ns) / 1e9
                message = BagMessage(connection.topic, kind, at_s, _decoded(store, data, kind))
                if message.body is None:
                    self.leave_out(message, f"its {len(data)} bytes cannot be decoded")
                elif kind.startswith(OURS) and (told := fault(kind, message.body)):
                    self.leave_out(message, told)
                else:
                    yield message
        except _UNREADABLE as error:
            raise ConfigError(f"{self.path} is damaged: {error}") from error


def _decoded(store: Typestore, data: bytes, kind: str) -> Any:
    """None for bytes that are no such message: a recorder takes them as they come."""
    try:
        return store.deserialize_cdr(data, kind)
    except Exception:  # what hostile bytes raise in a decoder depends on the bytes
        return None


@cache  # parsing takes longer than reading many a bag
def _types(definition: MessageDefinition, name: str) -> Any:
    """The types of a definition in a bag; where it has none, the installed ones."""
    try:
        match definition.format:
            case MessageDefinitionFormat.IDL:
                return get_types_from_idl(definition.data)
            case MessageDefinitionFormat.MSG:
                return get_types_from_msg(definition.data, name)
            case _:
                installed = Definitions(installed_prefixes()).of(name)
                return get_types_from_msg(installed.text, name)
    except TypesysError as error:
        raise ConfigError(f"the bag's definition of {name} cannot be read: {error}") from error
