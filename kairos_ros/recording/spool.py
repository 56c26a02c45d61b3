"""The thread that writes a bag, behind a queue that is bounded in bytes."""

import queue
import threading
import time
from collections import Counter
from dataclasses import dataclass

from kairos_ros.recording.definition import Definition
from kairos_ros.recording.metadata import Topic
from kairos_ros.recording.writer import BagWriter

FLUSH_EVERY_S = 0.5
"""A killed recorder loses at most this much, and what the queue holds."""


@dataclass(frozen=True, slots=True)
class _Message:
    topic: Topic
    received_ns: int
    published_ns: int
    data: bytes
    sequence: int


_Item = _Message | tuple[Topic, Definition] | None


class Spool:
    """Takes messages from one thread and writes them in another. A full queue drops, and counts.

    `failure` is the error that ended the writing, such as a full disk; everything after it counts
    as dropped.
    """

    def __init__(self, bag: BagWriter, queue_bytes: int) -> None:
        self.failure: OSError | None = None
        self.messages = 0
        self.bytes = 0
        """Of message data that was written."""
        self.dropped: Counter[str] = Counter()
        """Messages by topic that found the queue full."""
        self._bag = bag
        self._limit = queue_bytes
        self._put_bytes = 0
        self._taken_bytes = 0
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="bag", daemon=True)
        self._thread.start()

    @property
    def queued_bytes(self) -> int:
        return self._put_bytes - self._taken_bytes

    def add_topic(self, topic: Topic, definition: Definition) -> None:
        """Before the topic's first message."""
        self._items.put((topic, definition))

    def put(
        self, topic: Topic, received_ns: int, published_ns: int, data: bytes, sequence: int = 0
    ) -> None:
        """One serialized message; times in ns since the epoch, its publisher's number of it."""
        if self.failure is not None or self.queued_bytes + len(data) > self._limit:
            self.dropped[topic.name] += 1
            return
        self._put_bytes += len(data)
        self._items.put(_Message(topic, received_ns, published_ns, data, sequence))

    def close(self) -> None:
        """Writes what is queued, the index and metadata.yaml."""
        self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._write()
        except OSError as error:
            self._fail(error)
            self._discard()
            return
        try:
            self._bag.close()
        except OSError as error:  # `close` has been called: there is nothing more to wait for
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        self._bag.abandon()

    def _write(self) -> None:
        channels: dict[Topic, int] = {}
        flushed = time.monotonic()
        while True:
            try:
                item = self._items.get(timeout=FLUSH_EVERY_S)
                if item is None:
                    return
                if isinstance(item, _Message):
                    channel = channels[item.topic]
                    self._bag.write(
                        channel, item.received_ns, item.published_ns, item.data, item.sequence
                    )
                    self.messages += 1
                    self.bytes += len(item.data)
                    self._taken_bytes += len(item.data)
                else:
                    topic, definition = item
                    channels[topic] = self._bag.add_topic(topic, definition)
            except queue.Empty:
                pass
            now = time.monotonic()
            if now - flushed >= FLUSH_EVERY_S:
                self._bag.flush()
                flushed = now

    def _discard(self) -> None:
        """Counts what is queued as dropped, until `close`."""
        while (item := self._items.get()) is not None:
            if isinstance(item, _Message):
                self.dropped[item.topic.name] += 1
                self._taken_bytes += len(item.data)
