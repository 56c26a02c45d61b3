"""Examines a judge on pictures whose true answers are known: what its model card reports."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kairos_ros.core.errors import KairosError
from kairos_ros.lab.judges.scenes import STATES, UNCLEAR, Frames
from kairos_ros.recording.runs.summary import wilson_95
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.vlm.judge import Judge, Question, Verdict
from kairos_ros.vlm.questions import SAFE, SAFETY, TASK_STATE, UNSAFE

ANSWERS = {SAFETY: (SAFE, UNSAFE), TASK_STATE: STATES}


@dataclass(frozen=True, slots=True)
class Marked:
    """One answer beside the truth."""

    kind: str
    prompt: str
    scene: str
    picture: int
    """Index among the pictures of the scene."""
    truth: str
    odds: tuple[float, ...]
    """Probability of each of ANSWERS[kind]."""

    @property
    def answer(self) -> str:
        return ANSWERS[self.kind][int(np.argmax(self.odds))]

    @property
    def right(self) -> bool:
        return self.answer == self.truth

    @property
    def confidence(self) -> float:
        return max(self.odds)


@dataclass(frozen=True, slots=True)
class ExamScore:
    """How many of a group of answers are right."""

    right: int
    asked: int

    @property
    def accuracy(self) -> float:
        return self.right / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval, as if the pictures of an episode were independent."""
        return wilson_95(self.right, self.asked)


def examine(
    judge: Judge, frames: Mapping[str, Frames], prompts: Mapping[str, Sequence[str]]
) -> list[Marked]:
    """Asks `judge` about every picture, in every wording of every kind of question.

    Raises KairosError where it does not answer, or does not say how likely the answers are.
    """
    marked = []
    for scene, pictures in frames.items():
        for picture, image in enumerate(pictures.image):
            truths = {SAFETY: UNSAFE if pictures.unsafe[picture] else SAFE}
            if pictures.state[picture] != UNCLEAR:
                truths[TASK_STATE] = STATES[pictures.state[picture]]
            questions = [
                Question(kind, prompt, SCENES[scene], (image,), ANSWERS[kind])
                for kind in truths
                for prompt in prompts[kind]
            ]
            for question, verdict in zip(questions, judge.judge(questions), strict=True):
                if not isinstance(verdict, Verdict) or verdict.probabilities is None:
                    raise KairosError(f"{judge.model} did not judge {scene}: {verdict}")
                odds = tuple(verdict.probabilities[a] for a in question.answers)
                truth = truths[question.kind]
                marked.append(Marked(question.kind, question.prompt, scene, picture, truth, odds))
    return marked


def score(marked: Iterable[Marked]) -> ExamScore:
    rights = [one.right for one in marked]
    return ExamScore(sum(rights), len(rights))


def confusion(marked: Sequence[Marked], kind: str) -> np.ndarray:
    """Counts int64 [truth, answer] in the order of ANSWERS."""
    answers = ANSWERS[kind]
    counts = np.zeros((len(answers), len(answers)), np.int64)
    for one in marked:
        if one.kind == kind:
            counts[answers.index(one.truth), answers.index(one.answer)] += 1
    return counts


def reliability(marked: Sequence[Marked], bins: int = 10) -> list[tuple[float, float, int]]:
    """(mean confidence, accuracy, answers) of each non-empty bin of confidence."""
    confidence = np.array([one.confidence for one in marked])
    right = np.array([one.right for one in marked])
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        (float(confidence[which == b].mean()), float(right[which == b].mean()), int(n))
        for b in range(bins)
        if (n := (which == b).sum())
    ]


def calibration_error(marked: Sequence[Marked]) -> float:
    """Mean distance between confidence and accuracy over the bins, weighted by their answers."""
    return sum(abs(c - a) * n for c, a, n in reliability(marked)) / len(marked)


def best_temperature(marked: Sequence[Marked]) -> float:
    """What to divide the logits by so that the truth is likeliest; for odds at temperature 1."""
    temperatures = np.geomspace(0.5, 4.0, 43)
    losses = np.zeros(len(temperatures))
    for kind, answers in ANSWERS.items():
        rows = [one for one in marked if one.kind == kind]
        logits = np.log(np.clip([one.odds for one in rows], 1e-12, 1))
        truth = [answers.index(one.truth) for one in rows]
        for i, temperature in enumerate(temperatures):
            scaled = logits / temperature
            top = scaled.max(1)
            norm = top + np.log(np.exp(scaled - top[:, None]).sum(1))
            losses[i] += (norm - scaled[np.arange(len(rows)), truth]).sum()
    return float(temperatures[losses.argmin()])


def latencies_s(judge: Judge, image: np.ndarray, calls: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Seconds by the clock, and of computing, of calls with one question about a new picture each.

    Both float64 [calls], on one core, whatever else the process is allowed. Where other work wants
    that core, only the second says what the judge costs.
    """
    rng = np.random.default_rng(0)
    instruction = next(iter(SCENES.values()))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    clock, computing = [], []
    try:
        for _ in range(calls):
            noisy = np.clip(image + rng.integers(-3, 4, image.shape), 0, 255).astype(np.uint8)
            question = Question(SAFETY, "safe or unsafe?", instruction, (noisy,), ANSWERS[SAFETY])
            start, cpu = time.perf_counter(), time.thread_time()
            judge.judge([question])
            computing.append(time.thread_time() - cpu)
            clock.append(time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, allowed)
    return np.array(clock), np.array(computing)
