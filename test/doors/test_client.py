"""A client as a robot: its tasks, what is inferred of it, and whose answers it takes."""

import numpy as np
import pytest

from kairos_ros.core.errors import RefusalCode
from kairos_ros.core.exchange import Actions, Answer, Observation, Refusal, RequestId
from kairos_ros.core.robot_state import RobotState
from kairos_ros.core.server_status import ServerState, ServerStatus
from kairos_ros.doors.client import Client
from kairos_ros.doors.observation_map import ObservationMap

MS, S = 1_000_000, 1_000_000_000
MAP = ObservationMap.model_validate(
    {
        "dialect": "openpi",
        "robot": "arm",
        "control_rate_hz": 20.0,
        "state": [{"key": "state", "size": 2}],
        "action_dim": 2,
        "executes": 5,
    }
)
SERVER = ServerStatus(
    "s1", ServerState.ACTIVE, policy="act-1", state_dim=2, action_dim=2, chunk_size=10
)
SEEN = Observation(np.zeros(2, np.float32))


def chunk(asked: RequestId, server="s1", policy="act-1", rows=10, dim=2, **changes) -> Answer:
    body = Actions(np.ones((rows, dim), np.float32), np.ones(rows, np.float32), policy=policy)
    fields = {f: getattr(asked, f) for f in ("robot", "session", "task", "round", "attempt")}
    return Answer(RequestId(**(fields | changes)), body, server)


@pytest.fixture
def client() -> Client:
    made = Client("arm_1", MAP)
    made.binding.heard(SERVER, 0)
    made.look(0)
    return made


def served(client: Client, prompt: str, came_ns: int, for_ns: int = 100 * MS) -> RequestId:
    request = client.begin(prompt, SEEN, came_ns, came_ns)
    assert client.receive(chunk(request.id))
    client.replied(came_ns + for_ns)
    return request.id


def alive(client: Client, now_ns: int) -> None:
    client.binding.heard(SERVER, now_ns)


def test_a_request_asks_for_the_whole_chunk_and_says_that_nothing_is_known(client):
    request = client.begin("pick", SEEN, 1 * S, 1 * S + 3 * MS)
    assert request.horizon_policy == "static:10"
    assert (request.instruction, request.kind) == ("pick", "pick")
    assert (request.id.task, request.id.round, request.id.attempt) == ("1", 1, 0)
    assert request.server == "s1"
    assert request.observed_ago_ns == 3 * MS
    assert not request.execution.started
    assert request.execution.inferred


def test_what_was_executed_is_inferred_from_when_it_asks_again(client):
    served(client, "pick", 1 * S)  # answered at 1.1 s
    request = client.begin("pick", SEEN, 1400 * MS, 1410 * MS)
    told = request.execution
    assert (request.id.task, request.id.round) == ("1", 2)
    assert (told.round, told.started, told.holding, told.inferred) == (1, True, True, True)
    assert told.started_ago_ns == 310 * MS  # since the reply
    assert told.ended_ago_ns == 10 * MS  # since the observation came
    assert (told.executed, told.remaining, told.period_ns) == (5, 0, 50 * MS)


def test_another_prompt_begins_another_task(client):
    served(client, "pick", 1 * S)
    request = client.begin("place", SEEN, 2 * S, 2 * S)
    assert (request.id.task, request.id.round) == ("2", 1)
    assert not request.execution.started


def test_a_pause_that_is_longer_than_its_actions_begins_another_task(client):
    served(client, "pick", 1 * S)  # 5 actions of 50 ms from 1.1 s on, and 10 s
    alive(client, 11 * S)
    client.look(11_300 * MS)
    assert client.report(11_300 * MS).state is RobotState.RUNNING
    client.look(11_400 * MS)
    assert client.report(11_400 * MS).state is RobotState.IDLE
    assert client.begin("pick", SEEN, 11_400 * MS, 11_400 * MS).id.task == "2"


def test_its_status_tells_what_it_does(client):
    assert client.report(0).state is RobotState.IDLE
    request = client.begin("pick", SEEN, 1 * S, 1 * S)
    assert client.report(1 * S).state is RobotState.HOLDING
    client.receive(chunk(request.id))
    client.replied(1100 * MS)
    report = client.report(1210 * MS)
    assert (report.state, report.horizon, report.instruction) == (RobotState.RUNNING, 10, "pick")
    assert report.execution.remaining == 3
    assert report.bound == "s1"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"server": "s2"}, "other_server"),
        ({"server": ""}, "other_server"),
        ({"robot": "arm_2"}, "not_its_own"),
        ({"session": "another"}, "not_its_own"),
        ({"task": "7"}, "other_task"),
        ({"round": 2}, "other_round"),
        ({"attempt": 1}, "other_round"),
        ({"dim": 3}, "malformed"),
        ({"rows": 0}, "malformed"),
    ],
)
def test_an_answer_that_is_not_that_of_the_request_is_dropped(client, changes, reason):
    request = client.begin("pick", SEEN, 1 * S, 1 * S)
    assert not client.receive(chunk(request.id, **changes))
    assert client.counters == {"requests": 1, f"dropped_{reason}": 1}
    assert client.receive(chunk(request.id))


def test_a_chunk_of_another_policy_than_that_of_the_task_is_dropped(client):
    served(client, "pick", 1 * S)
    request = client.begin("pick", SEEN, 2 * S, 2 * S)
    assert not client.receive(chunk(request.id, policy="act-2"))
    assert request.policy == "act-1"
    client.replied(2 * S)
    assert client.begin("place", SEEN, 3 * S, 3 * S).policy == ""  # a new task may get another


def test_actions_that_are_not_finite_are_dropped(client):
    request = client.begin("pick", SEEN, 1 * S, 1 * S)
    answer = chunk(request.id)
    answer.body.actions[3, 1] = np.nan
    assert not client.receive(answer)
    assert client.counters["dropped_not_finite"] == 1


def test_nothing_is_taken_without_an_open_request(client):
    asked = served(client, "pick", 1 * S)
    assert not client.receive(chunk(asked))
    assert client.counters["dropped_other_task"] == 1


def test_the_same_observation_is_sent_again_with_its_age(client):
    first = client.begin("pick", SEEN, 1 * S, 1 * S)
    again = client.repeat(3 * S)
    assert again.id.attempt == 1
    assert again.observed_ago_ns == 2 * S
    refused = Answer(first.id, Refusal(RefusalCode.OVERLOADED, "", S), "s1")
    assert not client.receive(refused)  # of an attempt that nobody waits for
    assert client.receive(chunk(first.id))  # made from the same observation


def test_after_an_error_a_new_task_begins(client):
    client.begin("pick", SEEN, 1 * S, 1 * S)
    client.failed("no chunk")
    assert client.report(2 * S).state is RobotState.IDLE
    assert client.begin("pick", SEEN, 2 * S, 2 * S).id.task == "2"


def test_a_map_may_leave_the_horizon_to_the_server():
    told = Client("arm_1", MAP.model_copy(update={"horizon": "server"}))
    told.binding.heard(SERVER, 0)
    told.look(0)
    assert told.begin("pick", SEEN, S, S).horizon_policy == ""
