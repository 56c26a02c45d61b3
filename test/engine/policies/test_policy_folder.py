"""A policy folder comes from somebody else: what it may make us do, and how it is refused."""

import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lerobot.processor import PolicyProcessorPipeline
from observations import observation, options
from safetensors.torch import load_file, save_file
from tiny_policies import CAMERA, save_policy, small_pi

from kairos_ros.core.errors import ConfigError, PolicyError
from kairos_ros.engine.policies import policy_folder
from kairos_ros.engine.policies.policy_folder import PROCESSORS, read_policy_folder
from kairos_ros.engine.policies.served import REFUSED
from kairos_ros.engine.worker.loading import load_engine, load_registry, memory_needed
from kairos_ros.transport.messages import InferResult

pytestmark = pytest.mark.slow

DOUBLING = """
from dataclasses import dataclass
from lerobot.processor import PolicyActionProcessorStep

@dataclass
class DoublingStep(PolicyActionProcessorStep):
    def action(self, action):
        return 2 * action

    def transform_features(self, features):
        return features
"""
"""A processor step of somebody's own plugin, registered by nobody."""


@pytest.fixture
def copy(folder_of, tmp_path):
    """A flow_mlp folder to change."""
    return Path(shutil.copytree(folder_of("flow_mlp"), tmp_path / "policy"))


def edit(file, change):
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def add_step(folder, step, name=PROCESSORS[0]):
    edit(folder / name, lambda data: data["steps"].append(step))


def edit_step(folder, name, **config):
    """Of the preprocessor."""
    edit(
        folder / PROCESSORS[0],
        lambda data: next(step for step in data["steps"] if step["registry_name"] == name)[
            "config"
        ].update(config),
    )


def command(marker):
    """A processor step that LeRobot would run while it loads the folder."""
    return {"class": "subprocess.check_output", "config": {"args": ["touch", str(marker)]}}


def refused(policy, **changes):
    """The one line that refuses it."""
    with pytest.raises(PolicyError) as error:
        load_engine(options(policy, **changes), lambda _: None)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 700
    return text


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_that_runs_a_command_is_refused_and_the_command_is_not_run(
    copy, tmp_path, name
):
    marker = tmp_path / "was_here"
    add_step(copy, command(marker), name)
    assert "'subprocess.check_output' would be imported by its path" in refused(copy)
    assert not marker.exists()
    with pytest.raises(TypeError, match="must inherit from ProcessorStep"):  # it ran it by then
        PolicyProcessorPipeline.from_pretrained(copy, config_filename=name)
    assert marker.exists()


def test_a_hub_repository_is_judged_like_a_folder(copy, tmp_path, monkeypatch):
    marker = tmp_path / "was_here"
    add_step(copy, command(marker))
    commit = "0123abcd" * 5
    repository = tmp_path / "hub" / "models--someone--reacher"  # the hub client's cache on disk
    shutil.copytree(copy, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert "would be imported by its path" in refused("someone/reacher")
    assert not marker.exists()


def test_a_registered_step_that_runs_code_from_the_hub_is_refused(copy):
    step = {"registry_name": "action_tokenizer_processor", "config": {"trust_remote_code": False}}
    add_step(copy, step)
    assert "may load models or code" in refused(copy)
    edit(copy / PROCESSORS[0], lambda d: d["steps"][-1]["config"].update(trust_remote_code=True))
    assert "would run code from the hub" in refused(copy)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("no object", "no JSON object"),
        ({"registry_name": "device_processor", "config": ["x"]}, "no JSON object"),
        ({"registry_name": 3}, "a step has no name"),
        ({"config": {}}, "a step has no name"),
        ({"registry_name": None, "class": "os.system"}, "a step has no name"),
        ({"registry_name": "nobody_has_it"}, "nobody registers the processor step"),
        ({"registry_name": "device_processor", "state_file": "../secret"}, "no file beside it"),
        ({"registry_name": "device_processor", "state_file": "/etc/passwd"}, "no file beside it"),
        ({"registry_name": "device_processor", "state_file": "gone"}, "has no gone"),
    ],
)
def test_a_step_that_is_not_what_lerobot_saves_is_refused(copy, step, said):
    add_step(copy, step)
    assert said in refused(copy)


def test_a_step_of_ones_own_is_loaded_where_it_is_named(copy, tmp_path, monkeypatch, engine_of):
    (tmp_path / "my_plugin.py").write_text(DOUBLING)
    monkeypatch.syspath_prepend(tmp_path)
    add_step(copy, {"class": "my_plugin.DoublingStep"}, PROCESSORS[1])
    assert "allowed_steps" in refused(copy)
    mine = options(copy, allowed_steps="something.else, my_plugin.DoublingStep")
    (outcome,) = load_engine(mine, lambda _: None).infer([observation(0)])
    (plain,) = engine_of("flow_mlp").infer([observation(0)])
    assert isinstance(outcome, InferResult)
    assert outcome.chunk == pytest.approx(2 * plain.chunk)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b"[" * 100_000, b" " * 5_000_000])
def test_a_configuration_that_is_no_json_object_is_refused(copy, content):
    (copy / "config.json").write_bytes(content)
    assert "config.json" in refused(copy)


def test_a_clone_whose_weights_were_not_fetched_is_told_how_to_fetch_them(copy):
    (copy / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "git lfs pull" in refused(copy)


@pytest.mark.parametrize("part", ["model.safetensors", "policy_preprocessor_step"])
@pytest.mark.parametrize("left", [0, 40, 300])
def test_a_torn_file_is_named_before_torch_is_imported(copy, part, left):
    (file,) = copy.glob(f"{part}*")
    with file.open("r+b") as stream:
        stream.truncate(left)
    stages = []
    with pytest.raises(PolicyError, match="copy or download it again") as error:
        load_engine(options(copy), stages.append)
    assert str(file) in str(error.value)
    assert stages == []


def test_weights_that_cannot_be_read_are_said_so_in_a_line_of_the_log_and_no_more(copy, caplog):
    weights = copy / "model.safetensors"
    weights.unlink()
    weights.symlink_to("/proc/self/mem")  # opens, and no byte of it can be read
    assert f"{weights} cannot be read: " in refused(copy)
    assert caplog.text == ""
    weights.unlink()
    weights.symlink_to(weights.name)
    assert "no model.safetensors: it is a symbolic link that leads to no file" in refused(copy)


def test_a_configuration_of_another_type_is_refused_by_type_and_version(folder_of, tmp_path):
    copy = Path(shutil.copytree(folder_of("act"), tmp_path / "policy"))
    edit(copy / "config.json", lambda data: data.update(type="diffusion"))
    said = refused(copy)
    assert f"{copy}/config.json is not what LeRobot 0.6" in said
    assert "saves for a policy of type 'diffusion': " in said


def test_an_option_that_a_type_has_not_is_refused_before_torch_is_imported(folder_of):
    stages = []
    with pytest.raises(PolicyError, match="rtc: policies of type 'act' cannot be guided"):
        load_engine(options(folder_of("act"), rtc=True), stages.append)
    assert stages == []


@pytest.mark.parametrize("path", ["/no/such", "./no/such", "../no", "~/no/such"])
def test_a_path_that_leads_nowhere_is_not_taken_for_a_hub_id(folder_of, tmp_path, path):
    for judge in (load_engine, lambda wanted, _: memory_needed(wanted)):
        with pytest.raises(PolicyError, match=f"^there is no policy folder {path}$"):
            judge(options(path), lambda _: None)
    copy = Path(shutil.copytree(folder_of("lingbot_va"), tmp_path / "policy"))
    edit(copy / "config.json", lambda data: data.update(wan_pretrained_path=path))
    said = refused(copy)
    assert f"built on '{path}', which is not on this host (there is no such folder); write" in said
    assert "hf download" not in said


def test_more_observations_than_robots_keep_are_refused_before_the_policy_is_made(copy):
    edit(copy / "config.json", lambda data: data.update(type="diffusion", n_obs_steps=10**9))
    assert "reads 1000000000 observations" in refused(copy)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("chunk_size", value) for value in (10**9, 0, -1)),
        *((n, 10**9) for n in ("num_steps", "n_encoder_layers", "num_train_timesteps")),
    ],
)
def test_a_size_that_no_policy_has_is_refused_before_it_is_tried(copy, name, value):
    edit(copy / "config.json", lambda data: data.update({name: value}))
    assert f"says {name}: {value} in config.json" in refused(copy)


def test_a_policy_without_actions_is_refused_by_name(copy):
    edit(copy / "config.json", lambda data: data.update(output_features={}))
    assert "has no output 'action'" in refused(copy)


def test_a_configuration_that_lerobot_cannot_make_is_refused_with_the_reason(copy):
    edit(copy / "config.json", lambda data: data.update(instructions=[]))
    assert "at least one entry in 'instructions'" in refused(copy)
    shutil.rmtree(copy)
    save_policy("act", copy.parent)
    edit(copy / "config.json", lambda data: data.update(chunk_size=None))
    assert "NoneType" in refused(copy)


@pytest.mark.parametrize("part", ["input_features", "output_features"])
def test_features_that_are_no_object_are_refused(copy, part):
    edit(copy / "config.json", lambda data: data.update({part: 1}))
    assert f"{part} in config.json is no JSON object" in refused(copy)


@pytest.mark.parametrize(("field", "value"), [("norm_map", 0), ("eps", "none")])
def test_what_nobody_expects_in_a_folder_refuses_it_and_no_other(copy, field, value):
    """One that LeRobot meets while it makes the steps, and one only when it computes."""

    def spoil(data):
        (step,) = (s for s in data["steps"] if s["registry_name"] == "unnormalizer_processor")
        step["config"][field] = value

    edit(copy / "policy_postprocessor.json", spoil)
    registry = {"bad": options(copy), "good": options("emulated:chunk=5")}
    engines, reasons = load_registry(registry, lambda _: None)
    assert list(engines) == ["good"]
    assert f"policy {copy} does not load: " in reasons["bad"]
    assert "\n" not in reasons["bad"]


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_policy_without_the_statistics_that_scale_it_is_refused(copy, name):
    edit(copy / name, lambda data: [step.pop("state_file", None) for step in data["steps"]])
    assert "no statistics of" in refused(copy)


def test_a_policy_with_empty_statistics_is_refused(copy):
    for state in copy.glob("policy_p*processor_step*.safetensors"):
        save_file({}, state)
    assert "no statistics of" in refused(copy)


def scaled_by(folder, **numbers):
    """Writes one number of a statistic of the state, at its first place."""
    (file,) = folder.glob("policy_preprocessor_step*.safetensors")
    stats = load_file(file)
    for name, value in numbers.items():
        stats[f"observation.state.{name}"].view(-1)[0] = value
    save_file(stats, file)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_statistics_that_are_no_numbers_are_refused(copy, number):
    scaled_by(copy, std=number)
    assert "std of observation.state has values that are not finite" in refused(copy)


def test_a_state_that_never_changed_in_training_is_served_as_lerobot_does_with_a_warning(
    copy, caplog
):
    scaled_by(copy, std=0.0)
    load_engine(options(copy), print)
    assert "observation.state never changed at [0]" in caplog.text


def test_pictures_of_a_camera_that_was_renamed_in_the_configuration_only_are_warned_of(
    folder_of, tmp_path, caplog
):
    copy = Path(shutil.copytree(folder_of("act"), tmp_path / "policy"))
    edit(
        copy / "config.json",
        lambda data: data["input_features"].update(
            {"observation.images.front": data["input_features"].pop(CAMERA)}
        ),
    )
    for name in PROCESSORS:
        text = (copy / name).read_text()
        (copy / name).write_text(text.replace(CAMERA, "observation.images.front"))
    load_engine(options(copy, max_batch=1), print)
    assert "pictures of observation.images.front are not scaled" in caplog.text
    assert f"but of {CAMERA};" in caplog.text


@pytest.mark.parametrize("shape", [[32, 48, 3], [1, 32, 48], [4, 32, 48], [32, 48]])
def test_a_picture_that_is_not_three_channels_first_is_refused(copy, shape):
    feature = {"type": "VISUAL", "shape": shape}
    edit(
        copy / "config.json",
        lambda data: data["input_features"].update({"observation.images.top": feature}),
    )
    with pytest.raises((ConfigError, PolicyError), match="a picture is"):
        load_engine(options(copy), print)


@pytest.mark.parametrize("kind", [*REFUSED, "no such type" * 100])
def test_a_type_that_is_not_served_is_refused_in_a_line_and_before_torch_is_imported(
    folder_of, tmp_path, kind
):
    (tmp_path / "config.json").write_text(json.dumps({"type": kind}))
    program = (
        "import sys, time\n"
        "from kairos_ros.core.errors import PolicyError\n"
        "from kairos_ros.engine.worker.loading import load_engine\n"
        "from kairos_ros.engine.interface import EngineOptions\n"
        "start = time.process_time()\n"
        "try: load_engine(EngineOptions(sys.argv[1]), print)\n"
        "except PolicyError as error: print(error)\n"
        "assert time.process_time() - start < 2\n"
        "assert not {'torch', 'lerobot'} & set(sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    (line,) = ran.stdout.splitlines()
    why = f": {REFUSED[kind]}" if kind in REFUSED else "; served are act, "
    assert line.startswith(f"policies of type {kind!r:.60} are not served{why}")
    assert len(line) < 400


def test_a_peft_adapter_is_called_one_before_its_weights_are_missed(copy):
    (copy / "model.safetensors").unlink()
    (copy / "adapter_config.json").write_text("{}")
    assert "is a PEFT adapter; merge it" in refused(copy)
    (copy / "adapter_config.json").unlink()
    edit(copy / "config.json", lambda data: data.update(use_peft=True))
    assert "is a PEFT adapter; merge it" in refused(copy)


def test_a_tokenizer_that_is_not_on_this_host_is_missed_at_once_and_by_its_option(folder_of):
    pi0 = folder_of("pi0")
    start = time.process_time()
    assert "give a folder that holds it as option `tokenizer`" in refused(pi0, tokenizer="")
    assert "needs the tokenizer 'some/other'" in refused(pi0, tokenizer="some/other")
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("smolvla", "vlm_model_name"),
        ("dit_ddim", "vision_encoder_name"),
        ("dit_ddim", "text_encoder_name"),
        ("vla_jepa", "qwen_model_name"),
        ("vla_jepa", "jepa_encoder_name"),
        ("molmoact2", "checkpoint_path"),
        ("molmoact2", "discrete_action_tokenizer"),
        ("pi0_fast", "action_tokenizer_name"),
    ],
)
def test_a_backbone_that_is_not_on_this_host_is_missed_at_once(folder_of, tmp_path, kind, field):
    copy = Path(shutil.copytree(folder_of(kind), tmp_path / "policy"))
    edit(copy / "config.json", lambda data: data.update({field: "some/clip"}))
    start = time.process_time()
    assert "built on 'some/clip'" in (said := refused(copy))
    assert f"write its folder into {field} of config.json" in said
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("kind", "unused", "field"),
    [
        ("vla_jepa", {"enable_world_model": False}, "jepa_encoder_name"),
        ("molmoact2", {"action_mode": "continuous"}, "discrete_action_tokenizer"),
    ],
)
def test_a_backbone_that_the_policy_does_without_is_not_missed(
    folder_of, tmp_path, kind, unused, field
):
    copy = Path(shutil.copytree(folder_of(kind), tmp_path / "policy"))
    edit(copy / "config.json", lambda data: data.update({field: "some/clip"} | unused))
    read_policy_folder(options(copy))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"enable_lora_vlm": True}, "merge the adapters"),
        ({"action_mode": "discrete"}, "writes its actions as text"),
    ],
)
def test_a_molmoact2_without_steps_or_with_adapters_is_refused(folder_of, tmp_path, change, said):
    copy = Path(shutil.copytree(folder_of("molmoact2"), tmp_path / "policy"))
    edit(copy / "config.json", lambda data: data.update(change))
    assert said in refused(copy)


@pytest.mark.parametrize("tokenizer", ["text_tokenizer_name", "action_tokenizer_name"])
def test_a_tokenizer_of_pi0_fast_that_brings_code_is_refused(folder_of, tmp_path, tokenizer):
    """LeRobot would run it."""
    copy = Path(shutil.copytree(folder_of("pi0_fast"), tmp_path / "policy"))
    named = json.loads((copy / "config.json").read_text())[tokenizer]
    folder = Path(shutil.copytree(named, tmp_path / "tokenizer"))
    (folder / "some_config.json").write_text('{"auto_map": {"AutoProcessor": "code.Code"}}')
    edit(copy / "config.json", lambda data: data.update({tokenizer: str(folder)}))
    assert "contains code (auto_map), which is not run" in refused(copy)
    edit(copy / "config.json", lambda data: data.pop(tokenizer))
    assert f"has no {tokenizer}" in refused(copy)


def test_a_postprocessor_that_reads_a_tokenizer_of_pi0_fast_is_refused(folder_of, tmp_path):
    """Only in the preprocessor its names are replaced, and is its code refused by LeRobot."""
    copy = Path(shutil.copytree(folder_of("pi0_fast"), tmp_path / "policy"))
    step = {
        "registry_name": "action_tokenizer_processor",
        "config": {"action_tokenizer_name": "a/b"},
    }
    edit(copy / "policy_postprocessor.json", lambda data: data["steps"].append(step))
    assert "belongs into a preprocessor" in refused(copy)


def test_a_vqbet_that_has_not_learnt_to_choose_actions_yet_is_refused(folder_of, tmp_path):
    copy = Path(shutil.copytree(folder_of("vqbet"), tmp_path / "policy"))
    weights = load_file(copy / "model.safetensors")
    weights["vqbet.action_head.vqvae_model.discretized"] = torch.tensor(False)
    save_file(weights, copy / "model.safetensors")
    assert "ended before n_vqvae_training_steps (20000)" in refused(copy)


def test_what_groot_and_eo1_read_their_instructions_with_is_missed_at_once(folder_of, tmp_path):
    """Their own steps load it, GR00T's under a name that LeRobot hard-codes."""
    start = time.process_time()
    said = refused(folder_of("groot"), tokenizer="")
    assert "needs the tokenizer 'nvidia/Cosmos-Reason2-2B'" in said
    assert "option `tokenizer`" in said
    copy = Path(shutil.copytree(folder_of("eo1"), tmp_path / "policy"))
    edit_step(copy, "eo1_qwen_processor", processor_name="some/qwen")
    assert "needs the tokenizer 'some/qwen'" in refused(copy)
    assert time.process_time() - start < 2
    edit(copy / "config.json", lambda data: data.update(vlm_config=None))
    assert "has no vlm_config" in refused(copy)


def test_an_eo1_takes_its_processor_from_option_tokenizer(folder_of, tmp_path, engine_of):
    copy = Path(shutil.copytree(folder_of("eo1"), tmp_path / "policy"))
    edit_step(copy, "eo1_qwen_processor", processor_name="some/qwen")
    qwen = str(folder_of("eo1").parent / "qwen")
    (outcome,) = load_engine(options(copy, tokenizer=qwen), print).infer([observation(0)])
    (same,) = engine_of("eo1").infer([observation(0)])
    assert outcome.chunk == pytest.approx(same.chunk)


def test_code_of_what_groot_is_built_on_is_not_run(folder_of, tmp_path, monkeypatch):
    """LeRobot reads its base and its tokenizer with `trust_remote_code`."""
    shutil.copytree(folder_of("groot").parent, tmp_path / "copy")
    copy, base, qwen = (tmp_path / "copy" / part for part in ("policy", "base", "tokenizer"))
    (qwen / "evil.py").write_text(f"open({str(tmp_path / 'was_here')!r}, 'w')")
    code = {"auto_map": {"AutoTokenizer": ["evil.Evil", None], "AutoConfig": "evil.Evil"}}
    edit(qwen / "tokenizer_config.json", lambda data: data.update(code))
    assert "contains code (auto_map)" in refused(copy)
    edit(qwen / "tokenizer_config.json", lambda data: data.pop("auto_map"))
    edit(qwen / "config.json", lambda data: data.update(code))
    edit(base / "config.json", lambda data: data.update(model_name=str(qwen)))
    edit(copy / "config.json", lambda data: data.update(base_model_path=str(base)))
    fresh = str(folder_of("groot").parent / "tokenizer")
    assert "contains code (auto_map)" in refused(copy, tokenizer=fresh)
    assert not (tmp_path / "was_here").exists()

    commit = "0123abcd" * 5
    repository = tmp_path / "hub" / "models--someone--backbone"  # the hub client's cache on disk
    shutil.copytree(folder_of("groot").parent / "tokenizer", repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    said = refused(folder_of("groot"), tokenizer="someone/backbone")
    assert "'someone/backbone' may run code of its own" in said
    edit(base / "config.json", lambda data: data.update(model_name="someone/backbone"))
    assert "'someone/backbone' may run code of its own" in refused(copy, tokenizer=fresh)


def test_the_base_of_a_groot_that_is_not_on_this_host_is_missed_at_once(folder_of, tmp_path):
    copy = Path(shutil.copytree(folder_of("groot"), tmp_path / "policy"))
    tokenizer = str(folder_of("groot").parent / "tokenizer")
    edit(copy / "config.json", lambda data: data.update(base_model_path="nvidia/GR00T-N1.7-3B"))
    said = refused(copy, tokenizer=tokenizer)
    assert "built on 'nvidia/GR00T-N1.7-3B', which is not on this host" in said
    assert "base_model_path" in said


def test_an_xvla_that_would_see_the_instructions_of_others_is_refused(folder_of, tmp_path):
    copy = Path(shutil.copytree(folder_of("xvla"), tmp_path / "policy"))
    edit_step(copy, "tokenizer_processor", padding="longest")
    assert "its tokenizer pads to 'longest'" in refused(copy)


def test_what_a_policy_takes_from_a_hard_coded_repository_is_missed_at_once(folder_of):
    start = time.process_time()
    line = refused(folder_of("fastwam"))  # without the small VAE that other tests have
    assert "hf download Wan-AI/Wan2.2-TI2V-5B-Diffusers --include 'vae/*'" in line
    assert time.process_time() - start < 2


def test_a_package_that_a_policy_imports_is_missed_at_once_and_with_what_installs_it(
    copy, monkeypatch
):
    edit(copy / "config.json", lambda data: data.update(type="wall_x"))
    monkeypatch.setattr(policy_folder, "find_spec", lambda name: None)
    assert "(peft, qwen_vl_utils, torchdiffeq): install lerobot[wallx]" in refused(copy)


def test_a_tokenizer_for_a_policy_without_one_is_refused(folder_of):
    with pytest.raises(ConfigError, match="has none to replace"):
        read_policy_folder(options(folder_of("flow_mlp"), tokenizer="some/tokenizer"))


def test_processors_that_an_old_lerobot_did_not_save_are_missed_with_what_writes_them(copy):
    (copy / PROCESSORS[1]).unlink()
    assert "migrate_policy_normalization --pretrained-path" in refused(copy)


def test_somebody_at_a_terminal_is_not_asked_whether_to_run_code_of_a_tokenizer(
    tmp_path, monkeypatch
):
    pi0 = save_policy("pi0", tmp_path)
    tokenizer = tmp_path / "tokenizer"
    (tokenizer / "evil.py").write_text(f"open({str(tmp_path / 'was_here')!r}, 'w')")
    edit(
        tokenizer / "tokenizer_config.json",
        lambda data: data.update(
            tokenizer_class="Evil", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
        ),
    )
    edit_step(pi0, "tokenizer_processor", tokenizer_name=str(tokenizer))
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("somebody was asked"))
    with small_pi():
        assert "does not load" in refused(pi0, tokenizer="")
    assert not (tmp_path / "was_here").exists()


def test_a_policy_needs_the_size_of_its_weights_until_it_was_loaded(folder_of):
    folder = folder_of("flow_mlp")
    size_mib = (Path(folder) / "model.safetensors").stat().st_size / 2**20
    assert memory_needed(options(folder)) == math.ceil(size_mib) >= 1
    assert memory_needed(options(f"paced:latency_ms=20:{folder}")) == math.ceil(size_mib)
    assert memory_needed(options("emulated:memory_mib=5000")) == 5000
    with pytest.raises(PolicyError, match="no folder here"):
        memory_needed(options("nobody/nothing"))
