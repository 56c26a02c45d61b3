"""A policy under load, through a real worker."""

import json

import pytest
from typer.testing import CliRunner

from kairos_ros.commands.cli import app
from kairos_ros.core.load_profile import LoadProfile
from kairos_ros.core.pipeline import Component

pytestmark = pytest.mark.slow


def test_a_policy_is_measured_in_the_batches_that_a_serving_node_forms(tmp_path):
    out = tmp_path / "engine.json"
    done = CliRunner().invoke(
        app(),
        ["profile", "--policy", "emulated:latency_ms=20+2b,memory_mib=500", "--max-batch", "2",
         "--repeats", "3", "--no-plot", "--load", "--per-rate-s", "1", "--model", "pi05",
         "--device-name", "A100", "--out", str(out)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (written,) = tmp_path.glob("*.load.json")
    profile = LoadProfile.from_dict(json.loads(written.read_text()))
    assert (profile.model, profile.device, profile.source) == ("pi05", "A100", "measured")
    assert profile.version == json.loads(out.read_text())["policy_id"]
    assert profile.components == (Component.SYSTEM1,)
    assert [load.batch for load in profile.loads] == [1, 2]
    assert profile.loads[1].memory_mib == 500
    one, two = profile.loads
    assert one.rates_hz[-1] == pytest.approx(1 / 0.022, rel=0.3)
    assert two.rates_hz[-1] > one.rates_hz[-1]
    assert all(load.mean_s[0] >= 0.02 for load in profile.loads)
