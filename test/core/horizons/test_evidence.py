"""Evidence from paired episodes: looked at at any time, it is wrong as seldom as it says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.evidence import PairedOutcomes

counts = st.integers(0, 2000)
margins = st.floats(0.001, 0.5) | st.floats(-0.5, 0.0)


@pytest.mark.parametrize(("lost", "won"), [(0.02, 0.0), (0.06, 0.04), (0.3, 0.28)])
def test_a_loss_of_the_margin_is_accepted_as_seldom_as_allowed(lost, won):
    """Looked at after every 20 of 1,000 pairs, 400 times over."""
    error, accepted = 0.1, 0
    rng = np.random.default_rng(7)
    for _ in range(400):
        kind = rng.choice(3, size=(50, 20), p=(1 - lost - won, lost, won))
        sums = np.cumsum([np.bincount(block, minlength=3) for block in kind], axis=0)
        accepted += any(PairedOutcomes(*map(int, at)).evidence(0.02) >= 1 / error for at in sums)
    assert accepted <= 400 * error


def test_the_other_way_round_it_speaks_for_a_loss():
    """Eight losses and no win are enough to say that there is one."""
    assert PairedOutcomes(alike=800, lost=8).exchanged.evidence(0.0) > 20
    assert PairedOutcomes(alike=800, lost=8, won=8).exchanged.evidence(0.0) < 1


def test_a_small_loss_is_accepted_in_the_end_and_a_large_one_never():
    assert PairedOutcomes(alike=480).evidence(0.02) > 840
    assert PairedOutcomes(alike=400).evidence(0.02) < 840
    assert PairedOutcomes(alike=1980, lost=10, won=10).evidence(0.02) > 840
    assert PairedOutcomes(alike=1900, lost=800, won=20).evidence(0.02) < 0.05


@given(counts, counts, counts, margins)
def test_losses_speak_against_it_and_wins_for_it(alike, lost, won, margin):
    evidence = PairedOutcomes(alike, lost, won).evidence(margin)
    assert PairedOutcomes(alike, lost + 1, won).evidence(margin) <= evidence
    assert PairedOutcomes(alike, lost, won + 1).evidence(margin) >= evidence
    one_more_alike = PairedOutcomes(alike + 1, lost, won).evidence(margin)
    assert one_more_alike >= evidence if margin > 0 else one_more_alike <= evidence
    assert np.isfinite(evidence)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_pairs_are_counted(pairs):
    outcomes = PairedOutcomes()
    for reference, candidate in pairs:
        outcomes = outcomes.and_pair(reference, candidate)
    assert outcomes.pairs == len(pairs)
    share = sum(r - c for r, c in pairs) / len(pairs) if pairs else 0.0
    assert outcomes.loss == pytest.approx(share)


@pytest.mark.parametrize("margin", [-1.0, 1.0, float("nan")])
def test_a_margin_that_is_no_share_is_refused(margin):
    with pytest.raises(ConfigError, match="margin must be a share"):
        PairedOutcomes().evidence(margin)
