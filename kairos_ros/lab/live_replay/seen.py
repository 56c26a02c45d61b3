"""What robots of a replay see: what the bag shows, or anything where only its size counts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.exchange import Observation
from kairos_ros.engine.policies.saved_policy import PolicyInputs
from kairos_ros.lab.live_replay.process_messages import Seen
from kairos_ros.recording.reader import Bag
from kairos_ros.recording.runs.trace import Trace, TraceRound
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


def made_up(inputs: PolicyInputs) -> Callable[[TraceRound], Seen]:
    """For an emulated engine: noisy pictures, and observations that are all the same."""
    pictures = blank_pictures(inputs.cameras or {})
    blank = np.zeros(inputs.state_dim or 1, np.float32)

    def seen(recorded: TraceRound) -> Seen:
        state = blank if recorded.state is None else recorded.state
        return Seen(pictures, (Observation(state, pictures),) * (inputs.observations - 1))

    return seen


def recorded_seen(bag: Bag, traces: Sequence[Trace], inputs: PolicyInputs) -> dict[int, Seen]:
    """What the requests brought, by `id` of the round's state array.

    Raises ConfigError where a round of a trace has no request in the bag with all that the policy
    reads.
    """
    wanted = {
        (trace.name.rpartition("/")[2], recorded.round, recorded.state.tobytes()): recorded
        for trace in traces
        for recorded in trace.rounds
        if recorded.state is not None
    }
    earlier = inputs.observations - 1
    found: dict[int, Seen] = {}
    lacking: dict[int, str] = {}
    for message in bag.messages((REQUEST,)):
        body = message.body
        name = TaskKey(body.robot, body.session, body.task).name
        state = np.asarray(body.state, np.float32).tobytes()
        recorded = wanted.get((name, body.round, state))
        if recorded is None:
            continue
        if inputs.cameras and not len(body.images) == len(body.image_keys) > 0:
            lacking[id(recorded.state)] = "images"
        elif len(body.earlier) < earlier:
            lacking[id(recorded.state)] = f"{earlier} earlier observations"
        else:
            looks = [_observation(body, look) for look in (*body.earlier, body)]
            newest = looks.pop()
            found[id(recorded.state)] = Seen(newest.images, tuple(looks[len(looks) - earlier :]))
    for (name, number, _), recorded in wanted.items():
        if id(recorded.state) not in found:
            what = lacking.get(id(recorded.state), "request")
            raise ConfigError(
                f"{bag.path} holds no {what} of round {number} of {name}; record a fleet whose "
                "policy reads what this one does, with images, or use --policy emulated:..."
            )
    return found


def _observation(request: Any, look: Any) -> Observation:
    """look: the request itself or one of its earlier observations."""
    images = (bytes(image.data) for image in look.images)
    state = np.asarray(look.state, np.float32)
    return Observation(state, dict(zip(request.image_keys, images, strict=False)))
