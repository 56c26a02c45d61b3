"""The desk in front of a model, with its real threads; the planner that ships; rules as text."""

import io
import math
import threading

import numpy as np
import pytest
from judge_server import wait_until
from PIL import Image
from task_rules import rules

from kairos_ros.core.errors import ConfigError, WireError
from kairos_ros.robot.rules_text import parse_rules, rules_text
from kairos_ros.vlm.desk import Desk, Matter
from kairos_ros.vlm.judge import Failure, FailureCode, Question, Verdict
from kairos_ros.vlm.judgement_queue import Owed
from kairos_ros.vlm.pictures import picture
from kairos_ros.vlm.planner import RulePlanner, parts_of, subgoals

SECOND = 1_000_000_000
SKILLS = ("open the drawer", "open the door", "push the puck to the target")


def jpeg(level=100, size=(20, 30)):
    out = io.BytesIO()
    Image.fromarray(np.full((*size, 3), level, np.uint8)).save(out, "JPEG")
    return out.getvalue()


class Model:
    """Says "unsafe" of bright pictures, when it is let."""

    model = "brightness"

    def __init__(self):
        self.calls, self.closed = [], False
        self.gate = threading.Event()
        self.gate.set()

    def judge(self, questions):
        self.calls.append(len(questions))
        self.gate.wait(10)
        return [self._one(question) for question in questions]

    def _one(self, question):
        match question.prompt:
            case "raise":
                raise RuntimeError("CUDA out of memory")
            case "refuse":
                return Failure(FailureCode.BAD_QUESTION, "what?", 0.0, self.model)
            case "nan":
                return Verdict("safe", {"safe": math.nan, "unsafe": 0.1}, 0.0, self.model)
            case "garbage":
                return Verdict("maybe", None, 0.0, self.model)
            case "nothing":
                return None
        answer = "unsafe" if question.images[0].mean() > 128 else "safe"
        return Verdict(answer, None, 0.0, self.model)

    def close(self):
        self.closed = True


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def settled():
    return []


@pytest.fixture
def desk(model):
    desk = Desk([model], batch=2)
    yield desk
    model.gate.set()
    desk.close()
    assert model.closed


@pytest.fixture
def ask(desk, settled):
    def ask(robot, *, prompt="safe?", level=100, pictures=None, slo_s=10.0):
        pictures = (jpeg(level),) if pictures is None else pictures
        matter = Matter("safety", prompt, robot, ("safe", "unsafe"), pictures, settled.append)
        desk.ask(Owed(robot, "safety"), matter, round(slo_s * SECOND))

    return ask


def test_every_picture_gets_its_own_answer(ask, settled):
    ask("a", level=40)
    ask("b", level=200)
    assert wait_until(lambda: len(settled) == 2)
    answers = {one.matter.instruction: one.verdict.answer for one in settled}
    assert answers == {"a": "safe", "b": "unsafe"}
    assert all(one.in_time and 0 <= one.queued_s <= one.latency_s for one in settled)


def test_while_the_model_is_busy_new_pictures_replace_old_ones_and_batches_fill_up(
    ask, settled, model, desk
):
    model.gate.clear()
    ask("a")
    assert wait_until(lambda: model.calls)
    for level in (10, 20, 250):
        for robot in "bcd":
            ask(robot, level=level)
    assert (desk.waiting, desk.in_flight, desk.replaced("safety")) == (3, 1, 6)
    assert desk.busy_s() > 0
    model.gate.set()
    assert wait_until(lambda: len(settled) == 4)
    assert model.calls == [1, 2, 1]
    assert {one.verdict.answer for one in settled[1:]} == {"unsafe"}
    assert wait_until(lambda: desk.in_flight == 0)


def test_two_questions_about_one_picture_are_asked_with_the_same_array(desk, settled, model):
    seen = []
    answer = model._one
    model._one = lambda question: seen.append(question.images[0]) or answer(question)
    model.gate.clear()
    shot = jpeg()
    for kind, pictures in (("busy", (jpeg(),)), ("safety", (shot,)), ("task_state", (shot,))):
        matter = Matter(kind, "safe?", "a", ("safe", "unsafe"), pictures, settled.append)
        desk.ask(Owed("a", kind), matter, SECOND)
        assert wait_until(lambda: model.calls)
    model.gate.set()
    assert wait_until(lambda: len(settled) == 3)
    assert model.calls == [1, 2]
    assert seen[1] is seen[2]


def test_a_torn_picture_fails_alone(ask, settled, model):
    model.gate.clear()
    ask("busy")
    assert wait_until(lambda: model.calls)
    ask("torn", pictures=(jpeg()[:200],))
    ask("whole")
    model.gate.set()
    assert wait_until(lambda: len(settled) == 3)
    came = {one.matter.instruction: one for one in settled}
    assert (came["torn"].failure, came["torn"].verdict) == ("bad_picture", None)
    assert came["whole"].verdict.answer == "safe"


@pytest.mark.parametrize(
    ("prompt", "failure"),
    [
        ("raise", "judge_raised"),
        ("refuse", "bad_question"),
        ("nan", "bad_probability"),
        ("garbage", "bad_answer"),
        ("nothing", "judge_raised"),
    ],
)
def test_no_verdict_is_made_up_whatever_a_model_does(ask, settled, desk, prompt, failure):
    ask("a", prompt=prompt)
    assert wait_until(lambda: settled)
    assert (settled[0].verdict, settled[0].failure) == (None, failure)
    assert settled[0].message
    ask("a")
    assert wait_until(lambda: len(settled) == 2)
    assert settled[1].verdict.answer == "safe"
    assert not desk.broken


def test_an_answer_after_its_deadline_is_told_as_late(ask, settled, model):
    model.gate.clear()
    ask("a", slo_s=0.0)
    model.gate.set()
    assert wait_until(lambda: settled)
    assert settled[0].verdict is not None
    assert not settled[0].in_time


def test_what_waits_for_a_robot_that_left_is_not_asked(ask, settled, model, desk):
    model.gate.clear()
    ask("a")
    assert wait_until(lambda: model.calls)
    ask("b")
    desk.forget(Owed("b", "safety"))
    model.gate.set()
    assert wait_until(lambda: settled)
    ask("c")
    assert wait_until(lambda: len(settled) == 2)
    assert [one.matter.instruction for one in settled] == ["a", "c"]


@pytest.mark.parametrize("data", [b"", b"not a picture", b"\xff\xd8\xff\xe0" + b"x" * 500])
def test_bytes_that_are_no_picture_are_refused(data):
    with pytest.raises(WireError, match="does not decode"):
        picture(data)


def test_a_picture_of_absurd_size_is_refused_before_it_is_decoded():
    out = io.BytesIO()
    Image.new("1", (9000, 9000)).save(out, "PNG")
    with pytest.raises(WireError, match="9000 x 9000"):
        picture(out.getvalue())


def planned(goal):
    (came,) = RulePlanner().judge([Question("plan", "what next?", goal, (), SKILLS)])
    return came


@pytest.mark.parametrize(
    ("goal", "skill"),
    [
        ("open the drawer", "open the drawer"),
        ("Please open the top drawer for me!", "open the drawer"),
        ("Could you push that puck over to its target?", "push the puck to the target"),
        ("open the door, then push the puck to the target", "open the door"),
    ],
)
def test_the_planner_finds_the_skill_that_a_sentence_asks_for(goal, skill):
    assert planned(goal).answer == skill


def test_the_planner_does_not_guess():
    failure = planned("make me a coffee")
    assert failure.code is FailureCode.UNKNOWN_INSTRUCTION
    assert "make me a coffee" in failure.message


def test_a_goal_of_several_parts_has_subgoals():
    goal = "Open the drawer. Then push the puck to the target, after that dance"
    assert parts_of(goal) == ["Open the drawer", "push the puck to the target", "dance"]
    assert subgoals(goal, SKILLS) == ["open the drawer", "push the puck to the target", "dance"]


def test_rules_survive_as_text():
    ours = rules(system2_ratio=4, max_task_retries=7)
    assert parse_rules(rules_text(ours)) == ours
    assert "\n" not in rules_text(ours)


GOOD = rules_text(rules())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"max_task_retries": 2', '"max_task_retries": -1', "max_task_retries is -1"),
        ('"max_task_retries": 2, ', "", "max_task_retries is None"),
        ('"stop_and_replan"', '"run_away"', "run_away.*stop_and_resend"),
        ('"slo_ms": 200.0', '"slo_ms": "soon"', "system1.slo_ms is 'soon'"),
        ('"freq_hz": 2.0', '"freq": 2.0', "safety has no 'freq'"),
        ('"safety": {', '"savety": {', "no 'savety'"),
        ('{"components"', '{"components', "no YAML|mapping"),
    ],
)
def test_wrong_rules_are_refused_by_the_field(old, new, said):
    assert old in GOOD
    with pytest.raises(ConfigError, match=said):
        parse_rules(GOOD.replace(old, new, 1))
