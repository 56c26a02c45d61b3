"""What robots without ROS and doors tell each other: it arrives as it was, or as a WireError."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.core.exchange import (
    Actions,
    Answer,
    Execution,
    Observation,
    Refetch,
    Refusal,
    Request,
    RequestId,
)
from kairos_ros.core.fit import PolicyInterface, RobotInterface
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ServedPolicy, ServerState, ServerStatus
from kairos_ros.transport.frames import Message
from kairos_ros.transport.robot_link.messages import (
    Announce,
    RobotReport,
    announce_message,
    answer_message,
    error_message,
    read_announce,
    read_answer,
    read_error,
    read_report,
    read_request,
    read_welcome,
    report_message,
    request_message,
    welcome_message,
)
from kairos_ros.transport.robot_link.one_frame import pack, unpack
from kairos_ros.transport.robot_link.server_message import read_server, server_message

ASKED = RequestId("arm", "s1", "7", 3, 1)
SEEN = Observation(np.array([1.0, 2.0], np.float32), {"front": b"\xff\xd8picture", "wrist": b"2"})
REQUEST = Request(
    ASKED,
    instruction="pick",
    kind="pick",
    horizon_policy="static:5",
    seed=2**63,
    execution=Execution(round=2, started=True, remaining=4, started_ago_ns=5, period_ns=20_000_000),
    server="edge",
    observation=SEEN,
    observed_ago_ns=12,
    committed=np.ones((4, 2), np.float32),
    earlier=(replace(SEEN, state=np.zeros(2, np.float32)),),
    policy="act",
    task_actions=9,
    executed=np.zeros((3, 2), np.float32),
)
ACTIONS = Actions(
    np.arange(6, dtype=np.float32).reshape(3, 2),
    np.ones(3, np.float32),
    horizon_reason="static",
    chunk_size=10,
    queued_ns=1,
    compute_ns=2,
    policy="act-1",
    request_period_ns=3,
)
INTERFACE = PolicyInterface("act-1", 2, 2, {"front": (48, 64)}, observations=2)
STATUS = ServerStatus(
    "edge",
    ServerState.ACTIVE,
    node="/kairos/serving",
    robots=("arm*",),
    active_for_ns=10**9,
    policy="act-1",
    state_dim=2,
    action_dim=2,
    chunk_size=10,
    cameras={"front": (48, 64)},
    policies=(ServedPolicy("a", INTERFACE, 10), ServedPolicy("b", None, 0, "a")),
)
ANNOUNCE = Announce(RobotInterface(2, 2, {"front": (48, 64), "top": None}, frozenset({"x"})), 30.0)
REPORT = RobotReport(RobotState.RUNNING, "7", "pick", 3, 4, 5, tasks_done=6, server="edge")


def through(message: Message) -> Message:
    return unpack(pack(message))


def read(message: Message) -> object:
    """Whatever it is."""
    reads = {
        "announce": read_announce,
        "request": lambda m: read_request(m, "arm", "s1"),
        "report": read_report,
        "answer": lambda m: read_answer(m, "arm", "s1"),
        "server": read_server,
        "welcome": read_welcome,
        "error": read_error,
    }
    return reads[message.kind](message)


MESSAGES = [
    announce_message(ANNOUNCE),
    request_message(REQUEST),
    report_message(REPORT),
    answer_message(Answer(ASKED, ACTIONS, "edge")),
    answer_message(Answer(ASKED, Refusal(RefusalCode.OVERLOADED, "full", 10**9), "edge")),
    server_message(STATUS),
    welcome_message("arm", "s1"),
    error_message("no"),
]


def test_a_request_arrives_as_it_was_sent():
    came = read_request(through(request_message(REQUEST)), "arm", "s1")
    assert came == replace(REQUEST, observation=came.observation, earlier=came.earlier)
    for there, here in ((came.observation, SEEN), (came.earlier[0], REQUEST.earlier[0])):
        assert there.state.tolist() == here.state.tolist()
        assert dict(there.images) == dict(here.images)
    assert came.committed.tolist() == REQUEST.committed.tolist()
    assert came.executed.tolist() == REQUEST.executed.tolist()


def test_a_request_is_that_of_its_connection_whatever_it_says():
    fields = dict(request_message(REQUEST).fields) | {"robot": "other", "session": "stolen"}
    came = read_request(replace(request_message(REQUEST), fields=fields), "arm_2", "s2")
    assert (came.id.robot, came.id.session) == ("arm_2", "s2")


def test_answers_arrive_as_they_were_sent():
    came = read_answer(through(answer_message(Answer(ASKED, ACTIONS, "edge"))), "arm", "s1")
    assert (came.id, came.server) == (ASKED, "edge")
    assert isinstance(came.body, Actions)
    assert came.body.actions.tolist() == ACTIONS.actions.tolist()
    assert came.body.confidence.tolist() == [1.0] * 3
    assert came.body.request_period_ns == 3
    for body in (Refusal(RefusalCode.OVERLOADED, "full", 10**9), Refetch()):
        answer = Answer(ASKED, body, "edge")
        assert read_answer(through(answer_message(answer)), "arm", "s1") == answer


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (ANNOUNCE, announce_message(ANNOUNCE)),
        (REPORT, report_message(REPORT)),
        (STATUS, server_message(STATUS)),
        (("arm", "s1"), welcome_message("arm", "s1")),
    ],
)
def test_what_a_robot_and_a_server_say_of_themselves_arrives_as_it_was(value, message):
    assert read(through(message)) == value


@pytest.mark.parametrize(
    ("message", "field", "value", "said"),
    [
        (announce_message(ANNOUNCE), "state_dim", 10**6, "state_dim is 1000000"),
        (announce_message(ANNOUNCE), "control_rate_hz", 1e9, "control_rate_hz"),
        (announce_message(ANNOUNCE), "control_rate_hz", float("nan"), "finite"),
        (announce_message(ANNOUNCE), "cameras", {"../etc": [1, 2]}, "no name of a camera"),
        (announce_message(ANNOUNCE), "cameras", {"front": [0, 2]}, "size of camera front"),
        (report_message(REPORT), "state", 77, "robot state 77"),
        (report_message(REPORT), "stalled_ns", 2**63, "a duration is at most"),
        (request_message(REQUEST), "round", 2**33, "round is"),
        (request_message(REQUEST), "earlier", 99, "observations, at most"),
        (request_message(REQUEST), "images", ["front", "front"], "different cameras"),
        (request_message(REQUEST), "instruction", "x" * 2000, "instruction of 2000 bytes"),
        (request_message(REQUEST), "execution", [], "execution is no map"),
        (request_message(REQUEST), "committed", False, "more arrays"),
        (server_message(STATUS), "state", 9, "server state 9"),
        (server_message(STATUS), "observations", 99, "observations is 99"),
        (server_message(STATUS), "cameras", {"front": [1]}, "cameras is no map"),
    ],
)
def test_a_field_that_does_not_fit_is_named(message, field, value, said):
    with pytest.raises(WireError, match=said):
        read(replace(message, fields=dict(message.fields) | {field: value}))


@given(st.sampled_from(MESSAGES), st.data())
def test_damaged_messages_are_values_or_wire_errors(message, data):
    sent = bytearray(pack(message))
    for _ in range(data.draw(st.integers(1, 4))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sent)))
    try:
        came = unpack(bytes(sent[:cut]) if data.draw(st.booleans()) else bytes(sent))
        if came.kind == message.kind:
            read(came)
    except WireError:
        pass


@given(st.sampled_from(MESSAGES), st.data())
def test_fields_of_any_kind_are_values_or_wire_errors(message, data):
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=6,
    )
    name = data.draw(st.sampled_from(sorted(message.fields)))
    with contextlib.suppress(WireError):
        read(replace(message, fields=dict(message.fields) | {name: data.draw(anything)}))


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_wire_errors(data):
    with pytest.raises(WireError):
        unpack(data)


def test_frames_that_do_not_add_up_are_told():
    sent = pack(request_message(REQUEST))
    for damaged, said in (
        (sent + b"x", "frames of"),
        (sent[:3], "cut short"),
        (b"\xff\xff\xff\xff" + sent[4:], "frames, at most"),
        (sent[:9], "cut short"),
    ):
        with pytest.raises(WireError, match=said):
            unpack(damaged)
