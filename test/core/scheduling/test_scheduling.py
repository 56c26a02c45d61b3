import numpy as np
import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.overflow import Capacity, EngineCapacity
from kairos_ros.core.scheduling.decision import Pending, ordinal
from kairos_ros.core.scheduling.policies import (
    BUILTIN,
    Admit,
    Fifo,
    LeastService,
    OldestTask,
    WaitRatio,
    parse_scheduling,
)
from kairos_ros.core.tasks import TaskTable

S = 1_000_000_000


def engine(free: int, name: str = "edge0") -> Capacity:
    return Capacity((EngineCapacity(name, "edge", free, (S // 10,) * max(free, 1)),))


def decide(policy, tasks: TaskTable, now_s: float, capacity: Capacity | None = None, arrival=None):
    """Decision on all open tasks, which arrived in their order unless told otherwise."""
    arrival = arrival or {key: i for i, key in enumerate(tasks)}
    pending = Pending.of(tasks, arrival)
    decision = policy.decide(round(now_s * S), pending, tasks, capacity or engine(len(tasks)))
    keys = list(arrival)
    return [keys[i] for i in decision.order], decision


def add(tasks: TaskTable, key: str, start_s: float, *rounds, skipped=0, **options) -> None:
    """Opens a task; a round is (G.start, G.end, E.start, E.end) in seconds."""
    tasks.open(key, round(start_s * S), **options)
    for j, (g0, g1, e0, e1) in enumerate(rounds):
        tasks.generation(key, j, round(g0 * S), round(g1 * S))
        tasks.execution(key, j, round(e0 * S), round(e1 * S))
    tasks.skipped[tasks.row(key)] = skipped


def executed(length_s: float) -> tuple[float, float, float, float]:
    return (0, 0.1, 0.1, 0.1 + length_s)


def test_a_waiting_task_outranks_a_well_served_one():
    tasks = TaskTable()
    add(tasks, "served", 0, (0, 0.1, 0.1, 1), (0.8, 0.9, 1, 2))
    add(tasks, "waiting", 0, (0, 0.1, 0.1, 1), (1.4, 1.5, 1.5, 2))
    order, decision = decide(WaitRatio(), tasks, 2)
    assert order == ["waiting", "served"]
    assert decision.bucket.tolist() == [0, 2]


def test_inside_a_bucket_the_longest_execution_goes_first():
    tasks = TaskTable()
    for key, length in (("short", 0.5), ("long", 1.5), ("middle", 1.0)):
        add(tasks, key, 0, executed(length))
    assert decide(WaitRatio(), tasks, 0.5)[0] == ["long", "middle", "short"]


def test_inside_a_bucket_requests_can_go_by_arrival_or_shortest_first():
    tasks = TaskTable()
    for key, length in (("short", 0.5), ("long", 1.5), ("middle", 1.0)):
        add(tasks, key, 0, executed(length))
    assert decide(WaitRatio(within="arrival"), tasks, 0.5)[0] == ["short", "long", "middle"]
    assert decide(WaitRatio(within="shortest"), tasks, 0.5)[0] == ["short", "middle", "long"]


def test_skips_make_a_short_execution_count_as_long():
    tasks = TaskTable()
    add(tasks, "long", 0, executed(1.0))
    add(tasks, "skipped", 0, executed(0.4), skipped=2)  # 0.4 x 3 = 1.2
    assert decide(WaitRatio(), tasks, 2)[0] == ["skipped", "long"]


@pytest.mark.parametrize(
    ("age", "skipped", "bucket"),
    [
        *(("floor", *row) for row in ((4, 0), (5, 1), (6, 1), (10, 2), (99, 9))),
        *(("ceil", *row) for row in ((4, 0), (5, 1), (6, 2), (10, 2), (99, 9))),
    ],
)
def test_every_a_skips_move_a_request_up_one_bucket(age, skipped, bucket):
    tasks = TaskTable()
    add(tasks, "a", 0, executed(1.0), skipped=skipped)
    assert decide(WaitRatio(aging=5, age=age), tasks, 2)[1].bucket.tolist() == [bucket]
    assert decide(WaitRatio(aging=None), tasks, 2)[1].bucket.tolist() == [0]


def waited(numerator_ns: int, life_ns: int) -> TaskTable:
    tasks = TaskTable()
    tasks.open("a", 0)
    for j, start in enumerate((0, 20 + numerator_ns)):
        tasks.generation("a", j, start, start + 10)
        tasks.execution("a", j, start, start + 20)
    return tasks


def test_a_ratio_on_the_edge_of_a_bucket_is_counted_exactly():
    assert 0.29 * 100 < 29  # the float surprise
    for waited_ns, buckets, bucket in ((29, 100, 29), (1, 10, 0), (10, 10, 1), (58, 100, 58)):
        decision = decide(WaitRatio(buckets=buckets), waited(waited_ns, 100), 100 / S)[1]
        assert decision.bucket.tolist() == [bucket]


def test_a_ratio_of_one_is_in_the_last_bucket_and_below_zero_in_the_first():
    all_wait = TaskTable(WaitRatio(init=True, ongoing=True).reading)
    add(all_wait, "a", 0)
    policy = WaitRatio(init=True, ongoing=True)
    assert decide(policy, all_wait, 3)[1].bucket.tolist() == [9]
    below = TaskTable(WaitRatio(clamp=False).reading)
    add(below, "a", 0, (0, 0.1, 0.1, 2), (0.5, 0.6, 1, 2))
    assert decide(WaitRatio(clamp=False), below, 3)[1].bucket.tolist() == [0]


def test_numbers_beyond_64_bits_are_still_exact():
    tasks = TaskTable()
    century = 2_000_000_000 * S
    tasks.open("a", 0)
    tasks.generation("a", 0, 0, 1)
    tasks.execution("a", 0, 1, 3)
    tasks.generation("a", 1, century, century + 1)
    tasks.execution("a", 1, century, 2 * century)
    add(tasks, "b", 0, (0, 1, 1, 3), (4, 5, 5, 1e9), skipped=10)
    order, decision = decide(WaitRatio(buckets=1_000_000, aging=None), tasks, 2e9)
    assert decision.bucket.tolist() == [999_999, 0]
    assert order == ["a", "b"]
    tasks.skipped[tasks.row("b")] = 1_000_000_000  # 1e9 s x 1e9 skips
    assert decide(WaitRatio(buckets=1, aging=None), tasks, 2e9)[0] == ["b", "a"]


def test_first_come_is_first_served():
    tasks = TaskTable()
    for key in "abc":
        add(tasks, key, 0)
    assert decide(Fifo(), tasks, 9, arrival={"a": 30, "b": 10, "c": 10})[0] == ["b", "c", "a"]


def test_least_service_prefers_the_task_with_least_generation_time():
    tasks = TaskTable()
    add(tasks, "much", 0, (0, 0.3, 0.3, 2), (1, 1.3, 2, 3))
    add(tasks, "little", 0, (0, 0.5, 0.5, 2))
    add(tasks, "new", 1)
    assert decide(LeastService(), tasks, 9)[0] == ["new", "little", "much"]


def test_the_oldest_task_is_served_first_whatever_it_got():
    tasks = TaskTable()
    add(tasks, "young", 5)
    add(tasks, "old", 1, (1, 1.3, 2, 3))
    assert decide(OldestTask(), tasks, 9)[0] == ["old", "young"]


def admission() -> TaskTable:
    """Short tasks take 4 rounds, long ones 16. Two run, two are new."""
    tasks = TaskTable()
    for kind, rounds in (("short", 4), ("long", 16)):
        add(tasks, kind, 0, *[executed(1)] * rounds, kind=kind)
        tasks.close(kind)
    add(tasks, "new long", 0, kind="long")
    add(tasks, "new short", 5, kind="short")
    add(tasks, "runs long", 4, (4, 5, 5, 11), kind="long")
    add(tasks, "runs short", 4, (4, 5, 5, 12), kind="short")
    return tasks


def test_running_tasks_go_before_new_ones_the_nearest_to_run_out_first():
    running = ["runs long", "runs short"]
    # at 10 s the long one has waited 10 s for 16 rounds, the short one 5 s for 4
    assert decide(Admit(alpha=1), admission(), 10)[0] == [*running, "new short", "new long"]


def test_alpha_trades_the_shortest_against_the_oldest_new_task():
    assert decide(Admit(alpha=0), admission(), 10)[0][2:] == ["new short", "new long"]
    # 10^3 / 16 = 62.5 > 5^3 / 4 = 31.25
    assert decide(Admit(alpha=3), admission(), 10)[0][2:] == ["new long", "new short"]
    assert decide(Admit(alpha=500), admission(), 10)[0][2:] == ["new long", "new short"]


def test_admission_can_prefer_the_task_with_fewest_rounds_to_go():
    order, _ = decide(Admit(running="remaining"), admission(), 10)
    assert order[:2] == ["runs short", "runs long"]


def test_dispatched_requests_lose_their_skips_and_the_others_gain_one():
    tasks = TaskTable()
    for key, length, skipped in (("a", 0.5, 1), ("b", 1.5, 2), ("c", 1.2, 0), ("d", 0.15, 0)):
        add(tasks, key, 0, executed(length), skipped=skipped)
    _, decision = decide(WaitRatio(), tasks, 0.2, engine(free=2))
    assert decision.batches[0].indices.tolist() == [1, 2]
    assert decision.left.tolist() == [0, 3]
    assert decision.skipped_after.tolist() == [2, 0, 0, 1]
    assert tasks.skipped[tasks.rows_of("abcd")].tolist() == [1, 2, 0, 0]
    tasks.set_skipped(tasks.rows_of("abcd"), decision.skipped_after)
    assert tasks.skipped[tasks.rows_of("abcd")].tolist() == [2, 0, 0, 1]


def test_a_decision_that_dispatches_nothing_skips_nobody():
    tasks = TaskTable()
    add(tasks, "a", 0, skipped=3)
    _, decision = decide(WaitRatio(), tasks, 1, engine(free=0))
    assert decision.batches == ()
    assert decision.skipped_after.tolist() == [3]


def test_each_request_is_told_why():
    tasks = TaskTable()
    add(tasks, "a", 0, (0, 0.1, 0.1, 1), (1.6, 1.7, 1.7, 2.1), skipped=11)
    add(tasks, "b", 0, executed(0.9))
    add(tasks, "c", 0, executed(0.8))
    capacity = Capacity(
        (
            EngineCapacity("edge0", "edge", 1, (S // 2,)),
            EngineCapacity("a100", "cloud", 1, (S // 10,), network_ns=S // 10),
        )
    )
    _, decision = decide(WaitRatio(aging=5), tasks, 2, capacity)
    assert [decision.reason(i) for i in range(3)] == [
        "bucket 5 (wait ratio 0.35, up 2 after 11 skips), last execution 0.40 s x 12 for its "
        "skips, 1st of 3, edge batch of 1 on edge0",
        "bucket 0 (wait ratio 0.00), last execution 0.90 s, 2nd of 3, cloud batch of 1 on a100 "
        "(0.20 s there, 1.00 s at the edge)",
        "bucket 0 (wait ratio 0.00), last execution 0.80 s, 3rd of 3, waits: edge and cloud full",
    ]


def test_reasons_of_the_other_policies_name_what_they_order_by():
    tasks = admission()
    reasons = {
        spec: decide(parse_scheduling(spec), tasks, 10)[1].explain(2)
        for spec in ("least_service", "oldest_task", "admit", "admit:running=remaining")
    }
    assert reasons == {
        "least_service": "has had 1.00 s of generation time",
        "oldest_task": "task is 6.00 s old",
        "admit": "running, runs out in 1.00 s",
        "admit:running=remaining": "running, runs out in 1.00 s, about 15 rounds to go",
    }
    assert decide(Admit(), tasks, 10)[1].explain(0) == "new for 10.00 s, about 16 rounds expected"


def test_nothing_pending_is_a_decision_too():
    for spec in BUILTIN:
        decision = parse_scheduling(spec).decide(
            0, Pending.of(TaskTable(), {}), TaskTable(), engine(4)
        )
        assert decision.order.size == decision.left.size == len(decision.batches) == 0


def test_policies_are_named_in_one_line():
    assert parse_scheduling("wait_ratio:buckets=5,aging=none,age=ceil,init=true") == WaitRatio(
        buckets=5, aging=None, age="ceil", init=True
    )
    assert parse_scheduling("admit:alpha=0.5") == Admit(0.5)
    assert parse_scheduling("fifo") == Fifo()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("lifo", "known here: " + ", ".join(sorted(BUILTIN))),
        ("fifo:buckets=3", "'fifo' has no option 'buckets'; its options are: none"),
        ("wait_ratio:buckets=0", "buckets must be at least 1, not 0"),
        ("wait_ratio:aging=0", "at least 1 skip, or none, not 0"),
        ("wait_ratio:age=round", "age is floor or ceil, not 'round'"),
        ("wait_ratio:init=maybe", "init must be of type bool, not 'maybe'"),
        ("admit:alpha=-1", "not negative, not -1.0"),
    ],
)
def test_a_wrong_policy_text_says_what_is_wrong(text, what):
    with pytest.raises(ConfigError, match=what):
        parse_scheduling(text)


def test_ranks_read_as_english():
    assert [ordinal(n) for n in (1, 2, 3, 4, 11)] == ["1st", "2nd", "3rd", "4th", "11th"]
    assert [ordinal(n) for n in (12, 13, 21, 112, 123)] == [
        "12th",
        "13th",
        "21st",
        "112th",
        "123rd",
    ]


def test_rows_need_not_be_in_order():
    tasks = TaskTable()
    for key, start in (("a", 3), ("b", 1), ("c", 2)):
        add(tasks, key, start)
    pending = Pending(tasks.rows_of("ca"), np.array([5, 5]))
    assert OldestTask().decide(9 * S, pending, tasks, engine(1)).order.tolist() == [0, 1]
