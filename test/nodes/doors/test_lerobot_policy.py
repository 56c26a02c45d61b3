"""LeRobot's policy type kairos against a real serving node behind real doors: what it executes,
what it tells, and what it says when something is wrong."""

import contextlib
import itertools
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import websockets.exceptions
import websockets.sync.client
from kairos_ros.msg import RobotStatus
from openpi_robot import address
from ports import free_ports
from wire import until

from kairos_ros.bringup.plan import serving
from kairos_ros.core.exchange import Request, RequestId
from kairos_ros.core.robot_state import RobotState
from kairos_ros.transport.frames import Message
from kairos_ros.transport.robot_link.messages import RobotReport, report_message, request_message
from kairos_ros.transport.robot_link.one_frame import pack

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
pytest.importorskip("lerobot")

from kairos_policy import (  # noqa: E402
    RATE_HZ,
    batch,
    closed,
    configured,
    error_of,
    guards,
    raw,
    requests_of,
    run,
)
from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig  # noqa: E402
from lerobot.policies.factory import make_pre_post_processors  # noqa: E402
from lerobot.policies.rtc import ActionQueue  # noqa: E402
from lerobot.policies.rtc.configuration_rtc import RTCConfig  # noqa: E402
from lerobot_policy_kairos.configuration_kairos import PROCESSORS, KairosConfig  # noqa: E402
from lerobot_policy_kairos.door_link import DoorLink  # noqa: E402
from lerobot_policy_kairos.leftover import LeftOver, rows_left  # noqa: E402
from lerobot_policy_kairos.modeling_kairos import TOKEN, KairosPolicy  # noqa: E402
from lerobot_policy_kairos.processor_kairos import make_kairos_pre_post_processors  # noqa: E402

POLICY = "emulated:latency_ms=20+1b,chunk=10,state=2,dim=2,steps=2,images=front@24x32"
"""Its actions are (first number of the state that they were made from, index in the chunk)."""
HISTORY = "emulated:latency_ms=20,chunk=10,state=2,dim=3,observations=2"
"""The third number of its actions is the first one of the observation before."""
HORIZON = 6
SERVED = serving(policies=[f"small={POLICY}", f"history={HISTORY}"], horizon=f"static:{HORIZON}")
KAIROS = Path(sys.prefix, "bin", "kairos")
NAMES = (f"arm_{n}x" for n in itertools.count())


@pytest.fixture(scope="module")
def server(starter_for_module, wire):
    node = starter_for_module.start(SERVED)
    wire.serving_since()
    return node


@pytest.fixture(scope="module")
def where(server, starter_for_module) -> str:
    return address(starter_for_module.run([KAIROS, "doors", "--listen", "127.0.0.1:0"]))


@pytest.fixture
def make(where):
    made = []

    def policy(robot: str, **options) -> KairosPolicy:
        options = {"server": where, "control_rate_hz": RATE_HZ} | options
        made.append(KairosPolicy(KairosConfig(robot=robot, **options)))
        return made[-1]

    yield policy
    for one in made:
        one.close()


def test_its_features_are_those_of_the_served_policy(make):
    config = make("arm_0").config
    assert config.input_features == {
        "observation.state": PolicyFeature(FeatureType.STATE, (2,)),
        "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 24, 32)),
    }
    assert config.output_features == {"action": PolicyFeature(FeatureType.ACTION, (2,))}


def test_in_lockstep_a_chunk_is_made_from_what_was_seen_when_the_last_one_was_executed(make, wire):
    policy = make("arm_1", synchronous=True)
    actions = np.concatenate([policy.select_action(batch(float(n))).numpy() for n in range(14)])
    assert actions[:, 1].tolist() == [*range(HORIZON), *range(HORIZON), 0, 1]
    assert actions[:, 0].tolist() == [0.0] * HORIZON + [6.0] * HORIZON + [12.0] * 2
    until(lambda: wire.status_of("arm_1").state == RobotStatus.RUNNING)
    status = wire.status_of("arm_1")
    assert (status.instruction, status.control_rate_hz) == ("pick", RATE_HZ)
    assert list(status.request_image_keys) == ["front"]
    until(lambda: wire.diagnostic("kairos: arm_1", "dialect") == "kairos")


def test_it_asks_while_it_executes_and_skips_what_it_executed_meanwhile(make, wire):
    policy = make("arm_2")
    run(policy, 1)
    heard = requests_of(wire, "arm_2")
    actions = run(policy, 60, first=1)
    seen, index = actions.T
    # whatever the delays were, an action is the one that its chunk has for this control period
    assert (seen + index == np.arange(1, 61)).all()
    begins = [n for n in range(1, 60) if seen[n] != seen[n - 1]]
    assert len(begins) > 5
    assert max(index[begins]) >= 1
    assert max(index) < HORIZON
    until(lambda: len(heard) > 5 or not len(run(policy, 10, first=61)))
    executing = [r.execution for r in heard if r.execution.actions_remaining]
    assert executing, "asked with actions left"
    assert any(info.started for info in executing)
    assert {(info.inferred, info.control_rate_hz) for info in executing} == {(False, RATE_HZ)}
    assert {r.task for r in heard} == {"1"}
    assert [r.round for r in heard] == sorted(r.round for r in heard)
    assert all(r.committed_actions for r in heard if r.execution.actions_remaining)


def test_after_a_pause_what_was_left_of_the_chunk_is_not_executed(make, caplog):
    policy = make("arm_17", max_pause_s=0.2)
    run(policy, 2)
    time.sleep(0.3)
    assert policy.select_action(batch(50.0))[0].tolist() == [50.0, 0.0]
    assert "arm_17: nobody asked for an action for " in caplog.text


def test_a_reset_begins_a_new_task_and_nothing_of_the_old_one_is_executed(make, wire):
    policy = make("arm_3")
    run(policy, 2)
    policy.reset()
    assert policy.select_action(batch(100.0))[0].tolist() == [100.0, 0.0]
    until(lambda: wire.status_of("arm_3").task == "2")
    assert policy.select_action(batch(200.0, task=["place"]))[0].tolist() == [200.0, 0.0]
    until(lambda: wire.status_of("arm_3").task == "3")
    assert wire.status_of("arm_3").instruction == "place"


def test_every_environment_of_a_batch_is_a_robot_of_its_own(make, wire):
    policy = make("cell", synchronous=True)
    tasks = {"task": ["pick", "place", "push"]}
    for n in range(HORIZON + 1):
        rows = policy.select_action(batch(n + 100.0, n + 200.0, n + 300.0, **tasks)).numpy()
        began = HORIZON if n == HORIZON else 0
        assert rows.tolist() == [[began + at, n % HORIZON] for at in (100.0, 200.0, 300.0)]
    names = ["cell", "cell_2", "cell_3"]
    until(lambda: {wire.status_of(name).instruction for name in names} == set(tasks["task"]))
    assert len({wire.status_of(name).session for name in names}) == 3


def test_a_policy_that_reads_several_observations_gets_those_of_the_last_steps(make):
    policy = make("arm_4", served_policy="history", synchronous=True)
    steps = [policy.select_action(batch(float(n)))[0].tolist() for n in range(HORIZON + 1)]
    assert steps[0] == [0.0, 0.0, 0.0]  # there is none before the first
    assert steps[HORIZON] == [6.0, 0.0, 5.0]


def test_a_whole_chunk_is_as_long_as_the_served_horizon(make, wire):
    policy = make("arm_5", horizon="static:4")
    first = policy.predict_action_chunk(batch(1.0, 2.0)).numpy()
    assert first.shape == (2, 4, 2)
    assert first[:, :, 0].tolist() == [[1.0] * 4, [2.0] * 4]
    heard = requests_of(wire, "arm_5")
    until(lambda: wire.node.count_publishers("/arm_5/chunk_request"))
    time.sleep(3 / RATE_HZ)
    again = policy.predict_action_chunk(batch(3.0, 4.0)).numpy()
    assert again[:, 0].tolist() == [[3.0, 0.0], [4.0, 0.0]]
    if heard:  # DDS may have found this reader later
        assert heard[0].execution.inferred
        assert 3 <= heard[0].execution.actions_executed <= 4


CHUNK = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]], np.float32)


@pytest.mark.parametrize(
    ("rows", "expected", "left"),
    [
        (CHUNK[1:], 0, 4),
        (CHUNK[1:3], 0, 4),  # cut
        (CHUNK[3:], 2, 2),
        (np.pad(CHUNK[4:], ((0, 2), (0, 0))), 3, 1),  # with zeros up to its length
        (np.zeros((3, 2), np.float32), 4, 0),
        (CHUNK[4:], 3, 3),  # rows that repeat: by the clock
        (CHUNK[4:], 1, 1),
        (CHUNK[1:] + 1, 4, None),
        (None, 4, None),
    ],
)
def test_what_is_left_of_a_chunk_is_found_in_it(rows, expected, left):
    assert rows_left(CHUNK, LeftOver(rows, 0), expected) == left


def test_what_lerobots_queue_has_left_is_found_in_its_chunk():
    queue, random = ActionQueue(RTCConfig()), np.random.default_rng(3)
    for delay, executed in ((0, 4), (3, 6), (9, 1), (2, 8), (10, 0)):
        chunk = random.normal(size=(10, 2)).astype(np.float32)
        rows = torch.from_numpy(chunk)
        queue.merge(rows, rows, delay)
        for _ in range(executed):
            queue.get()
        left = queue.get_left_over()
        told = torch.zeros(6, 2)  # as long as execution_horizon, as its engine hands it over
        told[: len(left)] = left[:6]
        assert rows_left(chunk, LeftOver(told.numpy(), delay), 5) == queue.qsize()


def test_who_says_what_is_left_of_a_chunk_is_served_from_that(make, wire):
    policy = make("arm_35", horizon="static:10", control_rate_hz=0.2)  # however late it is sent
    first = policy.predict_action_chunk(batch(5.0), inference_delay=0, prev_chunk_left_over=None)
    heard = requests_of(wire, "arm_35")
    until(lambda: wire.node.count_publishers("/arm_35/chunk_request"))
    told = 2
    while not heard:  # DDS may find this reader later
        left = first[0, 3:]  # LeRobot's queue has executed three
        first = policy.predict_action_chunk(
            batch(6.0), inference_delay=told, prev_chunk_left_over=left
        )
        told = 4
    asked, doing = heard[0], heard[0].execution
    assert (doing.inferred, doing.holding, doing.started) == (False, False, True)
    assert (doing.chunk_index, doing.actions_executed) == (3, 3)
    assert doing.actions_remaining == 7
    assert asked.committed_actions in (2, 4)
    before = np.reshape(asked.committed, (-1, 2))
    assert before[:, 1].tolist() == [3.0, 4.0, 5.0, 6.0][: asked.committed_actions]
    assert doing.stalled_s < 60.0
    policy.predict_action_chunk(
        batch(7.0), inference_delay=2, prev_chunk_left_over=torch.full((5, 2), 9.0)
    )
    until(lambda: any(request.execution.inferred for request in heard))
    assert not next(r for r in heard if r.execution.inferred).committed


def test_a_reset_in_another_thread_ends_the_wait_for_an_action(make):
    policy = make("arm_36", served_policy="small")
    policy.predict_action_chunk(batch(1.0), inference_delay=0)
    said = []

    def ask() -> None:
        while not said:
            try:
                policy.predict_action_chunk(batch(1.0), inference_delay=0)
            except RuntimeError as error:
                said.append(str(error))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    for _ in range(500):
        if said:
            break
        policy.reset()
        time.sleep(0.005)
    asking.join(30.0)
    assert said == ["the policy was reset while an action was awaited"]


def test_chunks_that_would_be_executed_late_are_refused(make):
    policy = make("arm_37")
    assert policy.supports_rtc()
    policy.config.rtc_config = RTCConfig()
    policy.init_rtc_processor()
    policy.config.rtc_config = RTCConfig(enabled=False)
    with pytest.raises(ValueError, match=r"use --inference\.type=sync"):
        policy.init_rtc_processor()


def test_a_name_belongs_to_one_process(make):
    make("arm_6")
    with pytest.raises(ConnectionError, match=r"\(HTTP 409\): robot arm_6 is connected from"):
        make("arm_6")


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({"observation.state": PolicyFeature(FeatureType.STATE, (7,))}, r"\(7,\) here and \(2,\)"),
        ({"observation.environment_state": PolicyFeature(FeatureType.ENV, (9,))}, "cannot be sent"),
        ({"action": PolicyFeature(FeatureType.ACTION, (7,))}, "its actions are of shape"),
    ],
)
def test_another_robot_than_the_policy_was_trained_on_is_refused_at_start(where, features, said):
    given = {"output_features" if "action" in features else "input_features": features}
    with pytest.raises(ValueError, match=said):
        KairosPolicy(configured(where, **given))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"observation.state": torch.zeros(1, 3)}, "the robot's state has 3 values"),
        ({"observation.state": torch.tensor([[np.nan, 0.0]])}, "not finite"),
        ({"observation.images.front": torch.zeros(1, 3, 48, 64)}, "camera front gives 48x64 px"),
        ({"observation.images.front": torch.zeros(1, 24, 32, 3)}, r"\[1, 24, 32, 3\], not"),
        ({"task": ["one", "two"]}, "not a text for each of 1 rows"),
    ],
)
def test_an_observation_that_the_policy_cannot_read_is_told_by_name(make, changes, said):
    policy = make(next(NAMES))
    with pytest.raises(ValueError, match=said):
        policy.select_action(batch(0.0, **changes))
    assert policy.select_action(batch(5.0))[0].tolist() == [5.0, 0.0]  # nothing else is lost


def test_a_camera_of_another_name_is_told_with_what_to_write(make):
    other = batch(0.0)
    other["observation.images.top"] = other.pop("observation.images.front")
    with pytest.raises(ValueError, match=r"reads front; of these .* has none: .*rename"):
        make("arm_8").select_action(other)


def test_a_policy_that_is_not_served_is_told_with_those_that_are(where):
    with pytest.raises(RuntimeError, match=r"does not serve policy 'walk', it serves .*history"):
        KairosPolicy(configured(where, served_policy="walk", answer_s=0.5))


def test_a_horizon_policy_that_does_not_exist_ends_the_task_with_the_reason(make):
    with pytest.raises(RuntimeError, match=r"arm_9: the task has ended: refused: .*stable"):
        make("arm_9", horizon="stable:3").select_action(batch(0.0))


def test_where_nobody_listens_the_error_says_what_to_start():
    with pytest.raises(ConnectionError, match="start `kairos doors`"):
        KairosPolicy(configured("ws://127.0.0.1:9"))


def test_a_token_is_not_sent_where_others_can_read_it(monkeypatch):
    monkeypatch.setenv(TOKEN, "a" * 24)
    with pytest.raises(ConnectionError, match="use wss://"):
        KairosPolicy(configured("ws://192.0.2.1:8000"))


@pytest.fixture(scope="module")
def guarded(starter_for_module, server, tmp_path_factory):
    """(process, certificate) of doors with tokens and TLS."""
    names = {"secret_1": "a" * 24, "secret_2": "b" * 24}
    options, cert = guards(tmp_path_factory.mktemp("guarded"), names)
    return starter_for_module.run([KAIROS, "doors", "--listen", "127.0.0.1:0", *options]), cert


def test_with_tokens_and_tls_every_environment_is_who_its_token_says(guarded, monkeypatch):
    process, cert = guarded
    at = address(process)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    monkeypatch.setenv(TOKEN, f"{'b' * 24}, {'a' * 24}")
    policy = KairosPolicy(configured(at))
    assert policy.select_action(batch(1.0, 2.0)).tolist() == [[1.0, 0.0], [2.0, 0.0]]
    assert [robot.name for robot in policy.robots] == ["secret_2", "secret_1"]
    with pytest.raises(ValueError, match=r"3 environments need 3 tokens in KAIROS_TOKEN"):
        policy.select_action(batch(1.0, 2.0, 3.0))
    policy.close()
    monkeypatch.setenv(TOKEN, "c" * 24)
    with pytest.raises(ConnectionError, match=r"\(HTTP 401\): no robot has this token"):
        KairosPolicy(configured(at))
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        KairosPolicy(configured(at))


def test_doors_that_take_nothing_do_not_block_an_arm(guarded, monkeypatch):
    process, cert = guarded
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    link = DoorLink(address(process), "", "a" * 24, threading.Event())
    process.send(signal.SIGSTOP)
    large = Message("walk", arrays=(np.zeros(8_000_000, np.uint8),))  # more than sockets hold
    until(lambda: link.send(large) or time.sleep(0.5) or link.ended)
    assert "takes nothing that is sent to it" in link.ended
    process.send(signal.SIGKILL)
    link.close()


def test_what_is_no_message_is_answered_by_an_error_and_hurts_nobody_else(make, where):
    bystander = make("arm_12")
    run(bystander, 2)
    asked = RequestId("arm_13", "any", "1", 1, 0)
    with raw(where, "arm_13") as connection:
        for sent, said in (
            (b"\x00garbage", "frames"),
            ("text", "messages are binary"),
            (pack(Message("walk")), "'walk' are not known"),
            (pack(request_message(Request(asked, "pick"))), "has not announced itself"),
        ):
            connection.send(sent)
            assert said in error_of(connection)
        for _ in range(6):  # the tenth in a row ends it
            connection.send(b"\xff")
        ended = closed(connection)
        assert ended.rcvd.code == 1008
    seen, index = run(bystander, 10, first=2).T
    assert (seen + index == np.arange(2, 12)).all()


def test_who_sends_more_than_a_robot_has_to_say_is_disconnected(make, where):
    idle = pack(report_message(RobotReport(RobotState.IDLE)))
    with raw(where, "arm_14") as connection:
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            for _ in range(5000):
                connection.send(idle)
        assert closed(connection).rcvd.code == 1008
    assert make("arm_35").select_action(batch(3.0))[0].tolist() == [3.0, 0.0]


def test_lerobots_own_rename_map_reaches_what_is_sent(make):
    policy = make("arm_16")
    renamed = {"observation.images.top": "observation.images.front"}
    before, _ = make_pre_post_processors(
        policy_cfg=policy.config,
        pretrained_path=policy.config.pretrained_path,
        preprocessor_overrides={"rename_observations_processor": {"rename_map": renamed}},
    )
    other = batch(4.0)
    other["observation.images.top"] = other.pop("observation.images.front")
    assert policy.select_action(before(other))[0].tolist() == [4.0, 0.0]


def test_a_saved_policy_is_its_options_only(make, tmp_path):
    make("arm_18", synchronous=True).save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    read = PreTrainedConfig.from_pretrained(tmp_path, cli_overrides=["--robot=arm_19"])
    policy = KairosPolicy.from_pretrained(tmp_path, config=read)
    assert (policy.robots[0].name, policy.config.synchronous) == ("arm_19", True)
    policy.close()


def test_the_processors_that_ship_are_those_that_the_plugin_makes(tmp_path):
    for part in make_kairos_pre_post_processors(KairosConfig()):
        part.save_pretrained(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in PROCESSORS.iterdir()}


def test_without_a_map_openpis_clients_are_told_why_they_are_refused(where):
    refuses = pytest.raises(websockets.exceptions.InvalidStatus)
    with refuses as refused, websockets.sync.client.connect(f"{where}/arm", proxy=None):
        pass
    assert b"start kairos doors with a MAP" in refused.value.response.body


def test_a_server_that_stands_still_makes_the_arm_hold_and_go_on(make, server):
    policy = make("slow_1")
    run(policy, 3)
    server.send(signal.SIGSTOP)
    try:
        impatient = make("slow_2", answer_s=0.4)
        with pytest.raises(RuntimeError, match=r"slow_2: no action within --policy.answer_s=0.4"):
            run(impatient, 20)
    finally:
        server.send(signal.SIGCONT)
    # what was executed from a chunk before, or asked for again since: never an action too late
    seen, index = run(policy, 12, first=3).T
    assert (seen + index == np.arange(3, 15)).all()


def test_a_killed_server_ends_the_episode_and_the_next_one_runs_on_its_successor(
    make, server, starter_for_module, wire
):
    policy = make("arm_10", answer_s=5.0)
    run(policy, 3)
    before = wire.serving_since()
    server.send(signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"arm_10: no action within --policy.answer_s=5: "):
        run(policy, 60, first=3)
    starter_for_module.start(SERVED)
    wire.serving_since(before)
    policy.reset()
    policy.config.answer_s = 90.0
    assert policy.select_action(batch(7.0))[0].tolist() == [7.0, 0.0]


def test_doors_that_end_are_an_error_and_the_next_episode_connects_again(
    starter_for_module, wire, where
):
    process = starter_for_module.run([KAIROS, "doors", "--listen", f"127.0.0.1:{free_ports()}"])
    at = address(process)
    policy = KairosPolicy(configured(at, robot="arm_11", control_rate_hz=RATE_HZ))
    run(policy, 3)
    process.send(signal.SIGKILL)
    with pytest.raises(ConnectionError, match=r"arm_11: .* closed the connection"):
        run(policy, 60, first=3)
    again = ["doors", "--listen", at.removeprefix("ws://")]
    address(starter_for_module.run([KAIROS, *again]))
    policy.reset()
    # the serving node still knows the session of the process that was killed
    policy.config.answer_s = 90.0
    assert policy.select_action(batch(8.0))[0].tolist() == [8.0, 0.0]
    policy.close()
