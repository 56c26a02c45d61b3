"""What a serving node is told to serve: one text for the same plan, and errors for all others."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.served_plan import PlannedEngine, ServedPlan, read_served_plan

PLAN = ServedPlan(
    "factory",
    {"pick": {"policy": "/policies/pick", "rtc": True}, "place": {"policy": "hub/place"}},
    (
        PlannedEngine("gpu0", "cuda:0", "pick", 8, ("arm_1", "cell/arm_2")),
        PlannedEngine("gpu1", "cuda:1", "place", 4, ("arm_3",)),
    ),
    {"arm_1": 0.3, "cell/arm_2": 0.3},
)


def changed(**of_engine0):
    data = json.loads(PLAN.text)
    data["engines"][0] |= of_engine0
    return json.dumps(data)


def test_a_plan_is_read_as_it_was_written() -> None:
    again = read_served_plan(PLAN.text)
    assert again == PLAN
    assert again.identity == PLAN.identity
    assert PLAN.identity.startswith("factory ")
    assert PLAN.routes == {
        "arm_1": "gpu0/pick",
        "cell/arm_2": "gpu0/pick",
        "arm_3": "gpu1/place",
    }


def test_plans_that_differ_have_other_identities() -> None:
    assert read_served_plan(changed(batch=7)).identity != PLAN.identity
    assert read_served_plan(changed(robots=["arm_1"])).identity != PLAN.identity


@pytest.mark.parametrize(
    ("of_engine", "said"),
    [
        ({"gpu": "gpu1"}, "gpu1 is given to two engines"),
        ({"policy": "stack"}, "gpu0/stack serves a policy that is not in the plan"),
        ({"device": "cuda"}, "a device is cpu or cuda:N"),
        ({"batch": 0}, "a batch from 1 to 256"),
        ({"robots": ["arm_3"]}, "robot 'arm_3' is routed to two engines"),
        ({"gpu": "../x"}, "'../x' is no name"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(of_engine, said) -> None:
    with pytest.raises(ConfigError) as caught:
        read_served_plan(changed(**of_engine))
    assert said in str(caught.value) or "no engine serves policy" in str(caught.value)


def test_a_rate_that_is_none_is_refused() -> None:
    data = json.loads(PLAN.text)
    for period in (0.0, -1.0, 1e9):
        data["periods_s"] = {"arm_1": period}
        with pytest.raises(ConfigError, match="robot 'arm_1' cannot ask every"):
            read_served_plan(json.dumps(data))


NODES = [
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.floats(),
    st.text(max_size=8),
]
JSON = st.recursive(
    st.one_of(NODES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
FIELDS = ("format", "fleet", "policies", "engines", "periods_s")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON, st.text(max_size=20))
def test_nothing_else_is_taken_for_a_plan(data, text) -> None:
    if isinstance(data, dict):
        data = json.loads(PLAN.text) | data
    for one in (json.dumps(data), text):
        with suppress(ConfigError):
            plan = read_served_plan(one)
            assert read_served_plan(plan.text) == plan
