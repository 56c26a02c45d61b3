"""One prefill, two kinds of answers: chunks as without language, words as if asked alone."""

from functools import cache
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from isolated_language import END, isolated
from observations import observation, options
from tiny_policies import TINY

from kairos_ros.core.errors import ConfigError, PolicyError, RefusalCode
from kairos_ros.core.language.decoding import decode_all, decode_by_slack
from kairos_ros.engine.policies.language.unified_decoder import UnifiedDecoder, unified_decoder
from kairos_ros.engine.policies.policy_engine import PolicyEngine, load_policy_engine
from kairos_ros.engine.worker.loading import load_engine
from kairos_ros.transport.language_messages import (
    LanguageAnswer,
    LanguageFailure,
    LanguageQuestion,
)

pytestmark = pytest.mark.slow

SKILLS = ("open the drawer", "open the window", "push the puck")
STATES = ("ongoing", "done", "failed")
CLEAR = 1e-4
"""By so much the best token is better than the next, where both ways to compute have to agree."""


def silent(_stage):
    pass


def speaking_engine(folder_of, kind, **changes) -> PolicyEngine:
    with TINY[kind].loaded():
        return load_policy_engine(options(folder_of(kind), language_mib=1, **changes), silent)


@pytest.fixture(scope="module")
def speaking_of(folder_of):
    """An engine that speaks, of a kind."""
    return cache(lambda kind: speaking_engine(folder_of, kind))


@pytest.fixture(scope="module")
def pi05(speaking_of):
    return speaking_of("pi05")


@pytest.fixture(scope="module", params=["pi05", "pi0"])
def both(request, speaking_of, engine_of):
    """An engine that speaks, and one of the same policy that does not."""
    return speaking_of(request.param), engine_of(request.param)


def with_slots(engine, slots, choose=decode_all) -> UnifiedDecoder:
    """Nothing is asked of the engine any more, and it has so many slots."""
    each = engine.answering.slot_bytes
    engine.warm_up(1)
    engine.answering = unified_decoder(engine._loaded, engine._tap.take(), slots * each, choose)
    return engine.answering


def some_of_them(seed):
    """Decodes any of the answers in each step."""
    drawn = Random(seed)

    def choose(answers, _times, _now_s):
        return [one.key for one in drawn.sample(answers, drawn.randint(1, len(answers)))]

    return choose


def ask(engine, key, robot, text="what now?", **fields):
    question = LanguageQuestion(f"arm_{robot}", text, **fields)
    assert engine.answering.ask(key, question, now_s=0.0) is None


def finish(engine) -> dict:
    """What comes of all questions that have a slot, and then there are none."""
    outcomes = dict(engine.answering.go_on(now_s=0.0))
    while engine.answering.load.answering:
        outcomes |= engine.answering.go_on(now_s=0.0)
    return outcomes


def same_chunks(plain, speaking):
    for a, b in zip(plain, speaking, strict=True):
        np.testing.assert_array_equal(a.chunk, b.chunk)
        np.testing.assert_array_equal(a.updates, b.updates)


def test_chunks_are_bit_equal_to_those_without_language(both):
    speaking, plain = both
    with_slots(speaking, 4)
    requests = [observation(number) for number in range(4)]
    for turn in range(3):
        ask(speaking, turn, robot=turn, most_tokens=20)
        same_chunks(plain.infer(requests), speaking.infer(requests))
        speaking.answering.go_on(now_s=0.0)
    assert finish(speaking)


def test_guided_chunks_are_bit_equal_too(folder_of):
    speaking = speaking_engine(folder_of, "pi05", rtc=True)
    with TINY["pi05"].loaded():
        plain = load_policy_engine(options(folder_of("pi05"), rtc=True), silent)
    request = observation(0, committed=np.ones((3, 3), np.float32))
    ask(speaking, "q", robot=0)
    same_chunks(plain.infer([request]), speaking.infer([request]))
    assert isinstance(finish(speaking)["q"], LanguageAnswer)


@pytest.mark.parametrize("choose", [decode_all, decode_by_slack, some_of_them(1)])
def test_words_are_those_of_isolated_decoding_whatever_else_is_decoded(both, choose):
    """Ragged lengths and prompts, robots that join and leave in the middle."""
    engine, _ = both
    with_slots(engine, 8, choose)
    asked, outcomes = {}, {}
    for turn in range(8):
        robots = (turn % 4, 4 + turn % 3)
        if turn < 5:
            for robot in robots:
                key, text = (turn, robot), "what now, and then? "[: 6 + turn + robot]
                ask(engine, key, robot, text, most_tokens=1 + 5 * turn + robot)
                asked[key] = text, 1 + 5 * turn + robot, turn
        engine.infer([observation(robot, seed=turn, round=turn) for robot in robots])
        outcomes |= engine.answering.go_on(now_s=0.0)
    outcomes |= finish(engine)
    assert outcomes.keys() == asked.keys()
    for (turn, robot), (text, most, round_) in asked.items():
        answer = outcomes[turn, robot]
        alone = isolated(engine, observation(robot), text, most)
        assert list(answer.tokens) == alone.tokens
        assert alone.margin > CLEAR
        assert answer.round == round_
    assert len({answer.tokens for answer in outcomes.values()}) > 5


def test_the_answer_depends_on_the_observation_and_on_the_question(pi05):
    with_slots(pi05, 8)
    for key, robot, text in (("a", 0, "what?"), ("b", 1, "what?"), ("c", 0, "why?")):
        ask(pi05, key, robot, text, most_tokens=8)
    pi05.infer([observation(0), observation(1)])
    assert len({answer.tokens for answer in finish(pi05).values()}) == 3


def test_an_allowed_answer_is_the_likeliest_of_them(pi05):
    with_slots(pi05, 8)
    for robot in range(4):
        ask(pi05, ("state", robot), robot, "ongoing, done, or failed? ", answers=STATES)
        ask(pi05, ("skill", robot), robot, "what next? ", answers=SKILLS)
    pi05.infer([observation(robot) for robot in range(4)])
    outcomes = finish(pi05)
    for (kind, robot), answer in outcomes.items():
        text, allowed = {
            "state": ("ongoing, done, or failed? ", STATES),
            "skill": ("what next? ", SKILLS),
        }[kind]
        alone = isolated(pi05, observation(robot), text, 64, allowed)
        assert list(answer.tokens) == alone.tokens
        assert answer.text in allowed
        if kind == "state":
            assert len(answer.tokens) == 1, "the first token tells them apart"
            assert sum(answer.odds) == pytest.approx(1.0)
            assert answer.odds.index(max(answer.odds)) == STATES.index(answer.text)
        else:
            assert answer.odds == (), "two of them begin alike"


def test_where_the_cache_is_full_the_youngest_is_put_off_and_answered_later(pi05):
    decoder = with_slots(pi05, 2)
    for robot in range(3):
        ask(pi05, robot, robot, most_tokens=12)
    pi05.infer([observation(robot, round=1) for robot in range(3)])
    first = finish(pi05)
    assert sorted(first) == [0, 1]
    assert (decoder.load.waiting, decoder.load.put_off) == (1, 1)
    pi05.infer([observation(2, round=2)])
    answer = finish(pi05)[2]
    assert answer.round == 2
    assert list(answer.tokens) == isolated(pi05, observation(2), "what now?", 12).tokens


def test_an_older_question_takes_the_slot_of_the_youngest_which_starts_anew(pi05):
    decoder = with_slots(pi05, 1)
    for robot in range(2):
        ask(pi05, robot, robot, most_tokens=12)
    pi05.infer([observation(1, round=1)])
    assert decoder.go_on(now_s=0.0) == [], "6 of 12 tokens"
    assert pi05.infer([observation(0, round=1)])
    assert finish(pi05)[0].round == 1
    assert decoder.load.restarts == 1
    pi05.infer([observation(1, round=2, state=np.zeros(5, np.float32))])
    answer = finish(pi05)[1]
    seen = observation(1, state=np.zeros(5, np.float32))
    assert answer.round == 2
    assert list(answer.tokens) == isolated(pi05, seen, "what now?", 12).tokens


def test_a_question_that_is_out_of_time_ends_and_frees_its_slot(pi05):
    decoder = with_slots(pi05, 1)
    ask(pi05, "answered", 0, most_tokens=64, wait_s=1.0)
    ask(pi05, "waits", 7, wait_s=2.0)
    pi05.infer([observation(0)])
    decoder.go_on(now_s=0.5)
    ((key, outcome),) = decoder.go_on(now_s=1.0)
    assert key == "answered"
    assert outcome.code is RefusalCode.DEADLINE
    assert "it was being answered" in outcome.reason
    ((key, outcome),) = decoder.go_on(now_s=2.0)
    assert key == "waits"
    assert "arm_7" in outcome.reason
    assert (decoder.load.waiting, decoder.load.answering) == (0, 0)


def test_a_question_that_is_withdrawn_ends_without_an_answer(pi05):
    decoder = with_slots(pi05, 2)
    ask(pi05, "gone", 0, most_tokens=20)
    ask(pi05, "stays", 1, most_tokens=20)
    pi05.infer([observation(0), observation(1)])
    decoder.go_on(now_s=0.0)
    decoder.withdraw("gone")
    decoder.withdraw("never asked")
    outcomes = finish(pi05)
    assert list(outcomes) == ["stays"]
    alone = isolated(pi05, observation(1), "what now?", 20)
    assert list(outcomes["stays"].tokens) == alone.tokens


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (LanguageQuestion("arm_0", "x" * 300), "300 tokens"),
        (LanguageQuestion("arm_0", "what?", ("yes", "y" * 80)), "more than 63 tokens"),
    ],
)
def test_a_question_that_does_not_fit_is_refused_alone(pi05, question, said):
    with_slots(pi05, 2)
    refused = pi05.answering.ask("long", question, now_s=0.0)
    assert refused.code is RefusalCode.MALFORMED
    assert said in refused.reason
    assert pi05.answering.load.waiting == 0


def test_an_observation_that_is_refused_starts_no_question(pi05):
    decoder = with_slots(pi05, 2)
    ask(pi05, "q", 0)
    pi05.infer([observation(0, state=np.zeros(2, np.float32)), observation(1)])
    assert decoder.go_on(now_s=0.0) == []
    assert (decoder.load.waiting, decoder.load.answering) == (1, 0)
    pi05.infer([observation(0)])
    assert isinstance(finish(pi05)["q"], LanguageAnswer)


def test_where_the_model_fails_those_that_are_answered_fail_and_others_go_on(pi05, monkeypatch):
    decoder = with_slots(pi05, 2)
    ask(pi05, "fails", 0)
    ask(pi05, "waits", 1)
    pi05.infer([observation(0)])

    def broken(_batch):
        raise RuntimeError("no kernel")

    with monkeypatch.context() as patch:
        patch.setattr(decoder._head, "read", broken)
        ((key, outcome),) = decoder.go_on(now_s=0.0)
    assert (key, outcome.code) == ("fails", RefusalCode.ENGINE_FAILED)
    assert "no kernel" in outcome.reason
    pi05.infer([observation(1)])
    assert isinstance(finish(pi05)["waits"], LanguageAnswer)


def test_an_answer_that_is_not_finite_fails_alone(pi05, monkeypatch):
    decoder = with_slots(pi05, 2)
    for robot in range(2):
        ask(pi05, robot, robot)
    pi05.infer([observation(0), observation(1)])
    read = decoder._head.read

    def one_nan(batch):
        monkeypatch.undo()
        logits = read(batch)
        logits[0] = torch.nan
        return logits

    monkeypatch.setattr(decoder._head, "read", one_nan)
    first = dict(decoder.go_on(now_s=0.0))
    assert isinstance(first[0], LanguageFailure)
    alone = isolated(pi05, observation(1), "what now?", 64)
    assert list((first | finish(pi05))[1].tokens) == alone.tokens


def test_its_memory_is_bounded_and_too_little_of_it_is_refused(pi05):
    decoder = with_slots(pi05, 3)
    kept = decoder._slots
    bytes_of = [slots.nbytes for slots in (*kept._keys, *kept._values)]
    assert sum(bytes_of) == 3 * decoder.slot_bytes
    pi05.warm_up(1)
    with pytest.raises(ConfigError, match="one question takes 1 MiB"):
        unified_decoder(pi05._loaded, pi05._tap.take(), decoder.slot_bytes - 1)


def test_who_cannot_answer_questions_is_refused_by_name(folder_of):
    with pytest.raises(PolicyError, match="'flow_mlp' answer no questions, those of pi0, pi05 do"):
        load_engine(options(folder_of("flow_mlp"), language_mib=1), silent)
    with pytest.raises(ConfigError, match="language_mib: an emulated policy has no words"):
        load_engine(options("emulated:", language_mib=1), silent)


def test_the_option_says_which_answers_a_step_decodes(folder_of):
    assert speaking_engine(folder_of, "pi05").answering._choose is decode_all
    by_slack = speaking_engine(folder_of, "pi05", language_decoding="slack")
    assert by_slack.answering._choose is decode_by_slack
    with pytest.raises(ConfigError, match="language_decoding is 'edf'; use one of all, slack"):
        load_engine(options(folder_of("pi05"), language_decoding="edf"), silent)


TURNS = st.lists(
    st.tuples(
        st.lists(  # asked before the frame: robot, length of the text, most tokens
            st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 14)), max_size=2
        ),
        st.sets(st.integers(0, 3), max_size=3),  # robots of the frame
        st.booleans(),  # whether the oldest question is withdrawn
    ),
    min_size=2,
    max_size=7,
)


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(slots=st.integers(1, 4), turns=TURNS, seed=st.integers(0, 9))
def test_any_schedule_gives_chunks_and_words_as_they_are_alone(pi05, engine_of, slots, turns, seed):
    plain = engine_of("pi05")
    decoder = with_slots(pi05, slots, some_of_them(seed) if seed else decode_by_slack)

    def seen(robot, turn):
        return observation(robot + 4 * (turn % 2), robot=f"arm_{robot}", round=turn, seed=turn)

    @cache
    def alone(robot, parity, text, most):
        return isolated(pi05, seen(robot, parity), text, most)

    asked, outcomes = {}, {}
    turns = [*turns, *[([], {0, 1, 2, 3}, False)] * (4 + 4 * len(turns))]
    for turn, (questions, robots, withdrawn) in enumerate(turns):
        for number, (robot, length, most) in enumerate(questions):
            asked[turn, number] = robot, "what now?"[:length], most
            ask(pi05, (turn, number), robot, "what now?"[:length], most_tokens=most)
        if withdrawn and (left := [key for key in asked if key not in outcomes]):
            decoder.withdraw(left[0])
            del asked[left[0]]
        if robots:
            requests = [seen(robot, turn) for robot in sorted(robots)]
            speaking = pi05.infer(requests)
            if questions:
                same_chunks(plain.infer(requests), speaking)
        outcomes |= decoder.go_on(now_s=0.0)
        if not decoder.load.waiting + decoder.load.answering and turn >= 7:
            break
    assert outcomes.keys() == asked.keys()
    for key, (robot, text, most) in asked.items():
        said = alone(robot, outcomes[key].round % 2, text, most)
        assert list(outcomes[key].tokens) == said.tokens or said.margin < CLEAR
        assert outcomes[key].tokens[-1] == END or len(outcomes[key].tokens) == most
