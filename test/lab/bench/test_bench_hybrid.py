"""The hybrid benchmark's arithmetic: what is compared with what, and what has fallen behind."""

import json

import pytest

from bench.cloud.hybrid import BASE, LOAD, SWEEP, Fleet, _behind, plan, settings
from bench.cloud.hybrid_fleet import measured, on_the_way
from bench.cloud.hybrid_work import MODES, Cell, Wan, virtual
from kairos_ros.recording.runs.run import FleetRun, RoundRecord, TaskRecord


def cell(mode="hybrid", wan=BASE, load=LOAD, seed=1, tasks=20):
    return Cell(mode, wan, load, tasks, seed, limit_s=60.0)


def fleet(mode, mean_s, *, seed=1, wan=BASE, virtual_s=1.0):
    real = {"mean_s": mean_s, "tasks": 2, "finished": 2}
    return Fleet(cell(mode, wan, seed=seed), real, {"mean_s": virtual_s}, {}, 1, late=False)


def test_a_cell_is_what_it_was_after_a_trip_through_its_file():
    written = cell(wan=Wan("far", 200, 10, 0.01, 20, "bbr"))
    assert Cell.read(json.loads(json.dumps(written.written()))) == written


def test_one_thing_at_a_time_differs_from_the_base():
    fields = ("rtt_ms", "mbps", "loss", "jitter_ms")
    for wan in SWEEP:
        assert sum(getattr(wan, name) != getattr(BASE, name) for name in fields) == 1


@pytest.mark.slow
def test_every_setting_has_an_edge_of_the_same_load_and_seed_to_be_compared_with():
    groups = plan(quick=False)
    edges = {(g.load, g.seed) for g in groups if "edge" in g.modes}
    assert {(g.load, g.seed) for g in groups} == edges
    assert len(groups) == len(set(groups))


def test_reductions_are_of_equal_seeds_and_the_edge_counts_for_every_wan():
    far = SWEEP[2]
    every = settings(
        [
            *(fleet("edge", s, seed=i) for i, s in enumerate((10.0, 20.0, 40.0))),
            *(fleet("cloud", s, seed=i) for i, s in enumerate((10.0, 10.0, 10.0))),
            *(fleet("hybrid", s, seed=i) for i, s in enumerate((5.0, 5.0, 5.0))),
            fleet("cloud", 16.0, seed=1, wan=far),
            fleet("hybrid", 8.0, seed=1, wan=far),
            fleet("hybrid", 1.0, seed=1, wan=SWEEP[3]),  # its cloud was interrupted
        ]
    )
    assert [s.wan for s in every] == [BASE, far]
    assert every[0].below("edge", "real") == pytest.approx((75.0, 50.0, 87.5))
    assert every[0].below("edge", "virtual") == pytest.approx((0.0, 0.0, 0.0))
    assert every[1].below("edge", "real") == pytest.approx((60.0, 60.0, 60.0))
    assert every[1].below("cloud", "real") == pytest.approx((50.0, 50.0, 50.0))


def test_a_task_that_was_ended_early_counts_with_the_time_it_took_so_far():
    done = TaskRecord(0, "a", "s", 1, 0.0, 1.0, 5.0, "succeeded", True, 4.0, 0.5, 1.5)
    ended = TaskRecord(1, "b", "s", 1, 2.0, 2.0, 12.0, "canceled")
    run = FleetRun(("a", "b"), 12.0, (done, ended), (), ((0.0, 2.0),))
    assert measured(run) | {"mean_s": 7.5, "tasks": 2, "finished": 1, "mid_stall_s": 1.0} == (
        measured(run)
    )


def test_the_way_to_the_cloud_is_what_was_neither_queue_nor_compute_the_first_apart():
    def served(at_s, way_s, tier="cloud"):
        return RoundRecord(
            "a", "t", 1, 1, at_s, at_s, at_s, at_s, 0, 0, 10, 50, 10, 0.5, 0.1, 0.6 + way_s, 1,
            tier, tier,
        )  # fmt: skip

    rounds = [served(9.0, 0.1), served(1.0, 0.4), served(0.0, 9.9, "edge")]
    rounds += [served(2.0 + i, 0.1) for i in range(9)]
    ways = on_the_way(rounds)
    assert ways["first_way_s"] == pytest.approx(0.4)
    assert ways["later_way_s"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("link_ms", "robots_ms", "says"),
    [(1.0, 1.0, ""), (50.0, 1.0, "link delivered 50 ms late"), (1.0, 90.0, "periods 90 ms late")],
)
def test_a_fleet_whose_machine_was_too_busy_is_told_from_one_that_was_slow(
    link_ms, robots_ms, says
):
    real = {"link": {"late_p99_ms": link_ms}, "robots": {"late_p99_ms": robots_ms}}
    assert says in _behind(real)
    assert bool(_behind(real)) == bool(says)


@pytest.mark.slow
def test_in_virtual_time_overflow_beats_either_tier_alone_in_overload():
    mean_s = {mode: measured(virtual(cell(mode, tasks=60), 76_600))["mean_s"] for mode in MODES}
    assert mean_s["hybrid"] < mean_s["edge"]
    assert mean_s["hybrid"] < mean_s["cloud"]
