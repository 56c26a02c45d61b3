"""Demonstrations of the simulated arms' task: inverse kinematics shows the way, the driver follows.

Every episode starts somewhere else, so that the policy knows all ways to all balls, and its last
part stays where it is, so that chunks end at rest. Actions go through the driver's own controller,
point by point as a robot node sends them.
"""

import numpy as np

from kairos_ros.core.errors import KairosError
from kairos_ros.lab.training.demonstrations import HELD_OUT_SEED, Demonstrations
from kairos_ros.lab.world.driver import SimulatedDriver
from kairos_ros.lab.world.reach import CONTROL_RATE_HZ, Reach, done, expert, state
from kairos_ros.robot.description.arm import ArmDescription, arm_called

MAX_STEPS = 240
AFTER_DONE = 45
FROM_HOME = 0.2
"""Share of episodes that start near where the driver does."""
SCATTER = 0.15
"""Standard deviation of the start about home or a touching pose, in rad (a tenth for slides)."""


def begin(driver: SimulatedDriver, seed: int) -> np.ndarray:
    """Lays out one episode: somewhere else, another ball. Returns joints that touch, float64 [n].

    The same seed gives the same episode.
    """
    arm, reach = driver.world.arm, Reach(driver.world.arm, seed)
    rng = np.random.default_rng([seed, 103])
    _, start = reach.next_goal()
    if rng.random() < FROM_HOME:
        start = np.array(arm.home)
    driver.place(np.clip(start + rng.normal(0.0, scatter(arm)), *arm.limits.T))
    return reach.lay_out(driver.world)


def scatter(arm: ArmDescription) -> np.ndarray:
    """float64 [joints]."""
    slides = [arm.urdf.joints[name].kind == "prismatic" for name in arm.joints]
    return np.where(slides, 0.1 * SCATTER, SCATTER)


def record_reach(scene: str, episodes: int, seed: int) -> Demonstrations:
    """`episodes` successful ones of "ARM-reach", on seeds below HELD_OUT_SEED."""
    driver = SimulatedDriver(arm_called(scene.removesuffix("-reach")))
    first = (seed * 10_007) % (HELD_OUT_SEED // 2)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    attempts = 0
    while len(kept) < episodes:
        if attempts > 2 * episodes + 20:
            raise KairosError(
                f"the expert of {scene!r} reached only {len(kept)} of {attempts} balls; the arm's"
                " reach in robot/description/arm.py holds places that it cannot touch"
            )
        episode = record_episode(driver, first + attempts)
        attempts += 1
        if episode is not None:
            kept.append(episode)
    states, actions = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    follows = np.concatenate([np.arange(len(one), 0, -1) for one, _ in kept])
    return Demonstrations(states, actions, follows, episodes, attempts)


def record_episode(driver: SimulatedDriver, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """States float32 [T, S] and actions float32 [T, D]; None where the ball was not reached."""
    goal = begin(driver, seed)
    states: list[np.ndarray] = []
    actions: list[np.ndarray] = []
    end = None
    for step in range(MAX_STEPS):
        if end is None and done(driver.world):
            end = step + AFTER_DONE
        if step == end:
            return np.stack(states), np.stack(actions)
        action = expert(driver.world, goal)
        states.append(state(driver.world))
        actions.append(action.astype(np.float32))
        driver.act(action, CONTROL_RATE_HZ)
    return None
