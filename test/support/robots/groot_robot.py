"""A robot with a client that speaks the wire of Isaac-GR00T's PolicyClient."""

import numpy as np
from asking_robot import AskingRobot
from openpi_robot import CHUNK, PICTURE

from bench.support.peers.groot_client import GrootClient

TASK = "annotation.human.task_description"
MAP = f"""
dialect: groot
robot: robot
control_rate_hz: 100
state: [{{key: state/arm, size: 1}}, {{key: state/gripper, size: 1}}]
images: {{front: {{key: video/front}}}}
prompt: language/{TASK}
action_dim: 2
actions: [{{key: arm, size: 1}}, {{key: gripper, size: 1}}]
"""


def observation(*states: float, prompt: str = "pick", times: int = 1, **changes) -> dict:
    """One robot per state; of several times, the newest shows it."""
    rows = np.array([[[-7.0]] * (times - 1) + [[state]] for state in states], np.float32)
    seen = {
        "video": {"front": np.broadcast_to(PICTURE, (len(states), times, *PICTURE.shape))},
        "state": {"arm": rows, "gripper": np.full_like(rows, 0.5)},
        "language": {TASK: [[prompt]] * len(states)},
    }
    return {key: seen[key] | changes.get(key, {}) for key in seen}


def robot(where: str, first: float, token: str = "") -> AskingRobot:
    client = GrootClient(where, token)

    def ask(state: float) -> np.ndarray:
        actions, _ = client.get_action(observation(state))
        return actions["arm"][0, :, 0]

    return AskingRobot(ask, client.close, first, CHUNK)
