"""The recorder as a process beside real publishers: nothing is lost, also when it is killed."""

import itertools
import os
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import rclpy
import yaml
from diagnostic_msgs.msg import DiagnosticStatus
from kairos_ros.msg import ChunkRequest, ChunkUpdates, RobotStatus, TaskEvent
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from rclpy.qos import qos_profile_sensor_data
from rclpy.serialization import deserialize_message, serialize_message
from rosbags.rosbag2 import Reader
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import String
from wire import PATIENCE_S, Operator, WireRobot, in_executor, until

from kairos_ros.bringup.plan import recorder, serving
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.nodes import qos
from kairos_ros.nodes.recorder.node import RecorderNode
from kairos_ros.recording.extract import extract
from kairos_ros.recording.fleet_run import read_bag
from kairos_ros.recording.metadata import QosReliability
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.runs.summary import summarise
from kairos_ros.recording.runs.trace_file import read_traces, write_traces

KAIROS = Path(sys.prefix, "bin", "kairos")
BEARABLE_S = 0.02
"""Between messages that nobody sends again: DDS keeps some hundred for who gets no processor."""
TYPES = {
    "chunk_request": (ChunkRequest, qos.EXCHANGE),
    "task_events": (TaskEvent, qos.EVENTS),
    "joint_states": (JointState, qos.EVENTS),
    "wrist/image": (CompressedImage, qos_profile_sensor_data),
}


def message(kind: type, number: int):
    """A message of which everything variable depends on `number`."""
    text = str(number)
    if kind is ChunkRequest:
        image = CompressedImage(format="jpeg", data=bytes(number % 251 for _ in range(3000)))
        return ChunkRequest(robot="arm", task=text, round=number, images=[image], image_keys=["a"])
    if kind is TaskEvent:
        return TaskEvent(robot="arm", task=text, round_executed=[number], round_ended_s=[0.5])
    if kind is JointState:
        return JointState(name=["state_0"], position=[float(number)])
    return CompressedImage(format=text, data=bytes(number % 7))


class Talkers:
    """Publishers of one robot; remembers all that they sent, serialized, by topic."""

    def __init__(self, wire, robot: str, names=tuple(TYPES)) -> None:
        self._wire = wire
        self.sent: dict[str, list[bytes]] = {f"/{robot}/{name}": [] for name in names}
        self._publishers = {
            f"/{robot}/{name}": wire.node.create_publisher(
                TYPES[name][0], f"{robot}/{name}", TYPES[name][1]
            )
            for name in names
        }

    def wait_for_reader(self) -> None:
        until(
            lambda: all(p.get_subscription_count() for p in self._publishers.values()),
            what="for the recorder",
        )

    def say(self, numbers, pause_s: float = 0.005) -> None:
        for number in numbers:
            for topic, publisher in self._publishers.items():
                said = message(publisher.msg_type, number)
                publisher.publish(said)
                self.sent[topic].append(serialize_message(said))
            time.sleep(pause_s)

    def close(self) -> None:
        for publisher in self._publishers.values():
            end(self._wire, publisher)


def end(wire, publisher) -> None:
    in_executor(wire.executor, lambda: wire.node.destroy_publisher(publisher))


def rosbags_content(folder: Path) -> dict[str, list[bytes]]:
    with Reader(folder) as reader:
        held: dict[str, list[bytes]] = {c.topic: [] for c in reader.connections}
        for connection, _, data in reader.messages():
            held[connection.topic].append(data)
        assert {c.topic: c.msgcount for c in reader.connections} == {
            topic: len(messages) for topic, messages in held.items()
        }
    return held


def mcap_content(folder: Path) -> dict[str, list[bytes]]:
    held: dict[str, list[bytes]] = {}
    (path,) = folder.glob("*.mcap")
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        for _, channel, raw, _ in reader.iter_decoded_messages():
            held.setdefault(channel.topic, []).append(raw.data)
    return held


def same(kind: type, recorded: list[bytes], sent: list[bytes]) -> bool:
    """Padding between fields is not defined, so messages are compared after decoding."""
    decode = lambda many: [deserialize_message(one, kind) for one in many]  # noqa: E731
    return decode(recorded) == decode(sent)


def test_all_that_was_said_is_in_the_bag_for_two_independent_readers(start, wire, tmp_path):
    early = Talkers(wire, "arm_1")
    node = start(recorder(tmp_path / "bag"))
    early.wait_for_reader()
    early.say(range(300), BEARABLE_S)
    late = Talkers(wire, "arm_2")
    late.wait_for_reader()
    late.say(range(200), BEARABLE_S)
    assert node.stop(signal.SIGINT) == 0
    for talkers in (early, late):
        talkers.close()
    assert "0 dropped, 0 lost" in node.output().splitlines()[-1]

    by_rosbags, by_mcap = rosbags_content(tmp_path / "bag"), mcap_content(tmp_path / "bag")
    for topic, sent in (early.sent | late.sent).items():
        kind = TYPES[topic.split("/", 2)[2]][0]
        assert len(by_rosbags[topic]) == len(sent)
        assert by_mcap[topic] == by_rosbags[topic]
        assert same(kind, by_rosbags[topic], sent)
    with Reader(tmp_path / "bag") as reader:
        offered = {c.topic: c.ext.offered_qos_profiles for c in reader.connections}
        (image,), (request,) = offered["/arm_1/wrist/image"], offered["/arm_1/chunk_request"]
    assert image.reliability is QosReliability.BEST_EFFORT
    assert request.reliability is QosReliability.RELIABLE
    assert wire.diagnostic("kairos: recorder", "dropped") == "0"


def test_a_best_effort_publisher_that_comes_later_is_recorded_too(start, wire, tmp_path):
    reliable = Talkers(wire, "arm_7", ["chunk_request", "joint_states"])
    node = start(recorder(tmp_path / "bag"))
    reliable.wait_for_reader()
    reliable.say(range(10))
    casual = wire.node.create_publisher(JointState, "arm_7/joint_states", qos_profile_sensor_data)
    until(casual.get_subscription_count, what="for the recorder to adapt")
    casual.publish(message(JointState, 10))
    reliable.wait_for_reader()
    reliable.say(range(11, 20))
    time.sleep(0.3)
    node.stop(signal.SIGINT)
    reliable.close()
    end(wire, casual)
    recorded = rosbags_content(tmp_path / "bag")["/arm_7/joint_states"]
    numbers = [deserialize_message(one, JointState).position[0] for one in recorded]
    assert sorted(numbers) == list(range(20))


@pytest.fixture
def stranger(domain_id):
    """A node of another process as DDS sees it: one participant has one type per topic."""
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain_id)
    node = rclpy.create_node("stray", namespace="elsewhere", context=context)
    yield node
    node.destroy_node()
    rclpy.shutdown(context=context)


def test_a_stray_publisher_of_another_type_costs_nothing_and_is_named(
    start, wire, stranger, tmp_path
):
    topics = ["/arm_8/chunk_request", "/arm_8/task_events", "/kairos/robot_status"]
    strays = [stranger.create_publisher(String, topic, 10) for topic in topics]
    node = start(recorder(tmp_path / "bag"))
    until(lambda: "/kairos/robot_status is recorded as" in node.output(), what="for a warning")
    status = wire.node.create_publisher(RobotStatus, "/kairos/robot_status", qos.ANNOUNCEMENT)
    status.publish(RobotStatus(robot="arm_8"))
    talkers = Talkers(wire, "arm_8", ["chunk_request", "task_events"])
    talkers.wait_for_reader()
    until(status.get_subscription_count, what="for the recorder")
    strays += [stranger.create_publisher(String, "/arm_8/joint_states", 10)]
    for stray in strays:
        stray.publish(String(data="hello"))
    talkers.say(range(50))
    report = lambda: wire.reports.get("kairos: recorder")  # noqa: E731
    until(
        lambda: report() and "std_msgs/msg/String of '/elsewhere/stray'" in report().message,
        what="for the diagnostics to name it",
    )
    assert report().level == DiagnosticStatus.WARN
    for stray in strays:
        stranger.destroy_publisher(stray)
    until(lambda: report().level == DiagnosticStatus.OK, what="for the stray to be gone")
    late = Talkers(wire, "arm_8", ["joint_states"])
    late.wait_for_reader()
    late.say(range(5))
    time.sleep(0.3)
    assert node.stop(signal.SIGINT) == 0
    talkers.close()
    late.close()
    end(wire, status)
    last = node.output().splitlines()[-1]
    assert "0 dropped, 0 lost; not recorded are publishers of other types: " in last
    for topic in topics:
        assert f"{topic} is recorded as kairos_ros/msg/" in node.output()
    held = rosbags_content(tmp_path / "bag")
    for topic, sent in (talkers.sent | late.sent).items():
        assert same(TYPES[topic.split("/", 2)[2]][0], held[topic], sent)
    (told,) = (deserialize_message(one, RobotStatus) for one in held["/kairos/robot_status"])
    assert told.robot == "arm_8"


def test_a_topic_whose_publishers_disagree_is_recorded_when_one_of_them_is_gone(
    wire, stranger, domain_id, tmp_path
):
    rclpy.init(domain_id=domain_id)
    node = RecorderNode(out=str(tmp_path / "bag"), topics="/arm_9/.*")
    node.start()
    stray = stranger.create_publisher(String, "/arm_9/pose", 10)
    own = wire.node.create_publisher(JointState, "/arm_9/pose", 10)
    until(lambda: len(node.get_publishers_info_by_topic("/arm_9/pose")) == 2, what="for both")
    node.discover()
    assert "/arm_9/pose (its publishers disagree: sensor_msgs" in str(node.status())
    stranger.destroy_publisher(stray)

    def subscribed() -> bool:
        node.discover()
        return own.get_subscription_count() > 0

    until(subscribed, what="for the recorder")
    own.publish(message(JointState, 3))
    until(lambda: node.look() or node.status().messages, what="for the message")
    node.close()
    assert "not recorded" not in str(node.ended)
    rclpy.shutdown()
    wire.until_left("/kairos/recorder")
    end(wire, own)
    (only,) = rosbags_content(tmp_path / "bag")["/arm_9/pose"]
    assert deserialize_message(only, JointState) == message(JointState, 3)


def test_a_bag_decodes_where_none_of_its_packages_is_installed(start, wire, tmp_path):
    talkers = Talkers(wire, "arm_3", ["chunk_request"])
    node = start(recorder(tmp_path / "bag"))
    talkers.wait_for_reader()
    talkers.say(range(20))
    time.sleep(0.3)
    node.stop(signal.SIGINT)
    talkers.close()
    program = textwrap.dedent("""
        import sys
        sys.modules.update({name: None for name in ("kairos_ros", "sensor_msgs", "rclpy")})
        from mcap.reader import make_reader
        from mcap_ros2.decoder import DecoderFactory
        with open(sys.argv[1], "rb") as file:
            reader = make_reader(file, decoder_factories=[DecoderFactory()])
            for *_, m in reader.iter_decoded_messages(topics=["/arm_3/chunk_request"]):
                print(m.round, len(m.images[0].data), m.execution.control_rate_hz)
    """)
    env = {k: v for k, v in os.environ.items() if k != "AMENT_PREFIX_PATH"}
    line = [sys.executable, "-c", program, str(next((tmp_path / "bag").glob("*.mcap")))]
    done = subprocess.run(line, capture_output=True, text=True, env=env, check=True)
    assert done.stdout.splitlines() == [f"{n} 3000 0.0" for n in range(20)]


def test_a_killed_recorder_leaves_a_readable_bag(start, wire, tmp_path):
    talkers = Talkers(wire, "arm_4", ["chunk_request", "joint_states"])
    node = start(recorder(tmp_path / "bag", metadata_version=5))
    talkers.wait_for_reader()
    talkers.say(range(200))
    time.sleep(2.0)
    safe = {topic: len(sent) for topic, sent in talkers.sent.items()}
    talkers.say(range(200, 250))
    node.process.kill()
    node.process.wait()
    talkers.close()
    assert not (tmp_path / "bag" / "metadata.yaml").exists()

    notices: list[str] = []
    with Bag(tmp_path / "bag", notices.append) as bag:
        counts = {topic.name: topic.messages for topic in bag.topics}
    assert "index and metadata.yaml rebuilt" in notices[0]
    held = rosbags_content(tmp_path / "bag")
    for topic, sent in talkers.sent.items():
        assert safe[topic] <= counts[topic] <= len(sent)
        kind = TYPES[topic.split("/", 2)[2]][0]
        assert same(kind, held[topic], sent[: counts[topic]])
    assert mcap_content(tmp_path / "bag").keys() >= talkers.sent.keys()
    information = yaml.safe_load((tmp_path / "bag" / "metadata.yaml").read_text())
    assert information["rosbag2_bagfile_information"]["version"] == 5


def test_a_full_disk_ends_the_recording_with_its_reason_and_a_readable_bag(start, wire, tmp_path):
    talkers = Talkers(wire, "arm_5", ["chunk_request"])
    limited = ["bash", "-c", 'ulimit -f 400; exec "$@"', "limited"]  # 400 KiB per file
    node = start(recorder(tmp_path / "bag"), prefix=limited)
    talkers.wait_for_reader()
    for numbers in itertools.batched(range(1000), 50):
        if node.process.poll() is not None:
            break
        talkers.say(numbers)
        time.sleep(0.2)
    assert node.process.wait(PATIENCE_S) == 1
    talkers.close()
    assert "File too large; what was recorded before can still be read" in node.output()
    with Bag(tmp_path / "bag"):  # repairs it
        pass
    recorded = rosbags_content(tmp_path / "bag")["/arm_5/chunk_request"]
    assert len(recorded) > 20
    assert same(ChunkRequest, recorded, talkers.sent["/arm_5/chunk_request"][: len(recorded)])


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    line = [KAIROS, "record", "--out", tmp_path / "file" / "bag"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot record into" in done.stderr
    assert "Traceback" not in done.stderr


def test_kairos_record_ends_by_itself_and_says_what_it_has(wire, tmp_path):
    talkers = Talkers(wire, "arm_6", ["joint_states"])
    line = [KAIROS, "record", "--out", tmp_path / "bag", "--duration", "8"]
    line += ["--topics", "/arm_6/.*", "--compression", "zstd", "--metadata-version", "7"]
    record = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    talkers.wait_for_reader()
    talkers.say(range(50))
    _, said = record.communicate(timeout=PATIENCE_S)
    talkers.close()
    assert record.returncode == 0
    assert "50 messages of 1 topics" in said
    assert rosbags_content(tmp_path / "bag").keys() == {"/arm_6/joint_states"}
    info = subprocess.run(
        [KAIROS, "bag", "info", tmp_path / "bag"], capture_output=True, text=True, check=True
    )
    assert "sensor_msgs/msg/JointState" in info.stdout


@pytest.fixture(scope="module")
def fleet_bag(start_for_module, wire, tmp_path_factory):
    """Two tasks of one pendulum on an emulated engine, with full updates; (bag, results)."""
    folder = tmp_path_factory.mktemp("fleet") / "bag"
    node = start_for_module(recorder(folder, full_updates=True))
    policy = "emulated:latency_ms=40,chunk=20,state=3,dim=1"
    server = start_for_module(serving(policy=policy, horizon="static:12"))
    body = {"adapter_options": ["env_id=Pendulum-v1"], "control_rate_hz": 50.0}
    body["max_pause_s"] = 10.0  # a robot without CPU time would give a round up: it has no chunk
    robot = start_for_module(ProcessSpec("robot_node", "robot", "swing", body))
    wire.serving_since()
    recorded = {"swing/task_events": 1, "swing/policy_state": 1, "kairos/chunk_updates/full": 1}
    recorded |= {"swing/chunk_request": 2, "swing/action_chunk": 2}  # by those it is meant for, too
    for topic, readers in recorded.items():
        found = lambda t=topic, n=readers: wire.node.count_subscribers(f"/{t}") >= n  # noqa: E731
        until(found, what=f"for the recorder to find {topic}")
    time.sleep(1.0)  # and writers the recorder
    operator = Operator(wire, "swing")
    results = []
    for seed in (3, 4):
        goal = operator.give(instruction="swing up", scene="s", seed=seed, max_actions=100)
        results.append(operator.result(goal))
    given = operator.give(instruction="swing up", scene="s", seed=5)
    time.sleep(2.0)
    robot.process.kill()  # in the middle of a task
    time.sleep(1.0)
    operator.close()
    assert not given.done()
    assert node.stop(signal.SIGINT) == 0
    server.stop()  # two servers in one domain would be in conflict
    return folder, results


def test_the_sensors_of_a_driver_that_a_robot_listens_to_are_recorded(
    wire, start_for_module, tmp_path
):
    link = rclpy.create_node("link", namespace="arm_9", context=wire.node.context)
    link.create_publisher(ChunkRequest, "chunk_request", qos.EXCHANGE)
    link.create_subscription(JointState, "/driver_9/joint_states", lambda _: None, 10)
    driver = rclpy.create_node("driver", namespace="driver_9", context=wire.node.context)
    driver.create_publisher(JointState, "joint_states", 10)
    driver.create_publisher(JointState, "unheard", 10)
    node = start_for_module(recorder(tmp_path / "bag"))
    until(lambda: driver.count_subscribers("joint_states") == 2, what="for the recorder to find it")
    assert driver.count_subscribers("unheard") == 0
    assert node.stop(signal.SIGINT) == 0
    link.destroy_node()
    driver.destroy_node()


def test_a_bag_holds_every_state_and_both_events_of_a_task(fleet_bag):
    with Bag(fleet_bag[0]) as bag:
        counts = {topic.name: topic.messages for topic in bag.topics}
        states = list(bag.messages(("kairos_ros/msg/PolicyState",)))
        asked, told, updated = (
            {(m.body.task, m.body.round) for m in bag.messages((f"kairos_ros/msg/{kind}",))}
            for kind in ("ChunkRequest", "ActionChunk", "ChunkUpdates")
        )
    assert "/swing/joint_states" not in counts, "a pendulum of Gymnasium has no known description"
    assert counts["/swing/task_events"] == 5
    assert len(asked) > 10
    assert asked == told == updated  # by round: what a busy machine asks twice is answered once
    assert len(states) >= 200
    assert list(states[-1].body.names) == ["state_0", "state_1", "state_2"]
    cosine, sine, _ = states[-1].body.values
    assert cosine**2 + sine**2 == pytest.approx(1.0, abs=1e-5)


def test_a_bag_is_the_run_that_the_robots_told(fleet_bag):
    folder, results = fleet_bag
    run = read_bag(folder)
    assert run.robots == ("swing",)
    assert [task.number for task in run.tasks] == [3, 4, 5]
    for task, result in zip(run.tasks, results, strict=False):
        assert (task.outcome, task.actions) == (result.outcome, 100)
        assert task.duration_s == pytest.approx(result.duration_s)
        assert task.round_executed == tuple(result.round_executed)
        rounds = [r for r in run.rounds if r.task == task.task]
        served = [r for r in rounds if r.horizon]
        assert [r.executed for r in served] == list(result.round_executed)
        assert served[0].requested_at == served[0].observed_at == 0
        # most: a recorder without CPU time hears of a request late
        ahead_s = [now.requested_s - one.answered_s for one, now in itertools.pairwise(served)]
        assert statistics.median(ahead_s) >= -0.05
        assert all(r.requested_at <= r.observed_at for r in served)
        executed = [
            r for r in served if r.executed
        ]  # a late chunk may have nothing left to execute
        for before, record in itertools.pairwise(executed):
            assert record.exec_start_s >= before.exec_end_s - 1e-3
        for record, latency in zip(served, result.round_latency_s, strict=True):
            assert record.latency_s == pytest.approx(latency)
            assert record.horizon == 12
            assert record.chunk_size == 20
            if record.executed:
                took_s = record.exec_end_s - record.exec_start_s
                assert took_s >= (record.executed - 1) / 50.0 - 0.1
            assert task.given_s - 1e-3 <= record.requested_s <= task.ended_s
    assert not run.tasks[2].finished
    assert run.pipeline is None, "nobody judged these robots"
    assert summarise(run).tasks == 2
    assert {s.activity for s in run.spans} >= {"idle", "executing"}


def test_a_bag_gives_traces_of_the_tasks_that_ended_with_all_updates(fleet_bag, tmp_path):
    folder, results = fleet_bag
    traces = extract(folder).traces
    assert [trace.seed for trace in traces] == [3, 4]
    for trace, result in zip(traces, results, strict=True):
        assert trace.actions == 100
        assert (trace.kind, trace.horizon_policy) == ("swing up", "static:12")
        assert [r.executed for r in trace.rounds] == list(result.round_executed)
        executed = 0
        for r in trace.rounds:
            assert r.requested_at <= r.observed_at <= executed
            executed += r.executed
            assert r.chunk.shape == (20, 1)
            assert r.updates.shape == (*r.step_norms.shape, 1)
            assert r.step_norms == pytest.approx(abs(r.updates[..., 0]), abs=1e-6)
    write_traces(tmp_path / "t.jsonl.gz", traces)
    assert [t.name for t in read_traces(tmp_path / "t.jsonl.gz")] == [t.name for t in traces]


@pytest.mark.parametrize("steps", [10, 0])
def test_who_listens_is_told_the_whole_chunk_behind_every_answer(start, wire, steps):
    policy = f"emulated:latency_ms=1,chunk=20,state=3,dim=1,steps={steps}"
    before = wire.fleet[-1].server if wire.fleet else ""
    node = start(serving(policy=policy, horizon="tail_agreement"))
    wire.serving_since(before)
    robot = WireRobot(wire, "arm_told", state=[0.0, 0.0, 0.0]).join()
    heard: list[ChunkUpdates] = []
    listener = wire.node.create_subscription(
        ChunkUpdates, "/kairos/chunk_updates", heard.append, qos.EVENTS
    )
    until(lambda: listener.get_publisher_count(), what="for the serving node")
    rounds = itertools.count(2)
    while not heard:
        answer = robot.ask(next(rounds))
        time.sleep(0.05)
    said = heard[-1]
    assert (said.robot, said.round, said.horizon) == ("arm_told", answer.round, answer.horizon)
    assert len(said.chunk) == said.chunk_size * said.action_dim
    assert list(said.chunk[: len(answer.actions)]) == list(answer.actions)
    assert said.steps == steps
    assert len(said.step_norms) == said.steps * said.chunk_size
    assert len(said.updates) == 0
    in_executor(wire.executor, lambda: wire.node.destroy_subscription(listener))
    robot.leave()
    node.stop()
