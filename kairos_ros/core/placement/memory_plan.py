"""Which policies of one host are loaded, where its memory is too small for all of them.

Times are integer nanoseconds of one monotonic clock, memory is in MiB.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TURN_LOADS = 4
"""A policy that tasks need stays for at least so many load times before another one, that does not
fit beside it, takes its place: four fifths of the time then serve robots, and one fifth loads."""


@dataclass(frozen=True, slots=True)
class PolicyMemory:
    """A policy of this host as it is now."""

    name: str
    needs_mib: int
    """What it takes where it is loaded, as far as is known."""
    load_ns: int
    """What loading it takes, as far as is known."""
    held: bool = False
    """It takes memory: it is loaded, or is being loaded or ended."""
    moving: bool = False
    """It is being loaded or ended."""
    ready_ns: int = 0
    """Of one that is loaded: since when."""
    used_ns: int = 0
    """When a request of it was last under way."""
    in_use: bool = False
    """A task needs it that has not ended."""
    wanted_ns: int | None = None
    """Of one that is not held: since when requests wait for it; None: none does."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What to do now; mostly nothing."""

    load: str | None = None
    end: tuple[str, ...] = ()
    taking_turns: bool = False
    """One of `end` is needed by tasks: these policies do not fit together."""


def plan_memory(now_ns: int, budget_mib: int, policies: Sequence[PolicyMemory]) -> MemoryPlan:
    """Loads the policy for which requests have waited longest, and ends others where it needs room.

    One that no task needs is ended first, the least recently used one before the others; one that
    tasks need only after its turn (`TURN_LOADS`), and only where the others do not make room
    enough. Nothing is decided while a policy is being loaded or ended. Nobody overtakes the policy
    that has waited longest, so that each has its turn.
    """
    if any(policy.moving for policy in policies):
        return MemoryPlan()
    waiting = [(p.wanted_ns, p) for p in policies if not p.held and p.wanted_ns is not None]
    first = min(waiting, key=lambda one: (one[0], one[1].name), default=(0, None))[1]
    held = [policy for policy in policies if policy.held]
    missing_mib = sum(policy.needs_mib for policy in held) - budget_mib
    missing_mib += first.needs_mib if first else 0
    if missing_mib <= 0:
        return MemoryPlan(load=first.name if first else None)
    going = _make_room(now_ns, missing_mib, held, first.load_ns if first else 0)
    return MemoryPlan(None, tuple(p.name for p in going), any(p.in_use for p in going))


def _make_room(
    now_ns: int, missing_mib: int, held: Sequence[PolicyMemory], load_ns: int
) -> list[PolicyMemory]:
    """Whom to end so that so much memory becomes free; nobody where that is not possible yet.

    load_ns: of the policy that needs the room.
    """
    free_to_go = [
        policy
        for policy in held
        if not policy.in_use
        or now_ns - policy.ready_ns >= TURN_LOADS * max(policy.load_ns, load_ns)
    ]
    free_to_go.sort(key=lambda policy: (policy.in_use, policy.used_ns, policy.name))
    going: list[PolicyMemory] = []
    for policy in free_to_go:
        if missing_mib <= 0:
            break
        going.append(policy)
        missing_mib -= policy.needs_mib
    if missing_mib > 0:
        return []
    for policy in going.copy():  # those that a larger one made needless
        if missing_mib + policy.needs_mib <= 0:
            going.remove(policy)
            missing_mib += policy.needs_mib
    return going
