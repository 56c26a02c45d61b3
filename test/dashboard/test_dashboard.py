"""`kairos dashboard`: what its page says, whom it answers, and that a real browser shows it."""

import asyncio
import re
import socket
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from browser import CHROMIUM, visit
from dashboard_process import KAIROS, kairos_dashboard
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from kairos_ros.msg import EngineState, FleetState, PipelineEvent, RobotState, RobotStatus
from sensor_msgs.msg import CompressedImage
from wire import in_executor, until

from kairos_ros.core.robot_state import RobotState as State
from kairos_ros.dashboard.page import fleet
from kairos_ros.dashboard.server import COOKIE, application
from kairos_ros.dashboard.watch import Watch
from kairos_ros.nodes import qos
from kairos_ros.telemetry.events import (
    EngineReported,
    Health,
    ModeChanged,
    RobotReported,
    RobotScheduled,
    TaskKey,
)
from kairos_ros.telemetry.fleet_view import FleetView, RobotView

JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffd9")
WILD = "<script>alert(1)</script>"


def viewed(*robots: RobotView) -> FleetView:
    known = {robot.name: robot for robot in robots}
    return FleetView(robots=known, server="s", server_heard_s=100.0, active=True)


def arm(name: str, scheduled=None, mode="", transition=None, **status) -> RobotView:
    status = {"at_s": 100.0, "robot": name, "state": State.RUNNING} | status
    view = RobotView(name, RobotReported(**status), scheduled)
    view.mode, view.transition = mode, transition
    return view


def moved(reason: str) -> ModeChanged:
    key = TaskKey("arm_1", "s", "1")
    return ModeChanged(100.0, key, "running", "", "unsafe", "safety", reason, (), 0.0, 0.0)


def health(name: str, level: str, message: str, at_s: float) -> Health:
    return Health(at_s, name, "", level, message, {})


def test_a_robot_that_is_not_heard_any_more_is_lost_whatever_it_said_last():
    seen = viewed(arm("arm_10"), arm("arm_2", at_s=90.0))
    html = fleet(seen, {}, 101.0)
    assert "1 of 2 robots moving" in html
    assert re.findall(r'id="robot-(\w+)" data-state="(\w+)"', html) == [
        ("arm_2", "lost"),
        ("arm_10", "running"),
    ]
    assert ">lost</b>" in fleet(seen, {}, 200.0)  # the serving node, too


def test_of_a_serving_node_that_is_lost_nothing_is_shown_as_it_was():
    seen = viewed(arm("arm_1", RobotScheduled("arm_1", wait_ratio=0.37, running=True)))
    seen.engines = (EngineReported("edge", "edge", "busy", 3, 8, 0.9, 5, 0, "", 0.02, policy="p"),)
    seen.queue, seen.chunks_per_s = 7, 11.5
    old = ('class="ok">busy', "90 %", "3 of 8", "20 ms", "queue <b>7", "11.5", "next in", "37 %")
    html = fleet(seen, {}, 101.0)
    assert [what for what in old if what not in html] == []
    for robot in seen.robots.values():
        robot.status = replace(robot.status, at_s=104.0)  # it is all right
    html = fleet(seen, {}, 104.0)
    assert [what for what in old if what in html] == []
    assert '<th>edge <small>edge</small></th><td class="error">unknown</td>' in html
    assert 'data-state="running"' in html


def test_a_robot_in_a_task_shows_the_policy_that_answers_it_by_name_where_there_are_several():
    one = RobotScheduled("arm_1", policy="flow-1")
    assert "<dt>policy</dt><dd>flow-1 <small></small></dd>" in fleet(
        viewed(arm("arm_1", one)), {}, 100.0
    )
    named = replace(one, policy_name="pick")
    html = fleet(viewed(arm("arm_1", named)), {}, 100.0)
    assert "<dt>policy</dt><dd>pick <small>flow-1</small></dd>" in html
    idle = arm("arm_1", named, state=State.IDLE)
    assert "<dt>policy</dt>" not in fleet(viewed(idle), {}, 100.0)


def test_what_a_silent_node_said_of_its_health_is_stale_and_not_ok():
    seen = viewed()
    seen.health = {
        "safety": health("safety", "ok", "100.0% of 300 within 300 ms", 100.0),
        "monitor": health("monitor", "warn", "80.0% of 10 within 100 ms", 110.0),
    }

    def told(now_s):
        return re.findall(
            r'class="level (\w+)">\w+</span> <b>(\w+)</b> (.*)</li>', fleet(seen, {}, now_s)
        )

    assert told(102.0)[1] == ("ok", "safety", "100.0% of 300 within 300 ms")
    assert told(112.0) == [
        ("stale", "safety", "silent for 12 s; before: ok, 100.0% of 300 within 300 ms"),
        ("warn", "monitor", "80.0% of 10 within 100 ms"),
    ]


def test_a_robot_that_waits_for_a_human_is_called_out():
    html = fleet(
        viewed(arm("arm_1", mode="waiting_for_human", transition=moved("unsafe"))), {}, 101.0
    )
    assert "arm_1 waits for a human" in html
    assert "safety: unsafe" in html
    assert "0 of 1 robots moving" in html


def test_nothing_that_came_over_the_wire_becomes_markup():
    seen = viewed(
        arm(
            "arm_1",
            RobotScheduled("arm_1", reason=WILD),
            transition=moved(WILD),
            instruction=WILD,
            cameras=("top",),
        )
    )
    seen.engines = (EngineReported(WILD, WILD, "down", 1, 2, 0.5, 3, 4, WILD, 0.1, policy=WILD),)
    seen.health = {"x": health(WILD, "error", WILD, 100.0)}
    seen.counters = {WILD: 3}
    seen.scheduling = seen.horizon = WILD
    html = fleet(seen, {}, 101.0)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 9


def test_beyond_this_host_a_page_needs_the_token():
    async def visits() -> None:
        server = httpx.ASGITransport(application(SimpleNamespace(failure=""), "secret", ["*"]))
        async with httpx.AsyncClient(transport=server, base_url="http://cell") as browser:
            assert (await browser.get("/")).status_code == 403
            assert (await browser.get("/?token=guess")).status_code == 403
            let_in = await browser.get("/?token=secret")
            assert (let_in.status_code, let_in.headers["location"]) == (303, "/")
            assert browser.cookies[COOKIE] == "secret"
            assert "kairos fleet" in (await browser.get("/")).text

    asyncio.run(visits())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dashboard_that_hears_nothing_any_more_says_so(wire):
    async def answers(watch: Watch) -> list[httpx.Response]:
        server = httpx.ASGITransport(application(watch, "", ["*"]))
        async with httpx.AsyncClient(transport=server, base_url="http://cell") as browser:
            return [await browser.get(path) for path in ("/", "/fleet", "/camera/arm_1/top.jpg")]

    with Watch() as watch:
        codes = [answer.status_code for answer in asyncio.run(answers(watch))]
        assert codes == [200, 200, 404]
        watch._node.executor.create_task(lambda: 1 // 0)  # what nobody has foreseen
        until(lambda: watch.failure, what="for the thread of ROS to end")
        for answer in asyncio.run(answers(watch)):
            assert answer.status_code == 503
            assert "has lost ROS (ZeroDivisionError" in answer.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ("8080", "write ADDRESS:PORT"),
        ("example:80", "write ADDRESS:PORT"),
        ("127.0.0.1:http", "write ADDRESS:PORT"),
        ("127.0.0.1:99999", "a port is 0 to 65535"),
        ("BUSY", "choose another"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named(listen, says):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = listen.replace("BUSY", f"127.0.0.1:{taken.getsockname()[1]}")
        told = subprocess.run(
            [KAIROS, "dashboard", "--listen", listen], capture_output=True, text=True, timeout=60
        )
    assert told.returncode == 2
    assert says in told.stderr
    assert "Traceback" not in told.stderr


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    """Its address."""
    with kairos_dashboard(tmp_path_factory.mktemp("dashboard")) as address:
        yield address


@pytest.fixture(scope="module")
def a_fleet(wire):
    """Two robots and a serving node that are nothing but their topics. Yields two cameras of arm_1:
    one that goes on and one that takes no pictures by itself.
    """
    publisher = wire.node.create_publisher
    status = publisher(RobotStatus, "/kairos/robot_status", qos.ROSTER)
    state = publisher(FleetState, "/kairos/fleet_state", qos.TELEMETRY)
    health = publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
    event = publisher(PipelineEvent, "/arm_1/pipeline_events", qos.EVENTS)
    overdue = publisher(PipelineEvent, "/arm_2/pipeline_events", qos.EVENTS)
    camera, still = (
        publisher(CompressedImage, f"/arm_1/camera/{key}/compressed", qos.SENSOR)
        for key in ("top", "side")
    )
    common = {"session": "s", "control_rate_hz": 30.0, "image_keys": ["top", "side"]}

    def tell() -> None:
        running = RobotStatus(
            robot="arm_1", state=RobotStatus.RUNNING, instruction="swing <fast>", **common
        )
        running.horizon, running.buffered, running.tasks_done = 47, 15, 3  # of the running round
        status.publish(running)
        status.publish(RobotStatus(robot="arm_2", state=RobotStatus.IDLE, session="s"))
        status.publish(RobotStatus(robot="no name/at all", session="s"))
        scheduled = RobotState(robot="arm_1", wait_ratio=0.25, reason="oldest of 2", pending=True)
        scheduled.horizon, scheduled.horizon_reason = 12, "sure of 12"  # of the next one
        scheduled.request_period_s = scheduled.planned_period_s = 0.75
        scheduled.over_rate = True
        engine = EngineState(engine="edge", tier="edge", state="busy", load=0.5, max_batch=8)
        state.publish(
            FleetState(server="one", active=True, robots=[scheduled], engines=[engine],
                       counter_names=["refused_bad_shape"], counter_values=[2],
                       plan="cells 1a2b", staged_plan="cells 3c4d")
        )  # fmt: skip
        slow = DiagnosticStatus(name="kairos safety: /kairos/safety", level=DiagnosticStatus.WARN)
        slow.message = "80.0% of 10 within 100 ms"
        mode = [KeyValue(key="mode", value="running")]
        arm = DiagnosticStatus(name="kairos: arm_1", hardware_id="arm_1", values=mode)
        health.publish(DiagnosticArray(status=[slow, arm]))
        event.publish(
            PipelineEvent(robot="arm_1", before="holding", after="running", component="safety",
                          trigger="safe", reason="the cell is safe again")
        )  # fmt: skip
        overdue.publish(
            PipelineEvent(robot="arm_2", before="running", after="holding", component="safety",
                          trigger="stop_and_replan", reason="safety is overdue")
        )  # fmt: skip
        camera.publish(CompressedImage(format="jpeg", data=JPEG))

    timer = wire.node.create_timer(0.2, tell)
    yield camera, still
    in_executor(wire.executor, lambda: wire.node.destroy_timer(timer))


def test_it_shows_what_the_fleet_says(dashboard, a_fleet):
    words = ("1 of 2 robots moving", "arm_2", "the cell is safe again", "80.0%", "edge",
             "oldest of 2", "swing &lt;fast&gt;", "12 actions", "sure of 12", "25 %", "queued",
             "0.5 s", "refused bad shape 2", "<dd>safety: the cell is safe again",
             "<dd>safety is overdue", "cells 1a2b</b>, changes to cells 3c4d",
             "every 0.75 s <small>asks more often")  # fmt: skip

    def missing() -> list[str]:
        html = httpx.get(f"{dashboard}fleet", timeout=60).text
        assert "no name" not in html
        return [word for word in words if word not in html]

    until(lambda: not missing(), what="for the fleet on the page")


def test_a_robot_that_comes_back_as_another_process_begins_anew(dashboard, a_fleet, wire):
    status = wire.node.create_publisher(RobotStatus, "/kairos/robot_status", qos.ROSTER)
    events = wire.node.create_publisher(PipelineEvent, "/arm_3/pipeline_events", qos.EVENTS)

    def calls(session: str) -> bool:
        status.publish(RobotStatus(robot="arm_3", session=session))
        return "arm_3 waits for a human" in httpx.get(f"{dashboard}fleet", timeout=60).text

    def calls_for_the_first() -> bool:
        events.publish(PipelineEvent(robot="arm_3", after="waiting_for_human", reason="unsafe"))
        return calls("first")

    until(calls_for_the_first, what="for it to call a human")
    until(lambda: not calls("second"), what="for that to be over")


def test_a_camera_is_subscribed_to_while_somebody_looks_and_only_if_it_was_announced(
    dashboard, a_fleet
):
    until(lambda: "arm_1" in httpx.get(f"{dashboard}fleet", timeout=60).text)
    address = f"{dashboard}camera/arm_1/top.jpg"
    camera, _ = a_fleet

    def shown() -> bool:
        """While somebody looks again and again: who did not for some seconds looks no more."""
        picture = httpx.get(address, timeout=60).content
        assert picture in (b"", JPEG)
        return bool(picture) and camera.get_subscription_count() == 1

    until(shown, what="for a picture")
    for nobody in ("arm_2/top.jpg", "arm_1/bottom.jpg", "../../etc/passwd", "arm_1/%00.jpg"):
        assert httpx.get(f"{dashboard}camera/{nobody}", timeout=60).status_code == 404
    until(lambda: camera.get_subscription_count() == 0, what="for the dashboard to look away")


def test_the_last_picture_of_an_ended_task_is_not_shown_for_now(dashboard, a_fleet):
    _, camera = a_fleet
    address = f"{dashboard}camera/arm_1/side.jpg"

    def shown():
        camera.publish(CompressedImage(format="jpeg", data=JPEG))
        return httpx.get(address, timeout=60).content == JPEG

    until(shown, what="for a picture")
    until(lambda: httpx.get(address, timeout=60).status_code == 204, what="for it to go")
    assert camera.get_subscription_count() == 1


@pytest.mark.slow
def test_only_this_hosts_names_are_answered_and_nothing_can_be_changed(dashboard):
    evil = httpx.get(dashboard, headers={"Host": "evil.example"}, timeout=60)
    assert evil.status_code == 400
    for verb in ("POST", "PUT", "DELETE"):
        assert httpx.request(verb, f"{dashboard}fleet", timeout=60).status_code == 405
    headers = httpx.get(dashboard, timeout=60).headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_a_browser_shows_the_fleet_and_asks_nobody_else(dashboard, a_fleet, tmp_path):
    seen = visit(dashboard, tmp_path, width=400)
    assert seen.console == []
    assert 'id="robot-arm_1" data-state="running"' in seen.dom
    assert "swing &lt;fast&gt;" in seen.dom
    assert re.search(r'<p id="link"[^>]* hidden', seen.dom)
    assert seen.requests
    assert {url for url in seen.requests if not url.startswith(dashboard)} == set()
