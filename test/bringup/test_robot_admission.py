"""Robots that join a planned fleet from elsewhere: what is planned for them, what they are told."""

import time
from pathlib import Path

import pytest
import yaml

from kairos_ros.bringup.planned import robot_admission
from kairos_ros.bringup.planned.change import change, planned_fleet
from kairos_ros.bringup.planned.planner import FleetPlanner, PlanChoices, exchanged, forget, refuse
from kairos_ros.bringup.planned.robot_admission import JoinRequest, RobotAdmissions, task_of
from kairos_ros.core.errors import KairosError
from kairos_ros.core.placement.served_plan import read_served_plan

CONFIG = Path(__file__).parents[2] / "config"


@pytest.fixture
def file(tmp_path):
    """Of a fleet file with three slots, two arms that swing, and one that drives."""

    def write(gpus=3, swing=2, drive=1, **changes):
        data = yaml.safe_load((CONFIG / "fleets" / "emulated.yaml").read_text())
        data["server_cluster"]["num_servers"] = gpus
        for group, robots in zip(data["robot_fleet"], (swing, drive), strict=True):
            group |= {"num_robots": robots, "params_file": str(CONFIG / "arm.yaml")}
        data["drive"]["pipeline"]["action_period_ms"] = 1000  # one robot does not fill a slot
        data["drive"]["min_actions_per_s"] = 0.5 * drive
        path = tmp_path / "fleet.yaml"
        path.write_text(yaml.safe_dump(data | changes, sort_keys=False))
        return str(path)

    return write


def test_a_robot_that_fits_joins_and_nothing_changes_for_the_others(file):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    joined = planner.join(running, plan, "drive_far", "drive")
    served = joined.fleet.served
    # a robot that names no policy gets the first one of the file
    assert joined.text == (
        "drive_far joins for drive, served by gpu2/emulated-drive (start it with "
        "policy:=emulated-drive)"
    )
    assert "policy:=" not in planner.join(running, plan, "swing_far", "swing").text
    assert served.routes["drive_far"] == "gpu2/emulated-drive"
    assert served.periods_s["drive_far"] == served.periods_s["drive_1"]
    assert {r: s for r, s in served.periods_s.items() if r != "drive_far"} == (
        running.served.periods_s
    )
    steps = change(running, joined.fleet)
    assert (steps.start, steps.stop, steps.restart) == ((), (), ())
    assert (steps.engines_start, list(steps.tell)) == ((), ["serving"])
    assert "drive_far" not in joined.fleet.robots  # it has a process of its own
    assert joined.fleet.guests == {"drive_far": "drive"}
    assert planned_fleet(joined.fleet.to_dict()) == joined.fleet

    left = planner.without(joined.fleet, joined.plan, {"drive_far"})
    assert left.fleet.served.routes == running.served.routes
    assert left.fleet.served.periods_s == running.served.periods_s
    assert left.fleet.guests == {}
    rates = [server.rate_hz for server in left.plan.servers]
    assert rates == pytest.approx([server.rate_hz for server in plan.servers])


@pytest.mark.slow
def test_robots_join_until_none_fits_and_those_that_are_in_keep_their_slo(file):
    planner = FleetPlanner(file(), PlanChoices())
    fleet, plan = planner.plan()
    hows = []
    for number in range(60):
        joined = planner.join(fleet, plan, f"drive_x{number}", "drive")
        if joined.plan is None:
            break
        hows.append("by another plan" in joined.text)
        fleet, plan = joined.fleet, joined.plan
        assert all(server.p99_s <= server.slo_s for server in plan.servers)
    else:
        pytest.fail("sixty robots on three slots")
    assert set(hows) == {False, True}
    last = f"drive_x{number}"
    assert "GPUs are too few" in joined.fleet.served.refused[last]
    assert joined.fleet.served.routes == fleet.served.routes
    assert change(fleet, joined.fleet).engines_start == ()

    forced = planner.force(fleet, plan, last, "drive")
    assert forced.fleet.served.forced == (last,)
    assert forced.fleet.served.routes[last].endswith("emulated-drive")
    assert "by force" in forced.text
    assert forget(joined.fleet, {last}).fleet.served == fleet.served


def test_a_changed_file_that_is_applied_keeps_the_guests(file):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    running = planner.join(running, plan, "swing_far", "swing").fleet
    again, _ = FleetPlanner(file(drive=2), PlanChoices()).plan(running)
    assert again.guests == {"swing_far": "swing"}
    assert {"swing_far", "drive_2"} < again.served.routes.keys()
    groups = [{"task": "swing", "names": ["swing_far"]}, {"task": "drive", "num_robots": 1}]
    own, _ = FleetPlanner(file(robot_fleet=groups), PlanChoices()).plan(running)
    assert own.guests == {}
    assert "swing_far" in own.robots


def test_the_task_of_a_robot_is_in_its_name():
    tasks = ("pick", "pick_up", "lift")
    assert task_of("pick_3", tasks) == "pick"
    assert task_of("pick_up_3", tasks) == "pick_up"
    assert task_of("lift", tasks) == "lift"
    assert task_of("picker", tasks) == ""
    assert task_of("bob", ["lift"]) == "lift"


def decided(admissions, running):
    until_s = time.monotonic() + 30.0
    while (found := admissions.decided(running)) is None:
        assert time.monotonic() < until_s
        assert admissions.busy
        time.sleep(0.01)
    return found[0]


def test_who_comes_is_decided_about_once_and_again_after_it_has_left(file, monkeypatch):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    admissions = RobotAdmissions(planner, plan, running)
    here = ["swing_1", "swing_2", "drive_1"]
    admissions.look(here, running)
    assert not admissions.busy

    admissions.look([*here, "stranger"], running)
    joined = decided(admissions, running)
    assert "its task is not known" in joined.fleet.served.refused["stranger"]
    admissions.applied(running, joined)
    running = joined.fleet
    admissions.look([*here, "stranger"], running)
    assert not admissions.busy
    admissions.look(here, running)
    joined = decided(admissions, running)
    assert joined.fleet.served.refused == {}
    admissions.applied(running, joined)
    running = joined.fleet

    admissions.look([*here, "drive_7"], running)
    joined = decided(admissions, running)
    admissions.applied(running, joined)
    running = joined.fleet
    assert running.guests == {"drive_7": "drive"}
    admissions.look(here, running)
    assert not admissions.busy  # it may come back
    monkeypatch.setattr(robot_admission, "LEFT_S", 0.0)
    admissions.look(here, running)
    joined = decided(admissions, running)
    assert joined.fleet.guests == {}
    assert "drive_7 left" in joined.text
    admissions.close()


def test_after_an_apply_the_file_is_read_again_and_one_that_was_changed_admits_nobody(file):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    admissions = RobotAdmissions(planner, plan, running)
    applied, _ = FleetPlanner(file(drive=2), PlanChoices()).plan(running)
    admissions.look(["drive_8"], applied)
    joined = decided(admissions, applied)
    assert joined.fleet.guests == {"drive_8": "drive"}
    assert "drive_2" in joined.fleet.served.routes

    other, _ = FleetPlanner(file(swing=1), PlanChoices()).plan(running)
    file(swing=3)
    admissions.look(["drive_8"], other)
    why = decided(admissions, other).fleet.served.refused["drive_8"]
    assert "is not what the fleet was planned from" in why
    admissions.close()


def test_a_decision_about_a_fleet_that_has_changed_meanwhile_is_dropped(file):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    admissions = RobotAdmissions(planner, plan, running)
    admissions.ask(running, "drive_9")
    changed = refuse(running, "someone", "no").fleet
    until_s = time.monotonic() + 30.0
    while admissions.busy:
        assert admissions.decided(changed) is None
        assert time.monotonic() < until_s
    admissions.close()


def test_a_plan_cannot_both_route_and_refuse_a_robot(file):
    running, _ = FleetPlanner(file(), PlanChoices()).plan()
    with pytest.raises(KairosError, match="'swing_1' is routed to an engine, and refused"):
        refuse(running, "swing_1", "no")


def test_a_standby_is_loaded_and_takes_the_place_of_an_engine_for_good(file):
    cluster = {"num_servers": 4, "hot_standby": 1, "gpu_type": "CPU slot"}
    planner = FleetPlanner(file(server_cluster=cluster), PlanChoices())
    running, plan = planner.plan()
    engines = {one.name: one for one in running.served.engines}
    assert len(plan.servers) == 3
    assert [name for name, one in engines.items() if one.standby] == ["gpu3/emulated-swing"]
    assert read_served_plan(running.served.text) == running.served

    joined = exchanged(running, plan, "gpu0/emulated-swing", "gpu3/emulated-swing")
    changed = {one.name: one for one in joined.fleet.served.engines}
    assert changed["gpu3/emulated-swing"].robots == engines["gpu0/emulated-swing"].robots
    assert changed["gpu0/emulated-swing"].standby
    steps = change(running, joined.fleet)
    assert (steps.engines_start, steps.engines_stop) == ((), ())
    later = planner.join(joined.fleet, joined.plan, "drive_far", "drive")
    assert later.fleet.served.routes["swing_1"] == "gpu3/emulated-swing"
    applied, _ = planner.plan(joined.fleet)
    assert {one.gpu for one in applied.served.engines if one.standby} == {"gpu0"}
    assert applied.served == joined.fleet.served


def test_a_cluster_in_which_all_stand_by_is_refused(file):
    cluster = {"num_servers": 1, "hot_standby": 1, "gpu_type": "CPU slot"}
    with pytest.raises(KairosError, match="at least one has to serve"):
        FleetPlanner(file(server_cluster=cluster), PlanChoices())


class Asker:
    """Whoever asks, without a socket."""

    closed = False

    def __init__(self) -> None:
        self.told: list[dict] = []

    def send(self, message) -> None:
        self.told.append(message)


@pytest.mark.parametrize(
    "name", ["", "../x", "a" * 101, "swing_é", "a b", "kairos", "_x", "a/kairos", "\ud800", "a\n"]
)
def test_a_name_that_no_robot_can_have_is_refused_and_the_next_question_is_answered(file, name):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    admissions = RobotAdmissions(planner, plan, running)
    with pytest.raises(KairosError, match="is no name of a robot"):
        admissions.put(JoinRequest(name, "swing", False, Asker()), running)
    admissions.look([f"swing_1/{name}"], running)  # one that announces itself
    assert admissions.busy
    admissions.put(JoinRequest("swing_9", "", False, Asker()), running)
    decided(admissions, running)
    admissions.look([], running)
    assert decided(admissions, running).fleet.guests == {"swing_9": "swing"}
    admissions.close()


def test_a_robot_that_announces_itself_by_a_name_that_no_file_can_have_is_told_so(file):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    admissions = RobotAdmissions(planner, plan, running)
    admissions.look(["swing_1/_x"], running)
    refused = decided(admissions, running).fleet.served.refused
    assert "is no name of a robot" in refused["swing_1/_x"]
    admissions.close()


def test_a_task_that_the_file_lacks_is_named(file):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    admissions = RobotAdmissions(planner, plan, running)
    admissions.put(JoinRequest("swing_9", "fly", False, Asker()), running)
    admissions.look([], running)
    assert "there is no task 'fly'; tasks are swing, drive" in decided(admissions, running).text
    admissions.close()


def test_of_two_that_ask_for_the_same_robot_both_get_an_answer(file):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    admissions = RobotAdmissions(planner, plan, running)
    second = Asker()
    for asker in (Asker(), second):
        admissions.put(JoinRequest("swing_9", "", False, asker), running)
    admissions.look([], running)
    joined = decided(admissions, running)
    admissions.applied(running, joined, "swing_9")
    admissions.look([], joined.fleet)
    assert not admissions.busy
    assert "swing_9 is in the fleet already" in second.told[0]["refused"]
    admissions.close()


def test_a_question_that_is_withdrawn_changes_nothing(file):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    admissions = RobotAdmissions(planner, plan, running)
    first, second = Asker(), Asker()
    admissions.put(JoinRequest("swing_8", "", False, first), running)
    admissions.put(JoinRequest("swing_9", "", False, second), running)
    admissions.look([], running)
    assert admissions.withdraw(first)  # it is decided about
    assert admissions.withdraw(second)  # it waits
    assert not admissions.withdraw(second)
    until_s = time.monotonic() + 30.0
    while admissions.busy:
        assert admissions.decided(running) is None
        assert time.monotonic() < until_s
    admissions.look([], running)
    assert not admissions.busy
    admissions.close()


def test_without_a_serving_node_everybody_who_asks_is_told_so(file):
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    admissions = RobotAdmissions(planner, plan, running)
    askers = {name: Asker() for name in ("swing_8", "swing_9")}
    for name, asker in askers.items():
        admissions.put(JoinRequest(name, "", False, asker), running)
    admissions.look([], running)
    admissions.answer_all("serving was killed")
    for name, asker in askers.items():
        assert asker.told == [{"refused": f"{name} cannot join: serving was killed"}]
    admissions.close()


def test_where_the_file_has_changed_the_place_of_one_that_left_is_kept_and_others_are_heard(
    file, monkeypatch
):
    monkeypatch.setattr(robot_admission, "LEFT_S", -1.0)
    planner = FleetPlanner(file(), PlanChoices())
    running, plan = planner.plan()
    guest = planner.join(running, plan, "drive_7", "drive").fleet
    refusing = refuse(guest, "stranger", "no").fleet
    admissions = RobotAdmissions(planner, plan, running)
    Path(guest.file).unlink()

    admissions.look(["swing_1"], refusing)
    with pytest.raises(KairosError, match="No such file"):
        decided(admissions, refusing)
    monkeypatch.setattr(robot_admission, "LEFT_S", 60.0)
    admissions.look(["swing_1"], refusing)  # no planner is needed to forget one that was refused
    assert decided(admissions, refusing).fleet.served.refused == {}
    admissions.close()
