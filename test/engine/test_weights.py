"""A policy that would silently start with random weights is refused."""

import json
import shutil

import pytest
import torch
from observations import options
from safetensors.torch import load_file, save_file
from tiny_policies import small_pi

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policy import load_policy


def load(folder):
    with small_pi():
        return load_policy(options(folder), lambda _: None)


@pytest.fixture
def copy(folder_of, tmp_path, kind):
    """A policy folder to damage."""
    source = folder_of(kind)
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


def test_tied_weights_that_are_saved_once_are_not_missing(folder_of):
    from safetensors.torch import save_model

    policy = load(folder_of("flow_mlp")).policy
    policy.model.twin = policy.model.write.weight
    file = folder_of("flow_mlp").parent / "tied.safetensors"
    save_model(policy, str(file))
    from kairos_ros.engine.weights import verify_weights

    verify_weights(policy, file)
    policy.model.twin = torch.nn.Parameter(policy.model.write.weight.clone())
    with pytest.raises(PolicyError, match="lacks weights"):
        verify_weights(policy, file)
