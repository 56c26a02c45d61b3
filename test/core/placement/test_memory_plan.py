"""Which policies are loaded within a budget: by hand, for any state, and over time."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_ros.core.placement.memory_plan import TURN_LOADS, MemoryPlan, PolicyMemory, plan_memory

SECOND = 1_000_000_000
PICK = PolicyMemory("pick", 3000, 20 * SECOND, held=True, ready_ns=0, used_ns=50 * SECOND)
PLACE = PolicyMemory("place", 3000, 20 * SECOND)
WANTED = replace(PLACE, wanted_ns=60 * SECOND)


def test_a_policy_is_loaded_when_requests_wait_for_it_and_not_before():
    assert plan_memory(0, 8000, [PICK, PLACE]) == MemoryPlan()
    assert plan_memory(0, 8000, [PICK, WANTED]) == MemoryPlan(load="place")


def test_where_it_does_not_fit_the_least_recently_used_one_that_no_task_needs_is_ended_first():
    older = replace(PICK, name="older", used_ns=40 * SECOND)
    needed = replace(PICK, name="needed", used_ns=10 * SECOND, in_use=True)
    assert plan_memory(61 * SECOND, 9000, [PICK, older, needed, WANTED]).end == ("older",)
    gone = replace(older, held=False)
    assert plan_memory(61 * SECOND, 9000, [PICK, gone, needed, WANTED]).load == "place"


def test_nobody_is_ended_whom_a_larger_one_that_has_to_go_makes_needless():
    small = PolicyMemory("small", 100, SECOND, held=True, used_ns=1)
    assert plan_memory(61 * SECOND, 3100, [PICK, small, WANTED]).end == ("pick",)


def test_a_policy_in_use_has_its_turn_before_another_takes_its_place():
    busy = replace(PICK, in_use=True)
    turn_ns = TURN_LOADS * 20 * SECOND
    assert plan_memory(turn_ns - 1, 5000, [busy, WANTED]) == MemoryPlan()
    turns = MemoryPlan(end=("pick",), taking_turns=True)
    assert plan_memory(turn_ns, 5000, [busy, WANTED]) == turns
    slow = replace(WANTED, load_ns=30 * SECOND)
    assert plan_memory(turn_ns, 5000, [busy, slow]) == MemoryPlan()


def test_nothing_is_decided_while_a_policy_comes_or_goes():
    assert plan_memory(0, 9000, [replace(PICK, moving=True), WANTED]) == MemoryPlan()


def test_a_policy_that_takes_more_than_was_thought_makes_others_go():
    large = replace(PICK, name="large", needs_mib=6000, used_ns=99 * SECOND)
    assert plan_memory(0, 8000, [PICK, large]).end == ("pick",)


POLICIES = st.lists(
    st.builds(
        PolicyMemory,
        name=st.uuids().map(str),
        needs_mib=st.integers(0, 1000),
        load_ns=st.integers(0, 100),
        held=st.booleans(),
        moving=st.booleans() | st.just(False),
        ready_ns=st.integers(0, 1000),
        used_ns=st.integers(0, 1000),
        in_use=st.booleans(),
        wanted_ns=st.none() | st.integers(0, 1000),
    ),
    max_size=6,
)


@given(POLICIES, st.integers(1000, 3000))
def test_in_any_state_the_budget_holds_turns_are_kept_and_nobody_goes_for_nothing(policies, budget):
    now = 1000
    named = {policy.name: policy for policy in policies}
    plan = plan_memory(now, budget, policies)
    held = sum(p.needs_mib for p in policies if p.held)
    waiting = [p for p in policies if not p.held and p.wanted_ns is not None]
    first = min(waiting, key=lambda p: (p.wanted_ns, p.name), default=None)
    needs = first.needs_mib if first else 0
    assert not (plan.load and plan.end)
    if any(p.moving for p in policies):
        assert plan == MemoryPlan()
    if plan.load:
        assert plan.load == first.name
        assert held + needs <= budget
    going = [named[name] for name in plan.end]
    assert all(p.held for p in going)
    for policy in going:
        turn = TURN_LOADS * max(policy.load_ns, first.load_ns if first else 0)
        assert not policy.in_use or now - policy.ready_ns >= turn
        without_it = sum(p.needs_mib for p in going) - policy.needs_mib
        assert held + needs - without_it > budget
    if going:
        assert held + needs - sum(p.needs_mib for p in going) <= budget


class Host:
    """Policies that are always needed, moved as the plan says, a step at a time."""

    def __init__(self, sizes, budget, load_ns):
        self.budget, self.load_ns, self.now = budget, load_ns, 0
        self.all = {n: PolicyMemory(n, s, load_ns, wanted_ns=0) for n, s in sizes.items()}
        self.loads = []
        self.served_ns = dict.fromkeys(sizes, 0)
        self._ready_at = {}

    def step(self, ns):
        self.now += ns
        for name, at in list(self._ready_at.items()):
            if self.now >= at:
                del self._ready_at[name]
                loaded = {"moving": False, "in_use": True, "ready_ns": self.now}
                self.all[name] = replace(self.all[name], **loaded)
        for name, policy in self.all.items():
            self.served_ns[name] += ns * (policy.held and not policy.moving)
        plan = plan_memory(self.now, self.budget, list(self.all.values()))
        for name in plan.end:
            self.all[name] = replace(self.all[name], held=False, wanted_ns=self.now)
        if plan.load:
            self.loads.append(plan.load)
            coming = {"held": True, "moving": True, "wanted_ns": None}
            self.all[plan.load] = replace(self.all[plan.load], **coming)
            self._ready_at[plan.load] = self.now + self.load_ns
        assert sum(p.needs_mib for p in self.all.values() if p.held) <= self.budget


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 100), min_size=2),
    st.integers(100, 250),
    st.integers(5, 40),
)
def test_policies_that_are_all_needed_all_the_time_take_turns_and_none_starves(
    sizes, budget, load_ns
):
    host = Host(sizes, budget, load_ns)
    length = 60 * (TURN_LOADS + 2) * load_ns
    for _ in range(length):
        host.step(1)
    assert all(served >= (TURN_LOADS - 1) * load_ns for served in host.served_ns.values())
    most = length / ((TURN_LOADS + 1) * load_ns) * len(sizes) + len(sizes)
    assert len(host.loads) <= most
    if sum(sizes.values()) <= budget:
        assert sorted(host.loads) == sorted(sizes)
