"""What can be replayed with which policy, and what is said about what cannot."""

import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
from kairos_ros.msg import ActionChunk, ChunkRequest, TaskEvent
from kairos_ros.msg import Observation as ObservationMessage
from rclpy.serialization import serialize_message
from replay_traces import drawn_trace
from sensor_msgs.msg import CompressedImage

from kairos_ros.bringup.plan import shipped_policy
from kairos_ros.core.errors import ConfigError, RefusalCode, WireError
from kairos_ros.core.exchange import Actions, Answer, Observation, Refetch, Refusal, RequestId
from kairos_ros.core.horizons.calibration import HorizonCalibration, HorizonPlan
from kairos_ros.engine.emulated import EmulatedEngine, parse_emulated
from kairos_ros.engine.policies.observation import refusal
from kairos_ros.engine.policies.saved_policy import PolicyInputs, policy_inputs
from kairos_ros.lab.live_replay.experiment import ReplayOptions, replay
from kairos_ros.lab.live_replay.parity import parity
from kairos_ros.lab.live_replay.process_messages import (
    BeginRun,
    CancelTasks,
    GiveTask,
    Leave,
    ProcessCounts,
    Ready,
    RecordedTask,
    Seen,
    Setup,
    TaskDone,
    decode,
    encode,
)
from kairos_ros.lab.live_replay.robot_processes import MOST_PROCESSES, split
from kairos_ros.lab.live_replay.seen import blank_pictures, recorded_seen
from kairos_ros.lab.live_replay.workload import (
    check_fit,
    fitting_emulated,
    load_traces,
    recorded_tasks,
    robot_spec,
)
from kairos_ros.lab.sim.rules import Rules
from kairos_ros.lab.sim.virtual_robot import Ended
from kairos_ros.nodes.serving.messages import from_answer
from kairos_ros.recording.definition import Definitions, installed_prefixes
from kairos_ros.recording.extract import extract
from kairos_ros.recording.metadata import Topic
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.runs.run import FleetRun, RoundRecord, Span, TaskRecord
from kairos_ros.recording.runs.trace_file import write_traces
from kairos_ros.recording.writer import BagWriter
from kairos_ros.robot.adapter import RobotSpec
from kairos_ros.telemetry.answer import answer_of
from kairos_ros.transport.messages import InferRequest


def with_states(trace, dim):
    rounds = (
        replace(r, state=np.full(dim, i, np.float32)) for i, r in enumerate(trace.rounds, start=1)
    )
    return replace(trace, rounds=tuple(rounds))


def actions(length):
    values = np.arange(3.0 * length, dtype=np.float32).reshape(length, 3)
    return Actions(
        actions=values,
        confidence=np.ones(length, np.float32),
        horizon_reason="as asked",
        chunk_size=50,
        queued_ns=500_000_000,
        compute_ns=250_000_000,
        server_ns=1_000_000_000,
        engine_latency_ns=125_000_000,
        batch_size=4,
        tier="edge",
        engine="edge",
        policy="p",
        reason="oldest",
    )


def test_an_answer_survives_its_message():
    asked = RequestId("arm", "s", "7", 3, 1)
    sent = Answer(asked, actions(5), "server")
    got = answer_of(from_answer(sent, "server"))
    assert (got.id, got.server) == (asked, "server")
    for name in Actions.__slots__:
        assert np.array_equal(getattr(got.body, name), getattr(sent.body, name))
    refused = Answer(asked, Refusal(RefusalCode.OVERLOADED, "queue is full", 500_000_000))
    assert answer_of(from_answer(refused)) == refused
    again = Answer(asked, Refetch())
    assert answer_of(from_answer(again)) == again


@pytest.mark.parametrize(
    ("change", "said"),
    [({"server_s": float("nan")}, "server_s is nan"), ({"kind": 9}, "kind 9 is unknown")],
)
def test_an_answer_that_contradicts_itself_is_refused(change, said):
    message = from_answer(Answer(RequestId("arm", "s", "7", 3, 1), actions(5)))
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(WireError, match=said):
        answer_of(message)
    assert isinstance(message, ActionChunk)


def test_actions_of_another_count_than_the_message_says_come_out_as_none():
    message = from_answer(Answer(RequestId("arm", "s", "7", 3, 1), actions(5)))
    message.horizon = 4
    assert answer_of(message).body.actions.shape == (0, 3)


def test_robots_are_spread_evenly_over_few_processes():
    names = [str(i) for i in range(50)]
    parts = split(names)
    assert len(parts) == MOST_PROCESSES
    assert sorted(map(len, parts)) == [12, 12, 13, 13]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert split(["one"]) == [("one",)]


def test_an_emulated_policy_takes_the_sizes_it_leaves_open_from_the_traces():
    traces = [with_states(drawn_trace(1), 39)]
    spec = parse_emulated(fitting_emulated("emulated:latency_ms=80+35b,chunk=16", traces))
    assert (spec.state, spec.dim, spec.chunk, spec.base_ms) == (39, 4, 16, 80)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("emulated:state=38,dim=4,chunk=50", "state_dim 39.*has 38"),
        ("emulated:state=39,dim=7,chunk=50", "action_dim 4.*has 7"),
        ("emulated:state=39,dim=4,chunk=49", "chunk_size 50.*has 49"),
    ],
)
def test_traces_of_another_policy_are_refused_before_anything_starts(policy, said):
    traces = [with_states(drawn_trace(1, policy="recorded-with"), 39)]
    with pytest.raises(ConfigError, match=said) as error:
        check_fit(traces, policy_inputs(policy), policy)
    assert "recorded-with" in str(error.value)


def test_a_policy_that_keeps_a_state_of_every_task_is_not_replayed():
    inputs = PolicyInputs(observations=16, keeps_state=True)
    with pytest.raises(ConfigError, match="'/models/video' goes on from what its robot saw"):
        check_fit([with_states(drawn_trace(1), 5)], inputs, "/models/video")


def test_the_shipped_policy_serves_its_own_traces_only():
    inputs = policy_inputs(str(shipped_policy()))
    known = with_states(drawn_trace(1), inputs.state_dim)
    known = replace(known, instruction=inputs.instructions[0])
    check_fit([known], inputs, "")
    with pytest.raises(ConfigError, match="state_dim 7"):
        check_fit([with_states(known, 7)], inputs, "")
    with pytest.raises(ConfigError, match="does not know the instruction 'dance'"):
        check_fit([replace(known, instruction="dance")], inputs, "")
    with pytest.raises(ConfigError, match="'drawn-1' holds no states"):
        check_fit([drawn_trace(1)], inputs, "")


def test_an_emulated_policy_that_reads_several_observations_is_given_as_many():
    inputs = policy_inputs("emulated:observations=3,state=3,images=front@48x64")
    trace = with_states(drawn_trace(1), 3)
    (task,) = recorded_tasks(Path("t.jsonl"), [trace], inputs, Rules("replay"), None, [""])
    for recorded, seen in zip(task.trace.rounds, task.seen, strict=True):
        assert [list(look.images) for look in seen.earlier] == [["front"]] * 2
        assert np.array_equal([look.state for look in seen.earlier], [recorded.state] * 2)


@pytest.mark.parametrize("policy", ["/no/such/folder", "./nothing", "emulated:speed=9"])
def test_an_unknown_policy_is_named(policy):
    with pytest.raises(ConfigError, match=policy.rpartition(":")[2]):
        policy_inputs(policy)


def test_of_a_hub_id_nothing_is_known_yet():
    assert policy_inputs("lerobot/pi05_base").state_dim is None


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\x00\x01 garbage", ":1: "), (b"", "empty"), (b'{"format": "x"}\n', ":1: ")],
)
def test_a_garbage_trace_file_is_refused_with_the_line(tmp_path, content, said):
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_traces(path, print)


def test_a_file_that_is_not_there_or_holds_nothing_is_said_so(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.jsonl: No such file"):
        load_traces(tmp_path / "no.jsonl", print)
    with pytest.raises(ConfigError, match="there is no such bag"):
        load_traces(tmp_path / "no.mcap", print)
    write_traces(tmp_path / "none.jsonl", [])
    with pytest.raises(ConfigError, match="nothing to replay"):
        load_traces(tmp_path / "none.jsonl", print)


def test_traces_of_two_policies_are_not_replayed_together(tmp_path):
    write_traces(tmp_path / "t.jsonl", [drawn_trace(1), drawn_trace(2, policy="another")])
    with pytest.raises(ConfigError, match=r"mixes policies.*'another'"):
        load_traces(tmp_path / "t.jsonl", print)


def test_made_up_pictures_pass_the_engines_check():
    policy = "emulated:state=3,images=front@48x64|wrist@224x224"
    engine = EmulatedEngine(policy, 4)
    pictures = blank_pictures(parse_emulated(policy).images)
    request = InferRequest("a", "s", "1", 1, 0, 0, "go", np.zeros(3, np.float32), pictures)
    assert refusal(request, engine.description) is None
    assert 10_000 < len(pictures["wrist"]) < 60_000


def test_a_real_policy_with_cameras_needs_the_bag(tmp_path):
    folder = tmp_path / "policy"
    folder.mkdir()
    state = {"type": "STATE", "shape": [6]}
    camera = {"type": "VISUAL", "shape": [3, 48, 64]}
    features = {"observation.state": state, "observation.images.front": camera}
    (folder / "config.json").write_text(json.dumps({"type": "x", "input_features": features}))
    inputs = policy_inputs(str(folder))
    assert inputs.cameras == {"observation.images.front": (48, 64)}
    traces = [with_states(drawn_trace(1), 6)]
    check_fit(traces, inputs, str(folder))
    with pytest.raises(ConfigError, match=r"observation\.images\.front.*replay the bag"):
        recorded_tasks(tmp_path / "t.jsonl", traces, inputs, Rules(accounting="replay"), None, [""])
    assert robot_spec(traces, inputs).images == {"observation.images.front": (48, 64)}


CAMERA = PolicyInputs(state_dim=6, cameras={"front": (48, 64)})


def bag_with_images(folder, images, earlier=0):
    """One task of a robot with one camera: a round for every image, which may be missing, with so
    many observations before it."""
    definitions, at_ns = Definitions(installed_prefixes()), 10**18
    bag = BagWriter(folder)
    whose = {"robot": "arm_1", "session": "0123456789abcdef" * 2, "task": "4"}

    def write(topic, *messages):
        nonlocal at_ns
        kind = f"kairos_ros/msg/{type(messages[0]).__name__}"
        definition = definitions.of(kind)
        channel = bag.add_topic(Topic(f"/arm_1/{topic}", kind, definition.rihs01, ()), definition)
        for message in messages:
            at_ns += 1
            bag.write(channel, at_ns, at_ns, bytes(serialize_message(message)))

    requests, answers = [], []
    for number, image in enumerate(images, start=1):
        request = ChunkRequest(round=number, state=np.full(6, number, np.float32), **whose)
        if image:
            request.image_keys = ["front"]
            request.images = [CompressedImage(format="jpeg", data=image)]
            request.earlier = [
                ObservationMessage(state=np.full(6, -i, np.float32), images=request.images)
                for i in range(earlier, 0, -1)
            ]
        requests.append(request)
        answers.append(ActionChunk(round=number, horizon=2, chunk_size=2, action_dim=1, **whose))
    numbers = [0.1] * len(images)
    ended = TaskEvent(kind=TaskEvent.FINISHED, task_kind="door", outcome="succeeded", **whose)
    ended.control_rate_hz = 10.0
    ended.round_latency_s = ended.round_started_s = ended.round_ended_s = numbers
    ended.round_executed = [2] * len(images)
    write("chunk_request", *requests)
    write("action_chunk", *answers)
    write("task_events", ended)
    bag.close()


def test_robots_see_again_what_the_bag_shows(tmp_path):
    seen = [bytes([i]) * 9 for i in range(3)]
    bag_with_images(tmp_path / "bag", seen)
    (trace,) = extract(tmp_path / "bag").traces
    with Bag(tmp_path / "bag") as bag:
        found = recorded_seen(bag, [trace], CAMERA)
    assert [found[id(r.state)].images["front"] for r in trace.rounds] == seen

    bag_with_images(tmp_path / "blind", [*seen[:2], b""])
    (trace,) = extract(tmp_path / "blind").traces
    with (
        Bag(tmp_path / "blind") as bag,
        pytest.raises(ConfigError, match="no images of round 3 of arm_1-0123456789abcdef"),
    ):
        recorded_seen(bag, [trace], CAMERA)


def test_the_newest_of_the_recorded_observations_are_sent_again(tmp_path):
    bag_with_images(tmp_path / "bag", [b"one", b"two"], earlier=3)
    (trace,) = extract(tmp_path / "bag").traces
    with Bag(tmp_path / "bag") as bag:
        found = recorded_seen(bag, [trace], replace(CAMERA, observations=3))
        assert [found[id(r.state)].images["front"] for r in trace.rounds] == [b"one", b"two"]
        for seen in found.values():
            assert [look.state[0] for look in seen.earlier] == [-2, -1]
            assert [look.images["front"] for look in seen.earlier] == [seen.images["front"]] * 2
        with pytest.raises(ConfigError, match="no 4 earlier observations of round 1 of arm_1-0123"):
            recorded_seen(bag, [trace], replace(CAMERA, observations=5))


def test_a_trace_file_holds_no_history(tmp_path):
    inputs = PolicyInputs(state_dim=6, observations=2)
    traces = [with_states(drawn_trace(1), 6)]
    with pytest.raises(ConfigError, match="reads 2 observations, which trace files do not hold"):
        recorded_tasks(tmp_path / "t.jsonl", traces, inputs, Rules("replay"), None, [""])


def test_a_run_that_could_not_be_saved_is_refused_before_anything_starts(tmp_path):
    write_traces(tmp_path / "t.jsonl", [with_states(drawn_trace(1), 6)])
    (tmp_path / "taken").touch()
    options = ReplayOptions(
        tmp_path / "t.jsonl", 1, None, 1, Rules("replay"), "", "emulated:latency_ms=20", False,
        None, 1, tmp_path / "taken",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="no run can be saved in"):
        replay(options)


def test_another_horizon_makes_other_rounds_of_the_same_length(tmp_path):
    trace = drawn_trace(1)
    inputs = policy_inputs("emulated:latency_ms=20")
    rules = Rules(accounting="replay", horizon="static:8")
    (task,) = recorded_tasks(tmp_path / "t.jsonl", [trace], inputs, rules, 20_000_000, [""])
    assert task.trace.actions == trace.actions
    assert {r.horizon for r in task.trace.rounds} == {8}


PLAN = HorizonPlan((8, 4), 4)
CALIBRATION = HorizonCalibration("p", 50, {("kind", "do it"): PLAN}, PLAN)


def test_the_processes_of_a_replay_are_told_everything_in_messages_with_checked_fields():
    trace = with_states(drawn_trace(1), 3)
    before = Observation(np.arange(3, dtype=np.float32), {"corner2": b"before"})
    seen = Seen({"corner2": b"\xff\xd8"}, (before,))
    task = RecordedTask(trace, "static:4", (seen,) * len(trace.rounds))
    rules = Rules("replay", "calibrated", lead=3, calibration=CALIBRATION)
    sent = Setup(("v0", "v1"), rules, RobotSpec(3, 3, 30.0, {"corner2": (96, 128)}), (task, task))
    got = decode(encode(sent))
    assert (got.robots, got.rules, got.spec) == (sent.robots, sent.rules, sent.spec)
    assert got.tasks[1].horizon == "static:4"
    (one,) = {id(one): one for one in got.tasks[1].seen}.values()  # sent once
    assert len(got.tasks[1].seen) == len(trace.rounds)
    assert one.images == seen.images
    assert (one.earlier[0].images, [*one.earlier[0].state]) == (before.images, [0, 1, 2])
    for mine, theirs in zip(got.tasks[1].trace.rounds, trace.rounds, strict=True):
        assert np.array_equal(mine.state, theirs.state)
        assert replace(mine, state=None, chunk=None, step_norms=None, updates=None) == replace(
            theirs, state=None, chunk=None, step_norms=None, updates=None
        )
    record = TaskRecord(0, "v0", "kind", 1, 0.0, 0.0, 1.0, "lost", round_latency_s=(0.1, 0.2))
    for message in (
        BeginRun(5),
        GiveTask("v0", 1, 7, 0.5, 9),
        CancelTasks(),
        Leave(),
        Ready(),
        TaskDone("v0", Ended(record, (), (Span("v0", 0.0, 1.0, "executing"),))),
        ProcessCounts(0.5, [1.0], Counter(late=2), 1, 3),
    ):
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04N.",
        pickle.dumps(Leave()),
        msgpack.packb("Leave"),
        msgpack.packb(["Exit", {}]),
        msgpack.packb([["Leave"], {}]),
        msgpack.packb(["GiveTask", {"robot": "v0"}]),
        msgpack.packb(["BeginRun", {"epoch_ns": "soon"}]),
        msgpack.packb(["Setup", {"robots": [], "rules": "{}", "spec": {}, "tasks": {}}]),
    ],
)
def test_what_is_no_message_of_a_replay_is_an_error_and_is_never_unpickled(data):
    with pytest.raises(WireError, match="no message of a replay"):
        decode(data)


def test_parity_counts_rounds_that_did_not_come_again_as_recorded():
    trace = drawn_trace(1, rounds=4)
    nan = float("nan")

    def came(recorded, requested_at, horizon):
        return RoundRecord(
            "v", "0", recorded.round, 1, 0.0, 0.1, nan, nan, requested_at, requested_at,
            horizon, 50, 0, 0.0, 0.0, 0.0, 1, "edge", "edge",
        )  # fmt: skip

    first, second, third, _ = trace.rounds
    unneeded = replace(third, round=5, executed=0)  # neither counted nor missed
    trace = replace(trace, rounds=(*trace.rounds, unneeded))
    rounds = (
        came(first, first.requested_at, first.horizon),
        came(second, second.requested_at + 1, second.horizon),
        came(third, third.requested_at, third.horizon - 1),
    )
    task = TaskRecord(0, "v", "kind", 1, 0.0, 0.0, 1.0, "succeeded", task="0")
    run = FleetRun(("v",), 1.0, (task,), (), ((0.0, 1.0),), rounds)
    found = parity(run, {0: trace})
    assert (found.recorded, found.replayed, found.same_request, found.same_horizon) == (4, 3, 2, 2)
    assert found.latency_ratio == pytest.approx(2.0)
    assert not found.exact
    canceled = replace(run, tasks=(replace(task, outcome="canceled"),))
    assert parity(canceled, {0: trace}).recorded == 0
