"""A judge under load: a model that takes a known time, asked by real threads."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kairos_ros.core.errors import PolicyError
from kairos_ros.core.pipeline import Component
from kairos_ros.vlm.conformance import check_judge
from kairos_ros.vlm.embedded.planner import RulePlanner
from kairos_ros.vlm.judge import Failure, FailureCode, Verdict
from kairos_ros.vlm.load_measurement import measure_judge, standing_question
from kairos_ros.vlm.loading import load_judge

pytestmark = pytest.mark.slow
SERVICE_S = 0.02
QUESTIONS = [standing_question(Component.SAFETY, "push", 24, seed) for seed in range(2)]


class OneGpu:
    """Judges that share one GPU, which answers one question after the other."""

    model = "one gpu"

    def __init__(self, gpu, failure=None):
        self._gpu, self._failure = gpu, failure

    def judge(self, questions):
        self._gpu.submit(time.sleep, SERVICE_S * len(questions)).result()
        if self._failure:
            return [Failure(self._failure, "why", SERVICE_S, self.model) for _ in questions]
        return [Verdict(one.answers[0], None, SERVICE_S, self.model) for one in questions]

    def close(self):
        pass


def test_latency_against_requests_at_once_and_against_rate():
    told = []
    with ThreadPoolExecutor(1) as gpu:
        found = measure_judge(lambda: OneGpu(gpu), QUESTIONS, 2, 0.5, 700.0, told.append)
    assert found.sizes == (1, 2)
    assert found.service_s[0] >= SERVICE_S
    assert found.service_s[1] > 1.5 * SERVICE_S  # each waits for the other
    load = found.load
    assert (load.batch, load.memory_mib, len(load.rates_hz)) == (2, 700.0, 10)
    assert load.rates_hz[-1] < 1.2 / SERVICE_S
    assert load.rates_hz[0] == pytest.approx(load.rates_hz[-1] / 10, rel=1e-3)
    assert min(load.mean_s) >= SERVICE_S
    assert "2 at once" in told
    assert len(told) == 13


def test_a_question_that_cannot_be_answered_ends_the_measurement():
    with (
        ThreadPoolExecutor(1) as gpu,
        pytest.raises(PolicyError, match="one gpu: refused: why"),
    ):
        measure_judge(
            lambda: OneGpu(gpu, FailureCode.REFUSED), QUESTIONS, 1, 0.1, 0.0, lambda what: None
        )


def test_what_is_asked_are_questions_that_our_own_judges_answer():
    judge = load_judge("embedded:factory_judge")
    instruction = judge.description.asked[0].instructions[0]
    for component in (Component.SAFETY, Component.MONITOR):
        pair = [standing_question(component, instruction, 112, seed) for seed in range(2)]
        check_judge(judge, pair)
    (plan,) = RulePlanner().judge([standing_question(Component.SYSTEM2, instruction, 112, 0)])
    assert plan.answer == instruction
