"""Monitors and planners of a fleet file that ask the action model of their task itself."""

import json
from pathlib import Path

import pytest
import yaml

from kairos_ros.bringup.fleet import LANGUAGE_MIB, fleet_plan
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.placement.served_plan import PlannedEngine, ServedPlan
from kairos_ros.document.faults import FaultyFileError
from kairos_ros.engine.registry import with_own_options
from kairos_ros.fleet.checks import Known, unlocated
from kairos_ros.fleet.deployment import policies_of
from kairos_ros.fleet.host import obstacles
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.nodes.parameters import STRINGS
from kairos_ros.nodes.serving.parameters import SERVING_PARAMETERS, engine_options
from kairos_ros.robot.supervision.rules_text import parse_rules

FACTORY = Path(__file__).parents[2] / "config" / "fleets" / "factory.yaml"
ASKED = {"monitor": "system1", "system2": "system1"}


@pytest.fixture
def fleet_of(tmp_path):
    """A factory with these models, by task and component; `./NAME` is a policy folder of that
    type."""

    def fleet(push=None, open_drawer=None, options=None, models=None, skills=None):
        data = yaml.safe_load(FACTORY.read_text()) | ({"models": models} if models else {})
        for task, models in (("push", push or {}), ("open_drawer", open_drawer or {})):
            for component, model in models.items():
                data[task]["components"][component] = {**data[task]["components"][component]}
                data[task]["components"][component]["model"] = model
                if model.startswith("./"):
                    (tmp_path / model).mkdir(exist_ok=True)
                    config = {"type": model.removeprefix("./").rstrip("2"), "input_features": {}}
                    (tmp_path / model / "config.json").write_text(json.dumps(config))
            if options:
                data[task]["components"]["system1"]["options"] = options
        if skills:
            data["push"]["components"]["system2"]["skills"] = skills
        path = tmp_path / "fleet.yaml"
        path.write_text(yaml.safe_dump(data, sort_keys=False))
        return read_fleet(path, Known(adapters={"sim"}))

    return fleet


def nodes(specs, executable):
    return [spec.parameters for spec in specs if spec.executable == executable]


def language_mib(specs):
    values = {p.name: [] if p.default is STRINGS else p.default for p in SERVING_PARAMETERS}
    (given,) = nodes(specs, "serving_node")
    return {name: options.language_mib for name, options in engine_options(values | given).items()}


def test_the_policy_is_asked_and_its_engine_has_memory_for_it(fleet_of, tmp_path):
    both = {"system1": "./pi05"} | ASKED
    specs = fleet_plan(fleet_of(both, both), tmp_path)
    assert language_mib(specs) == {"": LANGUAGE_MIB}
    (monitor,), (planner,) = nodes(specs, "monitor_node"), nodes(specs, "planner_node")
    assert monitor["model"] == planner["model"] == "system1"
    assert monitor["timeout_s"] == 1.0, "its slo_ms"
    assert "timeout_s" not in nodes(specs, "safety_node")[0]


def test_a_planner_chooses_from_the_skills_that_the_file_names(fleet_of, tmp_path):
    fleet = fleet_of({"system1": "./pi05"} | ASKED, skills=["pick up the cup", "pour"])
    planners = nodes(fleet_plan(fleet, tmp_path), "planner_node")
    assert [planner.get("skills") for planner in planners] == [["pick up the cup", "pour"], None]
    for skills in (["pour"], ["pour", "pour"], ["pour", " "]):
        with pytest.raises(FaultyFileError, match=r"system2\.skills"):
            fleet_of({"system1": "./pi05"} | ASKED, skills=skills)


def test_robots_know_who_is_asked(fleet_of, tmp_path):
    fleet = fleet_of({"system1": "./pi05"} | ASKED)
    asked = [
        {name for name, one in parse_rules(robot["rules"]).components.items() if one.asks_system1}
        for robot in nodes(fleet_plan(fleet, tmp_path), "robot_node")
    ]
    assert asked == [{"monitor", "system2"}, {"monitor", "system2"}, set(), set()]


def test_a_name_for_the_policy_itself_is_refused(fleet_of):
    with pytest.raises(FaultyFileError, match="write model: system1 at the component"):
        fleet_of({"system1": "./pi05", "monitor": "itself"}, models={"itself": "system1"})


def test_of_several_policies_each_task_asks_its_own(fleet_of, tmp_path):
    fleet = fleet_of({"system1": "./pi05"} | ASKED, {"system1": "./pi052", "monitor": "system1"})
    specs = fleet_plan(fleet, tmp_path)
    assert language_mib(specs) == {"pi05": LANGUAGE_MIB, "pi052": LANGUAGE_MIB}
    models = [monitor["model"] for monitor in nodes(specs, "monitor_node")]
    assert models == ["system1:pi05", "system1:pi052"]


def test_a_policy_that_nobody_asks_has_no_memory_for_it(fleet_of, tmp_path):
    fleet = fleet_of({"system1": "./pi05"} | ASKED, {"system1": "./pi052"})
    assert language_mib(fleet_plan(fleet, tmp_path)) == {"pi05": LANGUAGE_MIB, "pi052": 0}


def test_its_memory_can_be_chosen(fleet_of, tmp_path):
    both = {"system1": "./pi05"} | ASKED
    specs = fleet_plan(fleet_of(both, both, {"language_mib": 4096}), tmp_path)
    assert language_mib(specs) == {"": 4096}
    with pytest.raises(FaultyFileError, match="a whole number, 1 to 1000000"):
        fleet_of(both, both, {"language_mib": 0})


def test_the_folder_of_a_tokenizer_counts_from_the_file(fleet_of, tmp_path):
    both = {"system1": "./pi05"} | ASKED
    with pytest.raises(FaultyFileError, match=r"there is no folder .*/words"):
        fleet_of(both, both, {"tokenizer": "./words"})
    (tmp_path / "words").mkdir()
    fleet = fleet_of(both, both, {"tokenizer": "./words"})
    (serving,) = nodes(fleet_plan(fleet, tmp_path), "serving_node")
    assert serving["tokenizer"] == str(tmp_path / "words")
    assert policies_of(fleet, tmp_path)["pi05"]["tokenizer"] == str(tmp_path / "words")


def test_such_a_file_runs_here_unless_the_policy_cannot_be_asked(fleet_of, tmp_path):
    def told(system1):
        both = {"system1": system1} | ASKED
        fleet = fleet_of(both, both)
        assert unlocated(fleet) == {}
        return [
            (".".join(map(str, problem.path)), problem.text)
            for problem in obstacles(fleet, tmp_path)
            if problem.text.startswith("system1")
        ]

    assert told("./pi05") == []
    (where, why), *others = told("./act")
    assert where == "push.components.system2.model"
    assert why == "system1: policies of type 'act' answer no questions, those of pi0, pi05 do"
    assert len(others) == 3
    assert told("emulated:")[0][1] == "system1: an emulated policy has no words"


@pytest.mark.parametrize(
    ("component", "why"),
    [("safety", "a robot that holds sends none"), ("system1", "name the action model")],
)
def test_what_cannot_be_the_policy_itself_is_refused(fleet_of, component, why):
    with pytest.raises(FaultyFileError, match=why):
        fleet_of({component: "system1"})


def test_a_planned_fleet_says_that_it_cannot_do_this_yet(fleet_of, tmp_path):
    both = {"system1": "./pi05"} | ASKED
    engine = PlannedEngine("gpu0", "cpu", "pi05", 1, ("arm_1", "arm_2", "arm_3", "arm_4"))
    served = ServedPlan("fleet", {"pi05": {"policy": "./pi05"}}, (engine,), {})
    with pytest.raises(ConfigError, match="planned fleet has no judge or planner 'system1' yet"):
        fleet_plan(fleet_of(both, both), tmp_path, served=served)


def test_memory_for_questions_is_an_option_of_one_policy():
    registry = engine_options(
        {p.name: [] if p.default is STRINGS else p.default for p in SERVING_PARAMETERS}
        | {"policies": ["pick=emulated:", "place=emulated:"]}
    )
    found = with_own_options(registry, ["pick.language_mib=300"])
    assert [found[name].language_mib for name in ("pick", "place")] == [300, 0]
