"""A policy that would silently start with random weights is refused."""

import json
import re
import shutil
from contextlib import ExitStack

import pytest
import torch
from observations import options
from safetensors.torch import load_file, save_file
from tiny_policies import TINY

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies.policy import load_policy
from kairos_ros.engine.policies.weights import verify_weights

pytestmark = pytest.mark.slow


def load(folder):
    with ExitStack() as small:  # what LeRobot hard-codes for any family
        for tiny in TINY.values():
            small.enter_context(tiny.loaded())
        return load_policy(options(folder), lambda _: None)


@pytest.fixture
def copy(folder_of, tmp_path, type_kind):
    """A policy folder to damage."""
    source = folder_of(type_kind)
    shutil.copytree(source.parent, tmp_path / "copy")
    return tmp_path / "copy" / source.name


def edit(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def name_in(weights):
    """A weight that every policy here really uses."""
    return next(name for name in sorted(weights) if name.endswith("weight"))


def test_an_untouched_policy_loads(copy):
    assert load(copy).policy_id


def test_a_policy_folder_without_weights_is_refused(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"has no model\.safetensors"):
        load(copy)


def test_a_missing_weight_is_refused(copy):
    edit(copy, lambda weights: weights.pop(name_in(weights)))
    with pytest.raises(PolicyError, match=r"lacks weights|Missing key|not loaded from"):
        load(copy)


def test_an_unexpected_weight_is_refused(copy):
    edit(copy, lambda weights: weights.update({"model.leftover": torch.zeros(3)}))
    with pytest.raises(PolicyError, match="leftover"):
        load(copy)


def test_a_weight_of_another_shape_is_refused(copy):
    edit(copy, lambda w: w.update({name_in(w): torch.zeros(3, 5)}))
    with pytest.raises(PolicyError, match="weight"):
        load(copy)


def test_a_weight_that_is_not_a_number_is_refused(copy):
    edit(copy, lambda w: w[name_in(w)].view(-1)[:1].fill_(float("nan")))
    with pytest.raises(PolicyError, match="not finite"):
        load(copy)


def test_a_truncated_file_is_refused(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(PolicyError):
        load(copy)


def test_garbage_instead_of_weights_is_refused(copy):
    (copy / "model.safetensors").write_bytes(b"not a tensor file at all")
    with pytest.raises(PolicyError):
        load(copy)


@pytest.mark.parametrize("name", ["config.json", "policy_preprocessor.json"])
def test_a_policy_folder_without_a_part_is_refused(copy, name):
    (copy / name).unlink()
    with pytest.raises(PolicyError):
        load(copy)


def test_the_policy_id_changes_with_weights_and_configuration(folder_of, tmp_path):
    shutil.copytree(folder_of("flow_mlp"), tmp_path / "a")
    shutil.copytree(folder_of("flow_mlp"), tmp_path / "b")
    shutil.copytree(folder_of("flow_mlp"), tmp_path / "c")
    edit(tmp_path / "b", lambda w: w[name_in(w)].view(-1)[:1].add_(1.0))
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    (tmp_path / "c" / "config.json").write_text(json.dumps(config | {"num_steps": 7}))
    original = load(folder_of("flow_mlp")).policy_id
    assert load(tmp_path / "a").policy_id == original
    assert len({original, load(tmp_path / "b").policy_id, load(tmp_path / "c").policy_id}) == 3


def test_weights_that_lerobot_renames_on_loading_are_verified(folder_of, tmp_path):
    """FastWAM's first checkpoints have other names than its own layers have now."""
    folder = shutil.copytree(folder_of("fastwam"), tmp_path / "policy")

    def rename(weights):
        new = r"\blayers\.(\d+)\.blocks\.(\w+)\."
        for name in list(weights):
            weights[re.sub(new, r"mixtures.\2.blocks.\1.", name)] = weights.pop(name)

    edit(folder, rename)
    assert load(folder).policy_id
    edit(folder, lambda w: w.pop(next(name for name in w if "mixtures.action.blocks.1." in name)))
    with pytest.raises(PolicyError, match="lacks weights"):
        load(folder)


def test_tied_weights_that_are_saved_once_are_not_missing(folder_of):
    from safetensors.torch import save_model

    policy = load(folder_of("flow_mlp")).policy
    policy.model.twin = policy.model.write.weight
    file = folder_of("flow_mlp").parent / "tied.safetensors"
    save_model(policy, str(file))
    verify_weights(policy, file)
    policy.model.twin = torch.nn.Parameter(policy.model.write.weight.clone())
    with pytest.raises(PolicyError, match="lacks weights"):
        verify_weights(policy, file)


def test_weights_of_an_xvla_with_the_older_names_of_florence_are_verified(folder_of, tmp_path):
    """LeRobot renames them while it loads them, and turns one of them."""
    source = folder_of("xvla")
    folder = tmp_path / "policy"
    shutil.copytree(source, folder)
    vlm, projector = "model.vlm.", "model.vlm.multi_modal_projector."

    def as_then(weights):
        weights[f"{vlm}image_projection"] = weights.pop(f"{projector}image_projection.weight").T
        for name in list(weights):
            then = name.replace(projector, vlm).replace("image_position_embed", "image_pos_embed")
            then = then.replace(f"{vlm}language_model.", f"{vlm}language_model.model.")
            then = then.replace(".conv.", ".proj.")
            for part, wrapped in (("conv1", "conv1.fn.dw"), ("conv2", "conv2.fn.dw")):
                then = then.replace(f"_block.{part}.", f"_block.{wrapped}.")
            for part in ("window_attn", "channel_attn"):
                then = then.replace(f"_block.{part}.", f"_block.{part}.fn.")
            kind = "window" if "spatial_block" in name else "channel"
            then = then.replace("_block.norm1.", f"_block.{kind}_attn.norm.")
            then = then.replace("_block.norm2.", "_block.ffn.norm.")
            then = then.replace("_block.ffn.fc", "_block.ffn.fn.net.fc")
            weights[then] = weights.pop(name).contiguous()
        weights[f"{vlm}language_model.final_logits_bias"] = torch.zeros(1, 8)

    edit(folder, as_then)
    loaded = load(folder)
    with torch.no_grad():
        loaded.policy.model.vlm.multi_modal_projector.image_projection.weight[0, 1] += 1
    with pytest.raises(PolicyError, match=r"image_projection\.weight was not loaded"):
        verify_weights(loaded.policy, folder / "model.safetensors", loaded.family.renamed)
