"""Which of several serving nodes serves: their rules run against each other in virtual time."""

import random
from dataclasses import dataclass, field

import pytest

from kairos_ros.core.server_status import HEARTBEATS, FleetServer, ServerState, ServerStatus
from kairos_ros.serving.other_servers import MOST_SERVERS, PROBATION_NS, OtherServers

S = 1_000_000_000


@dataclass
class Node:
    """A server with its own clock, which began at some time of its own."""

    name: str
    robots: tuple[str, ...] = ()
    offset_ns: int = 0
    wants: bool = True
    loaded: bool = True
    standby_after_ns: int = 0
    since_ns: int | None = None
    state: ServerState = ServerState.STARTING
    owner: str = ""
    others: OtherServers = field(init=False)

    def __post_init__(self):
        self.others = OtherServers(self.name, self.robots, self.standby_after_ns)

    def turn(self, now_ns):
        """As the node does several times a second; returns its status."""
        now_ns += self.offset_ns
        owner = self.others.before(now_ns, self.since_ns) if self.wants else None
        self.owner = owner.server if owner else ""
        if owner:
            stands_by = self.standby_after_ns or owner.standby_after_ns
            self.state = ServerState.STANDBY if stands_by else ServerState.CONFLICT
        elif not self.wants:
            self.state = ServerState.INACTIVE
        else:
            self.state = ServerState.ACTIVE if self.loaded else ServerState.STARTING
        if self.state is not ServerState.ACTIVE:
            self.since_ns = None
        elif self.since_ns is None:
            self.since_ns = now_ns
        return ServerStatus(
            self.name,
            self.state,
            robots=self.robots,
            policy="p" if self.loaded else "",
            active_for_ns=now_ns - self.since_ns if self.since_ns is not None else 0,
            silent_after_ns=self.others.silent_after_ns,
            standby_after_ns=self.standby_after_ns,
        )


class Fleet:
    """Servers that hear each other's statuses a little late; `cut` parts the network."""

    def __init__(self, *nodes, delay_s=(0.0, 0.2), seed=0):
        self.nodes = list(nodes)
        self.now_ns = 0
        self.cut = False
        self.both_s = 0.0
        """Longest time in which two served the same robots while they could hear each other."""
        self._random = random.Random(seed)
        self._delay_s = delay_s
        self._told = {}
        self._under_way = []
        self._together_s = 0.0

    def run(self, seconds):
        end_ns = self.now_ns + round(seconds * S)
        while self.now_ns < end_ns:
            self.now_ns += S // 10
            due = [m for m in self._under_way if m[0] <= self.now_ns]
            self._under_way = [m for m in self._under_way if m[0] > self.now_ns]
            for _, node, status in due:
                if node in self.nodes:
                    node.others.heard(status, self.now_ns + node.offset_ns)
            for node in self.nodes:
                self._tell(node, node.turn(self.now_ns))
            together = len(self.active) > 1 and not self.cut
            self._together_s = self._together_s + 0.1 if together else 0.0
            self.both_s = max(self.both_s, self._together_s)
        return self

    def loads(self, node):
        """One more, which hears the others while it loads."""
        node.loaded = False
        self.nodes.append(node)
        self.run(2)
        node.loaded = True
        return self.run(20)

    def _tell(self, node, status):
        before, at_ns = self._told.get(node.name, (None, -S))
        if status.state is before and self.now_ns - at_ns < status.silent_after_ns / HEARTBEATS:
            return
        self._told[node.name] = status.state, self.now_ns
        self.send(node, status)

    def send(self, node, status):
        for other in self.nodes:
            if other is not node and not self.cut:
                late_ns = round(self._random.uniform(*self._delay_s) * S)
                self._under_way.append((self.now_ns + late_ns, other, status))

    def kill(self, node):
        self.nodes.remove(node)

    def stop(self, node):
        self.send(node, ServerStatus(node.name, ServerState.LEAVING))
        self.nodes.remove(node)

    @property
    def active(self):
        return sorted(n.name for n in self.nodes if n.state is ServerState.ACTIVE)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_a_second_server_says_so_and_serves_nobody(names):
    first, second = Node(names[0]), Node(names[1], offset_ns=-500 * S)
    fleet = Fleet(first).run(5)
    second.loaded = False  # it hears the first one while it loads
    fleet.nodes.append(second)
    fleet.run(2)
    assert (second.state, second.owner) == (ServerState.CONFLICT, first.name)
    second.loaded = True
    fleet.run(20)
    assert fleet.active == [first.name]
    assert fleet.both_s == 0.0


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_the_waiting_one_serves_when_the_other_leaves_or_falls_silent(names):
    for go, within_s in (("stop", 1.0), ("kill", 4.5)):
        first, second = Node(names[0]), Node(names[1])
        fleet = Fleet(first).run(5)
        fleet.nodes.append(second)
        fleet.run(3)
        assert fleet.active == [first.name]
        getattr(fleet, go)(first)
        fleet.run(within_s)
        assert fleet.active == [second.name]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("seed", range(5))
def test_a_standby_takes_over_soon_and_the_next_one_stands_by_for_it(names, seed):
    first, second = Node(names[0]), Node(names[1], offset_ns=-9 * S, standby_after_ns=S)
    fleet = Fleet(first, seed=seed).run(5).loads(second)
    assert (fleet.active, second.state) == ([first.name], ServerState.STANDBY)
    fleet.kill(first)
    fleet.run(1.5)
    assert fleet.active == [second.name]
    next_one = Node("c")
    fleet.run(5).loads(next_one)
    assert (fleet.active, next_one.state) == ([second.name], ServerState.STANDBY)
    fleet.kill(second)
    fleet.run(1.5)
    assert fleet.active == ["c"]
    assert fleet.both_s == 0.0


def test_a_standby_that_starts_with_the_server_leaves_the_robots_to_it():
    first, second = Node("b", loaded=False), Node("a", standby_after_ns=S)
    fleet = Fleet(first).loads(second)
    assert (fleet.active, second.state) == ([], ServerState.STANDBY)
    first.loaded = True
    fleet.run(3)
    assert (fleet.active, fleet.both_s) == (["b"], 0.0)


def test_a_standby_serves_where_the_server_dies_while_it_loads():
    first, second = Node("b", loaded=False), Node("a", standby_after_ns=S)
    fleet = Fleet(first).loads(second)
    fleet.kill(first)
    assert fleet.run(5).active == ["a"]


def test_a_standby_that_stood_still_itself_does_not_take_the_other_one_for_dead():
    others = OtherServers("z", (), standby_after_ns=S)
    others.heard(claim("a", silent_after_ns=S), 0)
    others.stood_still(5 * S, 5 * S)
    assert others.before(5 * S + S // 2, None).server == "a"
    assert others.before(6 * S + 1, None) is None
    others.heard(claim("a", silent_after_ns=S), 7 * S)
    others.stood_still(7 * S, 60 * S)  # it loaded meanwhile, and heard the other one all the same
    assert others.before(8 * S + 1, None) is None


def test_a_server_that_told_nothing_for_longer_than_its_standby_waits_may_have_lost_its_robots():
    others = OtherServers("a", ())
    assert not others.may_have_taken_over(60 * S)  # nobody stands by
    others.heard(ServerStatus("z", ServerState.STANDBY, standby_after_ns=S), 0)
    assert not others.may_have_taken_over(S)
    assert others.may_have_taken_over(S + 1)


@pytest.mark.parametrize("seed", range(20))
def test_two_that_start_at_once_end_as_one(seed):
    fleet = Fleet(Node("a", offset_ns=7 * S), Node("b"), seed=seed)
    fleet.run(10)
    assert len(fleet.active) == 1
    assert fleet.both_s <= 1.5
    serving = fleet.active
    assert fleet.run(60).active == serving, "they take turns"


@pytest.mark.parametrize("apart_s", [0.5, 0.9, 1.0, 1.1, 1.5, 1.9, 2.0, 2.1, 3.0, 30.0])
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("seed", range(3))
def test_after_a_split_network_is_whole_again_one_goes_on(apart_s, names, seed):
    """Whatever the difference of their ages: they never both go on, nor both stop for long."""
    older, younger = Node(names[0]), Node(names[1], offset_ns=-77 * S)
    fleet = Fleet(older, seed=seed)
    fleet.cut = True
    fleet.run(apart_s)
    fleet.nodes.append(younger)
    fleet.run(10)
    assert len(fleet.active) == 2
    fleet.cut = False
    fleet.run(PROBATION_NS / S + 2.5)
    assert len(fleet.active) <= 1
    fleet.run(6)
    assert len(fleet.active) == 1
    if apart_s >= 3:
        assert fleet.active == [older.name]


def test_servers_that_share_the_robots_by_name_both_serve():
    fleet = Fleet(Node("a", ("left_*",)), Node("b", ("right_*",))).run(10)
    assert fleet.active == ["a", "b"]


def test_a_deactivated_server_keeps_its_robots_from_one_that_stands_by():
    first, second = Node("b"), Node("a")
    fleet = Fleet(first).run(3)
    fleet.nodes.append(second)
    fleet.run(3)
    first.wants = False
    fleet.run(10)
    assert fleet.active == []
    first.wants = True
    fleet.run(2)
    assert fleet.active == ["b"]


def test_a_server_that_was_never_activated_keeps_nobody_out():
    idle = Node("a", wants=False)
    fleet = Fleet(idle, Node("b")).run(5)
    assert fleet.active == ["b"]


def test_of_several_that_wait_one_takes_over():
    first, *others = Node("b"), Node("a"), Node("c"), Node("d")
    fleet = Fleet(first).run(3)
    fleet.nodes += others
    fleet.run(5)
    fleet.both_s = 0.0  # before they had heard each other, which the node waits for
    fleet.kill(first)
    fleet.run(15)
    assert fleet.active == ["a"]
    assert fleet.both_s == 0.0


def test_one_that_waits_for_a_third_does_not_hold_up_the_rest():
    left, everywhere = Node("b", ("left_*",)), Node("a")
    fleet = Fleet(left).run(3)
    fleet.nodes += [everywhere, Node("c", ("right_*",))]
    fleet.run(10)
    assert fleet.active == ["b", "c"]


def test_tools_show_the_state_of_the_server_that_serves():
    shown = FleetServer()
    assert shown.shows("b", 10 * S, active=False)  # it loads, and there is no other
    assert shown.shows("a", 11 * S, active=True)
    assert not shown.shows("b", 12 * S, active=False)
    assert shown.shows("a", 12 * S, active=False)  # it was deactivated
    assert shown.shows("b", 16 * S, active=False)  # the other one is gone


def claim(server, age_s=1e6, **fields):
    age_ns = round(age_s * S)
    return ServerStatus(server, ServerState.ACTIVE, active_for_ns=age_ns, policy="p", **fields)


def test_what_a_newcomer_claims_about_its_age_takes_no_robots_from_one_that_serves():
    others = OtherServers("z", ())
    since_ns, now_ns = 0, 20 * S
    others.heard(claim("a"), now_ns)
    assert others.before(now_ns, since_ns) is None
    assert others.before(now_ns + 3 * S, since_ns) is None
    for second in range(1, 7):
        others.heard(claim("a"), now_ns + second * S)
    assert others.before(now_ns + 6 * S, since_ns) is not None


def test_thousands_of_identities_are_not_all_remembered():
    others = OtherServers("z", ())
    others.heard(claim("first"), 0)
    for number in range(5000):
        others.heard(claim(f"s{number}"), 1)
    assert len(others._heard) == MOST_SERVERS
    assert others.before(2, None).server == "first"
