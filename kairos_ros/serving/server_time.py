"""How long the server needs for a round lately, so that robots know how early to ask."""

from kairos_ros.serving.engines import EngineSlot

WEIGHT = 0.1


class ServerTime:
    """Running mean of the server's share of a round trip."""

    def __init__(self) -> None:
        self._mean_s = 0.0

    def note(self, seconds: float) -> None:
        """A round took so long from its receipt to its answer."""
        self._mean_s += WEIGHT * (seconds - self._mean_s)

    def expected_s(self, slot: EngineSlot) -> float:
        """What a robot should allow for the server in its next round: as lately, but no more than
        two full batches. In overload sending earlier would only age the observations."""
        longest = (2 * slot.latency_of(len(slot.latency_ns)) + slot.network_ns) / 1e9
        return min(max(self._mean_s, slot.latency_of(1) / 1e9), longest)
