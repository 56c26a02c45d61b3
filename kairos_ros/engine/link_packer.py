"""Batches made ready to travel, beside the link's own thread: recompressing the images of a batch
may take longer than a link may be silent."""

import logging
from collections.abc import Buffer, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from kairos_ros.core.errors import WireError
from kairos_ros.engine.remote_spec import RemoteSpec
from kairos_ros.engine.wan_image import for_link
from kairos_ros.transport.engine_wire import infer_message
from kairos_ros.transport.frames import encode
from kairos_ros.transport.messages import EngineDescription, InferRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Packed:
    """A batch to be sent, or why it cannot be."""

    batch: int
    rows: int
    expected_s: float
    """What it should compute."""
    described: EngineDescription | None
    """The engine that it was made for; None: there was none."""
    frames: Sequence[Buffer] = ()
    wrong: str = ""


class Packer:
    """One thread; batches leave in the order in which they came."""

    def __init__(self, spec: RemoteSpec, on_packed: Callable[[Packed], None]) -> None:
        self._spec = spec
        self._on_packed = on_packed
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="link-packer")

    def pack(
        self,
        batch: int,
        requests: Sequence[InferRequest],
        expected_s: float,
        described: EngineDescription | None,
    ) -> None:
        """Never blocks; `on_packed` is called from the packer's thread."""
        self._pool.submit(self._pack, batch, requests, expected_s, described)

    def finish(self) -> None:
        """Waits until everything is packed."""
        self._pool.shutdown()

    def _pack(
        self,
        batch: int,
        requests: Sequence[InferRequest],
        expected_s: float,
        described: EngineDescription | None,
    ) -> None:
        packed = Packed(batch, len(requests), expected_s, described)
        if described is not None:
            try:
                packed = replace(packed, frames=self._frames(batch, requests, described))
            except WireError as error:
                packed = replace(packed, wrong=str(error))
            except Exception as error:
                log.exception("batch %d cannot be sent", batch)
                packed = replace(packed, wrong=f"{type(error).__name__}: {error}")
        self._on_packed(packed)

    def _frames(
        self, batch: int, requests: Sequence[InferRequest], described: EngineDescription
    ) -> Sequence[Buffer]:
        smaller = [for_link(request, described.images, self._spec.images) for request in requests]
        message = infer_message(batch, smaller, described.images)
        fields = {**message.fields, "policy": self._spec.policy, "tell": True}
        return encode(replace(message, fields=fields))
