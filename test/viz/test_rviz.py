"""The viz node, a real arm and a real serving node, and what rviz would make of them, over DDS."""

import copy
import io
import math
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from hostile_pictures import HOSTILE
from kairos_ros.msg import (
    PipelineEvent,
    PolicyState,
    RobotStatus,
    SafetyVerdict,
)
from PIL import Image
from rclpy.qos import QoSDurabilityPolicy
from rviz_lint import (
    array_faults,
    asked,
    frame_faults,
    graph_faults,
    marker_faults,
    read_rviz,
)
from sensor_msgs.msg import CompressedImage, JointState
from sensor_msgs.msg import Image as ImageMessage
from std_msgs.msg import String
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import Marker, MarkerArray
from wire import Operator, in_executor, until

from kairos_ros.bringup.plan import robot, serving, viz
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.robot_state import RobotState
from kairos_ros.host.share import share
from kairos_ros.nodes import qos
from kairos_ros.nodes.viz.cameras import TILE, mosaic_message
from kairos_ros.nodes.viz.node import BROKEN_TOLD_EVERY_S
from kairos_ros.nodes.viz.parameters import arm_entries
from kairos_ros.nodes.viz.scene import SceneBuilder
from kairos_ros.nodes.viz.subscriptions import (
    CAMERAS,
    SAFETY,
    Drawn,
    Subscriptions,
    read_joints,
    read_state,
)
from kairos_ros.robot.adapters.contract.contract_file import contract_path, read_contract
from kairos_ros.telemetry.events import (
    CellJudged,
    ExecutionReported,
    FleetReported,
    RobotReported,
    RobotScheduled,
    TaskKey,
)
from kairos_ros.telemetry.fleet_view import FleetView
from kairos_ros.viz import colours
from kairos_ros.viz.fleet_layer import arms
from kairos_ros.viz.places import Grid

POLICY = "emulated:latency_ms=30,chunk=50,state=39,dim=4"
GOAL = {"instruction": "push the puck to the target", "scene": "push-v3", "seed": 3}
RVIZ = share() / "config" / "kairos.rviz"
PER_ROBOT = ("chunk_request", "action_chunk", "execution_info", "policy_state", "safety_verdict")


class Screen:
    """What a viewer with our configuration holds: markers by topic, and frames."""

    def __init__(self, wire, displays):
        self.wire = wire
        self.arrays: list[tuple[str, MarkerArray]] = []
        self.shown: dict[tuple[str, str, int], Marker] = {}
        self.transforms = {}
        self._lock = threading.Lock()
        node = wire.node
        self.subscriptions = [
            node.create_subscription(
                MarkerArray, one.topic, lambda m, t=one.topic: self._on_markers(t, m), asked(one)
            )
            for one in displays
            if one.kind.endswith("/MarkerArray")
        ]
        self.subscriptions += [
            node.create_subscription(TFMessage, "/tf_static", self._on_tf, qos.ROSTER),
            node.create_subscription(TFMessage, "/tf", self._on_tf, qos.EVENTS),
        ]

    def _on_markers(self, topic, array):
        with self._lock:
            self.arrays.append((topic.rsplit("/", 1)[1], array))
            for marker in array.markers:
                if marker.action == Marker.DELETEALL:
                    self.shown = {k: m for k, m in self.shown.items() if k[0] != topic}
                elif marker.action == Marker.DELETE:
                    self.shown.pop((topic, marker.ns, marker.id), None)
                else:
                    self.shown[topic, marker.ns, marker.id] = marker

    def _on_tf(self, message):
        for one in message.transforms:
            self.transforms[one.child_frame_id] = one

    def of(self, ns):
        """Markers of a namespace that are on the screen now."""
        with self._lock:
            return [marker for (_, name, _), marker in self.shown.items() if name == ns]

    def texts(self, ns):
        return [marker.text for marker in self.of(ns) if marker.text]

    def close(self):
        in_executor(
            self.wire.executor,
            lambda: [self.wire.node.destroy_subscription(one) for one in self.subscriptions],
        )


def listeners(wire, topic):
    """Names of the nodes that subscribe to a topic of the arm."""
    found = wire.node.get_subscriptions_info_by_topic(f"/arm_1/{topic}")
    return {one.node_name for one in found}


@pytest.fixture(scope="module")
def nodes(start_for_module, wire):
    """An arm, its server and the viz node, before anybody looks."""
    started = SimpleNamespace(
        # long enough that a drawing does not always meet a chunk at its end
        serving=start_for_module(serving(policy=POLICY, horizon="static:20")),
        arm=start_for_module(robot("arm_1")),
        viz=start_for_module(viz(rate_hz=10.0)),
    )
    wire.serving_since()
    wire.status_of("arm_1")
    until(lambda: "kairos: viz" in wire.reports, what="for the viz node")
    return started


@pytest.fixture(scope="module")
def quiet(nodes, wire):
    """What the viz node listened to while nobody looked, and how it said so."""
    until(lambda: wire.diagnostic("kairos: viz", "robots") == "1", what="for viz to see the arm")
    heard = {topic for topic in PER_ROBOT if "_viz_topics" in listeners(wire, topic)}
    return heard, wire.reports["kairos: viz"].message


@pytest.fixture(scope="module")
def displays():
    return read_rviz(RVIZ).displays


@pytest.fixture(scope="module")
def screen(quiet, nodes, wire, displays):
    """Somebody looks, and the arm has work."""
    screen = Screen(wire, displays)
    operator = Operator(wire, "arm_1")
    operator.give(**GOAL)
    until(lambda: screen.of("chunk: executed"), what="for a path on the screen")
    return screen


def test_nobody_looks_and_no_robot_is_listened_to(quiet):
    assert quiet == (set(), "unseen")


def test_every_display_finds_its_topic_its_type_and_a_qos_that_matches(screen, wire, displays):
    until(lambda: not graph_faults(displays, wire.node), what="for the topics of all displays")
    assert sum(bool(display.topic) for display in displays) == 6


def test_the_lint_of_the_graph_finds_a_missing_topic_a_wrong_type_and_a_wrong_qos(
    screen, wire, displays
):
    (good,) = (one for one in displays if one.topic == "/kairos/markers/chunks")

    def faults(**changes):
        return graph_faults([replace(good, **changes)], wire.node)

    assert not faults()
    assert "nobody publishes" in faults(topic="/kairos/markers/chunk")[0]
    assert "the display reads" in faults(kind="rviz_default_plugins/Image")[0]
    assert faults(durability="transient_local")
    assert not faults(reliability="best_effort")


def test_every_frame_is_reached_from_the_fixed_frame(screen):
    until(lambda: "arm_1/tool_1" in screen.transforms, what="for /tf")
    frames = {marker.header.frame_id for _, a in screen.arrays for marker in a.markers} - {""}
    assert frames == {"fleet", "arm_1/base"}
    fixed = read_rviz(RVIZ).fixed_frame
    transforms = list(screen.transforms.values())
    assert not frame_faults(fixed, transforms, frames | {"arm_1/tool_1"})
    assert frame_faults(fixed, transforms, {"arm_9/base"})
    assert frame_faults("map", transforms, frames)


def test_a_late_viewer_gets_the_places_of_the_robots_at_once(screen, wire):
    (offered,) = (
        one
        for one in wire.node.get_publishers_info_by_topic("/tf_static")
        if one.node_name == "viz"
    )
    assert offered.qos_profile.durability is QoSDurabilityPolicy.TRANSIENT_LOCAL


def test_chunks_advance_and_new_rounds_follow(screen):
    def seen(ns, what):
        markers = [m for _, array in list(screen.arrays) for m in array.markers]
        return {what(m) for m in markers if m.ns == ns and m.action == Marker.ADD}

    def path(marker):
        return tuple((p.x, p.y, p.z) for p in marker.points)

    until(lambda: len(seen("chunk: executed", path)) > 5, what="for the arm to move on its path")
    until(lambda: len(seen("chunk: to come", path)) > 5, what="for the path to get shorter")
    rounds = until(
        lambda: len(texts := seen("caption", lambda m: m.text)) > 5 and texts, what="for rounds"
    )
    assert any(text.startswith("round ") for text in rounds)


def test_an_executed_path_begins_where_the_hand_was_seen(screen):
    """In metres, on the table: not at the origin, and not where a policy's units would put it."""
    for marker in until(lambda: screen.of("chunk: executed")):
        first = marker.points[0]
        assert abs(first.x) < 0.5
        assert 0.4 <= first.y <= 1.0
        assert -0.15 <= first.z <= 0.5


def test_every_message_so_far_is_sound(screen):
    until(lambda: {name for name, _ in screen.arrays} >= {"fleet", "robots", "chunks", "scheduler"})
    until(lambda: len(screen.arrays) > 20)
    faults = [fault for _, array in list(screen.arrays) for fault in array_faults(array)]
    assert not faults


BREAKAGES = {
    "not finite": lambda m: setattr(m.pose.position, "x", math.nan),
    "no unit quaternion": lambda m: setattr(m.pose.orientation, "w", 0.5),
    "scale": lambda m: setattr(m.scale, "x", 0.0),
    "alpha": lambda m: setattr(m.color, "a", 0.0),
    "frame": lambda m: setattr(m.header, "frame_id", "/arm_1/base"),
    "stays": lambda m: setattr(m.lifetime, "sec", 0),
    "type": lambda m: setattr(m, "type", Marker.MESH_RESOURCE),
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_the_lint_of_markers_finds_what_is_broken(screen, what):
    marker = copy.deepcopy(until(lambda: screen.of("pad"))[0])
    assert not list(marker_faults(marker))
    BREAKAGES[what](marker)
    assert any(what in fault for fault in marker_faults(marker))


def test_the_lint_of_messages_finds_a_key_that_is_there_twice(screen):
    pad = until(lambda: screen.of("pad"))[0]
    assert any("twice" in fault for fault in array_faults(MarkerArray(markers=[pad, pad])))


def test_the_board_tells_the_engine_and_the_queue(screen):
    until(lambda: any("edge" in text for text in screen.texts("engines")), what="for the engine")
    until(lambda: any("chunks/s" in text for text in screen.texts("serving")), what="for the rates")
    assert any(text.startswith("queue") for text in screen.texts("queue"))


def test_an_unsafe_verdict_turns_the_zone_red(screen, wire):
    publisher = wire.node.create_publisher(SafetyVerdict, "/arm_1/safety_verdict", qos.EXCHANGE)
    until(publisher.get_subscription_count, what="for viz to listen")

    def red():
        status = wire.status_of("arm_1")
        publisher.publish(
            SafetyVerdict(
                robot="arm_1", session=status.session, task=status.task, safe=False, probability=0.9
            )
        )
        zone = screen.of("zone")
        return zone and all(round(m.color.r, 3) == round(colours.UNSAFE[0], 3) for m in zone)

    until(red, what="for a red zone")
    until(lambda: any("UNSAFE 90 %" in text for text in screen.texts("verdict")), what="for words")
    in_executor(wire.executor, lambda: wire.node.destroy_publisher(publisher))


def test_its_diagnostics_tell_what_it_draws_and_what_that_costs(screen, wire):
    until(lambda: wire.reports["kairos: viz"].message != "unseen", what="for a report")
    until(lambda: int(wire.diagnostic("kairos: viz", "markers in the last second") or 0) > 0)


def test_who_looks_anew_is_shown_everything_within_a_moment(screen, wire, displays):
    other = Screen(wire, displays)
    until(lambda: {"pad", "arm", "zone", "serving"} <= {ns for _, ns, _ in [*other.shown]})
    other.close()


def test_a_robot_that_leaves_is_taken_off_the_screen(screen, nodes, wire):
    nodes.arm.stop(signal.SIGINT)
    until(lambda: wire.status_of("arm_1").state == RobotStatus.LEAVING)
    names = ("pad", "caption", "arm", "zone", "chunk: executed", "wait ratio")
    until(lambda: not any(screen.of(name) for name in names), what="for an empty place")
    until(lambda: "0 robots" in " ".join(screen.texts("serving")), what="for the board")


def test_a_viz_node_that_ends_leaves_an_empty_screen(screen, nodes):
    assert screen.shown
    assert nodes.viz.stop(signal.SIGINT) == 0
    until(lambda: not screen.shown, what="for everything to go")


def staged(entry, **fields):
    """What is on the builder of one robot that announced itself and told its joints."""
    view, drawn = FleetView(), Drawn()
    view.take(RobotReported(0.0, "arm_1", "s", RobotState.RUNNING, "1", **fields))
    builder = SceneBuilder("fleet", Grid(), arm_entries([f"arm_1={entry}"]))
    read_joints(drawn, JointState(name=SO101.state_features, position=[0.1] * 9), 0)
    known = SimpleNamespace(view=view, drawn={"arm_1": drawn}, placed={"base_link"})
    return builder, drawn, known


SO101 = read_contract(contract_path("so101"))
URDF = share() / "models" / "arms" / "so101.urdf"
ARM = f"{{contract: so101, tips: [gripper_frame_link], urdf: {URDF}"


def test_an_arm_with_a_urdf_is_drawn_by_its_contract_and_stands_on_the_grid():
    builder, _, known = staged(ARM + "}")
    scene = builder.scene(known)
    assert scene.robots["arm_1"].frame == "arm_1/base"
    assert list(scene.origins) == ["arm_1/base"]
    assert len(arms(scene)) > 5


def test_a_robot_tells_its_joints_in_rad_and_one_of_an_older_bag_its_state_in_their_place():
    builder, drawn, known = staged(ARM + "}")
    state = JointState(name=SO101.state_features, position=[0.1] * 9)
    by_older_bag = arms(builder.scene(known))  # `staged` told the state, as robots once did
    names = [joint.name for joint in SO101.joints]
    read_joints(drawn, JointState(name=names, position=[0.1] * 6), 0)
    read_state(drawn, PolicyState(names=list(state.name), values=list(state.position)), 0)
    assert arms(builder.scene(known)) == by_older_bag
    read_joints(drawn, JointState(name=names, position=[0.5] * 6), 0)
    assert arms(builder.scene(known)) != by_older_bag


def test_an_arm_that_tf_places_stays_where_it_is():
    builder, _, known = staged(ARM + ", frame: base_link}")
    scene = builder.scene(known)
    assert {shape.frame for shape in arms(scene)} == {"base_link"}
    assert not scene.origins


def test_an_arm_whose_urdf_does_not_fit_is_named_and_the_others_are_drawn():
    builder, _, known = staged(ARM.replace("gripper_frame_link", "tool0") + "}")
    assert not arms(builder.scene(known))
    assert "tool0" in builder.problems["arm_1"]


def test_a_description_that_comes_later_is_drawn_when_it_comes():
    builder, drawn, known = staged("{contract: so101, tips: [gripper_frame_link]}")
    (source,) = builder.sources("arm_1")
    assert source.topic == "/so101/robot_description"
    assert not arms(builder.scene(known))
    source.read(drawn, String(data=URDF.read_text()), 0)
    assert arms(builder.scene(known))


def test_an_arm_that_holds_shows_no_chunk_and_a_verdict_of_an_older_task_no_colour():
    builder, drawn, known = staged(ARM + "}")
    drawn.paths.requested(("s", "1", 2), 0, np.full(9, 0.1, np.float32))
    drawn.paths.answered(("s", "1", 2), 0, np.full((5, 6), 0.2, np.float32), np.ones(5), "")
    arm = known.view.robots["arm_1"]
    arm.execution = ExecutionReported(0.0, "arm_1", 2, True, False, 4, 1, 30.0)
    assert builder.scene(known).robots["arm_1"].chunks.running.horizon == 5
    arm.execution = replace(arm.execution, holding=True)
    assert builder.scene(known).robots["arm_1"].chunks.running is None
    key = TaskKey("arm_1", "s", "0")
    arm.verdict = CellJudged(0.0, key, (0, 0), "safety", True, 1.0, 0.1)
    assert builder.scene(known).robots["arm_1"].judged is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arm_1", "must read"),
        ("arm_1=[", "no YAML"),
        ("arm_1={tips: [tool0]}", "contract"),
        ("arm_1={contract: so101, tips: []}", "tips"),
        ("arm_1={contract: so101, tips: [tool0], unit: rad}", "unit"),
    ],
)
def test_an_arm_that_is_described_wrongly_is_refused_by_name(text, said):
    with pytest.raises(ConfigError, match=said):
        arm_entries([text])


def test_a_robot_neither_queues_nor_waits_once_the_serving_node_is_silent():
    builder, _, known = staged(ARM + "}")
    arm = RobotScheduled("arm_1", pending=True, wait_ratio=0.5, policy_name="pick")
    now_s = time.monotonic()
    known.view.take(FleetReported(now_s, "s", True, "", "", 0, 0.0, 0.0, {}, (arm,), ()))
    view = builder.scene(known).robots["arm_1"]
    assert (view.asks, view.wait_ratio, view.policy) == ("queued", 0.5, "pick")
    known.view.server_heard_s -= 3.0
    view = builder.scene(known).robots["arm_1"]
    assert (view.asks, view.wait_ratio, view.policy) == ("", None, "")


def jpeg():
    out = io.BytesIO()
    Image.new("RGB", (32, 24), (200, 30, 30)).save(out, "JPEG")
    return out.getvalue()


def test_cameras_come_as_one_picture_and_a_broken_one_does_not_spoil_it():
    message, broken = mosaic_message({"arm_1  top": jpeg(), "arm_2  top": b"torn"})
    assert list(broken) == ["arm_2  top"]
    assert (message.width, message.height) == (2 * TILE[0], TILE[1])
    assert len(message.data) == message.step * message.height
    left = message.data[3 * (message.width * 100 + 120) :][:3]
    right = message.data[3 * (message.width * 100 + 360) :][:3]
    assert left[0] > 150
    assert max(right) < 60


@pytest.mark.parametrize("encoded", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_picture_stays_dark_and_is_told(encoded):
    began = time.thread_time()  # of the processor: a busy machine takes longer
    message, broken = mosaic_message({"arm_1  top": encoded, "arm_2  top": jpeg()})
    assert time.thread_time() - began < 2.0
    assert list(broken) == ["arm_1  top"]
    right = message.data[3 * (message.width * 100 + 360) :][:3]
    assert right[0] > 150


def test_no_more_cameras_are_shown_than_fit_a_message():
    message, broken = mosaic_message({f"arm_{n}  top": b"" for n in range(10_000)})
    assert len(message.data) < 20_000_000
    assert "10000 cameras, at most 144 are shown" in broken["the rest"]


class Told:
    """A robot that is nothing but its topics, and has nothing to do."""

    def __init__(self, wire, name):
        publisher = wire.node.create_publisher
        self.name, self.wire = name, wire
        self.status = publisher(RobotStatus, "/kairos/robot_status", qos.ANNOUNCEMENT)
        self.health = publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self.events = publisher(PipelineEvent, f"/{name}/pipeline_events", qos.EVENTS)
        self.camera = publisher(CompressedImage, f"/{name}/camera/top/compressed", qos.SENSOR)

    def announce(self):
        self.status.publish(RobotStatus(robot=self.name, session="s", image_keys=["top"]))

    def say(self, mode):
        report = DiagnosticStatus(name=f"kairos: {self.name}", hardware_id=self.name)
        report.values = [KeyValue(key="mode", value=mode)]
        self.health.publish(DiagnosticArray(status=[report]))

    def move(self, mode):
        self.events.publish(PipelineEvent(robot=self.name, session="s", after=mode))

    def close(self):
        node = self.wire.node
        own = (self.status, self.health, self.events, self.camera)
        in_executor(self.wire.executor, lambda: [node.destroy_publisher(one) for one in own])


@pytest.fixture
def told(wire):
    told = Told(wire, "told_1")
    yield told
    told.close()


@pytest.fixture
def look(wire, told):
    """`look(*purposes)`: the robot as it would be drawn now; None before it was heard."""
    node = rclpy.create_node("viz_topics_of_a_test", context=wire.node.context)
    known, builder = Subscriptions(node, lambda robot: ()), SceneBuilder("fleet", Grid(), {})

    def look(*purposes):
        told.announce()
        known.look(frozenset(purposes), [])
        return builder.scene(known).robots.get(told.name)

    look.known = known
    yield look
    node.destroy_node()


def test_a_robot_that_called_a_human_before_anybody_looked_is_shown_to_wait(told, look):
    def waits():
        told.say("waiting_for_human")
        view = look(SAFETY)
        return view and view.mode == "waiting_for_human"

    until(waits, 20.0, "for the mode")
    told.say("running")
    until(lambda: look(SAFETY).mode == "idle", 20.0, "for its release")


def test_a_robot_that_was_released_while_nobody_looked_does_not_wait_any_more(told, look):
    def waits():
        told.move("waiting_for_human")
        view = look(SAFETY)
        return view and view.mode == "waiting_for_human"

    until(waits, 20.0, "for the transition")
    look()
    view = look(SAFETY)
    assert (view.mode, view.transition) == ("idle", None)


def test_a_picture_is_kept_for_seconds_and_only_while_somebody_looks(told, look):
    def picture():
        told.camera.publish(CompressedImage(format="jpeg", data=jpeg()))
        return look(CAMERAS) and look.known.drawn[told.name].pictures

    until(picture, 20.0, "for a picture")
    drawn = look.known.drawn[told.name]
    now_ns = time.monotonic_ns()
    assert drawn.picture("top", now_ns) == jpeg()
    assert drawn.picture("top", now_ns + 4_000_000_000) == drawn.picture("side", now_ns) == b""
    look()
    assert drawn.picture("top", now_ns) == b""


def test_the_viz_node_outlives_pictures_that_would_end_it_and_says_so(start, wire, told):
    node, began_s = start(viz(camera_rate_hz=10.0)), time.monotonic()
    seen = []
    images = wire.node.create_subscription(ImageMessage, "/kairos/cameras", seen.append, qos.EVENTS)
    told.announce()
    until(told.camera.get_subscription_count, what="for the viz node")
    report = lambda: wire.reports.get("kairos: viz")  # noqa: E731
    for encoded in HOSTILE.values():
        told.camera.publish(CompressedImage(format="jpeg", data=encoded))
        told.announce()
        time.sleep(0.5)

    def warned():
        """Again, as the last picture is kept for some seconds only."""
        told.announce()
        told.camera.publish(CompressedImage(format="jpeg", data=HOSTILE["no picture"]))
        newest = report()
        return newest and "cameras cannot be shown" in newest.message and newest

    assert until(warned, what="for its diagnostics").level == DiagnosticStatus.WARN
    count = "broken camera pictures since the start"
    assert int(wire.diagnostic("kairos: viz", count)) > 0

    def bright():
        told.announce()
        told.camera.publish(CompressedImage(format="jpeg", data=jpeg()))
        time.sleep(0.1)
        return seen and seen[-1].data[3 * (TILE[0] * 100 + 120)] > 180

    until(bright, what="for a picture")
    until(lambda: report().level == DiagnosticStatus.OK, what="for the warning to end")
    assert node.process.poll() is None
    most = 1 + (time.monotonic() - began_s) / BROKEN_TOLD_EVERY_S
    assert 0 < node.output().count("cameras cannot be shown") <= most
    in_executor(wire.executor, lambda: wire.node.destroy_subscription(images))
    node.stop()


def test_the_last_picture_of_an_ended_task_is_not_shown_for_now(start, wire, told):
    seen = []
    start(viz(camera_rate_hz=10.0))
    images = wire.node.create_subscription(ImageMessage, "/kairos/cameras", seen.append, qos.EVENTS)

    def bright():
        told.announce()
        told.camera.publish(CompressedImage(format="jpeg", data=jpeg()))
        time.sleep(0.1)
        return seen and seen[-1].data[3 * (TILE[0] * 100 + 120)] > 180

    def dark():
        told.announce()
        time.sleep(0.1)
        return seen[-1].data[3 * (TILE[0] * 100 + 120)] < 60

    until(bright, what="for a picture")
    until(dark, what="for it to go")
    in_executor(wire.executor, lambda: wire.node.destroy_subscription(images))


def test_a_fleet_without_cameras_leaves_no_old_picture_on_the_screen():
    message, broken = mosaic_message({})
    assert not broken
    assert (message.width, message.height) == TILE
    assert max(message.data) < 60
