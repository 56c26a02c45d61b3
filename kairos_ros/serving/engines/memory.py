"""Which engines of this host are loaded within a memory budget: what `memory_plan` is told."""

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.memory_plan import MemoryPlan, PolicyMemory, plan_memory
from kairos_ros.serving.engines.engines import Engines
from kairos_ros.serving.engines.slot import EngineSlot
from kairos_ros.serving.options import SECOND_NS
from kairos_ros.serving.request_queue import RequestQueue
from kairos_ros.serving.sessions import Session, Sessions

LOOK_NS = 50_000_000
"""How often at most it is looked at what is needed."""
ASKED_NS = 5 * SECOND_NS
"""A robot that is refused asks again within this time while it still needs an answer."""
MOVING = ("starting", "loading", "ending")


class MemoryBudget:
    """Not thread safe."""

    def __init__(
        self, budget_mib: int, engines: Engines, queue: RequestQueue, sessions: Sessions
    ) -> None:
        """budget_mib: 0 for none."""
        self.budget_mib = budget_mib
        self._engines = engines
        self._queue = queue
        self._sessions = sessions
        self._looked_ns = 0

    def plan(self, now_ns: int) -> MemoryPlan:
        """Which engines to load and to end now. Those to end get no more batches."""
        if not self.budget_mib or now_ns - self._looked_ns < LOOK_NS:
            return MemoryPlan()
        self._looked_ns = now_ns
        plan = plan_memory(now_ns, self.budget_mib, self._policies(now_ns))
        for name in plan.end:
            self._engines.slots[name].state = "ending"
        return plan

    def loaded(self, now_ns: int, slot: EngineSlot, memory_mib: int, loaded_s: float) -> None:
        """An engine is up, as its worker tells. Raises ConfigError for one that takes more than
        the budget."""
        memory = slot.memory
        if memory is None:
            return
        memory.needs_mib, memory.load_ns = memory_mib or memory.needs_mib, round(loaded_s * 1e9)
        memory.ready_ns, memory.wanted_ns = now_ns, None
        check_fits(slot.policy, memory.needs_mib, self.budget_mib)

    def contention(self, now_ns: int) -> str:
        """Which policies are needed at the same time and do not fit together, for people; mostly
        empty."""
        needed = [p for p in self._policies(now_ns) if p.in_use or p.wanted_ns is not None]
        needs_mib = sum(policy.needs_mib for policy in needed)
        if needs_mib <= self.budget_mib or not self.budget_mib:
            return ""
        names = ", ".join(f"{policy.name} ({policy.needs_mib} MiB)" for policy in needed)
        return (
            f"{names} are needed at the same time and do not fit into memory_budget_mib = "
            f"{self.budget_mib} together: they take turns, and their robots hold meanwhile"
        )

    def _policies(self, now_ns: int) -> list[PolicyMemory]:
        found = []
        for slot in self._engines.slots.values():
            if slot.memory is None or slot.given_up:
                continue
            held = slot.state != "not loaded"
            wanted = not held and self._wanted(now_ns, slot)
            if not wanted:
                slot.memory.wanted_ns = None
            elif slot.memory.wanted_ns is None:
                slot.memory.wanted_ns = now_ns
            policy = PolicyMemory(
                name=slot.name,
                needs_mib=slot.memory.needs_mib,
                load_ns=slot.memory.load_ns,
                held=held,
                moving=slot.state in MOVING,
                ready_ns=slot.memory.ready_ns,
                used_ns=max(slot.used_ns(now_ns), slot.memory.ready_ns),
                in_use=any(one.policy == slot.policy for one in self._with_task()),
                wanted_ns=slot.memory.wanted_ns,
            )
            found.append(policy)
        return found

    def _with_task(self) -> list[Session]:
        return [session for session in self._sessions.sessions.values() if session.has_task]

    def _wanted(self, now_ns: int, slot: EngineSlot) -> bool:
        """Whether requests wait for this engine. Where another one of its policy is up, they do
        once they have waited for longer than loading takes: until then the other one is sooner.

        A task that began elsewhere names weights only; any policy that was never loaded may be it.
        """
        assert slot.memory is not None
        pending = [one for one in self._queue.entries.values() if one.policy == slot.policy]
        if self._engines.is_up(slot.policy):
            return any(now_ns - one.received_ns > slot.memory.load_ns for one in pending)
        return bool(pending) or any(
            session.policy == slot.policy or (session.policy is None and slot.description is None)
            for session in self._with_task()
            if now_ns - session.asked_ns < ASKED_NS
        )


def check_fits(policy: str, needs_mib: int, budget_mib: int) -> None:
    """Raises ConfigError for a policy that does not fit into the budget alone."""
    if budget_mib and needs_mib > budget_mib:
        which = f"policy {policy}" if policy else "the policy"
        raise ConfigError(
            f"{which} takes {needs_mib} MiB, and memory_budget_mib is {budget_mib}; raise it, or "
            "serve this policy elsewhere"
        )
