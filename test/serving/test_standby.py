"""Standby engines: they serve in the place of engines that are down, and otherwise nobody."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_remote_dispatch import MS, ask, done, hybrid, robots_of, submits

from kairos_ros.core.errors import ConfigError
from kairos_ros.serving.engines.engines import Engines, warmup_profile


def guarded(robots="abcdefghij"):
    """One engine here and a faster one that stands by for it."""
    dispatcher = hybrid(robots=robots)
    dispatcher.engines["cloud"].standby = True
    return dispatcher


def test_a_standby_engine_gets_nothing_while_the_others_are_up_however_long_they_take():
    dispatcher = guarded()
    sent = [s for i, robot in enumerate("abcdefghij") for s in submits(
        dispatcher.request(i * MS, ask(robot)))]  # fmt: skip
    assert {submit.engine for submit in sent} == {"edge"}
    later = submits(dispatcher.tick(5_000 * MS))
    assert all(submit.engine == "edge" for submit in later)
    assert dispatcher.counters["served_by_standby"] == 0


def test_what_an_engine_was_given_when_it_died_is_sent_to_its_standby_at_once():
    dispatcher = guarded()
    (lost,) = submits(dispatcher.request(0, ask("a")))
    assert not submits(dispatcher.request(MS, ask("b")))
    (suspect,) = submits(dispatcher.engine_down(2 * MS, "edge", "killed"))
    assert (suspect.engine, robots_of(suspect)) == ("cloud", ["a"])  # it may be what killed it
    (rest,) = submits(done(dispatcher, 60 * MS, suspect))
    assert (rest.engine, robots_of(rest)) == ("cloud", ["b"])
    assert dispatcher.counters["served_by_standby"] == 2
    assert lost.engine == "edge"


def test_robots_go_back_when_the_engine_is_up_again_and_what_runs_ends_where_it_is():
    dispatcher = guarded()
    dispatcher.engine_down(0, "edge", "killed")
    (there,) = submits(dispatcher.request(MS, ask("a")))
    edge = dispatcher.engines["edge"].description
    dispatcher.engine_ready(2 * MS, "edge", edge, warmup_profile(edge))
    (answer,) = [one for one in done(dispatcher, 60 * MS, there) if one.id.robot == "a"]
    assert answer.body.tier == "cloud"
    (here,) = submits(dispatcher.request(61 * MS, ask("b")))
    assert here.engine == "edge"


@given(
    up=st.lists(st.booleans(), min_size=1, max_size=4),
    spare_up=st.lists(st.booleans(), max_size=3),
)
def test_as_many_stand_in_as_are_down(up, spare_up):
    engines = Engines()
    for prefix, states, standby in (("main", up, False), ("spare", spare_up, True)):
        for i, ready in enumerate(states):
            slot = engines.add(f"{prefix}{i}", "cloud", 0, standby=standby)
            slot.state = "ready" if ready else "down"
    serving = [slot.name for slot in engines.in_service]
    stand_in = min(up.count(False), spare_up.count(True))
    assert sum(name.startswith("main") for name in serving) == up.count(True)
    assert sum(name.startswith("spare") for name in serving) == stand_in


def test_an_engine_stands_by_for_those_of_its_own_policy():
    engines = Engines()
    for name, policy, state in (("pick", "pick", "down"), ("place", "place", "ready")):
        engines.add(name, "edge", 0, policy).state = state
    engines.add("spare", "cloud", 0, "place", standby=True).state = "ready"
    assert [slot.name for slot in engines.in_service] == ["place"]
    engines.add("last", "cloud", 0, "lift", standby=True)
    with pytest.raises(ConfigError, match="no other engine of policy 'lift'"):
        engines.check_standby()
