"""`kairos profile`, on a real worker."""

import json

import pytest
import typer
from observations import options
from typer.testing import CliRunner

from kairos_ros.commands.engines.profile import profile_command
from kairos_ros.core.errors import ConfigError, KairosError, PolicyError
from kairos_ros.core.profile import EngineProfile

pytestmark = pytest.mark.slow

app = typer.Typer()
app.command()(profile_command)


def profile(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and isinstance(result.exception, KairosError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_latency_is_measured_against_batch_size_and_written_with_a_plot(tmp_path):
    out = tmp_path / "deep" / "a.json"
    emulated = "emulated:latency_ms=20+10b"
    profile("--policy", emulated, "--max-batch", 4, "--repeats", 5, "--out", out)
    measured = EngineProfile.from_dict(json.loads(out.read_text()))
    assert measured.batch_sizes == (1, 2, 4)
    for size, seconds in zip(measured.batch_sizes, measured.p10_s, strict=True):
        assert seconds >= 0.02 + 0.01 * size  # an engine that sleeps is never early
    assert measured.network_s > 0
    assert measured.policy_id.startswith("emulated-")
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert {file.name for file in out.parent.iterdir()} == {"a.json", "a.png"}


def test_a_policy_with_images_and_text_is_profiled(tmp_path, folder_of):
    out = tmp_path / "vla.json"
    policy = options(folder_of("smolvla")).policy
    sizes = ["--batches", "2", "--max-batch", 2, "--repeats", 3]
    profile("--policy", policy, "--device", "cpu", "--no-plot", "--out", out, *sizes)
    measured = EngineProfile.from_dict(json.loads(out.read_text()))
    assert measured.batch_sizes == (1, 2)
    assert (measured.device, measured.dtype) == ("cpu", "float32")


def test_a_policy_that_is_refused_is_reported_with_its_reason(tmp_path):
    with pytest.raises(PolicyError, match="unknown option"):
        profile("--policy", "emulated:speed=1", "--out", tmp_path / "a.json")
    told = (tmp_path / "profile.worker.log").read_text()
    assert "unknown option" not in told  # whoever has started the worker says it, once


@pytest.mark.parametrize("sizes", ["1,x", "0", "1,32"])
def test_wrong_batch_sizes_are_refused_before_anything_is_loaded(sizes):
    with pytest.raises(ConfigError, match="batches"):
        profile("--policy", "emulated:", "--batches", sizes)
