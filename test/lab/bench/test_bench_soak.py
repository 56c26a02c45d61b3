"""`python -m bench soak`: a short one, and how growth is told from noise."""

import numpy as np
import pytest

from bench.soak.soak_figure import plot
from bench.soak.soak_fleet import soak
from bench.soak.soak_outcome import CLOUD, CUT, EDGE, HOST, Timetable
from bench.support.process_growth import Sample, slope


def samples(memory_mb, pid=1, every_s=5.0, from_s=0.0):
    return [Sample(from_s + every_s * n, pid, mb, 20, 4) for n, mb in enumerate(memory_mb)]


def test_a_process_that_gains_a_megabyte_a_minute_is_not_flat():
    rng = np.random.default_rng(0)
    grown = slope(samples(50 + np.arange(120) / 12 + rng.normal(0, 0.3, 120)), "memory_mb", 0.0)
    assert grown.per_hour == pytest.approx(60, rel=0.1)
    assert grown.low < 60 < grown.high
    assert not grown.flat


def test_noise_around_a_level_is_flat_and_its_interval_has_the_zero():
    rng = np.random.default_rng(1)
    flat = slope(samples(50 + rng.normal(0, 0.3, 120)), "memory_mb", 0.0)
    assert flat.low < 0 < flat.high
    assert flat.flat


def test_neighbouring_samples_that_resemble_each_other_widen_the_interval():
    rng = np.random.default_rng(2)
    steps = rng.normal(0, 0.3, 12)
    held = slope(samples(50 + np.repeat(steps, 10)), "memory_mb", 0.0)
    mixed = slope(samples(50 + rng.permutation(np.repeat(steps, 10))), "memory_mb", 0.0)
    assert held.high - held.low > 2 * (mixed.high - mixed.low)


def test_lives_of_a_process_have_one_slope_and_levels_of_their_own():
    first = samples(50 + np.zeros(40), pid=1)
    second = samples(30 + np.zeros(40), pid=2, from_s=200.0)
    flat = slope(first + second, "memory_mb", 0.0)
    assert (flat.per_hour, flat.low, flat.high) == pytest.approx((0, 0, 0), abs=1e-6)


def test_what_a_process_takes_to_warm_up_is_no_growth():
    warming = np.minimum(50.0, 20.0 + np.arange(120))
    assert slope(samples(warming), "memory_mb", 0.0).per_hour > 100
    assert slope(samples(warming), "memory_mb", 200.0).per_hour == pytest.approx(0, abs=1e-6)
    assert slope(samples(warming[:8]), "memory_mb", 200.0) is None


def test_every_ten_minutes_of_an_hour_have_the_same_faults():
    faults = list(Timetable(3600.0).faults())
    assert [fault.name for fault in faults] == 6 * [EDGE, CUT, CLOUD, HOST]
    for start_s in range(0, 3600, 600):
        within = [fault for fault in faults if start_s < fault.at_s < start_s + 600]
        assert len(within) == 4
    workers = [fault.at_s for fault in faults if fault.name in (EDGE, CLOUD)]
    assert set(np.diff(workers)) == {300.0}


@pytest.mark.slow
def test_nothing_is_lost_or_wrong_while_robots_come_and_go_and_workers_die(tmp_path):
    outcome = soak(tmp_path, minutes=0.6, robots=10, console=None)

    totals = outcome.totals
    assert (totals.unanswered, totals.wrong) == (0, 0)
    assert totals.actions > 200
    assert [fault.name for fault in outcome.happened] == [EDGE, CUT, CLOUD, HOST]
    assert 8 <= outcome.cut_off <= 10  # one or two may be about to come
    assert outcome.came > 10 <= outcome.left
    lives = {name: {one.pid for one in seen} for name, seen in outcome.processes.items()}
    assert {name: len(pids) for name, pids in lives.items()} == {
        "serving node": 1,
        "link": 1,
        "robots 1": 2,
        "edge worker": 2,
        "cloud worker": 2,
    }
    for name, seen in outcome.processes.items():
        life = [one for one in seen if one.pid == seen[-1].pid]
        newest = life[len(life) // 2 :]  # in the first of them it may load still
        assert max(one.descriptors for one in newest) <= newest[0].descriptors + 3, name
        assert max(one.threads for one in newest) <= newest[0].threads + 2, name
    assert plot(tmp_path / "soak.png", outcome).stat().st_size > 10_000
