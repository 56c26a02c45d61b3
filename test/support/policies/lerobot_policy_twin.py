"""lerobot-eval of a policy itself and of policy type kairos, and lerobot-rollout of the latter: as
it is, and with LeRobot's engine for real-time chunking.

`lerobot_policy_twin.py FOLDER` saves a policy in `FOLDER/act` and says so in a line. Then it reads
a line of JSON: `server`, which serves that policy as `act` and an SO-101's as `desk`; `robot`,
arguments for an arm. It prints JSON: success and executed actions of `direct` and `served`, and the
`modules` of this project that were imported. Neither ROS nor other parts of it can be imported.
"""

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

from act_scenes import save_act
from lerobot_scripts import run
from lerobot_twin import AHEAD, MOST_ACTIONS, PIXELS, SEEDS, TASK, small_pictures

OURS = "kairos_ros"
ALLOWED = ("core", "transport")


class Absent(MetaPathFinder):
    """A computer with neither ROS nor the rest of the package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        top, *rest = name.split(".")
        if top == "rclpy" or (top == OURS and rest and rest[0] not in ALLOWED):
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)
        return None


def executed_actions() -> list[list[list[float]]]:
    """Filled with the actions of every environment that is made from now on, in that order."""
    from lerobot.envs.metaworld import MetaworldEnv

    begin, step, found = MetaworldEnv.__init__, MetaworldEnv.step, []

    def begun(self: MetaworldEnv, *args: object, **options: object) -> None:
        begin(self, *args, **options)
        self._max_episode_steps = MOST_ACTIONS
        self.executed = []
        found.append(self.executed)

    def stepped(self: MetaworldEnv, action: object) -> object:
        self.executed.append([float(value) for value in action])
        return step(self, action)

    MetaworldEnv.__init__, MetaworldEnv.step = begun, stepped
    return found


def wait_for_motors() -> None:
    """For 2 s, where LeRobot waits for 50 ms: on a busy host, simulated motors answer later."""
    from lerobot.motors.feetech import feetech

    def set_packet_timeout(port: object, _: int) -> None:
        port.setPacketTimeoutMillis(2000.0)

    feetech.patch_setPacketTimeout = set_packet_timeout


def evaluate(folder: Path, actions: list, *policy: str) -> dict:
    actions.clear()
    run(
        "eval",
        *policy,
        "--env.type=metaworld",
        f"--env.task={TASK}",
        f"--eval.n_episodes={len(SEEDS)}",
        f"--eval.batch_size={len(SEEDS)}",
        "--eval.use_async_envs=false",
        f"--seed={SEEDS[0]}",
        f"--output_dir={folder}",
    )
    told = json.loads((folder / "eval_info.json").read_text())
    success = told["per_task"][0]["metrics"]["successes"]
    return {"success": success, "actions": [*actions]}


if __name__ == "__main__":
    sys.meta_path.insert(0, Absent())
    told, sys.stdout = sys.stdout, sys.stderr  # LeRobot prints
    folder = Path(sys.argv[1])
    save_act(folder / "act", AHEAD, state_dim=4, pixels=PIXELS)
    print("saved", file=told, flush=True)
    small_pictures()
    wait_for_motors()
    actions = executed_actions()
    direct = evaluate(folder / "direct", actions, f"--policy.path={folder / 'act'}")
    asked = json.loads(sys.stdin.readline())
    server = f"--policy.server={asked['server']}"
    served = evaluate(
        folder / "served",
        actions,
        "--policy.type=kairos",
        server,
        "--policy.robot=bench",
        "--policy.served_policy=act",
        "--policy.horizon=static:10",
        "--policy.synchronous=true",
        "--policy.picture_format=png",
    )
    rising = ["--policy.type=kairos", server, "--policy.served_policy=desk", *asked["robot"]]
    rising += ["--task=rise", "--duration=4", "--return_to_initial_position=false"]
    run("rollout", "--policy.robot=desk", *rising)
    chunked = ["--inference.type=rtc", "--inference.queue_threshold=15"]
    run("rollout", "--policy.robot=rtc_desk", "--policy.horizon=static:30", *chunked, *rising)
    modules = sorted(name for name in sys.modules if name.split(".")[0] in (OURS, "rclpy"))
    print(json.dumps({"direct": direct, "served": served, "modules": modules}), file=told)
