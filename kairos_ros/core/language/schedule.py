"""Which questions a policy answers now, where its cache has room for some of them (OxyGen).

A question waits for the next frame (observation) of its robot, since it is answered from that
frame's prefill. Of those that could be answered then, those that were asked first get the slots of
the cache. Where it is full, the youngest is put off: one that waits goes on waiting, and one that
is being answered gives its slot up and starts anew on a later frame of its robot. So the oldest
question is never put off again, and every question has its turn.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass

MOST_WAITING = 256
"""Questions of all robots; one more is refused."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What changes with a frame. Keys of questions, the oldest first."""

    started: tuple[Hashable, ...] = ()
    """They get a slot, and their robot's prefill."""
    restarted: tuple[Hashable, ...] = ()
    """They lose their slot, and what they were answered so far."""


@dataclass(frozen=True, slots=True)
class _Asked:
    serial: int
    """Ascending in the order of asking."""
    robot: str
    until_s: float


class LanguageSchedule:
    """Bookkeeping only: it reads no clock. Times are seconds of one monotonic clock."""

    def __init__(self, slots: int) -> None:
        """slots: questions that can be answered at a time, at least 1."""
        self._slots = slots
        self._asked: dict[Hashable, _Asked] = {}
        self._answering: set[Hashable] = set()
        self._serial = 0
        self.put_off = 0
        """How often a question could not start on a frame of its robot for want of a slot."""
        self.restarts = 0
        """How often a question gave its slot up to an older one."""

    @property
    def waiting(self) -> int:
        """Questions that have no slot."""
        return len(self._asked) - len(self._answering)

    @property
    def answering(self) -> int:
        """Questions that have a slot."""
        return len(self._answering)

    def known(self, key: Hashable) -> bool:
        """Whether the question waits or is being answered."""
        return key in self._asked

    def wants(self, robots: Collection[str]) -> bool:
        """Whether a question waits for a frame of one of these robots."""
        return any(
            asked.robot in robots
            for key, asked in self._asked.items()
            if key not in self._answering
        )

    def robot(self, key: Hashable) -> str:
        """Whom a known question is about."""
        return self._asked[key].robot

    def ask(self, key: Hashable, robot: str, until_s: float) -> bool:
        """Adds a new question. False where too many wait already: it is not added."""
        if self.waiting >= MOST_WAITING:
            return False
        self._serial += 1
        self._asked[key] = _Asked(self._serial, robot, until_s)
        return True

    def frame(self, robots: Collection[str]) -> Frame:
        """These robots were observed now, and their prefills are there."""
        before = self._answering
        candidates = {
            key for key, asked in self._asked.items() if asked.robot in robots and key not in before
        }
        if not candidates:
            return Frame()
        oldest = sorted(before | candidates, key=self._age)[: self._slots]
        self._answering = set(oldest)
        started = tuple(key for key in oldest if key in candidates)
        restarted = tuple(sorted(before - self._answering, key=self._age))
        self.put_off += len(candidates) - len(started)
        self.restarts += len(restarted)
        return Frame(started, restarted)

    def end(self, key: Hashable) -> None:
        """The question is answered, failed or withdrawn. An unknown one changes nothing."""
        self._asked.pop(key, None)
        self._answering.discard(key)

    def expired(self, now_s: float) -> tuple[Hashable, ...]:
        """Questions whose time is over, the oldest first. They remain until their `end`."""
        over = [key for key, asked in self._asked.items() if asked.until_s <= now_s]
        return tuple(sorted(over, key=self._age))

    def has_slot(self, key: Hashable) -> bool:
        """Whether the question is being answered."""
        return key in self._answering

    def _age(self, key: Hashable) -> int:
        return self._asked[key].serial
