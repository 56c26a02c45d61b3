"""Rebuilds what a killed recorder did not write: the index of the MCAP file, and metadata.yaml.

The file is repaired in place: nothing that is whole is copied, so that a large bag takes no more
time than reading it once. A torn or foreign tail is moved to a file beside it.
"""

import fcntl
import os
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import DataEnd, Footer, McapRecord, SummaryOffset

from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.mcap_scan import DAMAGE, MAGIC, Scan, scan
from kairos_ros.recording.metadata import (
    METADATA,
    VERSIONS,
    Topic,
    bag_information,
    parse_qos,
    write_metadata,
)
from kairos_ros.recording.writer import OFFERED_QOS, RECORDED_BY, TYPE_HASH

_COPY_BYTES = 1 << 20
_END = struct.Struct("<BQQQI8s")
"""The last record, the footer, with its kind and length, and the magic behind it."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done to a bag."""

    messages: int
    seconds: float
    cut_bytes: int
    """Of a torn last chunk or a foreign tail, moved to `tail`."""
    tail: Path | None
    index_rebuilt: bool

    def __str__(self) -> str:
        text = f"recovered {self.messages} messages over {self.seconds:.1f} s; "
        text += "index and metadata.yaml rebuilt" if self.index_rebuilt else "metadata.yaml rebuilt"
        if self.tail is not None:
            text += f"; {self.cut_bytes} bytes behind the last whole chunk moved to {self.tail}"
        return text


def repair(folder: Path) -> Repair | None:
    """Makes a bag readable again; None where nothing had to be done.

    Raises ConfigError for what is no bag, is empty, is still being recorded or cannot be written.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; a bag is a folder with a metadata.yaml")
    files = sorted(folder.glob("*.mcap"))
    if (folder / METADATA).is_file() and all(map(_ended, files)):
        return None
    if len(files) != 1:
        raise ConfigError(
            f"{folder} is no bag that can be repaired: it has no {METADATA} that fits and "
            f"{len(files)} .mcap files instead of one"
        )
    try:
        with files[0].open("r+b") as file:
            _lock(file, folder)
            return _repair(folder, files[0], file)
    except OSError as error:
        raise ConfigError(
            f"{folder} needs a repair that cannot be written ({error.strerror}); copy the bag to a "
            "folder of your own first"
        ) from error


def _repair(folder: Path, path: Path, file: IO[bytes]) -> Repair:
    size = path.stat().st_size
    if not size:
        raise ConfigError(f"{path} is empty: its recorder ended before anything was written")
    if file.read(len(MAGIC)) != MAGIC:
        raise ConfigError(f"{path} is no MCAP file; it does not begin as one")
    if _ended(path):
        with suppress(*DAMAGE):
            messages, seconds = _rebuild_metadata(folder, path)
            return Repair(messages, seconds, 0, None, index_rebuilt=False)
    found = scan(path)
    if found.end == len(MAGIC):
        raise ConfigError(f"{path} cannot be repaired: its first record, the header, is damaged")
    tail = _cut(file, path, found.end)
    file.write(_ending(found, found.end))
    file.flush()
    os.fsync(file.fileno())
    messages, seconds = _rebuild_metadata(folder, path)
    return Repair(messages, seconds, size - found.end if tail else 0, tail, index_rebuilt=True)


def _ended(path: Path) -> bool:
    """Whether an MCAP file has its end, with an index that is whole."""
    size = path.stat().st_size
    if size < len(MAGIC) + _END.size:
        return False
    with path.open("rb") as file:
        file.seek(-_END.size, os.SEEK_END)
        end = file.read()
        opcode, length, start, _, checksum, magic = _END.unpack(end)
        if (opcode, length, magic) != (Opcode.FOOTER, 20, MAGIC) or not 0 < start < size:
            return False
        file.seek(start)
        summary = file.read(size - start - _END.size)
    checked = zlib.crc32(end[: -len(MAGIC) - 4], zlib.crc32(summary))
    return not checksum or checksum == checked


def _lock(file: IO[bytes], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"{folder} is still being recorded; stop the recorder first") from None


def _cut(file: IO[bytes], path: Path, end: int) -> Path | None:
    """Ends the file at `end`; what was behind is kept in a file of its own."""
    file.seek(end)
    rest = file.read(_COPY_BYTES)
    tail = None
    if rest:
        tail = path.with_name(f"{path.name}.tail")
        with tail.open("wb") as copy:
            while rest:
                copy.write(rest)
                rest = file.read(_COPY_BYTES)
    file.truncate(end)
    file.seek(end)
    return tail


def _ending(found: Scan, at: int) -> bytes:
    """Everything from the last chunk's message indexes to the end of the file."""
    data = RecordBuilder()
    if found.unindexed:
        last = found.chunks[-1]
        for index in found.unindexed.values():
            last.message_index_offsets[index.channel_id] = at + data.count
            index.write(data)
        last.message_index_length = data.count
    DataEnd(0).write(data)
    summary_start = at + data.count
    summary = RecordBuilder()
    offsets = []
    groups: list[tuple[Opcode, Iterable[McapRecord]]] = [
        (Opcode.SCHEMA, found.schemas.values()),
        (Opcode.CHANNEL, found.channels.values()),
        (Opcode.STATISTICS, [found.statistics()]),
        (Opcode.CHUNK_INDEX, found.chunks),
        (Opcode.METADATA_INDEX, [index for index, _ in found.metadata]),
    ]
    for opcode, records in groups:
        start = summary.count
        for record in records:
            record.write(summary)
        if summary.count > start:
            offsets.append(SummaryOffset(opcode, summary_start + start, summary.count - start))
    offset_start = summary_start + summary.count
    for offset in offsets:
        offset.write(summary)
    footer = RecordBuilder()
    Footer(summary_start, offset_start, 0).write(footer)
    body = summary.end()
    checked = footer.end()[:-4]  # the checksum covers the footer up to itself
    checksum = zlib.crc32(checked, zlib.crc32(body))
    return b"".join((data.end(), body, checked, checksum.to_bytes(4, "little"), MAGIC))


def _rebuild_metadata(folder: Path, path: Path) -> tuple[int, float]:
    """Returns the number of messages, and the seconds they span."""
    with path.open("rb") as file:
        reader = make_reader(file)
        summary = reader.get_summary()
        records = [m for m in reader.iter_metadata() if m.name == RECORDED_BY]
    assert summary is not None  # just written, or found by `_ended`
    assert summary.statistics is not None
    told = records[0].metadata.get("metadata_version", "") if records else ""
    counts = summary.statistics.channel_message_counts
    topics = {
        Topic(
            channel.topic,
            summary.schemas[channel.schema_id].name,
            channel.metadata.get(TYPE_HASH, ""),
            tuple(parse_qos(channel.metadata.get(OFFERED_QOS, ""))),
        ): counts.get(channel.id, 0)
        for channel in summary.channels.values()
        if channel.schema_id in summary.schemas
    }
    span = summary.statistics.message_start_time, summary.statistics.message_end_time
    version = next((v for v in VERSIONS if told == str(v)), max(VERSIONS))
    write_metadata(folder, bag_information(version, path.name, topics, span, {}))
    return summary.statistics.message_count, (span[1] - span[0]) / 1e9
