"""Compiled samplers: the same chunks, and nothing is compiled while robots wait."""

import logging

import numpy as np
import pytest
import torch
from observations import observation, options
from tiny_policies import TINY

from kairos_ros.core.errors import PolicyError
from kairos_ros.engine.policies import policy_engine
from kairos_ros.engine.policies.compiled import bucket, compile_step, require_same
from kairos_ros.engine.policies.policy import load_policy
from kairos_ros.engine.policies.policy_engine import load_policy_engine

pytestmark = pytest.mark.slow

COMPILED = {"flow_mlp": 2, "pi05": 1}
"""Kind -> largest batch. `python -m bench gpu` compares the others: each takes half a minute."""
TOLERANCE = 1e-3 * 4
"""Of robot units: see ROBOT_UNITS in test_engine_conformance."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        # the compiler's own tests of this CPU, each in a process that imports torch
        with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
            yield folder


@pytest.fixture(scope="module", params=tuple(COMPILED))
def compiled_kind(request):
    return request.param


@pytest.fixture(scope="module")
def compiled(compiled_kind, folder_of, cache):
    with TINY[compiled_kind].loaded():
        asked = options(folder_of(compiled_kind), compile=True, max_batch=COMPILED[compiled_kind])
        return load_policy_engine(asked, lambda _: None)


def test_chunks_and_updates_are_those_of_the_uncompiled_policy(compiled, engine_of, compiled_kind):
    for numbers in ([0], [1, 2])[: COMPILED[compiled_kind]]:
        requests = [observation(number) for number in numbers]
        for ours, plain in zip(
            compiled.infer(requests), engine_of(compiled_kind).infer(requests), strict=True
        ):
            np.testing.assert_allclose(ours.chunk, plain.chunk, atol=TOLERANCE)
            np.testing.assert_allclose(ours.updates, plain.updates, atol=1e-3)


def test_the_profile_has_the_latency_with_and_without(compiled, compiled_kind):
    described = compiled.description
    sizes = [size for size, _ in described.warmup]
    assert sizes == [size for size, _ in described.eager][: len(sizes)]
    assert all(seconds > 0 for _, seconds in described.warmup + described.eager)


def test_nothing_is_compiled_after_the_warm_up(compiled, compiled_kind, caplog):
    """Not even for a batch that is larger than those that are worth it."""
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with caplog.at_level(logging.WARNING):
        outcomes = compiled.infer([observation(number) for number in range(4)])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before
    assert "runs uncompiled for inputs" in caplog.text
    assert len(outcomes) == 4
    assert all(np.isfinite(outcome.chunk).all() for outcome in outcomes)


def test_batches_are_padded_to_the_next_power_of_two_or_the_largest():
    assert [bucket(size, 12) for size in range(1, 13)] == [1, 2, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]


def test_a_padded_batch_is_answered_for_its_robots_only(folder_of, engine_of, cache):
    engine = load_policy_engine(
        options(folder_of("flow_mlp"), compile=True, max_batch=4), lambda _: None
    )
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    requests = [observation(number) for number in range(3)]
    outcomes = engine.infer(requests)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    for ours, plain in zip(outcomes, engine_of("flow_mlp").infer(requests), strict=True):
        np.testing.assert_allclose(ours.chunk, plain.chunk, atol=TOLERANCE)


def test_a_policy_whose_sampler_cannot_be_compiled_is_refused_by_its_type(folder_of):
    with pytest.raises(PolicyError, match="compile: policies of type 'vqbet' cannot be compiled"):
        load_policy(options(folder_of("vqbet"), compile=True), lambda _: None)


def test_a_compiled_sampler_that_says_something_else_is_refused():
    require_same(torch.ones(3), torch.ones(3) + 5e-4, 1e-3)
    for other in (torch.ones(3) + 2e-3, torch.full((3,), torch.nan)):
        with pytest.raises(PolicyError, match="leave compile out"):
            require_same(other, torch.ones(3), 1e-3)


def test_a_compiler_that_fails_refuses_the_policy_with_its_words(folder_of, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    without = torch._inductor.config.patch({"cpp.cxx": ("/no/such/compiler",)})
    asked = options(folder_of("flow_mlp"), compile=True, max_batch=3)
    # no other test compiles a batch of 3, which a busy machine may find not worth compiling
    monkeypatch.setattr(policy_engine, "saturation", lambda *_: 3)
    monkeypatch.setattr(policy_engine, "WARM_UP_S", 300.0)
    said = r"compile: .*compiler.*; leave compile out"
    with without, pytest.raises(PolicyError, match=said) as refused:
        load_policy_engine(asked, lambda _: None)
    assert "\n" not in str(refused.value)


class Doubling(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def test_what_was_compiled_is_on_disk_for_the_next_start(cache):
    module = Doubling()
    step = compile_step((module, "forward"), torch.device("cpu"))
    assert torch.equal(module(torch.ones(3)), torch.full((3,), 2.0))
    step.learning = False
    assert torch.equal(module(torch.ones(5)), torch.full((5,), 2.0))
    assert len(step.uncompiled) == 1
    assert any(path.is_file() for path in cache.rglob("*"))
