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
        """The requests of all running batches."""
        return (
            entry
            for slot in self.slots.values()
            for running in slot.flight.values()
            for entry in running.entries
        )

    def turn_out(self, slot: EngineSlot, description: EngineDescription) -> list[EngineSlot]:
        """Engines that `slot`, which serves `description`, proves to be wrong; they are refused.

        Where edge and cloud differ it is the cloud that is wrong, whichever came first. Raises
        ConfigError where it is `slot` itself.
        """
        wrong = []
        for other in self.slots.values():
            served = other.description
            if other is slot or served is None or served.policy_id == description.policy_id:
                continue
            differ = (
                f"engine {slot.name!r} serves {description.policy_id}, "
                f"but {other.name!r} serves {served.policy_id}"
            )
            if (slot.tier, other.tier) != ("edge", "cloud"):
                raise ConfigError(differ)
            other.refuse(differ)
            wrong.append(other)
        return wrong

    def why_none(self) -> str:
        """The last errors of all engines."""
        return "; ".join(slot.last_error for slot in self.slots.values() if slot.last_error)
