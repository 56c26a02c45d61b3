"""A link to an engine that tells which batch its worker computes."""

from wire import until

from kairos_ros.engine.client.engine_link import EngineLink


class WatchedLink(EngineLink):
    """As the worker's newest heartbeat says."""

    _busy: tuple[int | None, float] = None, 0.0

    def _on_status(self, status, now):
        self._busy = status.busy_batch, status.busy_s
        super()._on_status(status, now)

    def wait_until_it_computes(self, *batches: int, for_s: float = 0.1) -> None:
        """One of these, and for so long that it is not only prepared.

        Of a pool, which says which one it computes for longest, all of them are computed then that
        it has replicas for.
        """
        until(
            lambda: self._busy[0] in batches and self._busy[1] >= for_s,
            what=f"for batch {batches} to be computed",
        )
