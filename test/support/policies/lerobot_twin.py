"""One policy, the same seeds and horizon, in our loop and in LeRobot's: `lerobot_twin.py FOLDER`.

Prints JSON: for `ours` and `theirs` the success and the executed actions of every seed. A process
of its own: MuJoCo renders off screen only where it was imported for that.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

TASK = "coffee-button-v3"
AHEAD = [0.0, 1.0, 0.0, 0.0]
"""Reaches the button where that lies straight ahead."""
SEEDS = (3, 4)
MOST_ACTIONS = 22
PIXELS = 96


def small_pictures() -> None:
    """LeRobot's environment renders 480 x 480 px with shadows at every step, which takes long."""
    from lerobot.envs.metaworld import MetaworldEnv

    begin, whole = MetaworldEnv.__init__, MetaworldEnv._ensure_env

    def begin_small(self: MetaworldEnv, **options: object) -> None:
        begin(self, observation_width=PIXELS, observation_height=PIXELS, **options)

    def small(self: MetaworldEnv) -> None:
        fresh = self._env is None
        whole(self)
        if fresh:
            self._env.model.light_castshadow[:] = 0
            self._env.mujoco_renderer.width = self._env.mujoco_renderer.height = PIXELS

    MetaworldEnv.__init__, MetaworldEnv._ensure_env = begin_small, small


def evaluation() -> ModuleType:
    """LeRobot's own. It imports what it records data sets with, which is not used here and needs
    packages that are not installed everywhere."""
    try:
        import datasets  # noqa: F401
    except ModuleNotFoundError:
        for name in ("lerobot.datasets", "lerobot.datasets.lerobot_dataset"):
            module = ModuleType(name)
            module.LeRobotDataset = None
            sys.modules[name] = module
    from lerobot.scripts import lerobot_eval

    return lerobot_eval


def ours(policy: Path) -> dict:
    from kairos_ros.core.horizons.policies import parse_horizon
    from kairos_ros.engine.interface import EngineOptions
    from kairos_ros.engine.policies.policy_engine import load_policy_engine
    from kairos_ros.lab.scenes.arms import SceneArms, SceneView
    from kairos_ros.lab.scenes.trial import run_episodes

    engine = load_policy_engine(EngineOptions(str(policy), "cpu", max_batch=2), lambda _: None)
    images = tuple(engine.description.images)
    view = SceneView(engine.state_features, images, max_actions=MOST_ACTIONS)
    with SceneArms(f"metaworld/{TASK}", view, processes=0, per_process=2) as arms:
        episodes = run_episodes(engine, arms, SEEDS, parse_horizon("static:10"))
    return {one.seed: (bool(one.success), one.actions.tolist()) for one in episodes}


def theirs(policy: Path) -> dict:
    from lerobot.configs import PreTrainedConfig
    from lerobot.envs import make_env, make_env_config, make_env_pre_post_processors
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    config = PreTrainedConfig.from_pretrained(policy)
    config.pretrained_backbone_weights = None
    environment = make_env_config("metaworld", task=TASK)
    (tasks,) = make_env(environment, n_envs=len(SEEDS)).values()
    for env in tasks[0].envs:
        env._max_episode_steps = MOST_ACTIONS
    before_env, after_env = make_env_pre_post_processors(environment, config)
    before, after = make_pre_post_processors(config, pretrained_path=str(policy))
    rollout = evaluation().rollout(
        tasks[0],
        ACTPolicy.from_pretrained(policy, config=config).eval(),
        before_env,
        after_env,
        before,
        after,
        seeds=list(SEEDS),
    )
    tasks[0].close()
    found = {}
    for row, seed in enumerate(SEEDS):
        length = int(rollout["done"][row].int().argmax()) + 1
        success = bool(rollout["success"][row, :length].any())
        found[seed] = success, rollout["action"][row, :length].tolist()
    return found


if __name__ == "__main__":
    from kairos_ros.robot.adapters.sim.sim_cameras import render_off_screen

    render_off_screen()
    sys.path.insert(0, str(Path(__file__).parent))
    from act_scenes import save_act

    folder = Path(sys.argv[1])
    told = sys.stdout
    sys.stdout = sys.stderr  # LeRobot prints
    evaluation()
    save_act(folder, AHEAD, state_dim=4, pixels=PIXELS)
    small_pictures()
    print(json.dumps({"ours": ours(folder), "theirs": theirs(folder)}), file=told)
