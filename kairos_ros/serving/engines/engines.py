"""The engines of one server, each with one of its policies, and what they need for a round."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from kairos_ros.core.errors import ConfigError, RefusalCode
from kairos_ros.core.exchange import Refusal
from kairos_ros.core.placement.overflow import Tier
from kairos_ros.core.profile import EngineProfile
from kairos_ros.serving.engines.batches import SlotMemory
from kairos_ros.serving.engines.slot import EngineSlot
from kairos_ros.serving.options import SECOND_NS
from kairos_ros.serving.request_queue import PendingRequest
from kairos_ros.transport.messages import EngineDescription

NOT_NEEDED = ("not loaded", "ending")
"""States of an engine that is not up because nobody asks for its policy."""
WEIGHT = 0.1
"""Of the newest round in the running mean of the server's share."""


class Engines:
    """Engines by name. Not thread safe."""

    def __init__(self) -> None:
        self.slots: dict[str, EngineSlot] = {}
        self.routes: Mapping[str, str] = {}
        """Robot -> the engine that serves it, where a plan says so."""
        self.refused: Mapping[str, str] | None = None
        """Robots that asked to join the plan and do not fit, and why; None: all are served."""

    def add(
        self,
        name: str,
        tier: Tier,
        network_ns: int,
        policy: str = "",
        device: str = "",
        memory: SlotMemory | None = None,
        standby: bool = False,
    ) -> EngineSlot:
        """device, memory, standby: as in `EngineSlot`."""
        slot = EngineSlot(
            name, tier, network_ns, policy=policy, device=device, memory=memory, standby=standby
        )
        self.slots[name] = slot
        if device:
            slot.mates = [one for one in self.slots.values() if one.device == device]
            for mate in slot.mates:
                mate.mates = slot.mates
        return slot

    def remove(self, name: str) -> None:
        """An engine that has nothing in flight."""
        gone = self.slots.pop(name)
        for mate in gone.mates:
            mate.mates = [one for one in gone.mates if one is not gone]

    @property
    def ready(self) -> list[EngineSlot]:
        return [slot for slot in self.slots.values() if slot.state == "ready"]

    @property
    def in_service(self) -> list[EngineSlot]:
        """Those that are ready, without the standby engines that are not needed: as many serve as
        other engines of their policy are down."""
        needed = Counter(
            slot.policy
            for slot in self.slots.values()
            if not slot.standby and slot.state not in ("ready", *NOT_NEEDED)
        )
        chosen = []
        for slot in self.ready:
            if slot.standby:
                needed[slot.policy] -= 1
            if not slot.standby or needed[slot.policy] >= 0:
                chosen.append(slot)
        return chosen

    def bound(self, entry: PendingRequest) -> str:
        """The engine that has the state of the request's task, or else the one that the plan routes
        its robot to, as long as it is in service; empty: any engine of its policy may serve it."""
        slot = self.slots.get(entry.session.served_by)
        if slot is None or not slot.keeps_states:
            slot = self.slots.get(self.routes.get(entry.session.robot, ""))
        if slot is None or slot.policy != entry.policy:
            return ""
        return slot.name if any(slot is one for one in self.in_service) else ""

    def why_not_admitted(self, robot: str) -> tuple[str, bool]:
        """Why the plan does not have a robot, and whether that is decided; empty where it has it,
        and where there is no plan."""
        if self.refused is None or robot in self.routes:
            return "", True
        undecided = "the fleet runs by a plan that does not have this robot (yet)"
        return self.refused.get(robot, undecided), robot in self.refused

    def round_cost_s(self, policy: str) -> tuple[str, float] | None:
        """Where the rounds of a policy are computed, and which share of that one round per second
        takes; None while no engine of it is up."""
        slots = [slot for slot in self.in_service if slot.policy == policy]
        capacity = sum(slot.rounds_per_s for slot in slots)
        if not capacity:
            return None
        return slots[0].device or f"policy {policy}", 1.0 / capacity

    def described(self, policy: str) -> EngineSlot | None:
        """An engine of this policy that knows what it serves; all of them serve the same."""
        return next((s for s in self.slots.values() if s.policy == policy and s.description), None)

    def in_flight(self) -> Iterator[PendingRequest]:
        """The unanswered requests of all running batches; one that was hedged twice."""
        return (
            entry
            for slot in self.slots.values()
            for running in slot.flight.values()
            for entry in running.entries
            if not entry.answered
        )

    def refuse_others(self, slot: EngineSlot, description: EngineDescription) -> list[EngineSlot]:
        """Engines of its policy that `slot`, which serves `description`, proves to be wrong; they
        are refused.

        Where edge and cloud differ it is the cloud that is wrong, whichever came first. Raises
        ConfigError where it is `slot` itself.
        """
        wrong = []
        for other in self.slots.values():
            served = other.description
            if served is None or other is slot or other.policy != slot.policy:
                continue
            unlike = _difference(description, served)
            if unlike is None:
                continue
            differ = (
                f"engine {slot.name!r} serves {unlike[0]}, but {other.name!r} serves {unlike[1]}"
            )
            if (slot.tier, other.tier) != ("edge", "cloud"):
                raise ConfigError(differ)
            other.not_up("refused", differ)
            wrong.append(other)
        return wrong

    def too_late(self, now_ns: int, entry: PendingRequest) -> Refusal:
        """Of a request that is pending beyond its deadline."""
        waited = f"{(now_ns - entry.received_ns) / 1e9:.1f} s"
        if self.is_up(entry.policy):
            return Refusal(RefusalCode.DEADLINE, f"still queued after {waited}", SECOND_NS // 10)
        of = f" of policy {entry.policy}" if entry.policy else ""
        text = f"no engine{of} is up after {waited}: {self.why_not_up(now_ns, entry.policy)}"
        return Refusal(RefusalCode.ENGINE_DOWN, text, SECOND_NS)

    def is_up(self, policy: str) -> bool:
        """Whether an engine takes requests of this policy."""
        return any(slot.policy == policy for slot in self.ready)

    def check_standby(self) -> None:
        """Raises ConfigError for a standby engine of a policy that no other engine serves."""
        for slot in self.slots.values():
            others = (s for s in self.slots.values() if s.policy == slot.policy and not s.standby)
            if slot.standby and not any(others):
                of = f"of policy {slot.policy!r} " if slot.policy else ""
                raise ConfigError(
                    f"engine {slot.name!r} is standby, but there is no other engine {of}whose "
                    "place it could take; leave standby out"
                )

    def why_given_up(self, policy: str) -> str:
        """Why no engine of this policy will be up before the serving node is started again, for
        people; empty where one may be."""
        slots = [slot for slot in self.slots.values() if slot.policy == policy]
        if not all(slot.given_up for slot in slots):
            return ""
        return "; ".join(slot.last_error for slot in slots)

    def why_not_up(self, now_ns: int, policy: str) -> str:
        """Why no engine of this policy is up, for people."""
        slots = [slot for slot in self.slots.values() if slot.policy == policy]
        reasons = (slot.trouble(now_ns) or slot.last_error or slot.state for slot in slots)
        return "; ".join(reasons) or "there is none"


def _difference(one: EngineDescription, other: EngineDescription) -> tuple[str, str] | None:
    """How the policies of two engines differ, if they do: first in which they are, then in what
    they read and answer, which engines of one policy only claim."""
    if one.policy_id != other.policy_id:
        return one.policy_id, other.policy_id
    for name in ("state_dim", "images", "action_dim", "chunk_size", "instructions", "observations"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if mine != theirs:
            return f"{one.policy_id} with {name} {mine!s:.60}", f"it with {theirs!s:.60}"
    return None


class ServerTime:
    """Running mean of the server's share of a round trip, per policy."""

    def __init__(self) -> None:
        self._mean_ns: defaultdict[str, float] = defaultdict(float)

    def note(self, policy: str, duration_ns: int) -> None:
        """A round took so long from its receipt to its answer."""
        mean_ns = self._mean_ns[policy]
        self._mean_ns[policy] = mean_ns + WEIGHT * (duration_ns - mean_ns)

    def expected_ns(self, slot: EngineSlot) -> int:
        """What a robot should allow for the server in its next round: as lately, but no more than
        two full batches, the first one of any policy of its device. In overload sending earlier
        would only age the observations."""
        others = [mate for mate in slot.mates if mate.latency_ns] or [slot]
        before_ns = max(other.latency_of(len(other.latency_ns)) for other in others)
        longest = before_ns + slot.latency_of(len(slot.latency_ns)) + slot.network_ns
        return round(min(max(self._mean_ns[slot.policy], slot.latency_of(1)), longest))


def warmup_profile(engine: EngineDescription) -> EngineProfile:
    """What the engine measured while it warmed up, without spread.

    Raises ConfigError where it measured nothing.
    """
    if not engine.warmup:
        raise ConfigError(
            f"engine of {engine.policy_id} measured nothing while warming up; "
            "run 'kairos profile' and give its JSON as parameter profile"
        )
    sizes, seconds = zip(*engine.warmup, strict=True)
    return EngineProfile(
        policy_id=engine.policy_id,
        machine="measured while warming up",
        device=engine.device,
        dtype=engine.dtype,
        batch_sizes=sizes,
        p50_s=seconds,
        p10_s=seconds,
        p90_s=seconds,
    )
