"""The engines of one server, all of which serve one policy."""

from collections.abc import Iterator

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement import Tier
from kairos_ros.serving.engines import EngineSlot
from kairos_ros.serving.requests import Entry
from kairos_ros.transport.messages import EngineDescription


class Roster:
    """Engines by name. Not thread safe."""

    def __init__(self) -> None:
        self.slots: dict[str, EngineSlot] = {}

    def add(self, name: str, tier: Tier, network_ns: int) -> EngineSlot:
        slot = self.slots[name] = EngineSlot(name, tier, network_ns)
        return slot

    @property
    def ready(self) -> list[EngineSlot]:
        return [slot for slot in self.slots.values() if slot.state == "ready"]

    @property
    def described(self) -> EngineSlot | None:
        """An engine that knows what it serves; they all serve the same."""
        return next((slot for slot in self.slots.values() if slot.description), None)

    def in_flight(self) -> Iterator[Entry]:
        """The unanswered requests of all running batches; one that was hedged twice."""
        return (
            entry
            for slot in self.slots.values()
            for running in slot.flight.values()
            for entry in running.entries
            if not entry.answered
        )

    def turn_out(self, slot: EngineSlot, description: EngineDescription) -> list[EngineSlot]:
        """Engines that `slot`, which serves `description`, proves to be wrong; they are refused.

        Where edge and cloud differ it is the cloud that is wrong, whichever came first. Raises
        ConfigError where it is `slot` itself.
        """
        wrong = []
        for other in self.slots.values():
            served = other.description
            unlike = served and other is not slot and _difference(description, served)
            if not unlike:
                continue
            differ = (
                f"engine {slot.name!r} serves {unlike[0]}, but {other.name!r} serves {unlike[1]}"
            )
            if (slot.tier, other.tier) != ("edge", "cloud"):
                raise ConfigError(differ)
            other.refuse(differ)
            wrong.append(other)
        return wrong

    def why_none(self) -> str:
        """The last errors of all engines."""
        return "; ".join(slot.last_error for slot in self.slots.values() if slot.last_error)


def _difference(one: EngineDescription, other: EngineDescription) -> tuple[str, str] | None:
    """How the policies of two engines differ, if they do: first in which they are, then in what
    they read and answer, which engines of one policy only claim."""
    if one.policy_id != other.policy_id:
        return one.policy_id, other.policy_id
    for name in ("state_dim", "images", "action_dim", "chunk_size", "instructions"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            return f"{one.policy_id} with {name} {mine!s:.60}", f"it with {theirs!s:.60}"
    return None
