"""Which of several robot nodes with one name takes goals. Pure.

Two action servers of one name would both answer a goal: its client would hear of one, and two arms
might move. So a node listens before it takes goals, whoever takes them keeps them while it is
heard, and of two that began at once the smaller session goes first.
"""

from dataclasses import dataclass

LISTEN_NS = 1_500_000_000
"""From its start: for DDS to deliver what others have said. They announce themselves each
second."""
SILENT_NS = 3_000_000_000
"""Robots tell their status each second; without a word for so long one is gone."""
PATIENCE_NS = 3_000_000_000
"""A smaller session that has not taken the name for so long, while nobody had it, does not want
it."""
TIE_NS = 1_000_000_000
"""Two that took the name within this time did so at once: the smaller session keeps it."""
DOUBT_NS = 2_000_000_000
"""More than two statuses are ever under way together. The larger session keeps the name only where
it has had it longer by so much more, so that the two, whose measurements differ by both delays,
never both do."""
MOST_OTHERS = 16
"""Remembered; more of one name are a mistake or worse, and none of them is needed to wait."""


@dataclass(frozen=True, slots=True)
class _Other:
    took_ns: int | None
    """When it took the name; None: it has not."""
    first_ns: int
    """When it was heard first, and last."""
    heard_ns: int


class NameOwner:
    """What a robot node heard of others of its name. Not thread safe."""

    def __init__(self, session: str, now_ns: int) -> None:
        self._session = session
        self._since_ns = now_ns
        self._took_ns: int | None = None
        self._free_ns = now_ns
        """Since when no other one is known to have the name."""
        self._others: dict[str, _Other] = {}

    def takes(self, now_ns: int) -> None:
        """This one takes goals from now on."""
        self._took_ns = now_ns

    def leaves(self) -> None:
        """This one takes no goals any more."""
        self._took_ns = None

    def has_it_s(self, now_ns: int) -> float:
        """For how long this one has taken goals; 0: it does not."""
        return 0.0 if self._took_ns is None else max(1e-9, (now_ns - self._took_ns) / 1e9)

    def heard(self, session: str, now_ns: int, has_it_s: float, *, leaving: bool) -> None:
        """A status of the name arrived; one's own is ignored. has_it_s: as that node says."""
        if session == self._session:
            return
        if leaving:
            self._others.pop(session, None)
        elif session in self._others or len(self._others) < MOST_OTHERS:
            took_ns = now_ns - round(has_it_s * 1e9) if has_it_s > 0 else None
            before = self._others.get(session)
            first_ns = before.first_ns if before else now_ns
            self._others[session] = _Other(took_ns, first_ns, now_ns)

    def listens(self, now_ns: int) -> bool:
        """It is too early to tell."""
        return now_ns - self._since_ns < LISTEN_NS

    def owner(self, now_ns: int) -> str:
        """The session that the name is left to; empty where it is this one's to have."""
        for session, other in list(self._others.items()):
            if now_ns - other.heard_ns >= SILENT_NS:
                del self._others[session]
        if any(other.took_ns is not None for other in self._others.values()):
            self._free_ns = now_ns
        return next((one for one in sorted(self._others) if self._gives_way(one, now_ns)), "")

    def _gives_way(self, session: str, now_ns: int) -> bool:
        other, smaller = self._others[session], session < self._session
        took_ns = other.took_ns
        if self._took_ns is None:
            waited_ns = now_ns - max(other.first_ns, self._free_ns)
            return took_ns is not None or (smaller and waited_ns < PATIENCE_NS)
        if took_ns is None:
            return False
        longer_ns = took_ns - self._took_ns
        return longer_ns < TIE_NS + DOUBT_NS if smaller else longer_ns < -TIE_NS
