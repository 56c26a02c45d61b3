"""One episode of a simulated arm as a row of pictures."""

from pathlib import Path

import numpy as np

from kairos_ros.lab.training.arm.demonstrations import begin
from kairos_ros.lab.training.arm.pictures import ArmPictures
from kairos_ros.lab.training.arm.senses import Senses
from kairos_ros.lab.training.arm.trial import MAX_ACTIONS
from kairos_ros.lab.training.rollout import PolicyUnderTest
from kairos_ros.lab.world.driver import SimulatedDriver
from kairos_ros.lab.world.reach import CONTROL_RATE_HZ, DONE_M, INSTRUCTION, distances, done

PICTURES = 4
SIZE = (300, 400)
VIEW = "front"


def write_film(
    policy: PolicyUnderTest, senses: Senses, seed: int, horizon: int, path: Path
) -> None:
    """The episode of `seed`, from its start to the touch, evenly spaced, as a PNG.

    `robot.sim_cameras.render_off_screen` must have been called before MuJoCo was imported.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    frames, misses = _episode(policy, senses, seed, horizon)
    shown = np.linspace(0, len(frames) - 1, PICTURES).round().astype(int)
    figure, panels = plt.subplots(1, PICTURES, figsize=(3.2 * PICTURES, 2.9), layout="constrained")
    for axes, at in zip(panels, shown, strict=True):
        axes.imshow(frames[at])
        axes.set_axis_off()
        axes.set_title(f"{at / CONTROL_RATE_HZ:.1f} s, {misses[at]:.0f} mm to go", fontsize=10)
    seconds = (len(frames) - 1) / CONTROL_RATE_HZ
    end = (
        f"touches the ball after {seconds:.1f} s"
        if misses[-1] < 1000 * DONE_M
        else "misses the ball"
    )
    figure.suptitle(f"{path.parent.name} {end} (horizon {horizon}, seed {seed})")
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)


def _episode(
    policy: PolicyUnderTest, senses: Senses, seed: int, horizon: int
) -> tuple[list[np.ndarray], list[float]]:
    """Pictures uint8 [h, w, 3], one per action, and how far the tips still were from the balls."""
    driver = SimulatedDriver(senses.arm)
    begin(driver, seed)
    view = ArmPictures(senses.arm, {VIEW: SIZE})
    frames: list[np.ndarray] = []
    misses: list[float] = []
    while len(frames) < MAX_ACTIONS:
        noise = [seed * MAX_ACTIONS + len(frames)]
        states, pictures = senses.observe([(driver.world, seed)])
        chunk = policy(states, INSTRUCTION, noise, (), pictures).actions[0]
        for action in chunk[:horizon]:
            frames.append(view.frames(driver.world, "demo", np.random.default_rng(0))[VIEW])
            misses.append(1000.0 * float(distances(driver.world).max()))
            if done(driver.world):
                view.close()
                return frames, misses
            driver.act(action, CONTROL_RATE_HZ)
    view.close()
    return frames, misses
