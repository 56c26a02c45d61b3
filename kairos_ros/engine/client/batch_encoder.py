"""Batches encoded before the link's own thread sends them, those with images to recompress in a
thread of their own: that may take longer than a link may be silent."""

import logging
from collections import deque
from collections.abc import Buffer, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from kairos_ros.core.errors import WireError
from kairos_ros.engine.client.wan_image import WanImages, for_link
from kairos_ros.engine.policies.observation import size_of
from kairos_ros.transport.frames import encode
from kairos_ros.transport.message_codec import infer_message
from kairos_ros.transport.messages import EngineDescription, InferRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch to be sent, or why it cannot be."""

    batch: int
    rows: int
    expected_s: float
    """What it should compute."""
    described: EngineDescription | None
    """The engine that it was made for; None: there was none."""
    frames: Sequence[Buffer] = ()
    wrong: str = ""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(memoryview(frame).nbytes for frame in self.frames)


class BatchEncoder:
    """Batches leave in the order in which they came."""

    def __init__(
        self, policy: str, images: WanImages, on_encoded: Callable[[], None], *, receipts: bool
    ) -> None:
        """`policy`: its name in the worker's registry. `on_encoded` is called whenever there is one
        more in `encoded`, from the thread that encodes. `receipts`: the worker shall tell when it
        has a batch."""
        self.encoded: deque[EncodedBatch] = deque()
        self._fields = {"policy": policy, "tell": True} if receipts else {"policy": policy}
        self._images = images
        self._on_encoded = on_encoded
        self._pool = (
            None if images.as_sent else ThreadPoolExecutor(1, thread_name_prefix="batch-encoder")
        )

    def submit(
        self,
        batch: int,
        requests: Sequence[InferRequest],
        expected_s: float,
        described: EngineDescription | None,
    ) -> None:
        """Never blocks: images that travel as they were sent are not touched."""
        encoded = EncodedBatch(batch, len(requests), expected_s, described)
        if self._pool is None:
            self._encode(encoded, requests)
        else:
            self._pool.submit(self._encode, encoded, requests)

    def finish(self) -> None:
        """Waits until everything is encoded."""
        if self._pool is not None:
            self._pool.shutdown()

    def _encode(self, encoded: EncodedBatch, requests: Sequence[InferRequest]) -> None:
        if encoded.described is not None:
            try:
                frames = self._frames(encoded.batch, requests, encoded.described)
                encoded = replace(encoded, frames=frames)
            except WireError as error:
                encoded = replace(encoded, wrong=str(error))
            except Exception as error:
                log.exception("batch %d cannot be sent", encoded.batch)
                encoded = replace(encoded, wrong=f"{type(error).__name__}: {error}")
        self.encoded.append(encoded)
        self._on_encoded()

    def _frames(
        self, batch: int, requests: Sequence[InferRequest], described: EngineDescription
    ) -> Sequence[Buffer]:
        sizes = {image: size_of(described, image) for image in described.images}
        smaller = [for_link(request, sizes, self._images) for request in requests]
        message = infer_message(batch, smaller, described.images)
        return encode(replace(message, fields={**message.fields, **self._fields}))
