import importlib
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.conformance import check_horizon_policy
from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.core.horizons.policies import (
    BUILTIN,
    Confidence,
    Horizon,
    HorizonContext,
    Static,
    TailAgreement,
    decide,
    parse_horizon,
    update_ratio,
)
from kairos_ros.core.spec import installed_plugins

HERE = HorizonContext(task="open the drawer", round=3)


def updates_of(sizes: list[list[float]]) -> np.ndarray:
    """[K, N, 2] updates whose norms are `sizes` [K, N]."""
    size = np.array(sizes)
    return np.stack([size * 0.6, size * 0.8], axis=2)


def chunk_of(n: int) -> np.ndarray:
    return np.zeros((n, 2), np.float32)


# Figure 7 of Dai et al.: six actions, the fifth is 50 % above its earlier mean, t = 40 %.
FIGURE_7 = updates_of(
    [[4, 4, 4, 4, 2, 2], [2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 2, 3], [0.5, 0.6, 0.7, 0.8, 3, 4]]
)


def test_the_horizon_ends_before_the_first_action_the_last_step_still_revises():
    horizon = Confidence(t=0.4, h_min=1)(FIGURE_7, chunk_of(6), HERE)
    assert horizon.length == 4
    assert horizon.reason == "action 5 still moves 1.50 x its mean (limit 1.40)"
    assert horizon.confidence[4] == pytest.approx(1 / 2.5)


def test_a_larger_tolerance_runs_on_to_the_next_doubtful_action():
    assert Confidence(t=0.5, h_min=1)(FIGURE_7, chunk_of(6), HERE).length == 5  # 1.5 is not > 1.5
    assert Confidence(t=0.8, h_min=1)(FIGURE_7, chunk_of(6), HERE).length == 6


def test_later_converged_actions_do_not_count_once_one_is_in_doubt():
    updates = updates_of([[1, 1, 1, 1], [0, 9, 0, 0]])
    assert Confidence(t=0.4, h_min=1)(updates, chunk_of(4), HERE).length == 1


def test_h_min_actions_run_even_when_the_first_is_in_doubt():
    updates = updates_of([[1] * 9, [5] * 9])
    horizon = Confidence(t=0.4, h_min=5)(updates, chunk_of(9), HERE)
    assert horizon.length == 5
    assert "held at h_min=5" in horizon.reason


def test_a_chunk_shorter_than_h_min_runs_whole():
    updates = updates_of([[1] * 3, [5] * 3])
    assert Confidence(t=0.4, h_min=5)(updates, chunk_of(3), HERE).length == 3


def test_a_sampler_that_moved_nothing_is_sure_and_one_that_moved_last_is_not():
    ratio = update_ratio(updates_of([[0, 0], [0, 0], [0, 1]]))
    assert ratio.tolist() == [0.0, np.inf]


def test_static_ignores_the_updates():
    horizon = Static(3)(np.full((0, 5, 2), np.nan), chunk_of(5), HERE)
    assert horizon.length == 3
    assert horizon.confidence.tolist() == [1, 1, 1, 0, 0]


def test_static_refuses_to_promise_more_actions_than_there_are():
    with pytest.raises(PolicyError, match="h=6 exceeds the chunk of 5"):
        Static(6)(np.zeros((2, 5, 2)), chunk_of(5), HERE)


def test_static_executes_a_chunk_whole_that_was_cut():
    horizon = Static(6)(np.zeros((2, 5, 2)), chunk_of(5), HorizonContext(cut=True))
    assert horizon.length == 5
    assert horizon.confidence.tolist() == [1] * 5


def test_the_horizon_ends_where_the_chunk_departs_from_the_previous_one():
    chunk = np.array([[0, 0], [1, 0], [2, 0], [3, 4], [0, 0]], np.float32)
    tail = np.array([[0, 0], [1, 0.5], [2, 0], [3, 0]], np.float32)
    context = HorizonContext(tail=tail)
    horizon = TailAgreement(t=0.8, h_min=1)(np.zeros((2, 5, 2)), chunk, context)
    assert horizon.length == 3
    assert horizon.reason == "action 4 is 4.00 from the previous chunk (limit 0.80)"


def test_agreement_reaches_no_further_than_the_previous_chunk():
    policy = TailAgreement(t=0.8, h_min=2)
    assert policy(FIGURE_7, chunk_of(6), HorizonContext(tail=chunk_of(4))).length == 4
    assert policy(FIGURE_7, chunk_of(6), HorizonContext(tail=chunk_of(1))).length == 2
    assert policy(FIGURE_7, chunk_of(6), HorizonContext(tail=chunk_of(9))).length == 6


def test_without_a_previous_chunk_only_h_min_actions_are_trusted():
    for tail in (None, np.zeros((0, 2), np.float32)):
        horizon = TailAgreement(t=0.8, h_min=2)(FIGURE_7, chunk_of(6), HorizonContext(tail=tail))
        assert horizon.length == 2
        assert "no previous chunk" in horizon.reason


def test_departure_is_measured_in_normalised_units():
    tail = np.full((6, 2), [0.0, 30.0], np.float32)  # 30 degrees of a joint that varies by 60
    context = HorizonContext(tail=tail, scale=np.array([0.02, 60.0]))
    assert TailAgreement(t=0.8, h_min=1)(FIGURE_7, chunk_of(6), context).length == 6


@pytest.mark.parametrize(
    ("updates", "what"),
    [
        (np.ones((1, 6, 2)), "at least 2 sampler steps"),
        (np.ones((3, 5, 2)), "5 actions, the chunk has 6"),
        (np.ones((3, 6)), "steps, actions, dims"),
        (
            np.where(np.arange(6)[None, :, None] == 2, np.nan, np.ones((3, 6, 2))),
            "action 3 are not",
        ),
    ],
)
def test_updates_that_cannot_be_judged_are_an_error(updates, what):
    with pytest.raises(PolicyError, match=what):
        Confidence()(updates, chunk_of(6), HERE)


def test_a_tail_of_another_robot_is_an_error():
    context = HorizonContext(tail=np.zeros((4, 3)))
    with pytest.raises(PolicyError, match="tail must be"):
        TailAgreement()(FIGURE_7, chunk_of(6), context)


def test_policies_are_named_in_one_line():
    assert parse_horizon("static:10") == parse_horizon("static:h=10") == Static(10)
    assert parse_horizon("confidence:t=0.2,h_min=4") == Confidence(0.2, 4)
    assert parse_horizon("confidence") == Confidence(t=0.4, h_min=5)
    assert parse_horizon("tail_agreement:1.5") == TailAgreement(1.5, 5)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "names no policy"),
        (
            "stattic:10",
            "unknown horizon policy 'stattic'; known here: .*confidence, .*static",
        ),
        ("static:n=10", "no option 'n'; its options are: h"),
        ("static:ten", "h must be of type int, not 'ten'"),
        ("static:0", "whole number >= 1, not 0"),
        ("static:10,h=11", "option 'h' of 'static' twice"),
        ("confidence:t=nan", "finite number above -1"),
        ("confidence:t=0.4,h_min=0", "at least one action"),
        ("confidence:t=", "empty option"),
    ],
)
def test_a_wrong_policy_text_says_what_is_wrong(text, what):
    with pytest.raises(ConfigError, match=what):
        parse_horizon(text)


@given(st.integers(2, 5), st.integers(1, 12), st.floats(-0.5, 3), st.integers(1, 15), st.randoms())
def test_the_horizon_is_the_printed_rule(k, n, t, h_min, random):
    updates = np.array(
        [[[random.uniform(-1, 1) for _ in range(3)] for _ in range(n)] for _ in range(k)]
    )
    converged = 0
    for i in range(n):
        size = [float(np.sqrt((updates[step, i] ** 2).sum())) for step in range(k)]
        if size[-1] > (1 + t) * (sum(size[:-1]) / (k - 1)):
            break
        converged += 1
    assert Confidence(t, h_min)(updates, chunk_of(n), HERE).length == min(max(converged, h_min), n)


@pytest.mark.parametrize("spec", ["static:10", "confidence:t=0", *sorted({*BUILTIN} - {"static"})])
def test_every_policy_conforms(spec):
    check_horizon_policy(parse_horizon(spec))


@pytest.mark.parametrize(
    ("length", "confidence", "what"),
    [
        (0, np.ones(50, np.float32), "a length in 1..50"),
        (51, np.ones(50, np.float32), "a length in 1..50"),
        (5, np.ones(49, np.float32), "a confidence of shape"),
        (5, np.full(50, np.nan, np.float32), "0 <= c <= 1"),
    ],
)
def test_conformance_finds_a_policy_that_does_not(length, confidence, what):
    with pytest.raises(AssertionError, match=re.escape(what)):
        check_horizon_policy(lambda updates, chunk, context: Horizon(length, confidence, "so"))


def test_a_policy_can_come_from_an_installed_package(tmp_path, monkeypatch):
    (tmp_path / "half.py").write_text(
        "from kairos_ros.core.horizons.policies import Static\n"
        "def half(of: int = 50): return Static(of // 2)\n"
    )
    info = tmp_path / "half-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: half\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kairos_ros.horizon]\nhalf = half:half\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed_plugins.cache_clear()
    assert parse_horizon("half:of=16") == Static(8)
    (tmp_path / "half.py").write_text("import no_such_module\n")
    monkeypatch.delitem(sys.modules, "half")
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match="plugin 'half:half' for 'half' fails to load"):
        parse_horizon("half")
    installed_plugins.cache_clear()


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda n: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda n: None, "AttributeError"),
        (lambda n: Horizon(0, np.ones(n, np.float32), "none"), "from 1 to 50, not 0"),
        (lambda n: Horizon(-3, np.ones(n, np.float32), "back"), "not -3"),
        (lambda n: Horizon(n + 1, np.ones(n, np.float32), "more"), "not 51"),
        (lambda n: Horizon(2.5, np.ones(n, np.float32), "half"), "not 2.5"),
        (lambda n: Horizon(5, np.full(n, np.nan, np.float32), "nan"), "confidence in"),
        (lambda n: Horizon(5, np.ones(3, np.float32), "short"), "each of 50 actions"),
    ],
)
def test_what_a_plugin_raises_or_answers_wrongly_is_an_error_of_its_name(answer, complaint):
    def broken(updates, chunk, context):
        return answer(len(chunk))

    updates, chunk = np.ones((10, 50, 4), np.float32), np.zeros((50, 4), np.float32)
    with pytest.raises(PolicyError, match=f"'mine'.*{complaint}"):
        decide(broken, "mine", updates, chunk, HorizonContext())
    assert decide(Static(7), "static:7", updates, chunk, HorizonContext()).length == 7
