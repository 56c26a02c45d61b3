"""Writes a bag: a folder with an MCAP file and metadata.yaml, as `ros2 bag record -s mcap`."""

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml
from mcap.writer import CompressionType, Writer

from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.definition import Definition
from kairos_ros.recording.metadata import (
    VERSIONS,
    Topic,
    bag_information,
    qos_text,
    write_metadata,
)

Compression = Literal["none", "zstd"]
CHUNK_BYTES = 1 << 20
OFFERED_QOS = "offered_qos_profiles"
TYPE_HASH = "topic_type_hash"
RECORDED_BY = "kairos_ros"
"""Name of the MCAP metadata record that tells the metadata version; the first record of a bag."""


class BagWriter:
    """A new bag. Whatever was flushed can be read again, whether or not `close` was reached.

    Raises ConfigError where the folder cannot be made, OSError when writing fails later.
    """

    def __init__(
        self,
        folder: Path,
        *,
        version: int = 9,
        compression: Compression = "none",
        custom: Mapping[str, str] | None = None,
    ) -> None:
        if version not in VERSIONS:
            raise ConfigError(f"metadata version {version}; choose from {VERSIONS}")
        self.folder = folder
        self.counts: dict[Topic, int] = {}
        self.version = version
        self._custom = dict(custom or {})
        try:
            folder.mkdir(parents=True)
            self._file = (folder / f"{folder.name}_0.mcap").open("xb")
        except FileExistsError:
            raise ConfigError(
                f"{folder} exists; a bag needs a new folder, name another one"
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot record into {folder}: {error.strerror}") from error
        fcntl.flock(self._file, fcntl.LOCK_EX)  # tells readers that the bag is being written
        kind = CompressionType.ZSTD if compression == "zstd" else CompressionType.NONE
        self._mcap = Writer(self._file, chunk_size=CHUNK_BYTES, compression=kind)
        self._mcap.start(profile="ros2", library=RECORDED_BY)
        self._mcap.add_metadata(RECORDED_BY, {"metadata_version": str(version)})
        self._schemas: dict[str, int] = {}
        self._topics: dict[int, Topic] = {}
        self._span_ns: tuple[int, int] | None = None

    def add_topic(self, topic: Topic, definition: Definition) -> int:
        """The id that its messages are written with."""
        if definition.name not in self._schemas:
            self._schemas[definition.name] = self._mcap.register_schema(
                definition.name, "ros2msg", definition.text.encode()
            )
        metadata = {
            OFFERED_QOS: qos_text(topic.offered, self.version),
            TYPE_HASH: definition.rihs01,
        }
        channel = self._mcap.register_channel(
            topic.name, "cdr", self._schemas[definition.name], metadata
        )
        self._topics[channel] = topic
        self.counts[topic] = 0
        return channel

    def write(
        self, channel: int, received_ns: int, published_ns: int, data: bytes, sequence: int = 0
    ) -> None:
        """One serialized message; times in ns since the epoch, its publisher's number of it."""
        self._mcap.add_message(channel, received_ns, data, published_ns, sequence % 2**32)
        self.counts[self._topics[channel]] += 1
        first, last = self._span_ns or (received_ns, received_ns)
        self._span_ns = min(first, received_ns), max(last, received_ns)

    def flush(self) -> None:
        """Ends the chunk and hands everything to the system: a killed process loses none of it."""
        self._mcap.flush()

    def close(self) -> None:
        """Index and metadata.yaml."""
        information = bag_information(
            self.version,
            Path(self._file.name).name,
            self.counts,
            self._span_ns or (0, 0),
            self._custom,
        )
        try:
            text = yaml.safe_dump(information, sort_keys=False)
            self._mcap.add_metadata("rosbag2", {"serialized_metadata": text})
            self._mcap.finish()
            write_metadata(self.folder, information)
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Closes the file as it is, after an error; readers repair it."""
        try:
            self._file.close()
        except OSError:  # what the buffer still holds has no place either
            self._file.raw.close()
