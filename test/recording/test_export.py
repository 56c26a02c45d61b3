"""Bags become LeRobot datasets: what the arm did is what a policy is trained on."""

import json
import os
import signal
import sys

import numpy as np
import pytest
from counting_env import BRIGHTNESS, SIZE
from kairos_ros.msg import PolicyState
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.scripts import lerobot_train
from lerobot.scripts.lerobot_dataset_viz import get_feature_names, to_hwc_uint8_numpy
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from torch.utils.data import DataLoader
from typer.testing import CliRunner
from wire import Operator, until

from kairos_ros.bringup.plan import recorder, serving
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.commands.cli import app
from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.datasets.export import Choice, export
from kairos_ros.recording.reader import Bag
from kairos_ros.telemetry.decode import decode

pytestmark = pytest.mark.slow

ROBOT, KIND = "counter", "counts"
MOST_ACTIONS = 40
HIGHEST = 9.0
"""The guard's limit on the second value of an action, which is its index in the chunk."""
STARVED_S = 30.0
"""Age of pictures on a host that has no time to take them."""


@pytest.fixture(scope="module")
def bag(start_for_module, wire, tmp_path_factory):
    """A task that succeeds, one that does not, and one whose robot is killed."""
    folder = tmp_path_factory.mktemp("counted") / "bag"
    node = start_for_module(recorder(folder))
    policy = f"emulated:latency_ms=30,chunk=20,state=4,dim=2,images=top@{SIZE[0]}x{SIZE[1]}"
    server = start_for_module(serving(policy=policy, horizon="static:12"))
    body = {
        "adapter_options": ["env_id=counting_env:Counting-v0", f"images={{top: {list(SIZE)}}}"],
        "control_rate_hz": 20.0,
        "camera_rate_hz": 20.0,
        "guard.maximum": [1000.0, HIGHEST],
    }
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    robot = start_for_module(ProcessSpec("robot_node", "robot", ROBOT, body), env=env)
    wire.serving_since()
    recorded = ("task_events", "policy_state", "camera/top/compressed")
    recorded = dict.fromkeys(recorded, 1) | {"chunk_request": 2, "action_chunk": 2}
    for topic, readers in recorded.items():
        found = lambda t=topic, n=readers: wire.node.count_subscribers(f"/{ROBOT}/{t}") >= n  # noqa: E731
        until(found, what=f"for the recorder to find {topic}")
    operator = Operator(wire, ROBOT)
    for kind, seed in (("warm up", 2), (KIND, 3), (KIND, 4)):  # publishers find readers meanwhile
        goal = operator.give(
            instruction="count", scene="s", seed=seed, max_actions=MOST_ACTIONS, task_kind=kind
        )
        operator.result(goal)
    states = []
    wire.node.create_subscription(PolicyState, f"/{ROBOT}/policy_state", states.append, 10)
    operator.give(instruction="count", scene="s", seed=5, task_kind=KIND)
    until(lambda: any(len(m.action) and m.values[1] == 5 for m in states), what="for an action")
    robot.process.kill()
    operator.close()
    assert node.stop(signal.SIGINT) == 0
    server.stop()
    return folder


@pytest.fixture(scope="module")
def dataset(bag):
    """The whole bag as LeRobot reads it back."""
    out = bag.parent / "counts"
    choice = Choice(tasks=(KIND,), oldest_picture_s=STARVED_S)
    done = export([bag], out, choice, "kairos/counts", print, shares.append)
    assert (len(done.episodes), done.frames) == (2, sum(e["frames"] for e in done.episodes))
    assert done.left_out == {"its end is not in the bag": 1}
    return LeRobotDataset("kairos/counts", root=out, video_backend="pyav")


shares: list[float] = []


def rows(dataset) -> dict[str, np.ndarray]:
    """Columns as they are stored."""
    table = dataset.hf_dataset.with_format("numpy")
    return {name: np.stack(table[name]) for name in table.column_names}


def test_every_action_that_the_body_got_is_a_frame_with_the_state_just_before_it(dataset):
    told = rows(dataset)
    state, action = told["observation.state"], told["action"]
    steps = state[:, 0]
    same_episode = np.diff(told["episode_index"]) == 0
    next_period = same_episode & (np.diff(steps) == 1)
    assert next_period.sum() > 40
    got = state[1:, 2:]  # the body's own word for what it got
    np.testing.assert_array_equal(got[next_period], action[:-1][next_period])
    held = told["held_periods"][1:][same_episode]
    np.testing.assert_array_equal(held, np.diff(steps)[same_episode] - 1)
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 1


def test_actions_are_those_of_the_chunks_after_the_guard(bag, dataset):
    chunks = {}
    with Bag(bag) as opened:
        for m in opened.messages(("kairos_ros/msg/ActionChunk",)):
            event = decode(m.type, m.topic, m.body, m.at_s)
            if event is not None and event.actions is not None:
                chunks[event.key.task, event.round] = event.actions
    told = rows(dataset)
    tasks = [episode["task"] for episode in document(dataset)["episodes"]]
    asked = np.stack(
        [
            chunks[tasks[episode], number][index]
            for episode, number, index in zip(
                told["episode_index"], told["round"], told["chunk_index"], strict=True
            )
        ]
    )
    assert (asked[:, 1] > HIGHEST).any()
    np.testing.assert_array_equal(told["action"], np.minimum(asked, [1000.0, HIGHEST]))
    assert not told["intervention"].any()
    assert set(told["monitor"]) == set(told["safe"]) == {-1}


def test_readers_that_know_nothing_of_this_package_find_the_actions(bag, dataset):
    tasks = [episode["task"] for episode in document(dataset)["episodes"]]
    found = []
    (path,) = bag.glob("*.mcap")
    with path.open("rb") as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        topics = [f"/{ROBOT}/policy_state"]
        for _, _, _, message in reader.iter_decoded_messages(topics=topics):
            if message.action and message.task in tasks:
                found.append(message.action)
    np.testing.assert_array_equal(np.array(found, np.float32), rows(dataset)["action"])


def test_a_task_is_an_episode_with_its_words_its_seed_and_its_success(dataset):
    told, (won, lost) = rows(dataset), document(dataset)["episodes"]
    assert (won["seed"], won["outcome"], won["kinds"]) == (3, "succeeded", ["succeeded"])
    assert (lost["seed"], lost["outcome"], lost["kinds"]) == (4, "max_actions", ["failed"])
    assert won["guarded"] > 0
    assert dataset.fps == 20
    assert set(dataset.meta.tasks.index) == {"count"}
    episodes = told["episode_index"]
    assert (episodes == 1).sum() == lost["frames"] == MOST_ACTIONS
    last = np.flatnonzero(np.append(np.diff(episodes), 1))
    np.testing.assert_array_equal(np.flatnonzero(told["next.done"]), last)
    np.testing.assert_array_equal(np.flatnonzero(told["next.success"]), last[:1])
    assert (told["observation.state"][:, 1] == np.where(episodes, 4, 3)).all()
    assert (np.diff(told["time_s"])[np.diff(episodes) == 0] > 0).all()


def test_a_picture_is_never_of_later_than_its_state(dataset):
    for number in range(0, len(dataset), 7):
        frame = dataset[number]
        shown = float(frame["observation.images.top"].mean()) * 255 / BRIGHTNESS
        step, age_s = float(frame["observation.state"][0]), float(frame["picture_age_s"])
        assert shown < step + 1.5  # AV1 loses a little
        assert 0 <= age_s < STARVED_S
        if age_s < 0.02:  # less than a period
            assert shown == pytest.approx(step, abs=2.5)


def test_a_player_of_lerobot_shows_one_episode(dataset):
    """As lerobot-dataset-viz loads and converts it, but for the display."""
    one = LeRobotDataset("kairos/counts", root=dataset.root, episodes=[1], video_backend="pyav")
    assert get_feature_names(one, "action") == ["action_0", "action_1"]
    shown = []
    for batch in DataLoader(one, batch_size=16):
        shown += [to_hwc_uint8_numpy(image) for image in batch["observation.images.top"]]
        assert set(batch["episode_index"].tolist()) == {1}
    assert len(shown) == MOST_ACTIONS
    assert shown[0].shape == (*SIZE, 3)
    brightness = [image.mean() for image in shown]
    assert brightness == sorted(brightness)


def test_lerobot_trains_on_it(dataset, tmp_path, monkeypatch):
    options = {
        "dataset.repo_id": "kairos/counts",
        "dataset.root": dataset.root,
        "dataset.video_backend": "pyav",
        "policy.type": "act",
        "policy.device": "cpu",
        "policy.push_to_hub": "false",
        "policy.chunk_size": 8,
        "policy.n_action_steps": 8,
        "policy.dim_model": 32,
        "policy.n_heads": 2,
        "policy.dim_feedforward": 32,
        "policy.n_encoder_layers": 1,
        "policy.use_vae": "false",
        "policy.pretrained_backbone_weights": "null",
        "output_dir": tmp_path / "act",
        "steps": 1,
        "batch_size": 2,
        "num_workers": 0,
    }
    line = ["lerobot-train", *(f"--{name}={value}" for name, value in options.items())]
    monkeypatch.setattr(sys, "argv", line)
    lerobot_train.main()
    trained = tmp_path / "act" / "checkpoints" / "000001" / "pretrained_model"
    inputs = json.loads((trained / "config.json").read_text())
    assert inputs["input_features"].keys() == {"observation.state", "observation.images.top"}
    assert inputs["output_features"].keys() == {"action"}
    assert (trained / "model.safetensors").stat().st_size > 1_000_000


def test_the_command_says_what_it_wrote_and_what_comes_next(bag, tmp_path):
    out = tmp_path / "failed"
    done = run(bag, "--out", out, "--only", "failed,intervened", "--no-pictures")
    assert done.exit_code == 0, done.output
    assert (
        f"{out}: 1 episodes (0 succeeded, 1 failed, 0 intervened), {MOST_ACTIONS} frames"
        in done.output
    )
    assert "left out 1 task: it is none of failed, intervened" in done.output
    assert "left out 1 task: its end is not in the bag" in done.output
    assert "next: lerobot-train --dataset.repo_id=kairos/failed" in done.output
    told = json.loads((out / "meta" / "info.json").read_text())["features"]
    assert not [name for name in told if "image" in name or name == "picture_age_s"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--without", "failed,succeeded"], "1: it is failed"),
        (["--only", "good"], "--only good: choose of succeeded, failed, intervened"),
        (["--format", "csv"], "--format 'csv' is unknown"),
        (["--robots", "arm_*"], "no robot with such a task is in the bags"),
        (["--only", "intervened"], "2: it is none of intervened"),
        (["--from-judge", "mia"], "2: monitor mia said nothing of it (monitors that did: none)"),
        (["--oldest-picture", "0"], "a picture of top is older than 0 s"),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_what_cannot_be_exported_is_said_and_nothing_is_left(bag, tmp_path, options, said):
    done = run(bag, "--out", tmp_path / "out", *options)
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_refused(bag, dataset):
    done = run(bag, "--out", dataset.root)
    assert "exists; remove it, or name another folder by --out" in str(done.exception)


def run(bag, *options):
    line = ["bag", "export", *map(str, (bag, "--tasks", KIND, *options))]
    return CliRunner().invoke(app(), line)


def document(dataset) -> dict:
    return json.loads((dataset.root / "meta" / "kairos_ros.json").read_text())
