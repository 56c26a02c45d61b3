"""Which tasks and frames of a dataset are marked, from bags written message by message."""

import shutil

import numpy as np
import pytest
from kairos_ros.msg import SafetyVerdict, TaskProgress
from told_bag import PERIOD_S, Told

from kairos_ros.core.errors import ConfigError
from kairos_ros.recording.datasets.episode import UNKNOWN, Kind, episode, unfit
from kairos_ros.recording.datasets.export import Choice, export
from kairos_ros.recording.datasets.tasks_of import tasks_of
from kairos_ros.recording.reader import Bag


def only_task(folder):
    with Bag(folder) as bag:
        (told,) = tasks_of(bag, pictures=False)
        return told


@pytest.fixture
def told(tmp_path):
    made = Told(tmp_path / "bag")
    made.here()
    made.begins()
    made.asks(1)
    return made


def test_what_judges_and_people_did_is_marked_frame_by_frame(told):
    told.say("safety_verdict", told.of_task(SafetyVerdict, safe=True, service="eye"))
    told.period()
    told.period(0.1, 1, 0)
    told.reports(TaskProgress.FAILED, robot="another")  # on our topic: nobody's business
    told.reports(TaskProgress.ONGOING)
    told.period(0.2, 1, 1)
    told.say("safety_verdict", told.of_task(SafetyVerdict, safe=False, service="eye"))
    told.moves("running", "returning_to_safe_state", "return to safe state")
    told.period(mode="returning_to_safe_state")
    told.period(-0.5, mode="returning_to_safe_state")
    told.moves("returning_to_safe_state", "waiting_for_human", "at the safe state, limit used up")
    told.period(mode="waiting_for_human")
    told.moves("waiting_for_human", "holding", "released by a human")
    told.say("safety_verdict", told.of_task(SafetyVerdict, safe=True, service="eye"))
    told.period(mode="holding")
    told.asks(2, "lift it higher", executed=2)
    told.period(0.3, 2, 0)
    told.reports(TaskProgress.FAILED)
    told.moves("running", "retrying", "task failed")
    told.moves("retrying", "holding", "reset done")
    told.asks(3, executed=1)
    told.period(0.4, 3, 0)
    told.reports(TaskProgress.DONE)
    told.ends([2, 1, 1], outcome="succeeded", success=True)
    task = only_task(told.close())
    assert unfit(task) == ""
    found = episode(task)
    assert found.kinds == {Kind.SUCCEEDED, Kind.INTERVENED}
    assert episode(task, judge="mia").kinds == {Kind.SUCCEEDED, Kind.FAILED, Kind.INTERVENED}

    def column(name):
        return [getattr(frame, name) for frame in found.frames]

    np.testing.assert_allclose(np.ravel(column("action")), [0.1, 0.2, -0.5, 0.3, 0.4])
    assert column("round") == [1, 1, 0, 2, 3]
    assert column("held_periods") == [1, 0, 1, 2, 0]
    assert column("intervention") == [False, False, True, False, False]
    assert column("released") == [False, False, False, True, False]
    assert column("attempt") == [0, 0, 0, 0, 1]
    assert column("safe") == [1, 1, 0, 1, 1]
    assert column("monitor") == [UNKNOWN, 0, 0, 0, 2]
    lifts = ["lift", "lift", "lift", "lift it higher", "lift"]
    assert column("instruction") == lifts
    np.testing.assert_allclose(column("time_s"), np.array([0, 1, 3, 6, 7]) * PERIOD_S, atol=1e-6)


@pytest.mark.parametrize(
    ("outcome", "success", "ended", "kinds"),
    [
        ("succeeded", True, False, {Kind.SUCCEEDED}),
        ("max_duration", False, False, {Kind.FAILED}),
        ("failed: it fell", False, False, {Kind.FAILED}),
        ("max_actions", False, True, set()),
        ("canceled", False, False, set()),
    ],
)
def test_what_a_task_came_to(told, outcome, success, ended, kinds):
    told.period(0.1, 1, 0)
    told.ends([1], outcome, success, ended)
    assert episode(only_task(told.close())).kinds == kinds


def test_a_task_that_lacks_something_is_none(told, tmp_path):
    told.period(0.1, 1, 0)
    told.period(0.2, 1, 2)
    told.ends([3])
    folder = told.close()
    assert "actions that it executed are not in the bag" in unfit(only_task(folder))
    with pytest.raises(
        ConfigError, match=r"no task of the bags can be exported\. Left out: 1: act"
    ):
        export([folder], tmp_path / "out", Choice(), "k/x", print, lambda share: None)


def test_a_request_that_is_missing_is_missed(told):
    told.period(0.1, 1, 0)
    told.period(0.2, 2, 0)
    told.ends([1, 1])
    assert unfit(only_task(told.close())) == "a request is not in the bag"


def robots(tmp_path, **other):
    for number, options in enumerate(({}, other)):
        options = dict(options)
        rate = {"rate_hz": options.pop("rate_hz")} if "rate_hz" in options else {}
        made = Told(tmp_path / f"run_{number}" / "bag", f"arm_{number}", **options)
        made.here(**rate)
        made.begins()
        made.asks(1)
        made.period(0.1, 1, 0)
        made.ends([1], "succeeded", True)
        made.close()
    return [tmp_path / "run_0" / "bag", tmp_path / "run_1" / "bag"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"action_dim": 3}, "arm_1 of .* has 2 state values, 3 action values, 10 Hz"),
        ({"state": ("a",)}, "arm_1 of .* has 1 state values"),
        ({"rate_hz": 20.0}, "arm_1 of .* 20 Hz"),
        pytest.param(
            {"state": ("a", "c")},
            "arm_1 has the state a, c and 1 action values, arm_0 has",
            marks=pytest.mark.slow,  # found in the middle of writing
        ),
    ],
)
def test_robots_of_two_kinds_are_told_apart(tmp_path, other, said):
    bags = robots(tmp_path, **other)
    with pytest.raises(ConfigError, match=said + ".*[Cc]hoose by --robots or --tasks"):
        export(bags, tmp_path / "out", Choice(), "k/x", print, lambda share: None)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.slow
def test_bags_of_robots_of_one_kind_become_one_dataset(tmp_path):
    done = export(robots(tmp_path), tmp_path / "out", Choice(), "k/x", print, lambda share: None)
    assert [(e["bag"], e["robot"]) for e in done.episodes] == [
        ("run_0/bag", "arm_0"),
        ("run_1/bag", "arm_1"),
    ]


def test_a_control_rate_that_is_no_whole_number_is_refused(tmp_path):
    made = Told(tmp_path / "bag")
    made.here(rate_hz=12.5)
    made.begins()
    made.close()
    with pytest.raises(ConfigError, match=r"control rate is 12.5 Hz; LeRobot takes whole"):
        export([made.folder], tmp_path / "out", Choice(), "k/x", print, lambda share: None)


def test_a_camera_whose_name_is_a_path_is_refused(tmp_path):
    made = Told(tmp_path / "bag")
    size = {"image_height_px": [8], "image_width_px": [8]}
    made.here(image_keys=["../../etc"], request_image_keys=["../../etc"], **size)
    made.begins()
    made.close()
    with pytest.raises(ConfigError, match=r"camera '../../etc' has no name for a dataset"):
        export([made.folder], tmp_path / "out", Choice(), "k/x", print, lambda share: None)


@pytest.mark.slow
def test_a_disk_that_is_full_is_said_and_nothing_is_left(tmp_path, monkeypatch):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LeRobotDataset, "save_episode", refuse)
    with pytest.raises(ConfigError, match=r"No space left on device.*nothing of it is left"):
        export(robots(tmp_path)[:1], tmp_path / "out", Choice(), "k/x", print, lambda share: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run_0", "run_1"]


@pytest.mark.slow
def test_a_task_that_two_bags_hold_is_one_episode(tmp_path):
    bag = robots(tmp_path)[0]
    copy, latest = tmp_path / "copy", tmp_path / "latest"
    shutil.copytree(bag, copy)
    latest.symlink_to(bag)  # the same bag once more, as runs/* names it
    bags = [bag, copy, latest]
    done = export(bags, tmp_path / "out", Choice(), "k/x", print, lambda share: None)
    assert len(done.episodes) == 1
    assert done.left_out == {"it is in another of the bags, too": 1}
