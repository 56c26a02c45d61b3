"""From a fleet file to nodes: who serves, who judges whom, and by which rules robots go."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kairos_ros.bringup.fleet import camera_rate_hz, fleet_plan
from kairos_ros.bringup.fleet_files import read
from kairos_ros.bringup.plan import shipped_policy
from kairos_ros.bringup.process_spec import ProcessSpec
from kairos_ros.bringup.processes import Fleet
from kairos_ros.core.pipeline import Component
from kairos_ros.fleet.checks import Known
from kairos_ros.fleet.host import obstacles
from kairos_ros.fleet.places import policy_names
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.nodes.parameters import STRINGS
from kairos_ros.nodes.robot.parameters import ROBOT_PARAMETERS, adapter_options
from kairos_ros.nodes.serving.parameters import SERVING_PARAMETERS, engine_options
from kairos_ros.nodes.vlm.node import parameters
from kairos_ros.robot.supervision.rules_text import parse_rules

FLEETS = Path(__file__).parents[2] / "config" / "fleets"
COMPONENTS = {
    "safety": Component.SAFETY,
    "monitor": Component.MONITOR,
    "planner": Component.SYSTEM2,
}
LIMITS = {
    "task_retry": {"max_task_retries": 1, "on_max_task_retries": "stop_and_call_human"},
    "safety_and_slo_violation": {
        "max_consecutive_safety_replan": 10,
        "max_consecutive_slo_violation": 3,
        "on_max_violation": "stop_and_call_human",
    },
}


def fleet_of(path, data=None):
    if data is not None:
        path.write_text(yaml.safe_dump(data, sort_keys=False))
    return read_fleet(path, Known(adapters={"sim"}))


def factory(change=lambda data: None, path=None):
    if path is None:
        return fleet_plan(fleet_of(FLEETS / "factory.yaml"), FLEETS)
    data = yaml.safe_load((FLEETS / "factory.yaml").read_text())
    change(data)
    return fleet_plan(fleet_of(path, data), path.parent)


def test_the_factory_is_a_server_a_process_per_kind_of_judge_and_its_robots():
    specs = factory()
    assert [Fleet.key(spec) for spec in specs] == [
        *("serving", "safety", "monitor", "planner"),
        *("arm_1", "arm_2", "arm_3", "arm_4"),
    ]
    assert specs[0].parameters["policy"].endswith("models/metaworld_flow")
    assert specs[1].parameters["robots"] == ["arm_1", "arm_2", "arm_3", "arm_4"]
    assert specs[1].parameters["freq_hz"] == 2.0


def test_cameras_run_as_fast_as_is_said_and_never_slower_than_judges_need(tmp_path):
    def change(data):
        for group, rate_hz in zip(data["robot_fleet"], (30.0, 1.0), strict=True):
            group["camera_rate_hz"] = rate_hz

    specs = factory(change, tmp_path / "fleet.yaml")
    rates = {one.namespace: one.parameters.get("camera_rate_hz") for one in specs}
    assert (rates["arm_1"], rates["arm_3"]) == (30.0, 2.0)


def test_every_parameter_of_the_plan_is_one_that_its_node_has():
    def known(spec: ProcessSpec):
        if spec.executable == "robot_node":
            return ROBOT_PARAMETERS
        if spec.executable == "serving_node":
            return SERVING_PARAMETERS
        return parameters((COMPONENTS[spec.executable.removesuffix("_node")],))

    for spec in factory():
        names = {p.name: p for p in known(spec)}
        assert spec.parameters.keys() <= names.keys()
        for name, value in spec.parameters.items():
            assert type(value) is type(names[name].default) or isinstance(value, list)


def test_robots_get_the_rules_the_body_and_the_horizon_of_their_task():
    fleet = fleet_of(FLEETS / "factory.yaml")
    robots = {spec.namespace: spec.parameters for spec in factory() if spec.name == "robot"}
    for name, group in fleet.robots.items():
        assert parse_rules(robots[name]["rules"]) == fleet.tasks[group.task].rules
    assert adapter_options(robots["arm_3"]["adapter_options"]) == {
        "images": {"corner3": [240, 240]},
        "safe_state": [0.0, 0.6, 0.3],
    }
    assert robots["arm_1"]["horizon_policy"].startswith("tail_agreement")
    assert robots["arm_1"]["camera_rate_hz"] == 2.0
    assert robots["arm_1"]["request_images"] is False  # the policy reads none


def test_an_arm_that_sees_tells_its_policy_no_poses_and_its_judges_look_through_their_own_camera():
    specs = fleet_plan(read(FLEETS / "factory_cameras.yaml"), FLEETS)
    arm = next(spec.parameters for spec in specs if spec.namespace == "arm_1")
    assert adapter_options(arm["adapter_options"]) == {
        "images": {"corner4": [128, 128], "topview": [128, 128], "corner3": [240, 240]},
        "proprioception": True,
    }
    assert "request_images" not in arm  # the policy reads them
    for judge in ("safety", "monitor"):
        spec = next(spec for spec in specs if spec.name == judge)
        assert spec.parameters["cameras"] == ["corner3"]


@pytest.mark.parametrize(
    ("judged", "camera"),
    [
        ([4.0, 1.0], 4),
        ([2.0, 0.5], 2),
        ([5.0, 2.0], 10),
        ([0.5], 0.5),
        ([1.5, 1.0], 3),
        ([29, 23], 29),
    ],
)
def test_cameras_show_a_fresh_picture_whenever_a_judge_is_due(judged, camera):
    assert camera_rate_hz(judged) == camera


def test_judges_that_differ_are_nodes_of_their_own(tmp_path):
    def ask_otherwise(data):
        task = data["push"]["components"]
        task["safety"] = {**task["safety"], "prompt": "is anybody there?"}

    specs = factory(ask_otherwise, tmp_path / "fleet.yaml")
    judges = {s.name: s.parameters["robots"] for s in specs if s.executable == "safety_node"}
    assert judges == {"safety": ["arm_1", "arm_2"], "safety_2": ["arm_3", "arm_4"]}


@pytest.mark.parametrize("models", [["emulated:"], ["emulated:", "emulated:dim=4"]])
def test_options_of_a_model_reach_its_engine_alone(tmp_path, models):
    def choose(data):
        tasks = (data["push"], data["open_drawer"])
        for task, model in zip(tasks, itertools.cycle(models), strict=False):
            task["components"]["system1"]["model"] = model
            if model == models[0]:
                task["components"]["system1"]["options"] = {"rtc": True, "max_batch": 4}

    values = {p.name: [] if p.default is STRINGS else p.default for p in SERVING_PARAMETERS}
    values |= factory(choose, tmp_path / "fleet.yaml")[0].parameters
    guided = {options.policy: options for options in engine_options(values).values()}
    assert (guided["emulated:"].rtc, guided["emulated:"].max_batch) == (True, 4)
    assert [guided[other].rtc for other in models[1:]] == [False] * len(models[1:])


def test_rtc_of_a_model_that_cannot_be_guided_keeps_the_file_from_running(tmp_path):
    (tmp_path / "act").mkdir()
    (tmp_path / "act" / "config.json").write_text('{"type": "act"}')

    def told(model):
        def choose(data):
            for task in (data["push"], data["open_drawer"]):
                task["components"]["system1"] |= {"model": model, "options": {"rtc": True}}

        data = yaml.safe_load((FLEETS / "factory.yaml").read_text())
        choose(data)
        path = tmp_path / "fleet.yaml"
        return [
            (".".join(map(str, problem.path)), problem.text)
            for problem in obstacles(fleet_of(path, data), tmp_path)
            if "options" in problem.path
        ]

    assert told("embedded:metaworld_flow") == []
    ((where, why),) = told("./act")
    assert where == "push.components.system1.options.rtc"
    assert why.startswith("rtc: policies of type 'act' cannot be guided, those of flow_mlp, ")
    ((_, why),) = told("emulated:dim=4")
    assert why == "an emulated policy has no sampler; leave it out"


@pytest.mark.parametrize("policy", ["./policy", "../fleet/policy", "~/policy"])
@pytest.mark.parametrize("judge", ["judge", "./judge", "~/judge"])
def test_a_model_folder_counts_from_the_fleet_file(tmp_path, monkeypatch, policy, judge):
    here = tmp_path / "fleet"
    for name in ("policy", "judge"):
        (here / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(here))

    def local(data):
        for task in ("push", "open_drawer"):
            data[task]["components"]["system1"]["model"] = "mine"
            data[task]["components"]["safety"]["model"] = f"transformers:{judge}"
        data["models"] = {"mine": policy}

    specs = factory(local, here / "fleet.yaml")
    assert Path(specs[0].parameters["policy"]).samefile(here / "policy")
    assert Path(specs[0].parameters["policy"]).is_absolute()
    assert specs[1].parameters["model"] == f"transformers:{here / 'judge'}"
    assert "request_images" not in specs[-1].parameters  # nothing says that it reads none


def test_two_action_models_are_two_policies_of_one_server_and_every_robot_asks_for_its_own(
    tmp_path,
):
    def another(data):
        data["push"]["components"]["system1"]["model"] = "emulated:images=front@48x64"

    (server, *others) = factory(another, tmp_path / "fleet.yaml")
    named = dict(text.split("=", 1) for text in server.parameters["policies"])
    assert named == {
        "emulated-images-front-48x64": "emulated:images=front@48x64",
        "metaworld_flow": str(shipped_policy()),
    }
    assert "policy" not in server.parameters
    robots = [spec.parameters for spec in others if spec.executable == "robot_node"]
    asked = {(given["policy"], given.get("request_images", True)) for given in robots}
    assert asked == {("emulated-images-front-48x64", True), ("metaworld_flow", False)}


def test_policies_of_a_fleet_have_names_that_a_server_takes():
    models = ["embedded:metaworld_flow", "lerobot/pi05", "./models/pi05/", "pi05", "emulated:a=1,b"]
    assert list(policy_names(models).values()) == [
        "metaworld_flow",
        "pi05",
        "pi05--2",
        "pi05--3",
        "emulated-a-1-b",
    ]


@pytest.mark.slow
def test_fleet_up_runs_the_file_until_it_is_interrupted(tmp_path):
    path = tmp_path / "fleet.yaml"
    system1 = {
        "model": "emulated:latency_ms=5,chunk=20,state=3,dim=1",
        "prompt": "swing up",
        "slo_ms": 1000,
        "fallback": "stop_and_resend",
    }
    (tmp_path / "pendulum.yaml").write_text("/**: {ros__parameters: {guard.minimum: [-2.0]}}")
    group = {
        "task": "swing",
        "names": ["left", "right"],
        "adapter_options": {"env_id": "Pendulum-v1"},
        "params_file": "pendulum.yaml",
    }
    task = {"pipeline": {"action_period_ms": 200}, **LIMITS, "components": {"system1": system1}}
    cluster = {"num_servers": 1, "gpu_type": "CPU only"}
    fleet_of(path, {"server_cluster": cluster, "robot_fleet": [group], "swing": task})
    program = Path(sys.prefix, "bin", "kairos")
    process = subprocess.Popen(
        [program, "fleet", "up", path, "--out", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        seen = ""
        while not all(f"robot {name} is here" in seen for name in ("left", "right")):
            line = process.stdout.readline()
            assert line, seen
            assert "exit code" not in line, seen
            seen += line
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        process.kill()
