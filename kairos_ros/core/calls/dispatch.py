"""Which instance of a model gets a call (Chen et al. §6)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kairos_ros.core.calls.call import Call
from kairos_ros.core.errors import ConfigError

SLOT_NS = 500_000_000
"""Width of a slot in which the use of memory is looked at (Chen et al. §6)."""
MOST_SLOTS = 240


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call that is with a model."""

    call: Call
    began_ns: int
    expected_ns: int
    expected_tokens: float

    def memory(self, at_ns: int) -> float:
        """Expected tokens in the key-value cache: the prompt, and a ramp up to the answer; 0 when
        it should have ended. One that is overdue keeps what it has."""
        age_ns = at_ns - self.began_ns
        share = min(1.0, age_ns / max(1, self.expected_ns))
        return self.call.prompt_tokens + share * self.expected_tokens


@dataclass(slots=True)
class Instance:
    """One server, or one replica, that answers calls."""

    name: str
    models: frozenset[str]
    places: int = 2
    """Calls at a time. More would wait inside the server, where nobody can order them."""
    memory_tokens: int = 0
    """Room of its key-value cache; 0: not known."""
    running: dict[int, RunningCall] = field(default_factory=dict)
    """Number of a call -> the call."""
    suspended_until_ns: int = 0
    """It gets no call before: it failed, or said that it has no memory left."""
    given: int = 0
    """Calls so far. Of equally good instances, the one that got fewest gets the next."""

    def has_any_place(self, now_ns: int) -> bool:
        return now_ns >= self.suspended_until_ns and len(self.running) < self.places

    def has_place(self, call: Call, now_ns: int) -> bool:
        """One of two and more places is kept free for obligations."""
        kept = 0 if call.caller.is_obligation or self.places < 2 else 1
        return (
            call.model in self.models
            and now_ns >= self.suspended_until_ns
            and len(self.running) < self.places - kept
        )

    def peak(self, more: RunningCall, now_ns: int) -> float:
        """Expected tokens in its cache at the worst moment of the run of `more`, `more` included.

        Looked at every 0.5 s, and at the end of the run.
        """
        end_ns = now_ns + more.expected_ns
        slots = min(MOST_SLOTS, -(-more.expected_ns // SLOT_NS))
        moments = [now_ns + k * SLOT_NS for k in range(slots)] + [end_ns]
        return max(more.memory(at) + self._memory(at, now_ns) for at in moments)

    def has_memory(self, more: RunningCall, now_ns: int) -> bool:
        """An idle instance takes every call, and one whose room is not known."""
        return self.takes_all or self.peak(more, now_ns) <= self.memory_tokens

    @property
    def takes_all(self) -> bool:
        """Whatever the peak would be."""
        return not self.memory_tokens or not self.running

    def _memory(self, at_ns: int, now_ns: int) -> float:
        return sum(
            one.memory(at_ns)
            for one in self.running.values()
            if at_ns <= max(one.began_ns + one.expected_ns, now_ns)
        )


@dataclass(frozen=True, slots=True)
class ChosenInstance:
    """Where a call goes; instance None: nowhere yet."""

    instance: Instance | None
    reason: str


Dispatch = Callable[[RunningCall, Sequence[Instance], int], ChosenInstance]
"""(a call as it would run, instances with a place for it, now_ns) -> where to."""


class RoundRobin:
    """One after the other: the baseline of Chen et al."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, _run: RunningCall, free: Sequence[Instance], _now_ns: int) -> ChosenInstance:
        names = sorted(free, key=lambda one: one.name)
        later = [one for one in names if one.name > self._last]
        chosen = (later or names)[0]
        self._last = chosen.name
        return ChosenInstance(chosen, "its turn")


def lowest_peak(run: RunningCall, free: Sequence[Instance], now_ns: int) -> ChosenInstance:
    """The instance whose cache has the lowest expected peak, as a share of its room where that is
    known; none while that peak would not fit (Chen et al. §6). An idle one takes every call."""

    peaks = [(one, one.peak(run, now_ns)) for one in free]
    fits = [(one, peak) for one, peak in peaks if one.takes_all or peak <= one.memory_tokens]
    if not fits:
        return ChosenInstance(None, "held back: no instance has the memory")
    known = all(one.memory_tokens for one, _ in fits)

    def key(found: tuple[Instance, float]) -> tuple[float, int, str]:
        one, peak = found
        return peak / one.memory_tokens if known else peak, one.given, one.name

    best, peak = min(fits, key=key)
    room = f" of {best.memory_tokens}" if best.memory_tokens else ""
    return ChosenInstance(best, f"expected peak {peak:.0f}{room} tokens")


def fewest_calls(run: RunningCall, free: Sequence[Instance], now_ns: int) -> ChosenInstance:
    """The instance with the fewest calls; none while the memory of all does not suffice, as in
    `lowest_peak`."""
    fits = [one for one in free if one.has_memory(run, now_ns)]
    if not fits:
        return ChosenInstance(None, "held back: no instance has the memory")
    best = min(fits, key=lambda one: (len(one.running), one.given, one.name))
    return ChosenInstance(best, f"{len(best.running)} calls there")


DISPATCHES: Mapping[str, Callable[[], Dispatch]] = {
    "round_robin": RoundRobin,
    "lowest_peak": lambda: lowest_peak,
    "fewest_calls": lambda: fewest_calls,
}


def dispatch_called(name: str) -> Dispatch:
    """Raises ConfigError for a name that is none."""
    if name not in DISPATCHES:
        raise ConfigError(f"dispatch {name!r} is unknown; choose from {', '.join(DISPATCHES)}")
    return DISPATCHES[name]()
