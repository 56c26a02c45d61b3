"""A policy is loaded without drawing the random weights that its file replaces, and is the same."""

import pytest
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies.factory import get_policy_class
from observations import options
from tiny_policies import TINY

from kairos_ros.engine.policies.families.vla_jepa import WORLD_MODEL
from kairos_ros.engine.policies.policy import load_policy
from kairos_ros.engine.policies.unfilled import Unfilled

pytestmark = pytest.mark.slow


def lerobots(folder, dtype):
    """The policy as LeRobot itself loads it."""
    config = PreTrainedConfig.from_pretrained(folder)
    for field in ("dtype", "torch_dtype", "model_dtype"):
        if hasattr(config, field):
            setattr(config, field, dtype)
    return get_policy_class(config.type).from_pretrained(str(folder), config=config)


def tensors(policy):
    """By name, with the buffers that are not saved."""
    return dict(policy.named_parameters()) | dict(policy.named_buffers())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_parameter_and_buffer_is_bit_for_bit_what_lerobot_loads(folder_of, type_kind, dtype):
    if dtype not in TINY[type_kind].dtypes:
        pytest.skip(f"it does not compute in {dtype} here")
    with TINY[type_kind].loaded():
        ours = tensors(
            load_policy(options(folder_of(type_kind), dtype=dtype), lambda _: None).policy
        )
        theirs = tensors(lerobots(folder_of(type_kind), dtype))
    theirs = {name: tensor for name, tensor in theirs.items() if not name.startswith(WORLD_MODEL)}
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype is tensor.dtype, name
        assert torch.equal(ours[name], tensor), name


def test_loading_draws_no_random_number(folder_of, type_kind):
    if type_kind in ("fastwam", "lingbot_va", "molmoact2", "vqbet"):
        pytest.skip(
            "what is not a parameter is drawn: a tiny VAE made by the test; a table before it is a "
            "parameter; the `data` of parameters; the codebook"
        )
    with TINY[type_kind].loaded():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        lerobots(folder_of(type_kind), "float32")
        assert not torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(1)
        load_policy(options(folder_of(type_kind)), lambda _: None)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_parameter_is_left_alone_and_a_buffer_is_not():
    parameter, buffer = torch.nn.Parameter(torch.ones(3)), torch.ones(3)
    with Unfilled():
        torch.nn.init.zeros_(parameter)
        torch.nn.init.normal_(parameter)
        torch.nn.init.trunc_normal_(parameter)
        torch.nn.init.zeros_(buffer)
    assert torch.equal(parameter.data, torch.ones(3))
    assert torch.equal(buffer, torch.zeros(3))
