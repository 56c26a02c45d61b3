"""A batch in an engine, and what an engine holds in memory, as the dispatcher sees both."""

from dataclasses import dataclass

from kairos_ros.serving.request_queue import PendingRequest

UNCAPPED = 1_000_000
"""Batches of an engine for which no plan says how large they may be."""


@dataclass(slots=True)
class Running:
    """A batch in an engine, or on its way there or back."""

    batch: int
    entries: list[PendingRequest]
    submitted_ns: int
    history_ns: int
    """What the histories sent with it added to its upload."""
    start_ns: int
    """When the engine should begin with it."""
    compute_end_ns: int
    """When the engine should be done with it."""
    expected_end_ns: int
    """When its answer should be here."""
    prefetched: bool = False
    """The next batch was looked at, and stale observations in it were asked for."""


@dataclass(slots=True)
class SlotMemory:
    """Of an engine that is loaded and ended within a memory budget."""

    needs_mib: int
    """The size of the weights file, until its worker has told how much it takes."""
    load_ns: int
    """An estimate, until it was loaded."""
    ready_ns: int = 0
    """Since when it is loaded."""
    wanted_ns: int | None = None
    """Since when requests wait for it to be loaded; None: none does."""
