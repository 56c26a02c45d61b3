"""A policy that keeps a state of every task goes on from what was seen and executed."""

import logging

import numpy as np
import pytest
import torch
from observations import jpeg, observation, observed, options
from tiny_families.lingbot_va import FRAMES, PER_FRAME
from tiny_policies import ACTION_DIM, CAMERA, CHUNK, INSTRUCTIONS, SIZE, save_policy

from kairos_ros.core.errors import PolicyError, RefusalCode
from kairos_ros.core.exchange import Observation
from kairos_ros.engine.policies.families import lingbot_va
from kairos_ros.engine.policies.policy import load_policy
from kairos_ros.engine.policies.policy_engine import load_policy_engine
from kairos_ros.engine.policies.sampler import row_generators
from kairos_ros.transport.messages import InferRequest, InferResult

pytestmark = pytest.mark.slow

WHOLE = FRAMES * PER_FRAME
ROUNDS = 7
"""More than the window of attention holds."""


class Arm:
    """What a robot sends: it executes what it is given, and sees another picture after it."""

    def __init__(self, number: int, stride: int = 1) -> None:
        self.number, self.stride, self.round = number, stride, 0
        self.executed: list[np.ndarray] = []

    def seen(self, count: int) -> Observation:
        request = observation(self.number)
        picture = jpeg(np.random.default_rng((self.number, count)), SIZE)
        return Observation(request.state, {CAMERA: picture})

    def again(self, **changes) -> InferRequest:
        """The newest round, as it is now."""
        now = len(self.executed)
        before = range((now - 1) // self.stride * self.stride, -1, -self.stride)
        kept = [self.seen(count) for count in before][: WHOLE // self.stride - 1]
        done = np.array(self.executed[-WHOLE:], np.float32).reshape(-1, ACTION_DIM)
        fields = {
            "round": self.round,
            "seed": 100 * self.number + self.round,
            "images": self.seen(now).images,
            "earlier": tuple(reversed(kept)),
            "task_actions": now,
            "executed": done,
        }
        return observation(self.number, **fields | changes)

    def ask(self, **changes) -> InferRequest:
        self.round += 1
        return self.again(**changes)

    def execute(self, rows: np.ndarray) -> None:
        self.executed += list(rows)


def silent(_stage):
    pass


@pytest.fixture
def fresh(folder_of):
    return load_policy_engine(options(folder_of("lingbot_va")), silent)


def lockstep(engine, arm: Arm, rounds: int = ROUNDS) -> list[np.ndarray]:
    chunks = []
    for _ in range(rounds):
        (outcome,) = engine.infer([arm.ask()])
        assert outcome.begun_anew == ""
        chunks.append(outcome.chunk)
        arm.execute(outcome.chunk)
    return chunks


def by_lerobot(engine, folder, rows: list[int]) -> np.ndarray:
    """LeRobot's own `select_action` for arm 1, observation after observation, in robot units."""
    loaded = load_policy(options(folder), silent)
    arm, actions = Arm(1), []
    loaded.policy.reset()
    for round_, count in enumerate(rows, 1):
        for _ in range(count):
            request = observation(1, images=arm.seen(len(actions)).images)
            batch = loaded.preprocess(observed(engine, [request]))
            torch.manual_seed(100 + round_)  # it draws when its queue is empty
            batch = {CAMERA: batch[CAMERA][:, -1], "task": batch["task"]}
            actions.append(loaded.policy.select_action(batch))
    return loaded.postprocess(torch.cat(actions)).numpy()


def test_a_task_in_lockstep_is_bit_for_bit_lerobots_own(fresh, folder_of):
    chunks = lockstep(fresh, Arm(1))
    rows = [CHUNK] + [WHOLE] * (ROUNDS - 1)
    assert [len(chunk) for chunk in chunks] == rows
    assert np.array_equal(np.concatenate(chunks), by_lerobot(fresh, folder_of("lingbot_va"), rows))


def test_keyframes_are_a_quarter_of_a_frame_apart(tmp_path):
    changes = {"action_per_frame": 8, "frame_chunk_size": 2}
    folder = save_policy("lingbot_va", tmp_path, **changes)
    engine = load_policy_engine(options(folder), silent)
    described = engine.description
    assert (described.keyframe_stride, described.observations) == (2, 8)
    assert described.chunk_size == WHOLE
    chunks = lockstep(engine, Arm(1, stride=2), 4)
    assert np.array_equal(np.concatenate(chunks), by_lerobot(engine, folder, [8, 16, 16, 16]))


def test_the_second_encoder_of_robotwins_layout_has_a_state_per_robot_too(tmp_path):
    changes = {"camera_layout": "robotwin_tshape", "obs_cam_keys": [CAMERA] * 3, "width": 64}
    folder = save_policy("lingbot_va", tmp_path, **changes)
    engine, one, other = load_policy_engine(options(folder), silent), Arm(1), Arm(2)
    chunks = []
    for _ in range(3):
        outcome, another = engine.infer([one.ask(), other.ask()])
        chunks.append(outcome.chunk)
        one.execute(outcome.chunk)
        other.execute(another.chunk)
    expected = by_lerobot(engine, folder, [CHUNK, WHOLE, WHOLE])
    assert np.array_equal(np.concatenate(chunks), expected)


def test_two_robots_in_turns_get_what_each_gets_alone(fresh, engine_of):
    one, other, alone = Arm(1), Arm(2), engine_of("lingbot_va")
    together: list[list[np.ndarray]] = [[], []]
    for _ in range(4):
        for outcome, arm, chunks in zip(
            fresh.infer([one.ask(), other.ask()]), (one, other), together, strict=True
        ):
            chunks.append(outcome.chunk)
            arm.execute(outcome.chunk)
    for number, chunks in enumerate(together, 1):
        arm = Arm(number)
        for got, expected in zip(chunks, lockstep(alone, arm, 4), strict=True):
            assert np.array_equal(got, expected)


def test_a_repeated_round_gives_the_same_chunk_and_does_not_advance(fresh, engine_of):
    arm, plain = Arm(1), Arm(1)
    for expected in lockstep(engine_of("lingbot_va"), plain, 4):
        first, again = fresh.infer([arm.ask(), arm.again(attempt=1)])
        assert np.array_equal(first.chunk, expected)
        assert np.array_equal(again.chunk, expected)
        assert np.array_equal(again.updates, first.updates)
        arm.execute(first.chunk)


def test_the_chunk_begins_where_the_observation_was_and_whole_frames_are_fed_back(fresh):
    arm = Arm(1)
    (outcome,) = fresh.infer([arm.ask()])
    arm.execute(outcome.chunk[:10])  # two frames of four, and two actions
    (middle,) = fresh.infer([arm.ask()])
    assert len(middle.chunk) == WHOLE - 2
    arm.execute(outcome.chunk[10:])  # while it was computed
    arm.execute(middle.chunk[2:9])  # 19 in all: two frames of four since, and three actions
    (later,) = fresh.infer([arm.ask()])
    assert later.begun_anew == ""
    assert len(later.chunk) == WHOLE - 3
    newest = fresh._sampler.states.before(arm.again(round=9))
    assert (newest.at, newest.frame) == (16, 5)


def test_a_round_whose_chunk_was_not_executed_is_no_gap(fresh):
    arm = Arm(1)
    (outcome,) = fresh.infer([arm.ask()])
    arm.execute(outcome.chunk[:8])
    fresh.infer([arm.ask()])
    arm.execute(outcome.chunk[8:])
    (outcome,) = fresh.infer([arm.ask()])
    assert outcome.begun_anew == ""
    assert len(outcome.chunk) == WHOLE


def test_what_was_executed_matters_and_not_only_what_was_said(fresh):
    arm = Arm(1)
    (outcome,) = fresh.infer([arm.ask()])
    arm.execute(outcome.chunk)
    (plain,) = fresh.infer([arm.ask()])
    arm.executed[5] = arm.executed[5] + 1.0  # the guard changed it
    (changed,) = fresh.infer([arm.again()])
    assert np.abs(plain.chunk - changed.chunk).max() > 1e-3
    arm.executed[5] = outcome.chunk[5] + 1e-5  # to the robot's units and back
    (same,) = fresh.infer([arm.again()])
    assert np.array_equal(same.chunk, plain.chunk)


def test_a_number_that_never_changes_is_fed_back_as_it_was_said(fresh, monkeypatch):
    arm = Arm(1)
    (outcome,) = fresh.infer([arm.ask()])
    arm.execute(outcome.chunk)
    (plain,) = fresh.infer([arm.ask()])
    monkeypatch.setattr(fresh, "_gain", fresh._gain * torch.tensor([1.0, 0.0, 1.0]))
    (constant,) = fresh.infer([arm.again()])
    assert np.array_equal(constant.chunk, plain.chunk)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ({"session": "another"}, "no state of its 12 actions"),
        ({"task": "another"}, "no state of its 12 actions"),
        ({"earlier": ()}, "keyframes"),
        ({"executed": np.zeros((3, ACTION_DIM), np.float32)}, "3 of 12 executed actions"),
        ({"task_actions": 500}, "500 actions were executed"),
    ],
)
def test_a_gap_begins_anew_from_what_is_seen_now_and_says_why(fresh, lost, said, caplog):
    arm = Arm(1)
    (outcome,) = fresh.infer([arm.ask()])
    arm.execute(outcome.chunk)
    with caplog.at_level(logging.WARNING):
        (anew,) = fresh.infer([arm.ask(**lost)])
    assert said in anew.begun_anew
    assert said in caplog.text
    first = observation(1, seed=102, images=arm.seen(12).images, session="new")
    (expected,) = fresh.infer([first])
    assert np.array_equal(anew.chunk, expected.chunk)
    (repeated,) = fresh.infer([arm.again(**lost)])
    assert np.array_equal(anew.chunk, repeated.chunk)


def test_a_planners_new_instruction_is_read_and_the_episode_kept(fresh):
    arm = Arm(1)
    (outcome,) = fresh.infer([arm.ask()])
    arm.execute(outcome.chunk)
    (plain,) = fresh.infer([arm.ask()])
    (told,) = fresh.infer([arm.again(instruction=INSTRUCTIONS[0])])
    assert told.begun_anew == ""
    assert np.abs(plain.chunk - told.chunk).max() > 1e-3
    (again,) = fresh.infer([arm.again()])
    assert np.array_equal(again.chunk, plain.chunk)


def test_states_take_no_more_memory_than_they_may(fresh):
    arms = [Arm(number) for number in range(3)]
    for arm in arms:
        lockstep(fresh, arm, 2)
    states = fresh._sampler.states
    assert len(states) == 3
    two_tasks = states.size_bytes * 2 // 3
    fresh._sampler.states = states = lingbot_va.States(two_tasks)
    for arm in arms:
        lockstep(fresh, (again := Arm(arm.number)), 2)
    assert len(states) == 2
    assert states.size_bytes == two_tasks
    (kept,) = fresh.infer([again.ask()])
    assert kept.begun_anew == ""
    dropped = Arm(0)
    dropped.round, dropped.executed = 2, arms[0].executed
    (dropped,) = fresh.infer([dropped.ask()])
    assert "no state" in dropped.begun_anew


@pytest.mark.parametrize(
    ("executed", "code"),
    [
        (np.zeros((12, ACTION_DIM + 1), np.float32), RefusalCode.BAD_STATE),
        (np.full((12, ACTION_DIM), np.nan, np.float32), RefusalCode.NOT_FINITE),
    ],
)
def test_wrong_actions_fail_alone_and_leave_the_state(fresh, executed, code):
    arm, other = Arm(1), Arm(2)
    (outcome,) = fresh.infer([arm.ask()])
    arm.execute(outcome.chunk)
    bad, good = fresh.infer([arm.ask(executed=executed), other.ask()])
    assert bad.code is code
    assert isinstance(good, InferResult)
    (again,) = fresh.infer([arm.again()])
    assert again.begun_anew == ""


def test_a_task_of_any_length_is_claimed_at_no_cost(fresh):
    seen = Arm(1).seen(0)
    (outcome,) = fresh.infer([Arm(1).ask(task_actions=2**64 - 1, earlier=(seen,) * 15)])
    assert isinstance(outcome, InferResult)


def test_noise_and_all_updates_are_the_chunk_after_the_first_frame(fresh):
    arm = Arm(1)
    (outcome,) = fresh.infer([arm.ask()])
    (generator,) = row_generators([101])
    torch.randn((48, FRAMES, SIZE[0] // 16, SIZE[1] // 16), generator=generator)  # of the video
    noise = torch.randn((6, FRAMES, PER_FRAME), generator=generator)[[0, 2, 5], 1:]
    begun = noise.flatten(1).T.numpy()
    normalised = (outcome.chunk - fresh._offset.numpy()) / fresh._gain.numpy()
    np.testing.assert_allclose(begun + outcome.updates.sum(axis=0), normalised, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"action_per_frame": 6}, "multiple of 4"), ({"frame_chunk_size": 5}, "at most 16")],
)
def test_a_policy_whose_keyframes_do_not_fit_is_refused(tmp_path, changes, said):
    folder = save_policy("lingbot_va", tmp_path, **changes)
    with pytest.raises(PolicyError, match=said):
        load_policy_engine(options(folder), silent)
