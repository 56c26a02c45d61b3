from fractions import Fraction

import numpy as np
import pytest

from kairos_ros.core.errors import KairosError
from kairos_ros.core.scheduling.wait_ratio import WaitReading, first_execution_ns, running_execution
from kairos_ros.core.tasks import KINDS_KEPT, NEVER, ROUNDS_KEPT, TaskTable


def task_of(*rounds, start=0, l0=0, **reading) -> TaskTable:
    """One task "a"; a round is (G.start, G.end, E.start, E.end), or the first two of them."""
    tasks = TaskTable(WaitReading(**reading))
    tasks.open("a", start, l0_ns=l0)
    for j, (g0, g1, *execution) in enumerate(rounds):
        tasks.generation("a", j, g0, g1)
        if execution:
            tasks.execution("a", j, *execution)
    return tasks


# Executing 900 dominates generating 100; then the robot idles 1000..1300.
EXECUTION_BOUND = ((0, 100, 100, 1000), (1200, 1300, 1300, 2200))
# Generating 600 dominates executing 400; the engine idles 600..750, the robot 1000..1350.
GENERATION_BOUND = ((0, 600, 600, 1000), (750, 1350, 1350, 1750))


def test_an_execution_bound_round_waits_from_its_last_action_to_the_next_first_one():
    assert task_of(*EXECUTION_BOUND).wait_ratio("a", 3000) == Fraction(300, 3000)


def test_a_generation_bound_round_waits_from_its_chunk_to_the_next_inference():
    assert task_of(*GENERATION_BOUND).wait_ratio("a", 3000) == Fraction(150, 3000)


def test_equally_long_phases_count_as_generation_bound():
    tasks = task_of((0, 500, 500, 1000), (700, 1300, 1300, 1800))
    assert tasks.wait_ratio("a", 2000) == Fraction(200, 2000)


def test_the_profile_decides_dominance_where_batching_inflated_the_measurement():
    # measured 600 >= 400 is generation bound, the profiled 200 < 400 is not
    tasks = task_of(*GENERATION_BOUND, dominance="profile", l0=200)
    assert tasks.wait_ratio("a", 3000) == Fraction(350, 3000)


def test_the_unified_reading_waits_from_the_earliest_possible_next_start():
    # max(E.end 1000, G.end 600 + L0 500) = 1100; next execution starts at 1350
    tasks = task_of(*GENERATION_BOUND, wait="unified", l0=500)
    assert tasks.wait_ratio("a", 3000) == Fraction(250, 3000)
    late = task_of(*GENERATION_BOUND, wait="unified", l0=900, clamp=False)
    assert late.wait_ratio("a", 3000) == 0


def test_a_round_without_successor_counts_nothing_however_long_it_waits():
    assert task_of(EXECUTION_BOUND[0]).wait_ratio("a", 10_000) == 0


def test_an_execution_bound_round_counts_only_once_the_next_execution_is_known():
    tasks = task_of(EXECUTION_BOUND[0], (1200, 1300))
    assert tasks.wait_ratio("a", 2000) == 0
    tasks.execution("a", 1, 1300, 2200)
    assert tasks.wait_ratio("a", 2000) == Fraction(300, 2000)


def test_an_early_switch_does_not_cancel_another_wait():
    rounds = ((0, 100, 100, 1000), (500, 600, 800, 1700), (1500, 1600, 1900, 2000))
    assert task_of(*rounds).wait_ratio("a", 4000) == Fraction(200, 4000)
    assert task_of(*rounds, clamp=False).wait_ratio("a", 4000) == 0


def test_the_wait_for_the_first_generation_counts_only_with_init():
    rounds = ((400, 500, 500, 1400),)
    assert task_of(*rounds).wait_ratio("a", 2000) == 0
    assert task_of(*rounds, init=True).wait_ratio("a", 2000) == Fraction(400, 2000)


def test_the_pending_wait_counts_only_with_ongoing():
    assert task_of(*EXECUTION_BOUND, ongoing=True).wait_ratio("a", 3000) == Fraction(
        300 + 800, 3000
    )
    assert task_of(*EXECUTION_BOUND, ongoing=True).wait_ratio("a", 2000) == Fraction(300, 2000)
    assert task_of(*GENERATION_BOUND, ongoing=True).wait_ratio("a", 3000) == Fraction(
        150 + 1650, 3000
    )
    unknown = task_of(EXECUTION_BOUND[0], (1200, 1300), ongoing=True)
    assert unknown.wait_ratio("a", 3000) == 0


def test_a_task_that_never_ran_waits_entirely_only_with_init_and_ongoing():
    assert task_of(ongoing=True).wait_ratio("a", 500) == 0
    assert task_of(init=True).wait_ratio("a", 500) == 0
    assert task_of(init=True, ongoing=True).wait_ratio("a", 500) == 1


def test_a_task_that_has_just_begun_has_ratio_zero():
    assert task_of(start=700, init=True, ongoing=True).wait_ratio("a", 700) == 0


def test_a_better_estimate_of_an_execution_replaces_the_first_one():
    tasks = task_of(*EXECUTION_BOUND)
    tasks.execution("a", 0, 100, 1150)  # the robot was slower than its first report promised
    assert tasks.wait_ratio("a", 3000) == Fraction(150, 3000)
    tasks.generation("a", 1, 1200, 1400)
    row = tasks.row("a")
    assert tasks.service_ns[row] == 100 + 200
    assert tasks.rounds[row] == 2


def test_the_last_execution_and_run_out_follow_the_newest_report():
    tasks = task_of(*EXECUTION_BOUND, (2000, 2100))
    assert tasks.last_exec_ns[tasks.row("a")] == 900
    assert tasks.run_out_ns[tasks.row("a")] == 2200


def test_a_task_without_history_has_the_execution_it_was_opened_with():
    tasks = TaskTable()
    row = tasks.open("a", 0, first_exec_ns=first_execution_ns(50, 30.0))
    assert tasks.last_exec_ns[row] == 833_333_333


def test_a_robots_report_becomes_an_interval_on_the_servers_clock():
    # 100 ms into the round with 12 actions to go at 25 Hz
    assert running_execution(5_000_000_000, 100_000_000, 12, 40_000_000) == (
        4_900_000_000,
        5_480_000_000,
    )


def test_a_server_that_joins_in_the_middle_of_a_task_counts_from_there():
    tasks = TaskTable()
    tasks.open("a", 10_000)
    tasks.execution("a", 16, 9_500, 10_500)  # whose generation an earlier server did
    tasks.generation("a", 17, 10_200, 10_300)
    tasks.execution("a", 17, 10_500, 11_500)
    tasks.generation("a", 18, 11_700, 11_800)
    tasks.execution("a", 18, 11_800, 12_800)
    assert tasks.wait_ratio("a", 13_000) == Fraction(300, 3_000)


def test_rows_are_reused_and_start_clean():
    tasks = task_of(*EXECUTION_BOUND, ongoing=True)
    row = tasks.row("a")
    tasks.skipped[row] = 3
    tasks.close("a")
    assert tasks.open("b", 4000) == row
    assert tasks.wait_ratio("b", 5000) == 0
    assert tasks.skipped[row] == tasks.rounds[row] == tasks.service_ns[row] == 0
    assert tasks.due_ns[row] == NEVER
    assert tasks.run_out_ns[row] == 4000


def test_a_table_grows_with_its_tasks():
    tasks = TaskTable()
    rows = [tasks.open(key, key) for key in range(100)]
    assert len(set(rows)) == 100
    assert tasks.start_ns[tasks.rows_of(range(100))].tolist() == list(range(100))


def test_memory_of_a_task_does_not_grow_with_its_rounds():
    tasks = TaskTable()
    tasks.open("a", 0)
    for j in range(1000):
        tasks.generation("a", j, 1000 * j, 1000 * j + 100)
        tasks.execution("a", j, 1000 * j + 100, 1000 * j + 900)
    assert tasks.wait_ratio("a", 1_000_000) == Fraction(999 * 200, 1_000_000)
    with pytest.raises(KairosError, match="round 990 of task 'a' is settled"):
        tasks.execution("a", 990, 0, 1)
    assert len(tasks._tasks["a"].rounds) == ROUNDS_KEPT


def test_expected_rounds_are_learned_from_finished_tasks_of_the_kind():
    tasks = TaskTable()
    rows = np.array([tasks.open(f"new {kind}", 0, kind=kind) for kind in ("short", "long", "?")])
    assert tasks.expected_rounds(rows).tolist() == [1, 1, 1]
    for name, kind, rounds in (("a", "short", 2), ("b", "long", 6), ("c", "long", 10)):
        tasks.open(name, 0, kind=kind)
        for j in range(rounds):
            tasks.generation(name, j, j, j + 1)
        tasks.close(name)
    tasks.open("cancelled", 0, kind="long")
    tasks.close("cancelled", finished=False)
    assert tasks.expected_rounds(rows).tolist() == [2, 8, 6]


def test_free_text_kinds_do_not_fill_the_memory():
    tasks = TaskTable()
    for i in range(KINDS_KEPT + 500):
        tasks.open(i, 0, kind=f"pick up cup number {i}")
        tasks.generation(i, 0, 0, 1)
        tasks.close(i)
    row = tasks.open("known", 0, kind="pick up cup number 7")
    assert tasks.expected_rounds(np.array([row])).tolist() == [1]
    assert len(tasks._finished) == len(tasks._kinds) == KINDS_KEPT


@pytest.mark.parametrize(
    ("misuse", "what"),
    [
        (lambda t: t.open("a", 0), "open already"),
        (lambda t: t.generation("b", 0, 0, 1), "'b' is not open"),
        (lambda t: t.rows_of(["a", "b"]), "'b' is not open"),
        (lambda t: t.generation("a", 0, 5, 4), "ends before it starts"),
        (lambda t: t.execution("a", 0, 0, 10**30), "a century away"),
    ],
)
def test_misuse_of_the_table_says_what_is_wrong(misuse, what):
    tasks = task_of()
    with pytest.raises(KairosError, match=what):
        misuse(tasks)
    tasks.generation("a", 0, 0, 10)
    tasks.execution("a", 0, 10, 20)
    assert tasks.last_exec_ns[tasks.row("a")] == 10
