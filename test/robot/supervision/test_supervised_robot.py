"""A supervised robot with its real control thread and a simulated body."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("metaworld")

from task_rules import MS, SAFETY, rules

from kairos_ros.core.exchange import Actions, Answer, Observation
from kairos_ros.core.execution.latency import LatencyEstimate
from kairos_ros.core.execution.loop import Loop, LoopConfig
from kairos_ros.core.execution.task import Task
from kairos_ros.core.pipeline import Fallback, TaskState
from kairos_ros.robot.adapter import Homing, TaskGoal
from kairos_ros.robot.adapters.sim.metaworld_scenes import SCENES
from kairos_ros.robot.adapters.sim.sim import SimAdapter, gymnasium_body
from kairos_ros.robot.body_log import BodyLog, LoggedBody
from kairos_ros.robot.control import Controller
from kairos_ros.robot.control_events import Arrived, Cancel, Planned, Start, StopControl
from kairos_ros.robot.guard import ActionGuard, GuardLimits
from kairos_ros.robot.motion_watch import MotionWatch
from kairos_ros.robot.supervision.state_events import CellVerdict, Progress, Release
from kairos_ros.robot.supervision.state_table import HOLDING, RETRYING, RETURNING, RUNNING, WAITING
from kairos_ros.robot.supervision.supervisor import Supervisor

pytestmark = pytest.mark.slow

RATE_HZ = 50.0
AWAY = np.array([0.7, 0.4, -0.4, 1.0], np.float32)
"""Moves the hand sideways, away from where it begins."""


class Cell:
    """The world around one robot: a server that answers at once, and a log of the body's motions,
    each with the time at which it began."""

    def __init__(self, task_rules, scene="reach-v3", max_actions=0, motion=None):
        self.max_actions = max_actions
        self.motions = []
        self.transitions = []
        self.moved_in = []
        """Ids of the tasks of the transitions."""
        self.plans = []
        self.asked_ago_ns = []
        self.results = []
        self.body = SimAdapter(control_rate_hz=RATE_HZ)
        for name in ("act", "hold", "reset"):
            self._log(name)
        config = LoopConfig("arm_1", "now", 4, round(1e9 / RATE_HZ), 0, 10**9, 10**10)
        loop = Loop(config, LatencyEstimate(0, 0))
        self.loop = loop
        limits = GuardLimits(minimum=[-1.0] * 4, maximum=[1.0] * 4)
        guard = ActionGuard(limits, 4, self.body.spec.state_dim, RATE_HZ)
        supervised = (Supervisor(loop, task_rules), self)
        self.controller = Controller(self.body, loop, guard, self, supervised, motion)
        self.thread = threading.Thread(target=self.controller.run)
        self.goal = TaskGoal(SCENES[scene], scene, 3)

    def __enter__(self):
        self.thread.start()
        self.begin("1")
        return self

    def __exit__(self, *_):
        self.controller.post(StopControl())
        self.thread.join()

    def begin(self, task):
        self.controller.post(
            Start(Task(task, self.goal.instruction, max_actions=self.max_actions), self.goal)
        )

    def _log(self, name):
        method = getattr(self.body, name)

        def logged(*arguments):
            self.motions.append((time.monotonic_ns(), name))
            method(*arguments)

        setattr(self.body, name, logged)

    def judge(self, safe=True):
        now_ns = time.monotonic_ns()
        self.controller.post(CellVerdict(now_ns, now_ns, safe, reason="" if safe else "a hand"))
        return now_ns

    def says(self, state):
        now_ns = time.monotonic_ns()
        self.controller.post(Progress(now_ns, now_ns, state))

    def until(self, condition, safe=None):
        """Waits for it, judging the cell all the while if `safe` is given."""
        for _ in range(600):
            if condition():
                return
            if safe is not None:
                self.judge(safe)
            time.sleep(0.05)
        pytest.fail(f"did not come about; the robot is {self.controller.report.mode}")

    def is_(self, mode):
        return lambda: self.controller.report.mode is mode

    def acts_after(self, ns):
        return sum(name == "act" and began > ns for began, name in list(self.motions))

    # ControlListener and SupervisionListener, called in the control thread.

    def send(self, request):
        answer = Answer(request.id, Actions(np.tile(AWAY, (20, 1)), np.ones(20, np.float32)))
        self.controller.post(Arrived(answer, time.monotonic_ns()))

    def changed(self, report):
        pass

    def finished(self, result):
        self.results.append(result)

    def unready(self): ...

    def acting(self, action, state): ...

    def period(self, state):
        pass

    def ask_plan(self, ask, observation, observed_ago_ns):
        self.plans.append(ask)
        self.asked_ago_ns.append(observed_ago_ns)
        self.controller.post(Planned(ask.number, f"plan {ask.number}", time.monotonic_ns()))

    def moved(self, transition, task):
        self.transitions.append(transition)
        self.moved_in.append(task)


def patient(**changes):
    """Rules under which a busy machine's hiccups are no violations worth a human, and a judge that
    gets no processor for a while is not overdue."""
    made = rules(
        system1=None,
        monitor=None,
        **{"system2": None, "max_consecutive_slo_violation": 10**6, **changes},
    )
    slow = {c: replace(r, slo_ns=5000 * MS) for c, r in made.components.items() if c is SAFETY}
    return replace(made, components={**made.components, **slow})


def test_a_warning_is_heeded_by_the_next_period_however_many_events_wait_before_it():
    with Cell(patient()) as cell:
        cell.until(lambda: cell.controller.report.task_actions > 5, safe=True)
        for _ in range(200):
            cell.controller.post(Cancel("another task"))
        cell.judge(safe=False)
        warned_ns = time.monotonic_ns()
        cell.until(cell.is_(HOLDING))
        periods = cell.controller.report.periods
        cell.until(lambda: cell.controller.report.periods > periods + 10)
        assert cell.acts_after(warned_ns) <= 1  # the motion that had begun
        assert cell.transitions[-1].reason == "unsafe: a hand"
        cell.until(cell.is_(RUNNING), safe=True)
        cell.until(lambda: cell.acts_after(warned_ns) > 5, safe=True)


class Blocked:
    """An arm that does not move as its actions say, from its twentieth control period on."""

    threshold, settle, wait, unusable, joint = 6.0, 1, 5, 0, "elbow"

    def __init__(self):
        self.steps = 0

    def step(self, action, state):
        self.steps += 1
        return 9.0 if self.steps > 20 else 0.0

    def begin(self):
        self.steps = 0


def test_a_surprise_that_lasts_ends_the_task_with_the_joint_and_the_arm_holds():
    motion = MotionWatch(Blocked(), hold_ns=200_000_000)
    with Cell(patient(), motion=motion) as cell:
        cell.until(lambda: cell.results, safe=True)
        ended_ns = time.monotonic_ns()
        cell.until(lambda: time.monotonic_ns() - ended_ns > 300_000_000, safe=True)
        (result,) = cell.results
        assert result.outcome.startswith("failed: contact: elbow has not moved as its actions say")
        assert not result.success
        assert cell.acts_after(ended_ns) == 0
        assert cell.motions[-1][1] == "hold"
        assert cell.controller.report.surprises > 0  # it asked first


def test_a_robot_whose_safety_service_falls_silent_holds_by_itself():
    with Cell(patient()) as cell:
        cell.until(lambda: cell.controller.report.task_actions > 5, safe=True)
        cell.until(cell.is_(HOLDING))
        assert cell.transitions[-1].reason == "safety is overdue"
        assert {*cell.moved_in} == {cell.controller.report.task.id}  # the first one's, too


def test_the_arm_goes_back_to_its_safe_state_under_the_guard():
    assert isinstance(SimAdapter(), Homing)
    with Cell(patient(safety=Fallback.RETURN_TO_SAFE_STATE)) as cell:
        cell.until(lambda: cell.controller.report.task_actions > 40, safe=True)
        away = cell.body.state()[:3]
        cell.judge(safe=False)
        there = "the body is at its safe state"
        cell.until(lambda: any(t.reason == there for t in cell.transitions))
        assert {t.before for t in cell.transitions if t.reason == there} == {RETURNING}
        assert np.linalg.norm(cell.body.state()[:3] - away) > 0.05
        assert cell.body.toward_safe_state() is None


def test_a_failed_attempt_lays_the_scene_out_again_and_a_human_gets_the_second_failure():
    retrying = rules(
        system1=None,
        system2=None,
        safety=None,
        max_task_retries=1,
        max_consecutive_slo_violation=99,
    )
    with Cell(retrying) as cell:
        cell.until(lambda: cell.controller.report.task_actions > 20)
        start = cell.body._start.copy()
        cell.says(TaskState.FAILED)
        cell.until(lambda: any(t.before is RETRYING for t in cell.transitions))
        assert [name for _, name in cell.motions].count("reset") == 2
        np.testing.assert_array_equal(cell.body._start, start)
        assert cell.controller.report.retries == 1
        cell.until(cell.is_(RUNNING))
        cell.says(TaskState.FAILED)
        cell.until(cell.is_(WAITING))
        cell.controller.post(Cancel("1"))
        cell.until(lambda: cell.results)
        cell.begin("2")
        cell.until(lambda: len(cell.results) == 2)
        assert "waits for a human" in cell.results[1].outcome
        cell.controller.post(Release(time.monotonic_ns(), "Ada", "put the puck back"))
        cell.until(cell.is_(HOLDING))
        cell.begin("3")
        cell.until(cell.is_(RUNNING))


def test_a_monitored_task_ends_when_the_monitor_says_so_and_not_when_the_body_knows():
    monitored = rules(system1=None, system2=None, safety=None, max_consecutive_slo_violation=99)
    with Cell(monitored) as cell:
        cell.body.succeeded = lambda: True
        cell.until(lambda: cell.controller.report.task_actions > 10)
        assert not cell.results
        cell.says(TaskState.DONE)
        cell.until(lambda: cell.results)
        assert cell.results[0].outcome == "succeeded"


@pytest.mark.parametrize("monitored", [False, True])
def test_a_task_at_its_limit_has_ended_well_only_where_nothing_can_tell_success(monitored):
    monitor = {} if monitored else {"monitor": None}
    task_rules = rules(system1=None, system2=None, safety=None, **monitor)
    with Cell(task_rules, max_actions=10) as cell:
        cell.body.succeeded = lambda: None
        cell.until(lambda: cell.results)
        assert (cell.results[0].outcome, cell.results[0].ended) == ("max_actions", not monitored)


def test_plans_are_asked_for_with_an_observation_and_reach_the_requests():
    with Cell(patient(safety=None, system2=Fallback.USE_LAST_PLAN)) as cell:
        cell.until(lambda: len(cell.plans) > 2)
        assert [ask.number for ask in cell.plans[:3]] == [1, 2, 3]


def test_a_planner_is_told_how_old_the_oldest_of_its_pictures_is():
    with Cell(rules(safety=None, system1=None, monitor=None)) as cell:
        state = cell.body.state
        cell.until(lambda: cell.plans)
        cell.body.observe = lambda: Observation(state(), {}, time.monotonic_ns() - 3 * 10**9)
        cell.until(lambda: len(cell.plans) > 2)
        assert cell.asked_ago_ns[0] < 3 * 10**9 < cell.asked_ago_ns[-1]


def test_a_body_is_not_prepared_for_a_task_while_somebody_is_in_its_cell():
    with Cell(patient()) as cell:
        cell.until(lambda: cell.controller.report.task_actions > 5, safe=True)
        cell.controller.post(Cancel("1"))
        cell.until(lambda: cell.results, safe=True)
        cell.judge(safe=False)
        for task in ("2", "3"):
            resets = [name for _, name in cell.motions].count("reset")
            cell.judge(safe=False)
            cell.begin(task)
            later = cell.controller.report.periods + 10
            cell.until(lambda later=later: cell.controller.report.periods > later, safe=False)
            assert [name for _, name in cell.motions].count("reset") == resets
            if task == "2":
                cell.controller.post(Cancel("2"))
                cell.until(lambda: len(cell.results) == 2, safe=False)
                assert cell.results[1].outcome == "canceled"
        cell.until(cell.is_(RUNNING), safe=True)
        assert cell.controller.report.task.id == "3"


def test_judgements_of_a_robot_without_rules_are_dropped_and_counted():
    cell = Cell(patient())
    config = cell.loop.config
    controller = Controller(
        cell.body,
        cell.loop,
        ActionGuard(GuardLimits(), 4, cell.body.spec.state_dim, RATE_HZ),
        cell,
    )
    cell.controller = controller
    cell.thread = threading.Thread(target=controller.run)
    assert config.robot == "arm_1"
    with cell:
        cell.until(lambda: controller.report.task_actions > 5, safe=False)
        assert controller.report.dropped["not_supervised"] > 0
        assert controller.report.mode is None


def test_a_body_whose_commands_are_logged_knows_its_way_home_all_the_same(tmp_path):
    cell = Cell(patient())
    body = LoggedBody(cell.body, BodyLog(tmp_path / "body.jsonl"))
    guard = ActionGuard(GuardLimits(), 4, cell.body.spec.state_dim, RATE_HZ)
    controller = Controller(body, cell.loop, guard, cell)
    assert controller._homeward == cell.body.toward_safe_state


def test_a_body_without_a_way_home_says_so():
    body = SimAdapter(gymnasium_body("Pusher-v5"))
    assert not body.has_safe_state
