"""The simulated arm's scenes: Meta-World v3 tasks (MuJoCo, Sawyer) and how a policy sees them."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from kairos_ros.core.errors import ConfigError

SCENES: dict[str, str] = {
    "reach-v3": "move the gripper to the target",
    "push-v3": "push the puck to the target",
    "pick-place-v3": "pick up the puck and place it at the target",
    "drawer-open-v3": "open the drawer",
    "door-open-v3": "open the door",
    "button-press-topdown-v3": "press the button from above",
    "window-open-v3": "slide the window open",
    "faucet-open-v3": "turn the faucet on",
    "peg-insert-side-v3": "insert the peg into the hole",
    "assembly-v3": "put the ring over the peg",
    "lever-pull-v3": "pull the lever up",
    "hammer-v3": "hammer the nail into the wall",
}
"""Scene (Meta-World task name) -> the instruction that the policy reads."""

LOSABLE = ("push-v3", "pick-place-v3", "peg-insert-side-v3", "assembly-v3")
"""Scenes with an object that can be knocked out of reach, so that the task has failed.

Not the hammer: it lies at the edge of the hand's reach from the start.
"""
EDGE_M = 0.04
"""Around the edge of the arm's reach, it is not clear whether an object is lost."""

STATE_DIM = 39
ACTION_DIM = 4
GRIPPER = 3
"""Index of the gripper in an action [dx, dy, dz, gripper]; the first three move the hand."""

AT_HOME_M = 0.02
STILL_M = 0.002
"""Motion in one control period."""
SLOW_DOWN_M = 0.05
"""From here on the way home gets slower: the hand trails what it was told by centimetres."""

_HALF = 18  # Meta-World stacks two 18-value frames, then the goal.

HAND_ENTRIES = [0, 1, 2, 3, 18, 19, 20, 21]
"""Of `policy_state`: those of `hand_state`."""
HAND_DIM = len(HAND_ENTRIES)
PLACES_ENTRIES = [*range(4, 11), 36, 37, 38]
"""Of `policy_state`: those of `places`. No scene here has a second object."""
PLACES_DIM = len(PLACES_ENTRIES)
POSITIONS = [0, 1, 2, 7, 8, 9]
"""Of `places`: those of the object and of the goal, m."""


def scene_of(instruction: str) -> str:
    """The scene whose instruction this is. Raises ConfigError listing those there are."""
    for scene, words in SCENES.items():
        if words == instruction:
            return scene
    known = ", ".join(f"{words!r} ({scene})" for scene, words in SCENES.items())
    raise ConfigError(
        f"no scene was named, and {instruction!r} is the instruction of none; name a scene, or say "
        f"one of {known}"
    )


def make_scene(scene: str, **kwargs: Any) -> Any:
    """A Meta-World environment whose goal is observable and whose layout follows `env.seed`.

    Its step limit is lifted: an arm that waits for its policy must not end the simulation.
    `kwargs` go to the environment (`render_mode`, `camera_name`, `width`, `height`).

    Raises ConfigError for a name that Meta-World does not have.
    """
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    if scene not in ALL_V3_ENVIRONMENTS:
        raise ConfigError(
            f"scene {scene!r} is not a Meta-World v3 task; use one of {', '.join(SCENES)}"
        )
    env = ALL_V3_ENVIRONMENTS[scene](**kwargs)
    env._partially_observable = False
    del env.sawyer_observation_space  # cached with the goal clipped to zero
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    env._set_task_called = True
    env.max_path_length = 2**63
    return env


def reset_scene(env: Any, seed: int) -> np.ndarray:
    """Lay the scene out by `seed` (same seed, same scene). Returns Meta-World's own observation."""
    env.seed(seed)
    obs: np.ndarray = env.reset()[0]
    for name, at in env._target_site_config:  # else its marker is drawn there from step 1 on only
        env._set_pos_site(name, at)
    return obs


def loose_object(env: Any) -> int | None:
    """The joint of the object that moves freely in the scene, or None where all is fixed."""
    free = np.flatnonzero(env.unwrapped.model.jnt_type == 0)  # mjJNT_FREE
    return int(free[0]) if len(free) else None


def object_position(env: Any) -> np.ndarray | None:
    """Where the loose object is, float64 [3] in m; None in a scene without one."""
    joint = loose_object(env)
    if joint is None:
        return None
    at = env.unwrapped.model.jnt_qposadr[joint]
    position: np.ndarray = env.unwrapped.data.qpos[at : at + 3].copy()
    return position


def object_lost(env: Any, scene: str) -> bool | None:
    """Whether the object of the task is where the hand cannot get it back, in the table's plane or
    below it; None at the edge of its reach."""
    if scene not in LOSABLE:
        return False
    at = cast(np.ndarray, object_position(env))
    low, high = env.unwrapped.mocap_low, env.unwrapped.mocap_high
    beyond_m = max(*(low - at)[:2], *(at - high)[:2], -at[2] - EDGE_M)
    return None if abs(beyond_m) < EDGE_M else bool(beyond_m > 0)


def knock_object(env: Any, velocity: np.ndarray) -> None:
    """Give the loose object `velocity`, float64 [3] in m/s. Raises ConfigError without one."""
    joint = loose_object(env)
    if joint is None:
        raise ConfigError("this scene has no loose object; knock in one such as push-v3")
    at = env.unwrapped.model.jnt_dofadr[joint]
    env.unwrapped.data.qvel[at : at + 3] = velocity


def push_hand(env: Any, offset: np.ndarray) -> None:
    """Moves what holds the hand by `offset`, float64 [3] in m, within the hand's reach: the hand
    follows, and stays there."""
    mocap, raw = env.unwrapped.data.mocap_pos, env.unwrapped
    mocap[0] = np.clip(mocap[0] + offset, raw.mocap_low, raw.mocap_high)


def policy_state(obs: np.ndarray) -> np.ndarray:
    """Meta-World's observation as the policy gets it, float32 [39].

    [0:18] hand position (m), gripper opening (0 to 1), poses of up to two objects; [18:36] how
    these changed over the last step; [36:39] the goal position (m). The same information as
    Meta-World's two stacked frames, but the change has its own scale after normalisation.
    """
    now, before = obs[:_HALF], obs[_HALF : 2 * _HALF]
    state: np.ndarray = np.concatenate([now, now - before, obs[2 * _HALF :]])
    return state.astype(np.float32)


def hand_state(obs: np.ndarray) -> np.ndarray:
    """What the arm knows of itself, float32 [8]: hand position (m), gripper opening (0 to 1), and
    how these changed over the last step."""
    return policy_state(obs)[HAND_ENTRIES]


def places(obs: np.ndarray) -> np.ndarray:
    """What only cameras can tell, float32 [10]: position (m) and quaternion of the object, and the
    goal position (m)."""
    return policy_state(obs)[PLACES_ENTRIES]


def hand_homeward(state: np.ndarray, safe_state: np.ndarray) -> np.ndarray | None:
    """As `homeward`, of `hand_state`."""
    return homeward(state, safe_state, step_at=HAND_DIM // 2)


def homeward(state: np.ndarray, safe_state: np.ndarray, step_at: int = _HALF) -> np.ndarray | None:
    """The next action, float32 [4], that brings the hand to where it is in `safe_state`.

    Both are float32 [39], or float32 [8] as `hand_state` gives it; `step_at` is the index from
    which on the state tells how the hand moved over the last step. None once the hand is within
    `AT_HOME_M` and stands still. The gripper's entry is 0.
    """
    way_m = safe_state[:3] - state[:3]
    step_m = state[step_at : step_at + 3]
    if np.linalg.norm(way_m) < AT_HOME_M and np.linalg.norm(step_m) < STILL_M:
        return None
    action = np.zeros(ACTION_DIM, np.float32)
    action[:3] = np.clip(way_m / SLOW_DOWN_M, -1.0, 1.0)
    return action


def expert(scene: str) -> Any:
    """Meta-World's scripted expert; its `get_action` wants the environment's own observation."""
    from metaworld.policies import ENV_POLICY_MAP

    policy: Callable[[], Any] = ENV_POLICY_MAP[scene]
    return policy()
