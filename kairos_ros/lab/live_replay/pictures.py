"""Camera images of a replay: those of the bag, or any where only their size counts."""

from collections.abc import Mapping, Sequence

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.live_replay.process_messages import Images
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.runs.trace import Trace
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg
from kairos_ros.telemetry.events import TaskKey

REQUEST = "kairos_ros/msg/ChunkRequest"


def blank_pictures(cameras: Mapping[str, tuple[int, int]]) -> dict[str, bytes]:
    """One noisy JPEG per camera, about as large as a real one; an emulated engine looks at none."""
    rng = np.random.default_rng(0)
    pictures = {}
    for key, (height, width) in cameras.items():
        coarse = rng.integers(0, 256, (-(-height // 4), -(-width // 4), 3), np.uint8)
        pictures[key] = jpeg(coarse, (height, width))
    return pictures


def recorded_images(bag: Bag, traces: Sequence[Trace]) -> dict[int, Images]:
    """What the robots saw, by `id` of the round's state array.

    Raises ConfigError where a round of a trace has no request with images in the bag.
    """
    wanted = {
        (trace.name.rpartition("/")[2], recorded.round, recorded.state.tobytes()): recorded
        for trace in traces
        for recorded in trace.rounds
        if recorded.state is not None
    }
    found: dict[int, Images] = {}
    for message in bag.messages((REQUEST,)):
        body = message.body
        name = TaskKey(body.robot, body.session, body.task).name
        state = np.asarray(body.state, np.float32).tobytes()
        recorded = wanted.get((name, body.round, state))
        if recorded is not None and len(body.images) == len(body.image_keys) > 0:
            images = (bytes(image.data) for image in body.images)
            found[id(recorded.state)] = dict(zip(body.image_keys, images, strict=True))
    for (name, number, _), recorded in wanted.items():
        if id(recorded.state) not in found:
            raise ConfigError(
                f"{bag.path} holds no images of round {number} of {name}; record with images, or "
                "use --policy emulated:..."
            )
    return found
