"""The threads in front of a model, with its real threads; the planner that ships; rules as text."""

import io
import math
import threading

import numpy as np
import pytest
from PIL import Image
from task_rules import rules
from wire import until

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.supervision.rules_text import parse_rules, rules_text
from kairos_ros.vlm.embedded.planner import RulePlanner, parts_of, subgoals
from kairos_ros.vlm.judge import Failure, FailureCode, Question, Verdict
from kairos_ros.vlm.judge_threads import JudgementRequest, JudgeThreads
from kairos_ros.vlm.judgement_queue import Requester

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
        self.gate.wait(60)
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
def results():
    return []


@pytest.fixture
def judges(model):
    judges = JudgeThreads([model], batch=2)
    yield judges
    model.gate.set()
    judges.close()
    assert model.closed


@pytest.fixture
def ask(judges, results):
    def ask(robot, *, prompt="safe?", level=100, pictures=None, slo_s=10.0):
        pictures = (jpeg(level),) if pictures is None else pictures
        request = JudgementRequest(
            "safety", prompt, robot, ("safe", "unsafe"), pictures, results.append
        )
        judges.ask(Requester(robot, "safety"), request, round(slo_s * SECOND))

    return ask


def test_every_picture_gets_its_own_answer(ask, results):
    ask("a", level=40)
    ask("b", level=200)
    until(lambda: len(results) == 2)
    answers = {one.request.instruction: one.verdict.answer for one in results}
    assert answers == {"a": "safe", "b": "unsafe"}
    assert all(one.in_time and 0 <= one.queued_s <= one.latency_s for one in results)


def test_while_the_model_is_busy_new_pictures_replace_old_ones_and_batches_fill_up(
    ask, results, model, judges
):
    model.gate.clear()
    ask("a")
    until(lambda: model.calls)
    for level in (10, 20, 250):
        for robot in "bcd":
            ask(robot, level=level)
    assert (judges.waiting, judges.in_flight, judges.replaced("safety")) == (3, 1, 6)
    assert judges.busy_s() > 0
    model.gate.set()
    until(lambda: len(results) == 4)
    assert model.calls == [1, 2, 1]
    assert {one.verdict.answer for one in results[1:]} == {"unsafe"}
    until(lambda: judges.in_flight == 0)


def test_two_questions_about_one_picture_are_asked_with_the_same_array(judges, results, model):
    seen = []
    answer = model._one
    model._one = lambda question: seen.append(question.images[0]) or answer(question)
    model.gate.clear()
    shot = jpeg()
    for kind, pictures in (("busy", (jpeg(),)), ("safety", (shot,)), ("task_state", (shot,))):
        request = JudgementRequest(kind, "safe?", "a", ("safe", "unsafe"), pictures, results.append)
        judges.ask(Requester("a", kind), request, SECOND)
        until(lambda: model.calls)
    model.gate.set()
    until(lambda: len(results) == 3)
    assert model.calls == [1, 2]
    assert seen[1] is seen[2]


def test_a_torn_picture_fails_alone(ask, results, model):
    model.gate.clear()
    ask("busy")
    until(lambda: model.calls)
    ask("torn", pictures=(jpeg()[:200],))
    ask("whole")
    model.gate.set()
    until(lambda: len(results) == 3)
    came = {one.request.instruction: one for one in results}
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
def test_no_verdict_is_made_up_whatever_a_model_does(ask, results, judges, prompt, failure):
    ask("a", prompt=prompt)
    until(lambda: results)
    assert (results[0].verdict, results[0].failure) == (None, failure)
    assert results[0].message
    ask("a")
    until(lambda: len(results) == 2)
    assert results[1].verdict.answer == "safe"
    assert not judges.broken


def test_an_answer_after_its_deadline_is_told_as_late(ask, results, model):
    model.gate.clear()
    ask("a", slo_s=0.0)
    model.gate.set()
    until(lambda: results)
    assert results[0].verdict is not None
    assert not results[0].in_time


def test_what_waits_for_a_robot_that_left_is_not_asked(ask, results, model, judges):
    model.gate.clear()
    ask("a")
    until(lambda: model.calls)
    ask("b")
    judges.forget(Requester("b", "safety"))
    model.gate.set()
    until(lambda: results)
    ask("c")
    until(lambda: len(results) == 2)
    assert [one.request.instruction for one in results] == ["a", "c"]


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
