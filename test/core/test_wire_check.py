"""What may be taken over from a wire, and how it is shown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kairos_ros.msg import ChunkRequest, FleetState, RobotState
from rclpy.serialization import serialize_message
from rclpy.validate_full_topic_name import validate_full_topic_name
from sensor_msgs.msg import CompressedImage

from kairos_ros.core.errors import WireError
from kairos_ros.core.wire_check import (
    NAME_CHARS,
    TooLargeError,
    check_text,
    duration_ns,
    is_name,
    printable,
)
from kairos_ros.nodes.bounded import ELEMENTS, head, read


@given(st.text() | st.from_regex(r"[a-zA-Z0-9_]{0,120}", fullmatch=True))
def test_what_is_a_name_can_be_a_topic(text):
    if is_name(text):
        assert validate_full_topic_name(f"/{text}/camera/{text}/compressed")


@pytest.mark.parametrize("text", ["", "a b", "a-b", "a/b", "1a", "a²", "ä", "a\n", "a" * 101])
def test_what_is_none(text):
    assert not is_name(text)
    assert is_name("a" * NAME_CHARS)


@given(st.text())
def test_what_is_shown_is_one_line_of_a_bounded_length(text):
    shown = printable(text, 20)
    assert shown.isprintable()
    assert len(shown) <= 20 * 10 + 30


def test_what_can_be_shown_as_it_is_stays():
    assert printable("öffne die Tür (2)") == "öffne die Tür (2)"
    assert printable("a\n\x1b[31m") == r"a\n\x1b[31m"
    assert printable("x" * 100, 3) == "xxx... (100 characters)"


@given(st.floats(width=32))
def test_only_no_duration_is_none(seconds):
    try:
        nanoseconds = duration_ns("deadline_s", seconds)
    except WireError:
        assert not 0 <= seconds <= 1e6
    else:
        assert (nanoseconds == 0) == (seconds == 0)
        assert math.isclose(nanoseconds, seconds * 1e9, abs_tol=1.0)


def test_a_text_is_measured_in_bytes():
    assert check_text("task", "ä" * 5, 10) == "ä" * 5
    with pytest.raises(TooLargeError, match="task of 12 bytes, at most 10"):
        check_text("task", "ä" * 6, 10)


def test_a_message_is_measured_before_it_is_read():
    request = ChunkRequest(robot="arm_1", session="s", task="1", round=3, attempt=2)
    request.images = [CompressedImage(format="jpeg", data=b"123")] * 3
    raw = serialize_message(request)
    assert read(raw, ChunkRequest) == request
    with pytest.raises(TooLargeError, match=f"{len(raw)} bytes, at most 100 "):
        read(raw, ChunkRequest, 100)
    fleet = FleetState(robots=[RobotState()] * (ELEMENTS + 1))
    with pytest.raises(TooLargeError, match="elements in its lists"):
        read(serialize_message(fleet), FleetState, 10_000_000)
    begins = head(raw, ChunkRequest)
    assert (begins.robot, begins.task, begins.round, begins.attempt) == ("arm_1", "1", 3, 2)
    request.task = "x" * 1000
    begins = head(serialize_message(request), ChunkRequest)
    assert (begins.session, begins.task, begins.round) == ("s", "", 0)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused(raw):
    for data in (raw, b"\0\1\0\0" + raw):
        try:
            read(data, ChunkRequest)
        except WireError:
            head(data, ChunkRequest)
