"""Fleet files: the paper's example loads, and every fault is named with its place."""

import copy
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import image
from typer.testing import CliRunner

from kairos_ros.bringup.fleet_files import fleet_path
from kairos_ros.commands.cli import app
from kairos_ros.commands.fleets import fleet as fleet_command
from kairos_ros.core.errors import ConfigError
from kairos_ros.core.pipeline import Component, Fallback
from kairos_ros.document.faults import FaultyFileError
from kairos_ros.fleet.checks import Known, unlocated
from kairos_ros.fleet.demand import demands
from kairos_ros.fleet.fleet_file import fleet_schema
from kairos_ros.fleet.reading import read_fleet
from kairos_ros.host import extras
from kairos_ros.robot.supervision.rules_text import parse_rules, rules_text
from kairos_ros.robot.supervision.state_table import TABLE

FLEETS = Path(__file__).parents[2] / "config" / "fleets"
KNOWN = Known(adapters={"sim", "so101"})
PAPER = (FLEETS / "paper_example.yaml").read_text()


@pytest.fixture
def faults(tmp_path):
    """What is wrong with a text: (line, column, field, text) each."""

    def of(text):
        path = tmp_path / "fleet.yaml"
        path.write_text(text)
        with pytest.raises(FaultyFileError) as caught:
            read_fleet(path, KNOWN)
        found = caught.value.faults
        lines = str(caught.value).splitlines()
        for fault, line in zip(found, lines, strict=True):
            assert line.startswith(f"{path}:{fault.place.line}:{fault.place.column}: ")
        return [(f.place.line, f.place.column, f.field, f.text) for f in found]

    return of


def paper(old, new, count=1):
    assert PAPER.count(old) >= count
    return PAPER.replace(old, new, count)


def line_of(text, part):
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


def test_the_papers_own_example_loads_unchanged():
    fleet = read_fleet(FLEETS / "paper_example.yaml", KNOWN)
    assert (fleet.server_cluster.num_servers, fleet.server_cluster.gpu_type) == (8, "NVIDIA H200")
    assert len(fleet.robots) == 32
    simple, inspect = fleet.tasks["pick_and_place_simple"], fleet.tasks["inspect_product"]
    assert list(simple.components.used) == [Component.SYSTEM1, Component.MONITOR]
    rules = inspect.rules
    assert rules.system2_ratio == 1
    assert (rules.max_task_retries, rules.max_consecutive_safety_replan) == (3, 10)
    assert rules.on_max_violation is Fallback.STOP_AND_CALL_HUMAN
    safety = rules.components[Component.SAFETY]
    assert (safety.period_ns, safety.slo_ns) == (500_000_000, 500_000_000)
    assert safety.fallback is Fallback.STOP_AND_REPLAN


def test_the_factorys_four_robots_have_all_components_on_models_that_come_along():
    fleet = read_fleet(FLEETS / "factory.yaml", KNOWN)
    assert list(fleet.robots) == ["arm_1", "arm_2", "arm_3", "arm_4"]
    assert all(list(task.components.used) == list(Component) for task in fleet.tasks.values())
    assert unlocated(fleet) == {}


@pytest.mark.parametrize("name", ["paper_example", "factory"])
def test_a_robot_host_gets_the_same_rules_as_one_line_of_text(name):
    for task in read_fleet(FLEETS / f"{name}.yaml", KNOWN).tasks.values():
        assert parse_rules(rules_text(task.rules)) == task.rules


def test_without_a_horizon_policy_one_action_period_is_executed():
    task = read_fleet(FLEETS / "paper_example.yaml", KNOWN).tasks["inspect_product"]
    assert task.horizon_policy(30.0) == "static:15"
    assert task.horizon_policy(1.0) == "static:1"


def test_judges_without_an_address_are_told_and_models_says_where_they_are(tmp_path):
    fleet = read_fleet(FLEETS / "paper_example.yaml", KNOWN)
    assert unlocated(fleet) == {
        "Qwen2.5-VL-7B-Instruct": [
            "pick_and_place_simple.monitor",
            "inspect_product.system2",
            "inspect_product.monitor",
        ],
        "Qwen2.5-VL-3B-Instruct": ["inspect_product.safety"],
    }
    path = tmp_path / "fleet.yaml"
    (tmp_path / "gr00t").mkdir()
    path.write_text(
        f"""{PAPER}
models:
  nvidia/GR00T-N1.6-3B: ./gr00t
  Qwen2.5-VL-7B-Instruct: openai:http://gpu1:8000/v1#Qwen2.5-VL-7B-Instruct
  Qwen2.5-VL-3B-Instruct: openai:http://gpu2:8000/v1#Qwen2.5-VL-3B-Instruct
"""
    )
    fleet = read_fleet(path, KNOWN)
    assert unlocated(fleet) == {}
    assert fleet.located("nvidia/GR00T-N1.6-3B") == "./gr00t"


def test_demand_counts_robots_times_rate_and_system_2_once_per_so_many_predictions(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(paper("call_ratio: 1", "call_ratio: 10"))
    asked = {(d.task, d.component.value): d.hz for d in demands(read_fleet(path, KNOWN))}
    assert asked["pick_and_place_simple", "system1"] == 16 * 5
    assert asked["inspect_product", "safety"] == 16 * 2
    assert asked["inspect_product", "system2"] == 16 * 2 / 10


@pytest.mark.parametrize(
    ("old", "new", "field", "says"),
    [
        ("slo_ms: 200\n", "slo_ms: 0.5\n", "system1.slo_ms", "greater than or equal to 1.*not 0.5"),
        ("slo_ms: 200\n", "slo_ms: fast\n", "system1.slo_ms", "valid number.*not 'fast'"),
        ("slo_ms: 200\n", "slo_ms: .nan\n", "system1.slo_ms", "not nan"),
        ("slo_ms: 200\n", "slo_s: 200\n", "system1.slo_s", "no field 'slo_s'.*mean 'slo_ms'"),
        ("num_servers: 8", "num_servers: 0", "server_cluster.num_servers", "not 0"),
        ("num_servers: 8", "num_servers: true", "server_cluster.num_servers", "not True"),
        ("call_ratio: 1", "call_ratio: 0.1", "system2_to_system1_call_ratio", "System 1 pred.*0.1"),
        (
            "fallback: use_last_plan",
            "fallback: last_plan",
            "system2.fallback",
            "use_last_plan.*all",
        ),
        ("fallback: stop_and_replan", "fallback: use_last_plan", "safety.fallback", "allowed are:"),
        (
            "stop_and_call_human",
            "call_human",
            "on_max_task_retries",
            "did you mean 'stop_and_call_hum",
        ),
        ("- task: inspect_product", "- task: inspect", "robot_fleet.1.task", "mean 'inspect_prod"),
        ("num_robots: 16", "num_robots: 0", "robot_fleet.0.num_robots", "not 0"),
        ("  pipeline:\n    action_period_ms: 200", "  pipeline: 200", "pipeline", "mapping of act"),
        ("freq_hz: 0.5\n", "freq_hz: 0.004\n", "monitor.freq_hz", "equal to 0.01.*not 0.004"),
        ("freq_hz: 0.5\n", "freq_hz: 0.6\n", "monitor.slo_ms", "longer than the period of 1666.67"),
        ("model: Qwen", "model: 'Qwen 2'\n      #", "monitor.model", "'Qwen 2' is no model"),
        ("model: nvidia", "model: ./no\n      #", "system1.model", "there is no folder"),
        ("model: Qwen", "model: ./\n      #", "monitor.model", r"say how .*: transformers:\./"),
        ("model: Qwen", "model: transformers:no\n      #", "monitor.model", "no folder /.*/no"),
        ("model: Qwen", "model: embedded:/no\n      #", "monitor.model", "no folder /no"),
        ("model: Qwen", "model: embedded:judge\n      #", "monitor.model", "factory_judge"),
        ("model: Qwen", "model: embedded:planner\n      #", "monitor.model", "cannot be a monitor"),
        ("model: nvidia", "model: openai:http\n      #", "system1.model", "cannot be system1"),
    ],
)
def test_a_fault_names_its_line_its_field_what_was_given_and_what_is_allowed(
    faults, old, new, field, says
):
    text = paper(old, new)
    found = faults(text)
    (line, column, where, told), *others = [f for f in found if f[2].endswith(field)]
    assert re.search(says, told)
    assert not others
    written = text.splitlines()[line - 1]
    assert column <= len(written)
    key = field.rsplit(".", 1)[-1]
    assert key in written or where.startswith("robot_fleet")


def test_all_faults_of_a_file_are_told_at_once_in_the_order_of_its_lines(faults):
    text = paper("num_servers: 8", "num_servers: x").replace("freq_hz: 2", "freq_hz: 0")
    text = text.replace("  task_retry:", "  task_retries:", 1)
    fields = [field for _, _, field, _ in faults(text)]
    assert fields == [
        "server_cluster.num_servers",
        "pick_and_place_simple.task_retry",
        "pick_and_place_simple.task_retries",
        "inspect_product.components.safety.freq_hz",
    ]


def test_a_misspelt_section_is_told_once_and_the_rest_is_checked_all_the_same(faults):
    text = paper("robot_fleet:", "robots_fleet:").replace("num_robots: 16", "num_robots: -2", 1)
    assert [(field, told[:30]) for _, _, field, told in faults(text)] == [
        ("robots_fleet", "there is no section 'robots_fl"),
        ("robots_fleet.0.num_robots", "it must be greater than or equ"),
    ]


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"system2": None}, "pipeline.system2_to_system1_call_ratio", "needs components.system2"),
        ({"ratio": None}, "pipeline", "needs system2_to_system1_call_ratio"),
        (
            {"system2": None, "ratio": None, "system1": "stop_and_replan"},
            "system1.fallback",
            "needs",
        ),
        ({"horizon": "statik:10"}, "horizon", "unknown horizon policy 'statik'"),
        ({"horizon": "static:0"}, "horizon", ">= 1, not 0"),
        ({"horizon": "calibrated"}, "horizon", "kairos calibrate"),
        ({"scheduling": "lifo"}, "scheduling", "unknown scheduling policy 'lifo'"),
        ({"scheduling": "fifo"}, "scheduling", "share has one scheduling policy"),
        ({"model": "a/b", "options": {"rtx": True}}, "system1.options.rtx", "did you mean 'rtc'?"),
        (
            {"model": "a/b", "options": {"compile": 1}},
            "system1.options.compile",
            "1 must be true or false",
        ),
        (
            {"model": "a/b", "options": {"threads": 0}},
            "options.threads",
            "a whole number, 1 to 256",
        ),
        ({"options": {"threads": 2}}, "components.system1", "one engine serves both"),
    ],
)
def test_what_must_fit_together_is_checked(faults, change, field, says):
    data = yaml.safe_load(PAPER)
    task = data["inspect_product"]
    for name in ("horizon", "scheduling"):
        if name in change:
            task[name] = change[name]
    if "system2" in change:
        del task["components"]["system2"]
    if "ratio" in change:
        del task["pipeline"]["system2_to_system1_call_ratio"]
    if "system1" in change:
        task["components"]["system1"]["fallback"] = change["system1"]
    if "options" in change:
        task["components"]["system1"]["options"] = change["options"]
    if "model" in change:
        task["components"]["system1"]["model"] = change["model"]
    (_, _, where, told), *_ = faults(yaml.safe_dump(data, sort_keys=False))
    assert where == f"inspect_product.{field}" or where.endswith(field)
    assert says in told


@pytest.mark.parametrize(
    ("group", "field", "says"),
    [
        ({"names": ["a", "b", "a"]}, "names", "'a' is taken"),
        ({"names": ["a", "kairos"]}, "names", "'kairos' is taken by a node"),
        ({"names": ["safety_2"]}, "names", "'safety_2' is taken by a node"),
        ({"names": ["cell_1/kairos"]}, "names", "'cell_1/kairos' is taken by a node"),
        ({"names": ["cell_1/"]}, "names.0", "pattern"),
        ({"names": ["2a"]}, "names.0", "pattern"),
        ({"names": ["a"], "num_robots": 2}, "robot_fleet.0", "num_robots is 2, but there are 1"),
        ({}, "robot_fleet.0", "say num_robots, or give their names"),
        ({"num_robots": 1, "adapter": "so10"}, "adapter", "did you mean 'so101'"),
        ({"num_robots": 1, "params_file": "no.yaml"}, "params_file", "there is no file"),
        ({"num_robots": 1, "control_rate_hz": 0}, "control_rate_hz", "not 0"),
        ({"num_robots": 1, "safe_state": [float("nan")]}, "safe_state.0", "finite"),
        (
            {"num_robots": 1, "safe_state": [0], "adapter_options": {"safe_state": [0]}},
            "safe_state",
            "give it once",
        ),
    ],
)
def test_robots_are_checked(faults, group, field, says):
    data = yaml.safe_load(PAPER)
    data["robot_fleet"][0] = {"task": "pick_and_place_simple", **group}
    (_, _, where, told), *others = faults(yaml.safe_dump(data, sort_keys=False))
    assert where.endswith(field)
    assert says in told
    assert not others


def test_a_task_that_nobody_does_and_a_model_that_nobody_uses_are_faults(faults):
    text = paper("- task: inspect_product\n  num_robots: 16\n", "")
    text += "models: {Qwen2.5-VL-7B-instruct: /}\n"
    told = {field: text for _, _, field, text in faults(text)}
    assert "no robot of robot_fleet does this task" in told["inspect_product"]
    assert "did you mean 'Qwen2.5-VL-7B-Instruct'" in told["models.Qwen2.5-VL-7B-instruct"]
    assert "is unknown" in told["pick_and_place_simple.components.monitor.model"]


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("", 1, 1, "empty"),
        ("just text", 1, 1, "sections"),
        ("- a\n- b", 1, 1, "sections"),
        ("server_cluster:\n  num_servers: 8\n gpu: x\n", 3, 2, "this is no YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, 1, "'a' is given twice; the first one is in line 1"),
        ("a: &x [*x]\n", 1, 4, "refers to itself"),
        ("a: {b: emulated:c=1,d=2, e: f}\n", 1, 21, "'d=2' has no value: inside {} a comma"),
        ("? [a]\n: 1\n", 1, 3, "a key must be text"),
        ("a: !!python/object:os.system x\n", 1, 4, "could not determine a constructor"),
        ("a: 2026-99-99\n", 1, 4, "month must be"),
        ("[" * 100_000, 1, 1, "nested too deeply"),
        ("x" * 1_000_001, 1, 1, "longer than"),
    ],
    ids=range(12),
)
def test_what_is_no_yaml_mapping_is_told_with_its_place(faults, text, line, column, says):
    ((at_line, at_column, _, told),) = faults(text)
    assert (at_line, at_column) == (line, column)
    assert says in told


def test_aliases_that_multiply_are_refused_before_they_do(faults):
    bomb = "a0: &a0 x\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
    )
    ((_, _, _, told),) = faults(bomb)
    assert "over 100000 values" in told


def test_a_fault_in_a_merged_mapping_points_to_where_it_is_written(faults):
    text = (FLEETS / "factory.yaml").read_text()
    text = text.replace("      freq_hz: 2\n", "      freq_hz: 400\n")
    found = faults(text)
    assert [field for _, _, field, _ in found] == [
        "push.components.safety.freq_hz",
        "open_drawer.components.safety.freq_hz",
    ]
    assert {line for line, *_ in found} == {line_of(text, "freq_hz: 400")}


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_fleet(tmp_path / "no.yaml", KNOWN)
    assert fleet_path("no.yaml") == Path("no.yaml")
    with pytest.raises(ConfigError, match="'factry' is no file and no fleet; those that ship: em"):
        fleet_path("factry")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        read_fleet(tmp_path / "bytes.yaml", KNOWN)


@st.composite
def damaged(draw):
    """The paper's example with one part replaced, removed or added."""
    data = copy.deepcopy(yaml.safe_load(PAPER))
    node = data
    for _ in range(draw(st.integers(0, 4))):
        inner = [v for v in (node.values() if isinstance(node, dict) else node) if v]
        inner = [v for v in inner if isinstance(v, dict | list)]
        if not inner:
            break
        node = draw(st.sampled_from(inner))
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = draw(st.sampled_from(keys))
    junk = st.sampled_from(
        [None, "", "x", -1, 0, 0.5, 10**30, float("inf"), True, [], {}, [1], {"a": 1}, "../.."]
    )
    if draw(st.booleans()):
        node[key] = draw(junk)
    else:
        del node[key]
    return yaml.safe_dump(data, sort_keys=False)


@given(text=damaged())
@settings(max_examples=150)
@pytest.mark.slow
def test_any_damage_either_loads_or_is_told_with_a_place_in_the_file(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    path.write_text(text)
    try:
        fleet = read_fleet(path, KNOWN)
    except FaultyFileError as error:
        lines = text.splitlines() or [""]
        for fault in error.faults:
            assert 1 <= fault.place.line <= len(lines)
            assert fault.text
    else:
        assert fleet.robots
        assert all(task.rules.components for task in fleet.tasks.values())


def run(*arguments):
    return CliRunner().invoke(app(), ["fleet", *arguments])


def test_check_says_in_one_line_that_a_file_is_right(tmp_path):
    done = run("check", str(FLEETS / "factory.yaml"))
    assert done.exit_code == 0
    assert "4 robots in 2 task classes, 8 components of 3 models" in done.output


@pytest.mark.parametrize(
    ("model", "code", "says"),
    [
        ("embedded:metaworld_flow", 0, "4 robots"),
        ("./mine", 2, "push.horizon: horizon policy 'calibrated' needs a calibration"),
        ("./broken", 2, "push.horizon: horizon calibration"),
        ("owner/model", 2, "push.horizon: horizon policy 'calibrated' needs"),
    ],
)
def test_a_calibrated_horizon_is_that_of_the_policy_that_the_fleet_serves(
    tmp_path, model, code, says
):
    path = tmp_path / "fleet.yaml"
    text = (FLEETS / "factory.yaml").read_text()
    text = text.replace("horizon: tail_agreement:t=0.8,h_min=5", "horizon: calibrated")
    path.write_text(text.replace("embedded:metaworld_flow", model))
    for folder in ("mine", "broken"):
        (tmp_path / folder).mkdir()
    (tmp_path / "broken" / "horizon_calibration.json").write_text("{")
    done = run("check", str(path))
    assert done.exit_code == code, done.output
    assert says in done.output


def server(model, **more):
    """Changes of the factory's file: every task is served this model."""

    def change(data):
        for task in ("push", "open_drawer"):
            data[task]["components"]["system1"]["model"] = model
            data[task] |= more

    return change


def judged_by(model):
    def change(data):
        for task in ("push", "open_drawer"):
            data[task]["components"]["monitor"]["model"] = model

    return change


def body(adapter, count=4, **options):
    def change(data):
        group = {"task": "push", "num_robots": count, "adapter": adapter}
        data["robot_fleet"] = [group | {"adapter_options": options}]
        del data["open_drawer"]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (server("./empty"), "it has no readable config.json"),
        (server("./absent"), "there is no folder"),
        (server("./broken"), "it has no readable config.json"),
        (server("emulated:latnecy_ms=5"), "unknown option 'latnecy_ms=5'"),
        (server("emulated:chunk=8", horizon="static:9"), "longer than the model's chunk of 8"),
        (server("./short", horizon="static:31"), "longer than the model's chunk of 30"),
        (server("./short", horizon="calibrated"), "needs a calibration"),
        (server("./short", horizon="static:tuned"), "run 'kairos calibrate'"),
        (server("./short", horizon="stattic:5"), "unknown horizon policy 'stattic'"),
        (judged_by("Qwen2.5-VL-3B-Instruct"), "models must say where 'Qwen2.5-VL-3B-Instruct' is"),
        (judged_by("openai:http://host:99999/v1#m"), "is no endpoint"),
        (judged_by("openai:host/v1#m"), "is no endpoint"),
        (judged_by("openai:http://host:8000/v1"), "is no endpoint"),
        (body("sim", 28), "at most 30 find each other"),
        (body("simm"), "there is no adapter 'simm'"),
    ],
)
def test_check_refuses_what_up_refuses_in_the_same_words(tmp_path, monkeypatch, change, says):
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    monkeypatch.setattr(fleet_command, "Fleet", lambda *_: pytest.fail("nodes were started"))
    for name in ("empty", "broken", "short"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "short" / "config.json").write_text('{"type": "act", "chunk_size": 30}')
    data = yaml.safe_load((FLEETS / "factory.yaml").read_text())
    change(data)
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    checked, started = run("check", str(path)), run("up", str(path), "--out", str(tmp_path / "o"))
    assert checked.exit_code == 2
    assert says in checked.stderr
    told = [line for line in checked.stderr.splitlines() if line.startswith(str(path))]
    assert str(started.exception).splitlines() == told


@pytest.mark.parametrize(
    ("module", "change"),
    [
        ("torch", server("owner/model")),
        ("metaworld", body("sim")),
        ("gymnasium", body("sim", env_id="Pusher-v5")),
        ("lerobot", body("lerobot", robot="so101_follower")),
        ("safetensors", judged_by("embedded:factory_judge")),
        ("httpx", judged_by("openai:http://host:8000/v1#m")),
    ],
)
def test_a_package_that_a_node_would_miss_is_told_before_it_starts(
    tmp_path, monkeypatch, module, change
):
    installed = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda n: None if n == module else installed(n))
    data = yaml.safe_load((FLEETS / "factory.yaml").read_text())
    change(data)
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    assert f"has no module {module}, which comes with the extra" in run("check", str(path)).stderr
    with pytest.raises(ConfigError, match=f"has no module {module}"):
        fleet_command.runnable(path)


def test_check_shows_each_fault_in_its_line_and_ends_with_2(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(paper("fallback: stop_and_replan", "fallback: stop_and_repln"))
    done = run("check", str(path))
    assert done.exit_code == 2
    told, line, caret, count = done.stderr.splitlines()
    assert told.startswith(f"{path}:74:17: inspect_product.components.safety.fallback: ")
    assert line[caret.index("^") :] == "stop_and_repln"
    assert count == "1 to mend"


def seeing(change):
    """A copy of the fleet whose arms see, with one change."""
    data = yaml.safe_load((FLEETS / "factory_cameras.yaml").read_text())
    change(data)
    return yaml.safe_dump(data, sort_keys=False)


def test_a_fleet_whose_arms_see_runs_as_it_ships():
    done = run("check", str(FLEETS / "factory_cameras.yaml"))
    assert done.exit_code == 0, done.stderr
    assert "4 robots in 2 task classes, 8 components of 3 models" in done.output


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda data: data["robot_fleet"][0]["adapter_options"]["images"].pop("topview"),
            "robot_fleet.0.adapter_options: embedded:metaworld_cameras reads pictures; give "
            "adapter_options.images: {corner4: [128, 128], topview: [128, 128]}; arm_1 has "
            "corner4, corner3",
        ),
        (
            lambda data: data["robot_fleet"][1]["adapter_options"]["images"].update(
                topview=[64, 64]
            ),
            "robot_fleet.1.adapter_options: embedded:metaworld_cameras reads pictures",
        ),
        (
            lambda data: data["push"]["components"]["safety"].update(cameras=["corner2"]),
            "push.components.safety.cameras: there is no camera 'corner2'; arm_1 has corner4, "
            "topview, corner3",
        ),
        (
            lambda data: data["open_drawer"]["components"]["monitor"].pop("cameras"),
            "open_drawer.components.monitor.model: embedded:factory_judge looks at one picture; "
            "write cameras: [NAME]; arm_3 has corner4, topview, corner3",
        ),
        (
            lambda data: data["robot_fleet"][0].pop("adapter_options"),
            "robot_fleet.0: safety looks at pictures; give adapter_options.images, such as "
            "{corner3: [240, 240]}",
        ),
    ],
)
def test_check_says_which_camera_a_simulated_arm_lacks_for_its_model_and_its_judges(
    tmp_path, change, says
):
    path = tmp_path / "fleet.yaml"
    path.write_text(seeing(change))
    done = run("check", str(path))
    assert done.exit_code == 2
    assert says in done.stderr


def test_the_committed_schema_for_editors_is_the_one_that_is_printed():
    printed = run("schema").output
    assert printed == (FLEETS / "fleet.schema.json").read_text()
    assert json.loads(printed) == fleet_schema()


@pytest.mark.slow
def test_show_draws_a_picture_and_long_or_odd_names_fit_into_it(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(paper("prompt:", "prompt: $x^ #").replace("NVIDIA H200", "$%_{H}" * 30))
    png, svg = tmp_path / "fleet.png", tmp_path / "fleet.svg"
    done = run("show", str(path), "--png", str(png), "--svg", str(svg))
    assert done.exit_code == 0, done.output
    pixels = image.imread(png)
    assert pixels.shape[1] == 1800
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 50
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_the_state_diagram_of_the_docs_is_made_from_the_table():
    printed = run("states").output
    page = (FLEETS.parents[1] / "docs" / "fleet.md").read_text()
    assert page.split("<!-- states -->\n")[1].split("<!-- /states -->")[0] == printed
    for row in TABLE:
        arrow = rf"--> {row.target or '.*'}: .*{re.escape(row.trigger.replace('_', ' '))}"
        assert row.target is None or re.search(arrow, printed), row


def test_show_tells_robots_models_rates_and_what_happens_when_they_fail():
    output = run("show", str(FLEETS / "paper_example.yaml")).output
    for part in (
        "16 robots: inspect_product_1 ... inspect_product_16",
        "safety Qwen2.5-VL-3B-Instruct",
        "32/s, within 500 ms, else stop_and_replan",
        "more than 10 unsafe verdicts in a row: stop_and_call_human",
    ):
        assert part in " ".join(output.split()), part
