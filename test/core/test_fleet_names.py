"""Names below a fleet's namespace, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import COMMON, ROOT, FleetNames, fleets_among, is_robot_name

PART = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda part: part != COMMON)
NESTED = st.lists(PART, min_size=1, max_size=3).map("/".join)
FLEET = st.one_of(st.just(ROOT), NESTED.map(FleetNames.below))


@given(FLEET, NESTED, PART)
def test_a_topic_of_a_robot_leads_back_to_it(names, robot, topic):
    assert is_robot_name(robot)
    assert names.robot_of(names.robot(robot, topic)) == robot
    assert names.robot_of(names.robot(robot, f"camera/{topic}/compressed")) == robot


@given(FLEET, PART)
def test_a_topic_of_all_is_no_robots(names, topic):
    assert names.robot_of(names.common(topic)) == ""
    assert names.robot_of(names.common(f"{topic}/full")) == ""
    assert FleetNames.of_common_node(names.common(topic).rpartition("/")[0]) == names


@given(FLEET, FLEET, PART, st.sampled_from(["kairos: ", "kairos serving: "]))
def test_a_status_of_another_fleet_is_not_taken_for_ones_own(names, other, part, ours):
    said = other.diagnostic(f"{ours}{part}")
    assert names.own_diagnostic(said) == (f"{ours}{part}" if names == other else None)


@pytest.mark.parametrize("name", ["so101/driver", "ur5: joints", "my kairos: battery", ""])
def test_a_status_of_somebody_else_keeps_its_name(name):
    assert ROOT.own_diagnostic(name) == name
    assert FleetNames("/site_a").own_diagnostic(name) == name


@given(FLEET, FLEET, NESTED)
def test_a_topic_belongs_to_the_innermost_of_the_fleets_around_it(names, other, robot):
    topic = names.robot(robot, "chunk_request")
    fleets = fleets_among([names.common("robot_status"), other.common("robot_status"), topic])
    assert fleets == sorted({names, other}, key=lambda fleet: fleet.namespace)
    owners = [fleet for fleet in fleets if fleet.has(topic, fleets)]
    assert len(owners) == 1
    inside = f"{topic}/".startswith(f"{other.namespace}/")
    if not inside or len(other.namespace) <= len(names.namespace):
        assert owners == [names]


@pytest.mark.parametrize("text", ["", "/", "  "])
def test_no_namespace_is_the_root(text):
    assert FleetNames.below(text) == ROOT
    assert ROOT.common("fleet_state") == "/kairos/fleet_state"
    assert ROOT.robot("arm_1", "plan") == "/arm_1/plan"
    assert ROOT.prefix == ""


@pytest.mark.parametrize("text", ["site_a", "/site_a", "/site_a/", " site_a "])
def test_people_may_write_slashes_around_a_namespace(text):
    assert FleetNames.below(text) == FleetNames("/site_a")


@pytest.mark.parametrize("text", ["site a", "a//b", "7up", "kairos", "a/kairos", "ä", "a" * 101])
def test_what_is_no_namespace_is_refused_in_a_sentence(text):
    with pytest.raises(ConfigError, match="must be ROS names separated by /"):
        FleetNames.below(text)


def test_a_name_without_a_slash_in_front_is_below_the_fleets_namespace():
    names = FleetNames("/site_a")
    assert names.resolve("so101") == "/site_a/so101"
    assert names.resolve("/so101") == "/so101"
