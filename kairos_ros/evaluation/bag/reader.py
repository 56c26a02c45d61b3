"""Reads bags of `kairos record` and of `ros2 bag record`: in order of time, decoded, repaired."""

import logging
import struct
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

from kairos_ros.core.errors import ConfigError
from kairos_ros.evaluation.bag.definition import Definitions, installed_prefixes
from kairos_ros.evaluation.bag.repair import repair

log = logging.getLogger(__name__)

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
    """An open bag; a context manager.

    path: the bag's folder, or its .mcap file. A bag that its recorder could not end is repaired
    first, and `tell` is told so. Raises ConfigError for what is no bag or cannot be read.
    """

    def __init__(self, path: Path, tell: Callable[[str], None] = log.warning) -> None:
        if not path.exists():
            raise ConfigError(f"{path}: there is no such bag")
        self.path = path.parent if path.is_file() and path.suffix == ".mcap" else path
        if (done := repair(self.path)) is not None:
            tell(f"{self.path} was not ended by its recorder: {done}")
        try:
            self._reader = Reader(self.path)
            self._reader.open()
        except _UNREADABLE as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from error
        self.start_ns = self._reader.start_time if self._reader.message_count else 0
        self.length_s = self._reader.duration / 1e9 if self._reader.message_count else 0.0
        """First message to last."""

    def __enter__(self) -> "Bag":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def topics(self) -> list[BagTopic]:
        """By name."""
        found = [BagTopic(c.topic, c.msgtype, c.msgcount) for c in self._reader.connections]
        return sorted(found, key=lambda t: t.name)

    def messages(self, types: tuple[str, ...]) -> Iterator[BagMessage]:
        """All messages of these types, in order of time. Raises ConfigError at damage."""
        wanted = [c for c in self._reader.connections if c.msgtype in types]
        if not wanted:
            return
        store = get_typestore(Stores.EMPTY)
        for connection in wanted:
            store.register(_types(connection.msgdef, connection.msgtype))
        try:
            for connection, stamp_ns, data in self._reader.messages(wanted):
                yield BagMessage(
                    connection.topic,
                    connection.msgtype,
                    (stamp_ns - self.start_ns) / 1e9,
                    store.deserialize_cdr(data, connection.msgtype),
                )
        except _UNREADABLE as error:
            raise ConfigError(f"{self.path} is damaged: {error}") from error


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
