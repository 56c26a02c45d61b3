"""Which of several robot nodes with one name takes goals: messages with delays, and any order."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kairos_ros.robot.name_owner import MOST_OTHERS, PATIENCE_NS, SILENT_NS, NameOwner

S = 1_000_000_000
STEP = S // 20
DELAY = st.integers(0, 9)
"""Steps; less than half of what a node listens for."""


class Fleet:
    """Nodes of one name that tell their status each second, and whenever they take the name."""

    def __init__(self, starts, delays):
        self.starts, self.delays = starts, delays
        self.nodes: dict[str, NameOwner] = {}
        self.under_way = []
        self.now = 0

    def run(self, steps, dead=()):
        """Steps through time; yields who takes goals after each."""
        for _ in range(steps):
            self.now += STEP
            for name, start in self.starts.items():
                if start == self.now // STEP:
                    self.nodes[name] = NameOwner(name, self.now)
            for name in dead:
                self.nodes.pop(name, None)
            for name, node in self.nodes.items():
                if (self.now // STEP - self.starts[name]) % 20 == 0:
                    self.tell(name, node)
            due = [one for one in self.under_way if one[0] <= self.now]
            self.under_way = [one for one in self.under_way if one[0] > self.now]
            for _, to, session, has_it_s in sorted(due, key=lambda one: one[0]):
                if to in self.nodes:
                    self.nodes[to].heard(session, self.now, has_it_s, leaving=False)
            for name, node in self.nodes.items():
                self.decide(name, node)
            yield {name for name, node in self.nodes.items() if node.has_it_s(self.now)}

    def tell(self, name, node):
        for to in self.starts:
            late = self.delays[name, to] * STEP
            known = max(self.now, self.starts[to] * STEP)
            self.under_way.append((known + late, to, name, node.has_it_s(self.now)))

    def decide(self, name, node):
        has, left_to = node.has_it_s(self.now) > 0, node.owner(self.now)
        if not has and not left_to and not node.listens(self.now):
            node.takes(self.now)
            self.tell(name, node)
        elif has and left_to:
            node.leaves()
            self.tell(name, node)


@st.composite
def fleets(draw, names=("a", "b", "c")):
    starts = {name: draw(st.integers(1, 60)) for name in names}
    delays = {(one, to): draw(DELAY) for one in names for to in names}
    return Fleet(starts, delays)


@given(fleets())
@settings(deadline=None)
def test_never_two_take_goals_and_soon_one_does(fleet):
    *_, last = taking = list(fleet.run(200))
    assert max(map(len, taking)) == 1
    assert len(last) == 1


@given(fleets())
@settings(deadline=None)
def test_whoever_takes_goals_keeps_them_until_it_is_gone_and_then_another_one_does(fleet):
    taking = [one for one in fleet.run(200) if one]
    assert all(one == taking[0] for one in taking)
    *_, last = fleet.run(SILENT_NS // STEP + 60, dead=taking[0])
    assert len(last) == 1
    assert last != taking[0]


@example(48.0, 49.5, 0.5, 0.5)
@given(
    st.floats(0.001, 100),
    st.floats(0.001, 100),
    st.floats(0, 0.9),
    st.floats(0, 0.9),
)
def test_of_two_that_take_goals_at_least_one_gives_way_whatever_the_delays(a_s, b_s, ab_s, ba_s):
    """As after a network was split."""
    now = 1000 * S
    a, b = NameOwner("a", 0), NameOwner("b", 0)
    a.takes(now - round(a_s * S))
    b.takes(now - round(b_s * S))
    a.heard("b", now + round(ba_s * S), b.has_it_s(now), leaving=False)
    b.heard("a", now + round(ab_s * S), a.has_it_s(now), leaving=False)
    later = now + S
    assert a.owner(later) or b.owner(later)
    if abs(a_s - b_s) > 4:
        assert bool(a.owner(later)) == (a_s < b_s), "the one that had it longer keeps it"


def test_a_namesake_that_leaves_is_forgotten_at_once_and_a_silent_one_later():
    node = NameOwner("b", 0)
    node.heard("a", S, 5.0, leaving=False)
    assert node.owner(2 * S) == "a"
    node.heard("a", 2 * S, 5.0, leaving=True)
    assert node.owner(2 * S) == ""
    node.heard("a", 2 * S, 5.0, leaving=False)
    assert node.owner(2 * S + SILENT_NS - 1) == "a"
    assert node.owner(2 * S + SILENT_NS) == ""


def test_a_namesake_that_never_takes_goals_does_not_keep_others_from_it():
    """As a node of another version would, which does not know that it should."""
    node = NameOwner("b", 0)
    for second in range(8):
        node.heard("a", second * S, 0.0, leaving=False)
        assert node.owner(second * S) == ("a" if second * S < PATIENCE_NS else "")


def test_ones_own_status_says_nothing_and_a_flood_of_others_is_not_remembered():
    node = NameOwner("b", 0)
    node.heard("b", S, 5.0, leaving=False)
    assert node.owner(S) == ""
    for number in range(1000):
        node.heard(f"x{number}", S, 0.0, leaving=False)
    assert len(node._others) == MOST_OTHERS
