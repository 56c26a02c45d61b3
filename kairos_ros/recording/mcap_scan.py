"""What of an MCAP file is whole: a scan from its beginning, for files without an index."""

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import EndOfFile, McapError
from mcap.opcode import Opcode
from mcap.records import (
    Channel,
    Chunk,
    ChunkIndex,
    Header,
    MessageIndex,
    Metadata,
    MetadataIndex,
    Schema,
    Statistics,
)
from mcap.stream_reader import get_chunk_data_stream

MAGIC = b"\x89MCAP0\r\n"
_HEADER = struct.Struct("<BQ")
"""Of every record: its kind and the length of the rest."""
_MESSAGE = struct.Struct("<HIQ")
"""How a message begins: channel, sequence, receive time."""
DAMAGE = (
    *(McapError, ValueError, struct.error, OverflowError, MemoryError, LookupError),
    *(zstandard.ZstdError, RuntimeError),
)
"""What the parts of a damaged record raise; RuntimeError is lz4's."""
_DATA_SECTION = {
    Opcode.HEADER,
    Opcode.SCHEMA,
    Opcode.CHANNEL,
    Opcode.MESSAGE,
    Opcode.CHUNK,
    Opcode.MESSAGE_INDEX,
    Opcode.ATTACHMENT,
    Opcode.METADATA,
}


@dataclass(slots=True)
class Scan:
    """The whole part of a file."""

    end: int = len(MAGIC)
    """Offset behind the last record that is whole."""
    schemas: dict[int, Schema] = field(default_factory=dict)
    channels: dict[int, Channel] = field(default_factory=dict)
    chunks: list[ChunkIndex] = field(default_factory=list)
    metadata: list[tuple[MetadataIndex, Metadata]] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    """Messages by channel."""
    start_ns: int = 0
    stop_ns: int = 0
    unindexed: dict[int, MessageIndex] = field(default_factory=dict)
    """Message indexes of the last chunk, which may not be in the file."""

    def statistics(self) -> Statistics:
        return Statistics(
            attachment_count=0,
            channel_count=len(self.channels),
            channel_message_counts=dict(self.counts),
            chunk_count=len(self.chunks),
            message_count=self.counts.total(),
            metadata_count=len(self.metadata),
            message_start_time=self.start_ns,
            message_end_time=self.stop_ns,
            schema_count=len(self.schemas),
        )


def scan(path: Path) -> Scan:
    """Reads `path` up to its first damage or its end. The file must begin with `MAGIC`.

    A last chunk whose message indexes may be missing ends the whole part: `Scan.end` lies right
    behind it, and `Scan.unindexed` holds them anew.
    """
    found = Scan()
    size = path.stat().st_size
    with path.open("rb") as file:
        while found.end + _HEADER.size <= size:
            file.seek(found.end)
            opcode, length = _HEADER.unpack(file.read(_HEADER.size))
            if opcode not in _DATA_SECTION or found.end + _HEADER.size + length > size:
                break
            try:
                _take(found, opcode, file.read(length))
            except DAMAGE:
                break
            found.end += _HEADER.size + length
    if found.chunks:
        last = found.chunks[-1]
        behind = last.chunk_start_offset + last.chunk_length
        if found.end == behind + last.message_index_length:
            found.end = behind
            last.message_index_offsets, last.message_index_length = {}, 0
        else:  # something follows its indexes, so they are whole
            found.unindexed = {}
    return found


class _Content(ReadDataStream):
    """A record's content, which must not end before its fields do."""

    def read(self, length: int) -> bytes:
        data = super().read(length)
        if len(data) < length:
            raise EndOfFile
        return data


def _take(found: Scan, opcode: int, content: bytes) -> None:
    """One record at `found.end`; raises one of `DAMAGE` and leaves `found` as it was."""
    stream = _Content(BytesIO(content))
    length = _HEADER.size + len(content)
    match opcode:
        case Opcode.HEADER:
            Header.read(stream)  # readers refuse a file whose header they cannot
        case Opcode.CHUNK:
            _take_chunk(found, Chunk.read(stream), length)
        case Opcode.MESSAGE_INDEX:
            index = MessageIndex.read(stream)
            last = found.chunks[-1]
            last.message_index_offsets[index.channel_id] = found.end
            last.message_index_length += length
        case Opcode.METADATA:
            metadata = Metadata.read(stream)
            index = MetadataIndex(offset=found.end, length=length, name=metadata.name)
            found.metadata.append((index, metadata))
        case Opcode.SCHEMA | Opcode.CHANNEL:
            _take_definition(found, opcode, content)
        case Opcode.MESSAGE:
            channel, _, log_time = _MESSAGE.unpack_from(content)
            _count(found, channel, log_time)


def _take_chunk(found: Scan, chunk: Chunk, length: int) -> None:
    stream, size = get_chunk_data_stream(chunk, validate_crc=True)
    data = stream.read(size)
    records = list(_inside(data))
    for opcode, start, stop in records:
        if opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
            _take_definition(found, opcode, data[start:stop])
    found.unindexed = {}
    times_ns = []
    for opcode, start, _ in records:
        if opcode != Opcode.MESSAGE:
            continue
        channel, _, log_time = _MESSAGE.unpack_from(data, start)
        _count(found, channel, log_time)
        times_ns.append(log_time)
        index = found.unindexed.setdefault(channel, MessageIndex(channel_id=channel, records=[]))
        index.records.append((log_time, start - _HEADER.size))
    found.chunks.append(
        ChunkIndex(
            chunk_length=length,
            chunk_start_offset=found.end,
            compression=chunk.compression,
            compressed_size=len(chunk.data),
            # not what the chunk says of them, which its checksum does not cover
            message_end_time=max(times_ns, default=0),
            message_index_length=0,
            message_index_offsets={},
            message_start_time=min(times_ns, default=0),
            uncompressed_size=chunk.uncompressed_size,
        )
    )


def _inside(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(kind, start, stop) of the contents of a chunk's records."""
    at = 0
    while at < len(data):
        opcode, length = _HEADER.unpack_from(data, at)
        start = at + _HEADER.size
        at = start + length
        if at > len(data):
            raise ValueError("a record reaches beyond its chunk")
        yield opcode, start, at


def _take_definition(found: Scan, opcode: int, content: bytes) -> None:
    stream = _Content(BytesIO(content))
    if opcode == Opcode.SCHEMA:
        schema = Schema.read(stream)
        found.schemas[schema.id] = schema
    else:
        channel = Channel.read(stream)
        found.channels[channel.id] = channel


def _count(found: Scan, channel: int, log_time: int) -> None:
    if not found.counts:
        found.start_ns = found.stop_ns = log_time
    found.start_ns = min(found.start_ns, log_time)
    found.stop_ns = max(found.stop_ns, log_time)
    found.counts[channel] += 1
