"""The policy with cameras that the benchmarks of serving save, and serve as a plugin."""

import numpy as np
import pytest
from observations import jpeg, options

from bench.support import camera_policy
from kairos_ros.engine.worker.loading import load_engine
from kairos_ros.transport.messages import InferRequest

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(camera_policy.PLUGIN))
    camera_policy.save(tmp_path, (48, 64))
    return tmp_path


def test_the_benchmarks_policy_is_loaded_and_what_its_cameras_see_changes_its_chunks(folder):
    engine = load_engine(options(folder, max_batch=2), lambda _: None)
    draw = np.random.default_rng(0)

    def seen(round_number):
        images = {key: jpeg(draw, (48, 64)) for key in camera_policy.FEATURES}
        state = np.zeros(camera_policy.STATE_DIM, np.float32)
        text = camera_policy.INSTRUCTION
        return InferRequest("arm_1", "s", "t", round_number, 0, 7, text, state, images)

    first, second = (outcome.chunk for outcome in engine.infer([seen(1), seen(2)]))
    assert first.shape == (camera_policy.CHUNK, camera_policy.ACTION_DIM)
    assert not np.array_equal(first, second)
