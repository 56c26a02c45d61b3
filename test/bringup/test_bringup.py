"""Plans, launch files and params files, and the runner that starts a plan as real processes."""

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import rclpy
import yaml
from rclpy.node import Node
from typer.testing import CliRunner
from wire import PATIENCE_S, until

from kairos_ros.bringup.arms import arm_plan
from kairos_ros.bringup.arms_arguments import ARGUMENTS
from kairos_ros.bringup.foreground import run_folder
from kairos_ros.bringup.launch_files import COMMON_ARGUMENTS, CommonValues, launch_description
from kairos_ros.bringup.plan import (
    body_text,
    cloud_bridge,
    plan,
    robot,
    rviz,
    rviz_line,
    serving,
    share,
)
from kairos_ros.bringup.process_spec import ProcessSpec, command, told_plan
from kairos_ros.bringup.processes import Fleet
from kairos_ros.commands.cli import app
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fleet_names import FleetNames
from kairos_ros.core.pipeline import Component
from kairos_ros.host.child_processes import children
from kairos_ros.nodes.parameters import ParameterSpec
from kairos_ros.nodes.recorder.parameters import RECORDER_PARAMETERS
from kairos_ros.nodes.robot.parameters import ROBOT_PARAMETERS, adapter_options
from kairos_ros.nodes.serving.parameters import SERVING_PARAMETERS
from kairos_ros.nodes.viz.parameters import VIZ_PARAMETERS
from kairos_ros.nodes.vlm.node import ALL, parameters

ROOT = Path(__file__).parents[2]
POLICY = "emulated:latency_ms=5,chunk=20,state=3,dim=1"
FROM_THE_PLAN = {"policy"}
"""Parameters that a plan sets and a params file must therefore not."""


def pendulum(name: str) -> ProcessSpec:
    return ProcessSpec("robot_node", "robot", name, {"adapter_options": ["env_id=Pendulum-v1"]})


def test_a_plan_is_one_serving_node_and_its_robots_each_in_its_namespace():
    specs = plan(3, serve={"scheduling": "fifo"}, robot_parameters={"deadline_s": 1.0})
    assert [(s.executable, s.namespace, s.name) for s in specs] == [
        ("serving_node", "kairos", "serving"),
        ("robot_node", "arm_1", "robot"),
        ("robot_node", "arm_2", "robot"),
        ("robot_node", "arm_3", "robot"),
    ]
    assert specs[0].parameters["scheduling"] == "fifo"
    assert specs[0].parameters["policy"].endswith("models/metaworld_flow")
    assert all(spec.parameters == {"deadline_s": 1.0} for spec in specs[1:])
    assert all(spec.params_file.is_file() for spec in specs)


def test_a_plan_ends_with_its_recorder_where_a_bag_is_wanted():
    assert [s.name for s in plan(1, record="runs/bag")] == ["serving", "robot", "recorder"]
    assert plan(1, record="runs/bag")[-1].parameters == {"out": "runs/bag"}


def test_a_plan_draws_its_fleet_where_somebody_wants_to_see_it():
    specs = plan(1, record="runs/bag", view=True)
    assert [s.name for s in specs] == ["serving", "robot", "viz", "recorder"]


def test_rviz_is_another_packages_program_and_is_missed_by_name(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="rviz2 is not on PATH"):
        command(rviz())


def test_rviz_is_opened_with_our_displays(monkeypatch, tmp_path):
    program = tmp_path / "rviz2"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    line = command(rviz())
    assert line[:2] == [str(program), "-d"]
    assert Path(line[2]).name == "kairos.rviz"
    assert Path(line[2]).is_file()
    assert line[3] == "--ros-args"


def test_people_are_told_how_to_open_rviz_in_the_fleets_domain(monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", "42")
    monkeypatch.delenv("ROS_AUTOMATIC_DISCOVERY_RANGE")
    assert rviz_line() == f"ROS_DOMAIN_ID=42 rviz2 -d {share()}/config/kairos.rviz"


def test_robots_can_be_named_and_the_policy_replaced():
    specs = plan(["left", "right"], serve={"policy": POLICY})
    assert [spec.namespace for spec in specs] == ["kairos", "left", "right"]
    assert specs[0].parameters["policy"] == POLICY


@pytest.mark.parametrize("name", ["1arm", "arm-1", "arm 1", "", "ärm", "a//b", "a/kairos"])
def test_a_robot_name_that_is_no_ros_name_is_refused(name):
    with pytest.raises(ConfigError, match="ROS name"):
        robot(name)


def test_a_nested_name_is_the_end_of_a_robots_namespace_wherever_the_fleet_is():
    spec = robot("cell_1/arm_1")
    assert (spec.namespace, spec.parameters["name"]) == ("cell_1/arm_1", "cell_1/arm_1")
    assert "__ns:=/site_a/cell_1/arm_1" in command(spec, FleetNames("/site_a"))


CLOUD = "cloud=tcp://gpu:7411"


def test_the_cloud_bridge_has_an_engine_of_its_own_unless_that_is_not_wanted():
    assert cloud_bridge(CLOUD).parameters["policy"].endswith("metaworld_flow")
    assert cloud_bridge(CLOUD, policy=POLICY).parameters["policy"] == POLICY
    spec = cloud_bridge(f"{CLOUD}; near=tcp://gpu:7412", edge=False, scheduling="fifo")
    assert spec.parameters == {
        "policy": "",
        "engines": [CLOUD, "near=tcp://gpu:7412"],
        "scheduling": "fifo",
    }
    with pytest.raises(ConfigError, match="edge is false"):
        cloud_bridge(CLOUD, edge=False, policy=POLICY)
    with pytest.raises(ConfigError, match="name at least one engine"):
        cloud_bridge(" ; ")


def test_the_launch_file_of_the_cloud_bridge_takes_true_or_false_and_nothing_else():
    scope: dict = {}
    exec((ROOT / "launch" / "cloud_bridge.launch.py").read_text(), scope)
    scope["launch_description"] = lambda arguments, make_plan: make_plan
    make_plan = scope["generate_launch_description"]()
    policies = [
        make_plan({"engines": CLOUD, "edge": edge})[0].parameters["policy"]
        for edge in ("true", "false")
    ]
    assert [bool(policy) for policy in policies] == [True, False]
    assert make_plan({"engines": CLOUD, "edge": "False"})[0].parameters["policy"] == ""
    for edge in ("no", "0"):
        with pytest.raises(ConfigError, match="say true or false"):
            make_plan({"engines": CLOUD, "edge": edge})


def planned(file: str, **given: str) -> list[ProcessSpec]:
    """What a launch file starts with these arguments, the others at their defaults."""
    scope: dict = {}
    exec((ROOT / "launch" / f"{file}.launch.py").read_text(), scope)
    scope["launch_description"] = lambda arguments, make_plan: (arguments, make_plan)
    arguments, make_plan = scope["generate_launch_description"]()
    assert given.keys() <= arguments.keys()
    values = {name: default for name, (default, _) in arguments.items()} | given
    return make_plan({name: value for name, value in values.items() if value})


def test_a_robot_is_a_simulated_arm_unless_its_contract_or_adapter_says_otherwise(tmp_path):
    (spec,) = planned("robot", cameras="corner2:48x64")
    assert spec.params_file.name == "robot.yaml"
    assert body_text(spec) == "robot arm_1 is a simulated Meta-World arm; cameras: corner2"
    (spec,) = planned("robot", robot="left", contract="franka_real", control_rate_hz="20")
    assert spec.namespace == "left"
    assert spec.params_file.name == "arm.yaml"  # not the limits of Meta-World's arm
    assert spec.parameters == {
        "adapter": "ros2",
        "adapter_options": ['contract="franka_real"'],
        "control_rate_hz": 20.0,
    }
    assert "left is the arm of contract franka_real, behind its ROS 2 drivers" in body_text(spec)
    options = "robot=so101_follower; port=/dev/ttyACM0; id=desk"
    (spec,) = planned("robot", adapter="lerobot", adapter_options=options)
    assert adapter_options(spec.parameters["adapter_options"]) == {
        "robot": "so101_follower",
        "port": "/dev/ttyACM0",
        "id": "desk",
    }
    assert "adapter lerobot (robot=so101_follower" in body_text(spec)
    (spec,) = planned("robot", adapter_options="env_id=Pusher-v5")
    assert spec.params_file.name == "arm.yaml"
    assert "Gymnasium's Pusher-v5" in body_text(spec)


@pytest.mark.parametrize(
    ("file", "given", "said"),
    [
        ("demo", {"robots": "abc"}, "argument robots is 'abc'; say a whole number"),
        ("demo", {"robots": "-1"}, "say a whole number"),
        ("serving", {"max_batch": "many"}, "argument max_batch is 'many'; say a whole number"),
        ("cloud_bridge", {"compile": "maybe"}, "argument compile is 'maybe'; say true or false"),
        ("demo", {"rviz": "yes"}, "argument rviz is 'yes'; say true or false"),
        ("demo", {"cameras": "corner2:big"}, "must read NAME or NAME:HEIGHTxWIDTH"),
        ("robot", {"control_rate_hz": "fast"}, "control_rate_hz is 'fast'; say a number"),
        ("robot", {"contract": "so101", "adapter": "sim"}, "a contract is for ros2"),
        ("robot", {"contract": "so101", "cameras": "a"}, "cameras are those of a simulated arm"),
        ("so101", {"use_sim": "maybe"}, "argument use_sim is 'maybe'; say true or false"),
        ("gateway", {"servers": " , "}, "a gateway needs servers"),
        ("gateway", {"order": "fifo"}, "order 'fifo' is unknown; choose from latest_start"),
        ("gateway", {"dispatch": "any"}, "dispatch 'any' is unknown; choose from"),
        ("gateway", {"port": "70000"}, "a port is 0 to 65535"),
    ],
)
@pytest.mark.slow
def test_a_launch_argument_that_makes_no_sense_gets_a_sentence(file, given, said):
    with pytest.raises(ConfigError, match=said):
        planned(file, **given)


def test_every_launch_file_that_runs_an_engine_takes_its_arguments():
    given = {"dtype": "bfloat16", "max_batch": "4", "rtc": "True", "tokenizer": "there"}
    wanted = {"dtype": "bfloat16", "max_batch": 4, "rtc": True, "tokenizer": "there"}
    for file in ("serving", "cloud_bridge", "demo"):
        found = planned(file, **given)[0].parameters
        assert {name: found[name] for name in wanted} == wanted
        assert (found["device"], found["memory_budget_mib"]) == ("auto", 0)


@pytest.mark.slow
def test_true_is_true_in_any_case_and_arms_of_the_demo_have_the_cameras_asked_for():
    assert planned("so101", use_sim="True", rviz="False") == planned("so101", use_sim="true")
    specs = planned("demo", robots="1", rviz="True", cameras="topview", policy=POLICY)
    assert [spec.name for spec in specs] == ["serving", "robot", "viz", "rviz"]
    assert specs[0].parameters["policy"] == POLICY
    assert specs[1].parameters["adapter_options"] == ['images={"topview": [224, 224]}']


@pytest.mark.slow
def test_cameras_1_are_those_that_the_policy_reads(tmp_path):
    visual = {"type": "VISUAL", "shape": [3, 48, 64]}
    inputs = {"observation.state": {"type": "STATE", "shape": [8]}}
    inputs |= {f"observation.images.{name}": visual for name in ("corner4", "topview")}
    outputs = {"action": {"type": "ACTION", "shape": [4]}}
    config = {"type": "flow_mlp", "input_features": inputs, "output_features": outputs}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "policy_preprocessor.json").write_text('{"steps": []}')
    _, robot = planned("demo", robots="1", cameras="1", policy=str(tmp_path))
    images, proprioception = robot.parameters["adapter_options"]
    assert json.loads(images.removeprefix("images=")) == {"corner4": [48, 64], "topview": [48, 64]}
    assert proprioception == "proprioception=true"  # it reads no more of the simulator
    with pytest.raises(ConfigError, match="not known to read cameras"):
        planned("demo", robots="1", cameras="1", policy=POLICY)


@pytest.mark.slow
def test_cameras_1_without_a_policy_are_those_of_the_one_that_ships_for_them():
    serving, robot = planned("demo", robots="1", cameras="1")
    assert Path(serving.parameters["policy"]).name == "metaworld_cameras"
    assert "proprioception=true" in robot.parameters["adapter_options"]


VALUES = {
    "text": "emulated:latency_ms=80+35b,chunk=50,images=cam@224x224|wrist@224x224",
    "number_like": "007",
    "boolean_like": "true",
    "quoted": 'say "hi", it\'s {me}: [1]',
    "unicode": "Grüße",
    "beyond": "🛑\u2028\x7f\x85 \\ud83d\\udea7",
    "empty": "",
    "flag": True,
    "whole": 3,
    "real": 0.5,
    "small": 1e-9,
    "reals": [0.5, -1.0],
    "texts": ["images={top: [224, 224]}", "b"],
}


@pytest.mark.slow
def test_parameters_reach_a_node_as_they_are_in_the_plan():
    line = command(ProcessSpec("serving_node", "any", "some", parameters=VALUES))
    context = rclpy.Context()
    rclpy.init(args=line, context=context, domain_id=int(os.environ["ROS_DOMAIN_ID"]))
    node = Node("replaced", context=context, automatically_declare_parameters_from_overrides=True)
    got = {name: node.get_parameter(name).value for name in VALUES}
    named = node.get_fully_qualified_name()
    node.destroy_node()
    rclpy.shutdown(context=context)
    assert named == "/some/any"
    assert {n: list(v) if hasattr(v, "__len__") and not isinstance(v, str) else v
            for n, v in got.items()} == VALUES  # fmt: skip


@pytest.mark.parametrize(
    ("file", "table"),
    [
        ("serving.yaml", SERVING_PARAMETERS),
        ("robot.yaml", ROBOT_PARAMETERS),
        ("recorder.yaml", RECORDER_PARAMETERS),
        ("viz.yaml", VIZ_PARAMETERS),
        ("safety.yaml", parameters([Component.SAFETY])),
        ("monitor.yaml", parameters([Component.MONITOR])),
        ("planner.yaml", parameters([Component.SYSTEM2])),
        ("vlm.yaml", parameters(ALL)),
    ],
)
def test_a_params_file_names_every_parameter_of_its_node_and_no_other(
    file, table: tuple[ParameterSpec, ...]
):
    text = (share() / "config" / file).read_text()
    values = yaml.safe_load(text)["/**"]["ros__parameters"]
    assert not set(values) - {spec.name for spec in table}
    assert not set(values) & FROM_THE_PLAN
    for spec in table:  # a list that is empty by default cannot be written down: it is a comment
        assert f"{spec.name}:" in text, f"{file} does not mention {spec.name}"
        if spec.name in values and not isinstance(spec.default, rclpy.Parameter.Type):
            assert type(values[spec.name]) is type(spec.default), spec.name


@pytest.mark.parametrize(
    "file", sorted((ROOT / "launch").glob("*.launch.py")), ids=lambda f: f.name
)
@pytest.mark.slow
def test_a_launch_file_describes_every_argument_and_plans_nodes_that_exist(file):
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree)
    scope: dict = {}
    exec(compile(tree, str(file), "exec"), scope)
    scope["launch_description"] = lambda arguments, make_plan: (arguments, make_plan)
    arguments, make_plan = scope["generate_launch_description"]()
    assert arguments
    assert all(len(description) > 10 for _, description in arguments.values())
    given = {name: default for name, (default, _) in arguments.items() if default}
    if file.name == "cloud_bridge.launch.py":
        given["engines"] = "cloud=tcp://127.0.0.1:7411"
    specs = [spec for spec in make_plan(given) if spec.package == "kairos_ros"]
    assert specs
    assert all(Path(command(spec)[0]).is_file() for spec in specs)


LAUNCHED = """
import sys
for name in "pydantic", "typer", "typing_extensions", "rich", "zmq", "msgpack":
    sys.modules[name] = None  # whoever imports it fails
from kairos_ros.bringup import launch_files
launch_files.launch_description = lambda arguments, make_plan: (arguments, make_plan)
for file in sys.argv[1:]:
    scope = {}
    exec(compile(open(file).read(), file, "exec"), scope)
    arguments, make_plan = scope["generate_launch_description"]()
    assert make_plan({name: default for name, (default, _) in arguments.items() if default}), file
    print(file)
"""


@pytest.mark.slow
def test_launch_files_work_in_the_systems_python_with_its_older_packages():
    """`ros2 launch` does not run with the Python of the nodes: Ubuntu 24.04 has pydantic 1."""
    files = sorted(map(str, (ROOT / "launch").glob("*.launch.py")))
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED, *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == files


@pytest.mark.slow
def test_a_plan_that_the_command_tells_is_the_plan():
    values = {"robot": "left", "cameras": "front,wrist", "rviz": "true", "record": "/tmp/a bag"}
    for arm in ARGUMENTS:
        assert told_plan("arm", "plan", arm, arguments=values) == arm_plan(arm, values)
    with pytest.raises(ConfigError, match=r"^seed is '-1'; it must be"):
        told_plan("arm", "plan", "so101", arguments={"seed": "-1"})


def test_every_launch_file_takes_what_those_of_nav2_take(tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text("/**: {ros__parameters: {horizon: 'static:10'}}")
    given = {"params_file": str(file), "use_sim_time": "True", "log_level": "DEBUG"}
    common = CommonValues.of({**given, "use_respawn": "true", "autostart": "false"})
    server, arm = common.applied([serving(), robot("arm_1", deadline_s=1.0)])
    assert (server.parameters["use_sim_time"], server.parameters["autostart"]) == (True, False)
    assert arm.parameters == {"use_sim_time": True, "deadline_s": 1.0, "autostart": False}
    told = common.node_arguments(arm)
    assert told["parameters"] == [str(arm.params_file), str(file), dict(arm.parameters)]
    assert (told["ros_arguments"], told["respawn"]) == (["--log-level", "debug"], True)
    no_options = robot(
        "arm_1", adapter_options=[], deadline_s=1.0
    )  # launch_ros takes no empty list
    assert common.node_arguments(no_options)["parameters"][-1] == {"deadline_s": 1.0}
    unchanged = CommonValues.of({})
    assert unchanged.applied([server, arm]) == [server, arm]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"params_file": "/no/such.yaml"}, "there is no file '/no/such.yaml'"),
        ({"log_level": "loud"}, "log_level is 'loud'; say debug, info"),
        ({"use_sim_time": "yes"}, "use_sim_time is 'yes'; say true or false"),
        ({"use_respawn": "2"}, "use_respawn is '2'"),
        ({"autostart": "on"}, "autostart is 'on'"),
    ],
)
def test_a_common_launch_argument_that_is_wrong_is_refused_by_name(given, says):
    with pytest.raises(ConfigError, match=says):
        CommonValues.of(given)


@pytest.mark.slow
def test_launch_files_start_the_plan():
    pytest.importorskip("launch_ros", reason="ros2 launch is not in the wheels")
    from launch import LaunchContext
    from launch.utilities import perform_substitutions

    for file in (ROOT / "launch").glob("*.launch.py"):
        scope: dict = {}
        exec(compile(file.read_text(), str(file), "exec"), scope)
        description = scope["generate_launch_description"]()
        names = {argument.name for argument in description.get_launch_arguments()}
        assert names >= COMMON_ARGUMENTS.keys(), file.name
        context = LaunchContext()
        for argument in description.get_launch_arguments():
            default = perform_substitutions(context, argument.default_value)
            context.launch_configurations[argument.name] = default
        assert description.entities[-1].execute(context)


def test_a_launch_file_says_what_its_robots_are_and_runs_without_rviz_where_there_is_none(
    monkeypatch,
):
    pytest.importorskip("launch_ros", reason="ros2 launch is not in the wheels")
    from launch import LaunchContext
    from launch.actions import LogInfo
    from launch_ros.actions import Node as Launched

    monkeypatch.setenv("PATH", "")
    arguments = {"robot": ("arm_1", "Name")}
    specs = [robot("arm_1"), rviz()]
    context = LaunchContext()
    given = {name: default for name, (default, _) in ({**COMMON_ARGUMENTS, **arguments}).items()}
    context.launch_configurations.update(given)
    description = launch_description(arguments, lambda values: specs)
    actions = description.entities[-1].execute(context)
    told = [one.msg[0].text for one in actions if isinstance(one, LogInfo)]
    assert told[0].startswith("rviz2 is not on PATH")
    assert told[1] == "robot arm_1 is a simulated Meta-World arm; cameras: none"
    assert len([one for one in actions if isinstance(one, Launched)]) == 1


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path):
    made = [run_folder(tmp_path / "runs", "up") for _ in range(20)]
    assert len(set(made)) == 20
    assert all(folder.is_dir() and folder.name.startswith("up_20") for folder in made)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="no folder can be made in"):
        run_folder(tmp_path / "file")


@pytest.mark.slow
def test_a_fleet_of_real_processes_is_started_and_leaves_nothing_behind(tmp_path):
    with Fleet([serving(policy=POLICY), pendulum("arm_1")], tmp_path / "logs") as fleet:
        until(lambda: "robot arm_1 is here" in fleet.log("serving").read_text())
        assert not fleet.dead()
        pids = [process.pid for process in fleet.processes.values()]
        pids += children(fleet.processes["serving"].pid)
        assert len(pids) == 3  # one engine
        assert set(fleet.processes) == {"serving", "arm_1"}
        fleet.stop(PATIENCE_S)  # a busy machine must not look like a node that does not end
    assert all(gone(pid) for pid in pids)
    assert fleet.dead() == {"serving": 0, "arm_1": 0}


@pytest.mark.slow
def test_a_killed_process_is_reported_and_can_be_started_again(tmp_path):
    spec = pendulum("arm_1")
    with Fleet([spec], tmp_path) as fleet:
        until(lambda: "is up" in fleet.tail("arm_1"))
        fleet.processes["arm_1"].kill()
        until(fleet.dead)
        assert fleet.dead() == {"arm_1": -signal.SIGKILL}
        fleet.start(spec)
        assert not fleet.dead()
        until(lambda: fleet.log("arm_1").read_text().count("is up") == 2)


@pytest.mark.slow
def test_a_second_process_of_the_same_name_is_refused_before_the_first_is_forgotten(tmp_path):
    with Fleet([pendulum("recorder")], tmp_path) as fleet:
        first = fleet.processes["recorder"]
        with pytest.raises(ConfigError, match="would be called 'recorder'"):
            fleet.start(ProcessSpec("recorder_node", "recorder", parameters={"out": str(tmp_path)}))
        assert fleet.processes == {"recorder": first}
    assert first.returncode is not None


@pytest.mark.slow
def test_a_fleet_that_cannot_be_started_whole_is_not_started_at_all(tmp_path):
    missing = ProcessSpec("no_such_node", "missing")
    fleet = Fleet([pendulum("arm_1"), missing], tmp_path)
    with pytest.raises(ConfigError, match="missing cannot be started"), fleet:
        pass
    assert fleet.processes["arm_1"].poll() is not None


@pytest.fixture
def up(tmp_path):
    """Runs `kairos up` with options, its output in a file; ends it after the test."""
    started = []

    def run(*options: str) -> tuple[subprocess.Popen, Path]:
        log = tmp_path / "up.log"
        program = Path(sys.prefix, "bin", "kairos")
        with log.open("wb") as out:
            line = [program, "up", "--out", str(tmp_path), *options]
            started.append(
                subprocess.Popen(line, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            )
        return started[-1], log

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE_S)


@pytest.mark.slow
def test_kairos_up_takes_what_the_serving_launch_file_takes(up):
    several = f"policies:=pick={POLICY};place={POLICY}"
    process, log = up("--robots", "1", several, "horizon:=static:10", "max_batch:=4")
    until(lambda: "robot arm_1 is here" in log.read_text())
    assert "pick ready after" in log.read_text()
    assert "place ready after" in log.read_text()
    assert "batches up to 4" in log.read_text()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("polices:=a=b", "did you mean 'policies'?"),
        ("max_batch:=many", "max_batch"),
        ("compile:=maybe", "compile"),
        ("compile", "NAME:=VALUE"),
    ],
)
def test_kairos_up_refuses_arguments_that_the_serving_launch_file_would(given, said):
    refused = CliRunner().invoke(app(), ["up", given])
    assert refused.exit_code != 0
    assert said in f"{refused.output} {refused.exception}"


@pytest.mark.slow
def test_kairos_up_ends_where_its_server_cannot_serve(up):
    process, log = up("--robots", "1", "--policy", "/nowhere")
    assert process.wait(PATIENCE_S) == 1
    assert "cannot serve /nowhere: there is no policy folder /nowhere" in log.read_text()
    assert "everything ends" in log.read_text()


@pytest.mark.slow
def test_kairos_up_shows_every_node_and_ctrl_c_ends_them_all(up):
    process, log = up("--robots", "1", "--policy", POLICY, "--scheduling", "fifo")
    until(lambda: "robot arm_1 is here" in log.read_text())
    nodes = children(process.pid)
    assert len(nodes) == 2
    assert "serving | " in log.read_text()
    until(lambda: "arm_1   | " in log.read_text(), what="for what the arm says")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert all(gone(pid) for pid in nodes)


@pytest.mark.slow
def test_nodes_leave_when_what_launched_them_is_killed(up):
    process, log = up("--robots", "1", "--policy", POLICY)
    until(lambda: "robot arm_1 is here" in log.read_text())
    nodes = children(process.pid)
    process.kill()
    process.wait()
    until(lambda: all(gone(pid) for pid in nodes))


@pytest.mark.slow
def test_kairos_up_reports_a_node_that_dies_and_ends_when_nothing_is_left(up):
    process, log = up("--robots", "1", "--no-serving")
    until(lambda: "is up" in log.read_text())
    (node,) = children(process.pid)
    os.kill(node, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == 1
    assert "arm_1 was killed by SIGKILL" in log.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--scheduling", "lottery"], "lottery"),
        (["--horizon", "hunch"], "hunch"),
        (["--robots", "0", "--no-serving"], "nothing to start"),
    ],
)
@pytest.mark.slow
def test_kairos_up_refuses_wrong_options_before_it_starts_anything(up, options, said):
    process, log = up(*options)
    assert process.wait(PATIENCE_S) == 2
    assert said in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("arm", ARGUMENTS)
def test_the_launch_arguments_of_an_arm_are_listed_without_starting_it(arm):
    listed = CliRunner().invoke(app(), ["arm", "up", arm, "--show-args"])
    assert listed.exit_code == 0
    for name, (default, text) in ARGUMENTS[arm].items():
        assert f"{name}:={default}\n    {text}\n" in listed.output
    unknown = CliRunner().invoke(app(), ["arm", "up", "so100", "--show-args"])
    assert "'so100' is none of so101" in str(unknown.exception)
