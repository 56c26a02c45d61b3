"""The judge of a drill: what it lets pass, and what it does not. No processes."""

import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from kairos_ros.bringup.plan import robot
from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.drill.drill import possible
from kairos_ros.lab.drill.faults import FAULTS, choose
from kairos_ros.lab.drill.figure import draw
from kairos_ros.lab.drill.guard import guard_of
from kairos_ros.lab.drill.proof.evidence import BodyTask, body_tasks, prove
from kairos_ros.lab.drill.proof.exchange import Exchange, SeenChunk, SeenRequest, TaskEnd
from kairos_ros.lab.drill.proof.message_verdict import judge_messages
from kairos_ros.lab.drill.proof.motion import commands, longest_hold_s, longest_silence_s, spans
from kairos_ros.lab.drill.proof.policy_turns import Turn, given, mislabelled
from kairos_ros.lab.drill.proof.verdict import BodyLogs, Check, FaultLimits, Window, judge
from kairos_ros.lab.drill.report import failures, markdown, write
from kairos_ros.lab.drill.run import FaultResult, read_body
from kairos_ros.lab.testbed.tied_program import TIED_PROGRAM
from kairos_ros.recording.runs.run import Span
from kairos_ros.robot.adapter import TaskGoal
from kairos_ros.robot.adapters.sim.sim import SimAdapter, gymnasium_body
from kairos_ros.robot.body_log import BodyEvent, BodyLog, LoggedBody, log_path, read_body_log
from kairos_ros.telemetry.events import TaskKey

KEY = TaskKey("arm_1", "s", "1")
DRAW = np.random.default_rng(1)
FIRST, SECOND, FOREIGN = (DRAW.uniform(-1, 1, (n, 4)).astype(np.float32) for n in (6, 8, 8))
PERIOD_NS = 33_000_000
LIMITS = FaultLimits()


def anything(action, state):
    """A guard that lets everything pass."""
    return action


def state(n):
    return np.array([n, 0.5], np.float32)


class Life:
    """A body's log as it is written, and what was said meanwhile."""

    def __init__(self, key=KEY):
        self.key, self.now_ns = key, 0
        self.events, self.asked, self.answered = [], [], []
        self._add("reset")
        self._add("ready")

    def _add(self, kind, **content):
        self.now_ns += PERIOD_NS if kind in ("act", "hold") else 1
        self.events.append(BodyEvent(kind, self.now_ns, **content))

    def ask(self, round, attempt=0):
        seen = state(len(self.events))
        self._add("observe", state=seen)
        self.asked.append(SeenRequest(self.now_ns / 1e9, self.key, round, attempt, seen))
        return self

    def get(self, actions, round, attempt=0, tier="edge"):
        at_s = self.now_ns / 1e9
        self.answered.append(SeenChunk(at_s, self.key, round, attempt, actions, tier, tier))
        return self

    def act(self, actions):
        for action in actions:
            self._add("act", state=state(0), action=action)
        return self

    def hold(self, periods=1):
        for _ in range(periods):
            self._add("hold")
        return self

    def body(self):
        return BodyTask(self.key, tuple(self.events))

    def proof(self, guard=anything, elsewhere=None):
        return prove(self.body(), self.asked, self.answered, guard, elsewhere)


def begun():
    """Four actions of the first chunk, then a look at the world for the second one."""
    return Life().ask(1).hold(3).get(FIRST, 1).act(FIRST[:4]).ask(2)


def honest():
    return begun().act(FIRST[4:]).get(SECOND, 2).act(SECOND[2:])


def test_actions_of_the_chunks_that_were_answered_are_proven_one_by_one():
    proof = honest().proof()
    assert (proof.proven, proof.wrong) == (12, [])
    chunks = honest().answered
    assert proof.rounds == {1: chunks[0].digest, 2: chunks[1].digest}


def test_an_action_that_was_changed_by_one_bit_fails():
    actions = SECOND[2:].copy()
    actions[3, 1] = np.nextafter(actions[3, 1], 2, dtype=np.float32)
    proof = begun().act(FIRST[4:]).get(SECOND, 2).act(actions).proof()
    assert proof.wrong == ["action 9 is in no chunk at all"]
    assert proof.proven == 11


def test_an_action_for_another_robot_fails_and_is_named():
    life = begun().act(FIRST[4:]).get(SECOND, 2).act(FOREIGN[2:3])
    other = TaskKey("arm_2", "t", "7")
    theirs = [SeenChunk(0.0, other, 5, 0, FOREIGN, "cloud", "cloud")]
    proof = life.proof(elsewhere={other: theirs})
    assert proof.wrong == ["action 6 is action 2 of round 5 of task 7 of arm_2"]


def test_an_action_of_a_server_that_was_not_asked_fails_and_is_named():
    life = Life().ask(1)
    life.asked = [replace(request, server="ours") for request in life.asked]
    life.get(FIRST, 1).get(FOREIGN, 1)
    life.answered = [replace(life.answered[0], server="ours"), replace(life.answered[1], server="")]
    life.act(FIRST[:2]).act(FOREIGN[2:3])
    proof = life.proof(elsewhere={KEY: life.answered})
    assert proof.proven == 2
    said = "action 2 is action 2 of round 1 of this task, from a server that was not asked"
    assert proof.wrong == [said]


def of_policies(life, *policies):
    life.answered = [replace(a, policy=p) for a, p in zip(life.answered, policies, strict=True)]
    return life


def test_an_action_of_another_policy_than_that_of_the_task_fails_and_is_named():
    life = of_policies(honest(), "old", "new")
    proof = life.proof(elsewhere={KEY: life.answered})
    assert (proof.proven, proof.policy) == (6, "old")
    assert len(proof.wrong) == 6
    assert proof.wrong[0] == "action 6 is of round 2, of policy new instead of old"


TURNS = (Turn("old"), Turn("new", 0.2, 0.4), Turn("old", 5.0, 5.5))


def test_a_task_gets_the_policy_of_its_time_and_while_that_changes_either():
    assert given(TURNS, 0.0, 0.1) == {"old"}
    assert given(TURNS, 0.1, 0.3) == given(TURNS, 0.3, 0.5) == {"old", "new"}
    assert given(TURNS, 0.5, 4.9) == {"new"}
    assert given(TURNS, 5.6, 9.0) == {"old"}


def test_a_task_on_a_policy_that_new_tasks_did_not_get_then_fails_the_robot():
    """It is accepted at 0 s and moves after 0.1 s."""
    life = of_policies(honest(), "new", "new")
    end_s = life.now_ns / 1e9
    window = Window(0.0, end_s, end_s, TURNS)
    body = BodyLogs("arm_1", {"s": [BodyEvent("task", 0, "1"), *life.events]})
    found = judge(body, exchange_of(life), anything, window, FaultLimits(wait_s=60))
    assert found.wrong == ("task 1: 12 actions of policy new, not old",)
    assert failed(found) == ["no wrong action"]
    soon = replace(window, turns=(Turn("old"), Turn("new", 0.05, 0.4)))
    found = judge(body, exchange_of(life), anything, soon, FaultLimits(wait_s=60))
    assert (found.wrong, found.policies) == ((), {"1": "new"})


def test_a_chunk_that_names_another_policy_than_made_it_is_told_by_its_values():
    life = honest()
    marked = np.full((8, 4), life.asked[1].state[0] + np.float32(0.25), np.float32)
    life.answered[1] = replace(life.answered[1], actions=marked)

    def told(*policies):
        exchange = exchange_of(of_policies(life, *policies))
        return list(mislabelled(exchange, "new", 0.25, since_s=0.0))

    assert told("old", "new") == []
    assert told("old", "old") == ["round 2 of task 1 of arm_1 names old"]
    assert told("new", "new") == ["round 1 of task 1 of arm_1 names new"]


def test_only_chunks_of_the_servers_that_were_asked_count_as_answers():
    life = honest()
    exchange = Exchange()
    exchange.asked[KEY] = [replace(request, server="ours") for request in life.asked]
    ours, theirs = (replace(a, server=s) for a, s in zip(life.answered, ("ours", ""), strict=True))
    exchange.answered[KEY] = [ours, theirs]
    assert exchange.answers(KEY) == [ours]
    assert exchange.foreign(0.0) == [theirs]
    assert list(exchange.chunks(0.0, 100.0)) == [ours]


def test_an_action_that_is_executed_twice_fails():
    proof = begun().act(FIRST[4:]).act(FIRST[5:]).proof(elsewhere={KEY: begun().answered})
    assert proof.wrong == ["action 6 is action 5 of round 1 of this task"]


def test_a_chunk_from_which_nothing_was_skipped_although_actions_had_elapsed_fails():
    proof = begun().act(FIRST[4:]).get(SECOND, 2).act(SECOND[:2]).proof()
    assert len(proof.wrong) == 2


def test_an_older_round_after_a_newer_one_fails():
    life = begun().get(SECOND, 2).act(SECOND[:1]).act(FIRST[5:])
    assert len(life.proof().wrong) == 1


def test_a_chunk_for_an_observation_that_the_body_never_made_fails():
    life = begun().act(FIRST[4:])
    life.asked[-1] = replace(life.asked[-1], state=state(-1))
    assert len(life.get(SECOND, 2).act(SECOND[2:]).proof().wrong) == 6


def test_a_chunk_for_a_fetched_again_observation_counts_from_that_one():
    life = begun().act(FIRST[4:5]).ask(2, attempt=1).act(FIRST[5:])
    assert life.get(SECOND, 2, attempt=1).act(SECOND[1:]).proof().wrong == []


def test_what_the_guard_makes_of_an_action_is_what_must_be_executed():
    guard = guard_of(robot("arm").params_file)
    wild = np.full((1, 4), 1.7, np.float32)
    inside = np.zeros(39, np.float32)
    inside[:3] = 0.0, 0.6, 0.2

    def done(action):
        life = Life().ask(1).get(wild, 1)
        life.events.append(BodyEvent("act", 1, state=inside, action=action))
        return life.proof(guard)

    assert done(np.ones(4, np.float32)).wrong == []
    assert len(done(wild[0]).wrong) == 1


def exchange_of(life, outcome="succeeded", ended=True):
    exchange = Exchange(asked=defaultdict(list), answered=defaultdict(list))
    exchange.asked[life.key] += life.asked
    exchange.answered[life.key] += life.answered
    exchange.began_s[life.key] = 0.0
    if ended:
        acts = sum(1 for _ in life.body().acts)
        at_s = life.now_ns / 1e9
        exchange.ended[life.key] = TaskEnd(at_s, life.key, outcome, True, acts, 0)
    return exchange


def verdict(life, exchange=None, limits=LIMITS, begin_s=0.0):
    log = [BodyEvent("task", 0, life.key.task), *life.events]
    end_s = life.now_ns / 1e9
    window = Window(begin_s, end_s, end_s)
    body = BodyLogs(life.key.robot, {life.key.session: log})
    return judge(body, exchange or exchange_of(life), anything, window, limits)


def failed(found):
    return [check.name for check in found.checks if not check.ok]


def test_a_robot_that_came_through_passes_and_says_with_what():
    found = verdict(honest())
    assert found.passed
    assert (found.tasks, found.finished, found.proven, found.wrong) == (1, 1, 12, ())
    assert found.chunks == {"edge": 2}
    assert found.hold_s == pytest.approx(3 * 0.033, abs=0.01)
    assert found.digests["1/1"] == honest().answered[0].digest


def test_a_planted_wrong_action_fails_the_robot():
    assert failed(verdict(honest().act(FOREIGN[:1]))) == ["no wrong action"]


def test_a_task_that_never_ended_or_was_refused_is_lost():
    life = honest()
    assert failed(verdict(life, exchange_of(life, ended=False))) == ["no task lost"]
    assert failed(verdict(life, exchange_of(life, "refused: no"))) == ["no task lost"]


def test_a_robot_that_tells_of_other_actions_than_its_body_fails():
    life = honest()
    exchange = exchange_of(life)
    exchange.ended[KEY] = replace(exchange.ended[KEY], actions=11)
    assert failed(verdict(life, exchange)) == ["counts agree"]


def test_a_body_that_is_told_nothing_for_too_long_fails():
    life = honest()
    life.now_ns += 2_000_000_000
    assert failed(verdict(life.hold())) == ["moving or holding"]
    assert verdict(life, limits=FaultLimits(silence_s=3.0)).passed


def test_a_robot_that_is_not_served_after_the_fault_fails():
    assert failed(verdict(honest(), begin_s=0.4)) == ["served again"]


def test_a_robot_that_waits_in_vain_until_its_task_is_over_fails_though_the_next_one_is_served():
    starved = honest().ask(3).hold(400)  # 13 s
    exchange = exchange_of(starved, "max_duration")
    later = TaskKey("arm_1", "s", "2")
    exchange.asked[later].append(SeenRequest(13.7, later, 1, 0, state(0)))
    exchange.answered[later].append(SeenChunk(13.8, later, 1, 0, FIRST, "edge", "edge"))
    window = Window(0.3, 14.0, 14.0)
    found = judge(BodyLogs("arm_1", {"s": starved.events}), exchange, anything, window, LIMITS)
    assert found.wait_s == pytest.approx(13.2, abs=0.1)
    assert "served again" in failed(found)


def test_a_round_that_the_robot_gave_up_for_the_next_one_waited_no_longer():
    life = begun().act(FIRST[4:]).hold(30).ask(3).get(SECOND, 3).act(SECOND[:4])
    exchange = exchange_of(life)
    assert verdict(life, exchange).wait_s == pytest.approx(32 * 0.033, abs=0.05)


def test_a_robot_whose_process_is_ended_is_judged_by_what_the_next_one_does():
    first, then = Life(TaskKey("arm_1", "s", "1")), honest()
    then.key = TaskKey("arm_1", "t", "1")
    exchange = exchange_of(first, ended=False)
    later_s = 10.0
    for what in (then.asked, then.answered):
        what[:] = [replace(x, key=then.key, at_s=x.at_s + later_s) for x in what]
    moved = [replace(e, at_ns=e.at_ns + round(later_s * 1e9)) for e in then.events]
    exchange.asked[then.key] += then.asked
    exchange.answered[then.key] += then.answered
    exchange.ended[then.key] = TaskEnd(11.0, then.key, "succeeded", True, 12, 0)
    logs = {
        "s": [BodyEvent("task", 0, "1"), *first.act(FOREIGN).events],
        "t": [BodyEvent("task", round(later_s * 1e9), "1"), *moved],
    }
    window = Window(0.5, 10.5, 10.5)
    found = judge(
        BodyLogs("arm_1", logs), exchange, anything, window, FaultLimits(wait_s=60), victim=True
    )
    assert found.passed
    assert found.wait_s == pytest.approx(9.6, abs=0.1)
    whole = judge(BodyLogs("arm_1", logs), exchange, anything, window, FaultLimits(wait_s=60))
    assert "no wrong action" in failed(whole)


def test_holding_is_told_apart_by_whether_there_is_a_task_and_resets_break_it():
    events = [BodyEvent("ready", 0), *(BodyEvent("hold", n * PERIOD_NS) for n in range(1, 10))]
    told = commands(events, ends_s=[0.17])
    assert [c.activity for c in told] == ["holding"] * 5 + ["idle"] * 4
    assert [s.activity for s in spans("arm_1", told)] == ["holding", "idle"]
    again = [BodyEvent("ready", 2 * 10**9), BodyEvent("hold", 2 * 10**9 + PERIOD_NS)]
    held_s = longest_hold_s(commands([*events, *again], []), 0, 10)
    assert held_s == pytest.approx(9 * 0.033, abs=0.01)


def test_a_task_ends_with_its_last_action_also_where_that_was_heard_late():
    life = honest().hold(60)
    exchange = exchange_of(life)
    assert {s.activity for s in verdict(life, exchange).spans} == {"executing", "holding", "idle"}
    assert verdict(life, exchange).hold_s < 0.2
    exchange.ended[KEY] = replace(exchange.ended[KEY], outcome="max_duration")
    assert verdict(life, exchange).hold_s == pytest.approx(60 * 0.033, abs=0.1)


def test_a_body_at_work_in_its_reset_is_not_silent_but_one_that_ends_is():
    events = [BodyEvent("reset", 0), BodyEvent("ready", 5 * 10**9), BodyEvent("act", 5 * 10**9)]
    assert longest_silence_s(events, 0.0, 5.0) == 0
    assert longest_silence_s(events, 0.0, 8.0) == pytest.approx(3.0)


def test_a_body_log_holds_what_the_body_did_also_when_its_end_is_torn_off(tmp_path):
    path = log_path(tmp_path / "bodies", "arm_1", "s")
    record = BodyLog(path)
    body = LoggedBody(SimAdapter(gymnasium_body("Pendulum-v1")), record)
    record.write("task", "1")
    body.reset(TaskGoal("swing"))
    seen = body.observe().state
    before = body.state().copy()
    body.act(np.array([0.25], np.float32))
    body.hold()
    path.write_bytes(path.read_bytes()[:-3])
    (task,) = body_tasks("arm_1", "s", read_body_log(path))
    assert [event.kind for event in task.events] == ["reset", "ready", "observe", "act"]
    assert np.array_equal(task.events[2].state, seen)
    assert np.array_equal(task.events[3].state, before)
    assert task.events[3].action == np.float32(0.25)
    assert body.spec.action_dim == 1
    body.close()
    exchange = Exchange(began_s={KEY: 0.0})
    assert list(read_body(tmp_path / "bodies", "arm_1", exchange).logs) == ["s"]


def test_a_body_log_that_cannot_be_made_or_read_says_so(tmp_path):
    log = tmp_path / "a.body"
    BodyLog(log)
    with pytest.raises(ConfigError, match=r"body_log: .*a\.body cannot be made"):
        BodyLog(log)
    log.write_bytes(b"\x93\x01\x02\x03")
    with pytest.raises(ConfigError, match="no body log"):
        list(read_body_log(log))


def test_faults_are_chosen_by_name_and_an_unknown_one_is_named():
    assert [f.name for f in choose("garbage, link_cut", quick=False)] == ["garbage", "link_cut"]
    assert len(choose("", quick=False)) == len(FAULTS) > len(choose("", quick=True)) > 3
    with pytest.raises(ConfigError, match="'cut_link'; choose from cloud_killed, link_cut"):
        choose("cut_link", quick=False)


def test_a_report_names_what_failed_and_is_written_with_a_picture(tmp_path):
    good, bad = verdict(honest()), verdict(honest().act(FOREIGN[:1]))
    window = Window(0.0, 0.3, 0.5)
    checks = (Check("noticed", True, "after 1.5 s"),)
    result = FaultResult("link_cut", "link cut for 5 s", checks, (good, bad), window, 12.0)
    assert not result.passed
    assert failures([result]) == [
        "link_cut, arm_1, no wrong action: action 12 is in no chunk at all"
    ]
    assert "| link cut for 5 s | 1 of 2 pass | 2/2 | 24, 1 |" in markdown([result])
    write(tmp_path, [result], {"robots": 2})
    assert '"passed": false' in (tmp_path / "drill.json").read_text()
    draw(tmp_path / "cut.png", result)
    assert (tmp_path / "cut.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_skewed_program_sees_clocks_that_are_off(tmp_path):
    program = tmp_path / "tell.py"
    program.write_text("import sys, time; print(time.time(), time.monotonic_ns() / 1e9, sys.argv)")
    skewed = [sys.executable, "-m", TIED_PROGRAM, str(os.getpid()), "-10", "86400"]

    def told(prefix):
        out = subprocess.run([*prefix, program, "x"], capture_output=True, text=True, check=True)
        wall, monotonic, *_ = out.stdout.split()
        assert "tell.py', 'x']" in out.stdout
        return float(wall), float(monotonic)

    (wall, monotonic), (off, ahead) = told([sys.executable]), told(skewed)
    assert off - wall < -5
    assert ahead - monotonic > 86_000


def words(executed=(6, 6), outcome="succeeded", pulse_s=0.2, activity="executing"):
    """What a robot without a body log says of an honest life."""
    life = honest()
    exchange = exchange_of(life, outcome)
    exchange.ended[KEY] = replace(exchange.ended[KEY], executed=executed)
    end_s = life.now_ns / 1e9
    exchange.pulses["arm_1"] += np.arange(0.0, end_s, pulse_s).tolist()
    window = Window(0.0, end_s, end_s)
    told = [Span("arm_1", 0.0, end_s, activity)]
    return judge_messages("arm_1", exchange, told, window, FaultLimits(silence_s=0.3))


def test_a_robot_without_a_body_log_is_judged_by_its_words_and_nothing_is_proven():
    found = words()
    assert found.passed
    assert (found.tasks, found.finished, found.proven, found.hold_s) == (1, 1, None, 0.0)
    assert words(activity="holding").hold_s > 0.4


def test_words_that_do_not_fit_what_was_answered_fail():
    assert failed(words(executed=(7, 6))) == ["rounds agree"]
    assert failed(words(executed=(6, 6, 1))) == ["rounds agree"]
    assert failed(words(outcome="refused: no")) == ["no task lost"]
    assert words(outcome="canceled").passed
    assert failed(words(pulse_s=0.4)) == ["moving or holding"]


def test_a_robot_that_called_a_human_because_of_a_fault_fails_with_the_reason():
    exchange = exchange_of(honest())
    exchange.calls["arm_1"] += [(-1.0, "before"), (0.2, "monitor is overdue; 2 times in a row")]
    exchange.pulses["arm_1"] += [0.0]
    window = Window(0.0, 1.0, 1.0)
    found = judge_messages("arm_1", exchange, [], window, LIMITS)
    assert failures([FaultResult("serving_paused", "", (), (found,), window, 1.0)]) == [
        "serving_paused, arm_1, no human called: after 0.2 s: monitor is overdue; 2 times in a row"
    ]


def test_a_robot_without_a_task_is_not_judged_by_its_words():
    window = Window(0.0, 1.0, 1.0)
    assert judge_messages("arm_1", Exchange(), [], window, LIMITS) is None
    nobody = FaultResult("link_cut", "link cut for 5 s", (), (), window, 1.0)
    assert not nobody.passed
    assert "| link cut for 5 s | 0 of 0 pass | 0/0 |" in markdown([nobody])


def test_a_running_fleet_gets_only_faults_that_touch_it_from_outside_and_the_others_are_told():
    chosen, why = possible(FAULTS, access=True)
    assert [fault.name for fault in chosen] == ["garbage", "oversized", "serving_paused"]
    assert why["robot_killed"] == "ends a process"
    assert len(chosen) + len(why) == len(FAULTS)
    chosen, why = possible(choose("garbage", quick=False), access=False)
    assert (chosen, why) == ([], {"garbage": "needs --worker and --keys"})


def test_the_oldest_open_task_is_that_of_the_newest_session_and_not_one_that_ended():
    exchange = Exchange()
    exchange.began_s[TaskKey("arm_1", "old", "3")] = 1.0  # its process was killed
    exchange.began_s[TaskKey("arm_1", "new", "1")] = 5.0
    exchange.began_s[TaskKey("arm_2", "s", "9")] = 7.0
    assert exchange.oldest_open_s() == 5.0
    exchange.ended[TaskKey("arm_1", "new", "1")] = TaskEnd(6.0, KEY, "succeeded", True, 1, 0)
    assert exchange.oldest_open_s() == 7.0
    assert Exchange().oldest_open_s() == float("inf")
