"""The judge that ships answers from pictures and words, and refuses what it was not trained on."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from judge_pictures import cell_pictures
from judge_questions import safety_question, task_state_question

from kairos_ros.core.errors import ConfigError
from kairos_ros.vlm.conformance import check_judge
from kairos_ros.vlm.embedded.embedded_judge import EmbeddedJudge
from kairos_ros.vlm.embedded.tiny_vlm import read_model
from kairos_ros.vlm.embedded.words import Vocabulary, vocabulary_of
from kairos_ros.vlm.judge import FailureCode
from kairos_ros.vlm.loading import load_judge

pytestmark = pytest.mark.slow

SHIPPED = Path(__file__).parents[2] / "models" / "factory_judge"
PUSH = "push the puck to the target"


@pytest.fixture(scope="module")
def judge():
    return EmbeddedJudge(*read_model(SHIPPED))


def answer(judge, question):
    (verdict,) = judge.judge([question])
    return verdict.answer


def test_it_is_a_judge(judge):
    pictures = cell_pictures()
    asked = [safety_question(PUSH, (p,)) for p in pictures.values()]
    asked += [task_state_question(PUSH, (p,)) for p in pictures.values()]
    check_judge(judge, asked)


@pytest.mark.parametrize(
    ("picture", "safety", "state"),
    [
        ("empty", "safe", "ongoing"),
        ("hand", "unsafe", None),
        ("person", "unsafe", None),
        ("empty_again", "safe", "ongoing"),
        ("failed", "safe", "failed"),
        ("done", "safe", "done"),
    ],
)
def test_it_sees_what_a_robot_of_the_demo_sees(judge, picture, safety, state):
    image = cell_pictures()[picture]
    assert answer(judge, safety_question(PUSH, (image,))) == safety
    if state:
        assert answer(judge, task_state_question(PUSH, (image,))) == state


def test_the_words_decide_which_question_is_answered(judge):
    """With all answers allowed, the prompt alone says which of them fit."""
    image = cell_pictures()["done"]
    words = judge._vocabulary
    seen = judge._network.see(image[None])[0]
    for prompt, likely in (
        ("is the workcell safe?", "safe"),
        ("ongoing, done, or failed?", "done"),
    ):
        logits = judge._network.answer(seen, words.encode(prompt, PUSH))
        assert words.words[int(logits.argmax())] == likely


def test_a_picture_of_another_size_gets_the_same_answer(judge):
    from PIL import Image

    larger = np.asarray(Image.fromarray(cell_pictures()["hand"]).resize((288, 288)))
    assert answer(judge, safety_question(PUSH, (larger,))) == "unsafe"


def test_without_a_picture_worth_the_name_it_is_not_sure(judge):
    """A black picture has no evidence in it; whatever it answers must not be a constant."""
    black = np.zeros((144, 144, 3), np.uint8)
    pictures = [black, *cell_pictures().values()]
    odds = [
        v.probabilities["unsafe"]
        for v in judge.judge([safety_question(PUSH, (p,)) for p in pictures])
    ]
    assert np.ptp(odds) > 0.5


def test_the_robots_of_one_batch_share_the_work_on_one_picture(judge):
    image = cell_pictures()["empty"]
    questions = [safety_question(PUSH, (image,)), task_state_question(PUSH, (image,))] * 8
    calls = []
    network = judge._network

    class Counting:
        def see(self, images):
            calls.append(len(images))
            return network.see(images)

        answer = staticmethod(network.answer)

    EmbeddedJudge(judge.description, Counting()).judge(questions)
    assert calls == [1]


def test_an_instruction_that_it_was_not_trained_on_is_refused_with_those_it_was(judge):
    image = cell_pictures()["empty"]
    (failure,) = judge.judge([task_state_question("make coffee", (image,))])
    assert failure.code == FailureCode.UNKNOWN_INSTRUCTION
    assert PUSH in failure.message


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"answers": ("yes", "no")}, "answers with some of"),
        ({"answers": ("safe", "done")}, "answers with some of"),
        ({"prompt": "quelle heure est-il, s'il vous plait"}, "does not know the words quelle"),
        ({"prompt": "is it safe " * 60}, "too long"),
        ({"prompt": "?!"}, "does not know"),
    ],
)
def test_a_question_that_it_cannot_understand_is_refused(judge, change, complaint):
    question = replace(safety_question(PUSH, (cell_pictures()["empty"],)), **change)
    (failure,) = judge.judge([question])
    assert failure.code == FailureCode.BAD_QUESTION
    assert complaint in failure.message


def test_two_pictures_are_one_too_many(judge):
    image = cell_pictures()["empty"]
    (failure,) = judge.judge([safety_question(PUSH, (image, image))])
    assert failure.code == FailureCode.BAD_QUESTION


def test_it_answers_well_within_a_tenth_of_a_second(judge):
    """CPU time, which a busy machine does not stretch."""
    question = safety_question(PUSH, (cell_pictures()["empty"],))
    judge.judge([question])
    taken = []
    for _ in range(10):
        start = time.thread_time()
        judge.judge([question])
        taken.append(time.thread_time() - start)
    assert np.median(taken) < 0.1


def test_what_ships_keeps_the_promises_of_its_issue():
    """At least 95 % of safety and 90 % of task-state answers right on held-out scenes, < 100 ms."""
    evaluation = json.loads((SHIPPED / "evaluation.json").read_text())
    kinds = evaluation["held_out"]["kinds"]
    assert kinds["safety"]["all"]["accuracy"] >= 0.95
    assert kinds["task_state"]["all"]["accuracy"] >= 0.90
    assert min(kinds[kind]["all"]["asked"] for kind in kinds) > 1000
    assert evaluation["latency_ms"]["computing"]["p99"] < 100
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 8e6


def test_it_is_loaded_by_name():
    judge = load_judge("embedded:factory_judge")
    assert judge.model == "embedded:factory_judge"
    assert load_judge(f"embedded:{SHIPPED}").model == judge.model


@pytest.mark.parametrize(
    "model", ["embedded:nobody", "qwen", "", "openai:", "transformers:/nowhere"]
)
def test_a_model_that_does_not_exist_is_an_error_that_says_what_does(model):
    with pytest.raises(ConfigError, match=r"factory_judge|http://HOST:PORT|no model folder"):
        load_judge(model)


def test_a_torn_folder_is_an_error(tmp_path):
    folder = tmp_path / "judge"
    shutil.copytree(SHIPPED, folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(ConfigError, match="holds no embedded judge"):
        read_model(folder)


def test_text_becomes_words_without_case_digits_and_punctuation():
    vocabulary = Vocabulary(vocabulary_of(["Is the robot's cell SAFE?", "push"]))
    numbers = vocabulary.encode("is it Safe, 2?", "push")
    assert [vocabulary.words[n] for n in numbers] == [
        "<answer>",
        "is",
        "<unknown>",
        "safe",
        "<task>",
        "push",
    ]
