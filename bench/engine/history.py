"""What a policy that reads motion knows of it: `python -m bench history [--steps N] [--seed S]`.

Trains a small diffusion policy with `n_obs_steps=2` to follow a target that moves at a constant
velocity, which two observations tell and one does not, and asks the engine that serves it in three
ways. Then it measures what the second observation costs a robot for each camera.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.policies.factory import make_pre_post_processors

from bench.support.arguments import positive_int
from bench.support.camera import picture
from kairos_ros.core.exchange import Observation
from kairos_ros.engine.interface import EngineOptions
from kairos_ros.engine.policies.policy_engine import load_policy_engine
from kairos_ros.robot.adapters.lerobot.lerobot_pictures import as_jpeg
from kairos_ros.transport.messages import InferRequest, InferResult

HORIZON, ACTIONS = 16, 8
FASTEST = 0.05
"""Of the target, per control period and axis."""
BATCH = 256
LOOKED_AT = 7
"""Index of the action whose error is told: as late as chunks are executed."""
ARM, TARGET = "observation.state", "observation.environment_state"


def episodes(generator: torch.Generator, count: int) -> dict[str, torch.Tensor]:
    """Two observations and the actions of the moments from the first of them on."""

    def uniform(most: float) -> torch.Tensor:
        return most * (2 * torch.rand(count, 1, 2, generator=generator) - 1)

    at, velocity = uniform(1.0), uniform(FASTEST)
    path = at + velocity * (torch.arange(HORIZON) - 1)[None, :, None]
    return {
        ARM: uniform(1.0).expand(-1, 2, -1),
        TARGET: path[:, :2],
        "action": path,
        "action_is_pad": torch.zeros(count, HORIZON, dtype=torch.bool),
    }


def train(folder: Path, steps: int, seed: int) -> None:
    """Writes the policy folder."""
    size = (2,)
    config = DiffusionConfig(
        device="cpu",
        n_obs_steps=2,
        horizon=HORIZON,
        n_action_steps=ACTIONS,
        input_features={
            ARM: PolicyFeature(FeatureType.STATE, size),
            TARGET: PolicyFeature(FeatureType.ENV, size),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, size)},
        down_dims=(32, 64),
        diffusion_step_embed_dim=32,
        noise_scheduler_type="DDIM",
        num_inference_steps=10,
    )
    reach = {"min": torch.full(size, -2.0), "max": torch.full(size, 2.0)}
    statistics = dict.fromkeys((ARM, TARGET, "action"), reach)
    torch.manual_seed(seed)
    policy = DiffusionPolicy(config)
    before, after = make_pre_post_processors(config, dataset_stats=statistics)
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(seed)
    policy.train()
    for _ in range(steps):
        loss, _ = policy.forward(before(episodes(generator, BATCH)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    for part in (policy, before, after):
        part.save_pretrained(folder)


def errors(folder: Path, count: int, seed: int) -> dict[str, float]:
    """Mean distance of an action from where the target is then, by what the engine is told."""
    engine = load_policy_engine(EngineOptions(str(folder), "cpu", max_batch=count), lambda _: None)
    drawn = episodes(torch.Generator().manual_seed(seed + 1), count)
    states = torch.cat([drawn[ARM], drawn[TARGET]], dim=-1).numpy()
    truth = drawn["action"][:, 1 + LOOKED_AT].numpy()

    def asked(row: int, earlier: tuple[Observation, ...]) -> InferRequest:
        now = states[row, 1]
        return InferRequest("arm", "s", "t", 1, 0, row, "", now, earlier=earlier)

    def error(with_history: bool) -> float:
        requests = [
            asked(row, (Observation(states[row, 0]),) if with_history else ())
            for row in range(count)
        ]
        chunks = [o.chunk for o in engine.infer(requests) if isinstance(o, InferResult)]
        return distance(np.array(chunks)[:, LOOKED_AT])

    def distance(actions: np.ndarray) -> float:
        return float(np.linalg.norm(actions - truth, axis=-1).mean())

    return {
        "standing still": distance(states[:, 1, 2:]),
        "one observation, repeated": error(with_history=False),
        "two observations, one control period apart": error(with_history=True),
    }


def cost() -> tuple[float, int]:
    """Milliseconds of CPU and bytes of a VGA picture as JPEG: what one more look costs a robot with
    LeRobot's driver for each camera, besides reading the camera."""
    frame = picture(0, 640)[:480]
    taken = []
    for _ in range(30):
        began = time.thread_time()
        size = len(as_jpeg(frame, (480, 640)))
        taken.append(1e3 * (time.thread_time() - began))
    return min(taken), size


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench history", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=positive_int, default=2000, help="of training [2000]")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="kairos-history-") as folder:
        began = time.monotonic()
        train(Path(folder), arguments.steps, arguments.seed)
        print(f"trained for {arguments.steps} steps in {time.monotonic() - began:.0f} s")
        found = errors(Path(folder), 200, arguments.seed)
    print(f"error of action {LOOKED_AT + 1}, of a target that moves {FASTEST} a period at most:")
    for told, error in found.items():
        print(f"  {error:.3f}  {told}")
    milliseconds, size = cost()
    print("each VGA camera of a robot then costs")
    print(f"  {milliseconds:.1f} ms in every control period of a task")
    print(f"  {size / 1e3:.0f} kB more for each earlier observation of a request")
    return 0


if __name__ == "__main__":
    sys.exit(main())
