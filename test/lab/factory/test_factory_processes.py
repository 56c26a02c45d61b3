"""`kairos fleet demo` as a user runs it: real processes, people in the picture, real signals.

Its arms see: their policy reads one camera and no pose of any object, and safety looks through
another one.
"""

import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kairos_ros.recording.reader import Bag
from kairos_ros.vlm.judge import Question
from kairos_ros.vlm.loading import load_judge
from kairos_ros.vlm.questions import SAFE, SAFETY, SAFETY_PROMPT, UNSAFE

pytestmark = pytest.mark.slow

KAIROS = Path(sys.prefix, "bin", "kairos")
WITHIN_S = 150.0
FLEET = """
server_cluster: {num_servers: 1, gpu_type: none}
robot_fleet:
- task: open_drawer
  names: [left, right]
  adapter_options: {images: {corner4: [64, 64], corner3: [240, 240]}}
open_drawer:
  scene: drawer-open-v3
  pipeline: {action_period_ms: 330}
  task_retry: {max_task_retries: 1, on_max_task_retries: stop_and_call_human}
  safety_and_slo_violation:
    max_consecutive_safety_replan: 10000
    max_consecutive_slo_violation: 10000
    on_max_violation: stop_and_call_human
  components:
    system1:
      model: emulated:latency_ms=20,chunk=20,state=8,dim=4,images=corner4@64x64
      prompt: open the drawer
      slo_ms: 20000
      fallback: stop_and_resend
    safety:
      model: embedded:factory_judge
      prompt: is the workcell safe?
      cameras: [corner3]
      freq_hz: 1
      slo_ms: 1000
      fallback: stop_and_resend
"""


def processes_of(mark):
    found = []
    for folder in Path("/proc").iterdir():
        try:
            environment = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if mark.encode() in environment:
            found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One intruder, then five seconds without a safety service, then Ctrl-C beside an intruder."""
    folder = tmp_path_factory.mktemp("factory")
    (folder / "fleet.yaml").write_text(FLEET)
    mark, log = uuid.uuid4().hex, folder / "output.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [KAIROS, "fleet", "demo", "fleet.yaml", "--events", "intruder,safety,intruder"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {"FACTORY_TEST": mark, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            cwd=folder,
        )
    try:
        deadline = time.monotonic() + WITHIN_S
        while log.read_text().count("somebody enters") < 2:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        code = process.wait(60.0)
        yield folder / "runs" / "latest", log.read_text(), code, processes_of(mark)
    finally:
        for pid in processes_of(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        print(log.read_text())


@pytest.fixture(scope="module")
def summary(run):
    return json.loads((run[0] / "summary.json").read_text())


def test_ctrl_c_ends_every_process_and_keeps_what_was_done(run, summary):
    folder, output, code, left = run
    assert left == []
    assert code == 0, output
    assert summary["interrupted"]
    assert [event["deed"]["kind"] for event in summary["events"]] == ["intruder", "safety"]
    assert (folder / "factory.png").stat().st_size > 10_000
    assert "What happened, and what the robots did" in output


def test_a_robot_stops_for_a_rendered_person_and_goes_on_when_they_have_left(summary):
    event = summary["events"][0]
    assert event["result"] in ("pass", "late"), event["why"]
    (did,) = event["reactions"]
    assert did["robot"] == "left"
    stop = next(
        t
        for t in summary["transitions"]
        if t["robot"] == "left" and t["at_s"] > event["deed"]["began_s"] and "stop" in t["effects"]
    )
    assert stop["reason"].startswith(("unsafe", "safety is overdue"))
    assert did["did"].endswith("holding → running")


def test_every_robot_stops_without_a_safety_service_and_goes_on_with_the_next_one(summary):
    event = summary["events"][1]
    assert event["result"] in ("pass", "late"), event["why"]
    assert {did["robot"] for did in event["reactions"]} == set(event["deed"]["robots"]) != set()
    assert event["deed"]["undone_s"] - event["deed"]["began_s"] >= 5.0


def test_the_bag_holds_the_events_and_what_robots_did_about_them(run):
    from rosbags.highlevel import AnyReader

    with AnyReader([run[0] / "bag"]) as reader:
        wanted = [c for c in reader.connections if c.topic in ("/diagnostics", PIPELINE)]
        said, did = [], []
        for connection, _, data in reader.messages(wanted):
            message = reader.deserialize(data, connection.msgtype)
            if connection.topic == PIPELINE:
                did.append((message.before, message.after))
            else:
                said += [s.message for s in message.status if s.name == "kairos factory: script"]
    assert said[:2] == ["somebody enters the cell of left", "left: they have left"]
    assert said[2].startswith("the safety service is killed")
    assert ("running", "holding") in did


def test_every_verdict_is_about_a_picture_of_its_own_robot_and_task_and_judged_again_the_same(run):
    pictures, tasks, verdicts = {}, set(), []
    with Bag(run[0]) as bag:
        for message in bag.messages(SEEN):
            robot = message.topic.split("/")[1]
            body = message.body
            if message.type == PICTURE and "/camera/corner3/" in message.topic:
                stamp = body.header.stamp
                pictures[robot, stamp.sec, stamp.nanosec] = bytes(body.data)
            elif message.type.endswith("ChunkRequest"):
                tasks.add((robot, body.session, body.task))
                assert len(body.state) == 8
                assert sorted(body.image_keys) == ["corner3", "corner4"]
            elif message.type.endswith("SafetyVerdict"):
                verdicts.append((robot, body))
    assert {robot for robot, _ in verdicts} == {"left", "right"}
    assert {said.safe for _, said in verdicts} == {True, False}
    judge = load_judge("embedded:factory_judge")
    for robot, said in verdicts:
        assert (robot, said.session, said.task) in tasks
        picture = decoded(pictures[robot, said.frame.sec, said.frame.nanosec])
        asked = Question(SAFETY, SAFETY_PROMPT, "open the drawer", (picture,), (SAFE, UNSAFE))
        (again,) = judge.judge([asked])
        assert (again.answer == SAFE) == said.safe


def decoded(jpeg):
    return np.asarray(Image.open(io.BytesIO(jpeg)))


PIPELINE = "/left/pipeline_events"
PICTURE = "sensor_msgs/msg/CompressedImage"
SEEN = (PICTURE, "kairos_ros/msg/ChunkRequest", "kairos_ros/msg/SafetyVerdict")
