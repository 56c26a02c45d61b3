"""A robot without ROS at the doors: whose answers reach it, and what it must not send."""

from dataclasses import replace

import numpy as np
import pytest

from kairos_ros.core.errors import RefusalCode, WireError
from kairos_ros.core.exchange import Answer, Observation, Refusal, Request, RequestId
from kairos_ros.core.fit import RobotInterface
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ServerState, ServerStatus
from kairos_ros.doors.native.robot_client import RobotClient
from kairos_ros.transport.robot_link.messages import Announce, RobotReport

S = 1_000_000_000
SERVER = ServerStatus("edge", ServerState.ACTIVE, node="serving", robots=("arm*",))


@pytest.fixture
def told() -> list[ServerStatus]:
    return []


@pytest.fixture
def client(told) -> RobotClient:
    made = RobotClient("arm_1", "here", told.append)
    made.announced = Announce(RobotInterface(2, 2, {"front": (4, 4)}, {"wrist"}), 10.0, "act")
    return made


def request(client: RobotClient, **changes) -> Request:
    asked = RequestId(client.robot, client.session, "1", 1, 0)
    seen = Observation(np.zeros(2, np.float32), {"front": b"x"})
    return replace(Request(asked, "pick", observation=seen), **changes)


def test_it_takes_the_answers_of_its_own_session_only(client):
    mine = Answer(request(client).id, Refusal(RefusalCode.OVERLOADED, "full", S))
    assert client.receive(mine)
    for other in ({"robot": "arm_2"}, {"session": "old"}):
        assert not client.receive(replace(mine, id=replace(mine.id, **other)))
    assert client.counters == {"refused_overloaded": 1, "dropped_not_its_own": 2}


def test_it_hears_of_every_server_and_knows_those_that_serve_it(client, told):
    client.heard(SERVER, 0)
    client.heard(replace(SERVER, server="far", robots=("cell*",)), 0)
    assert [status.server for status in told] == ["edge", "far"]
    client.reported(RobotReport(RobotState.RUNNING, server="edge"), 0)
    assert client.report(0).server == SERVER
    client.reported(RobotReport(RobotState.RUNNING, server="far"), 0)
    assert client.report(0).server is None


def test_what_remains_of_its_chunk_goes_on_between_two_reports(client):
    assert client.reported(RobotReport(RobotState.RUNNING, "1", "pick", 2, remaining=8), 5 * S)
    assert client.report(5 * S).execution.remaining == 8
    assert client.report(5 * S + S // 2).execution.remaining == 3
    assert client.report(9 * S).execution.remaining == 0
    report = client.report(5 * S)
    assert (report.task.id, report.instruction, report.policy) == ("1", "pick", "act")
    assert not client.reported(RobotReport(RobotState.RUNNING, "1", "pick", 3), 6 * S)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"observation": Observation(np.zeros(3, np.float32))}, r"shape \(3,\), not \[2\]"),
        ({"observation": Observation(np.array([0, np.inf], np.float32))}, "not finite"),
        ({"observation": Observation(np.zeros(2, np.float32), {"top": b""})}, "pictures of top"),
        ({"earlier": (Observation(np.zeros(1, np.float32)),)}, r"shape \(1,\)"),
        ({"committed": np.zeros((2, 3), np.float32)}, "committed of shape"),
        ({"executed": np.full((2, 2), np.nan, np.float32)}, "executed holds"),
    ],
)
def test_a_request_that_contradicts_what_it_announced_is_refused(client, changes, said):
    client.check(request(client))
    with pytest.raises(WireError, match=said):
        client.check(request(client, **changes))


def test_nothing_is_asked_for_before_it_has_announced_itself(client):
    client.announced = None
    with pytest.raises(WireError, match="not announced"):
        client.check(request(client))
