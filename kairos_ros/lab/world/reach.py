"""The task of the simulated arms: bring the tip of every hand to its ball and close the gripper."""

from typing import TYPE_CHECKING

import numpy as np

from kairos_ros.lab.world.inverse import reaching
from kairos_ros.robot.description.arm import ArmDescription

if TYPE_CHECKING:  # importing it imports MuJoCo
    from kairos_ros.lab.world.world import ArmWorld

INSTRUCTION = "touch the ball"
CONTROL_RATE_HZ = 30.0
DONE_M = 0.02
STILL_PER_S = 0.06
"""Speed of every joint, in rad/s or m/s, below which an arm stands still."""
CLOSE_M = 0.04
APART_M = 0.06
"""A ball that is nearer than this to where the tip is would be touched at once."""


def state_names(arm: ArmDescription) -> tuple[str, ...]:
    """Of what a policy reads: the joints, then where each ball is."""
    balls = [f"{hand.prefix}target.{axis}" for hand in arm.hands for axis in "xyz"]
    return (*arm.joints, *balls)


def state(world: "ArmWorld") -> np.ndarray:
    """float32 [joints + 3 * hands]: joint positions (rad, m), balls (m, frame of the base)."""
    balls = [world.ball(hand) for hand in range(len(world.arm.hands))]
    entries: np.ndarray = np.concatenate([world.read().position, *balls])
    return entries.astype(np.float32)


def distances(world: "ArmWorld") -> np.ndarray:
    """From each tip to its ball, float64 [hands] in m."""
    hands = range(len(world.arm.hands))
    return np.array([np.linalg.norm(world.tip(hand) - world.ball(hand)) for hand in hands])


def done(world: "ArmWorld") -> bool:
    """Every tip is within `DONE_M` of its ball and all joints stand still."""
    still = np.abs(world.read().velocity).max() < STILL_PER_S
    return bool(still and distances(world).max() < DONE_M)


class Reach:
    """Lays out places for the balls, one after the other; the same seed gives the same places."""

    def __init__(self, arm: ArmDescription, seed: int) -> None:
        self._arm = arm
        self._rng = np.random.default_rng([seed, 101])

    def next_goal(self) -> tuple[np.ndarray, np.ndarray]:
        """Places float64 [hands, 3] in m, and joint positions float64 [n] with the tips there."""
        places, joints = [], np.array(self._arm.home, np.float64)
        for hand, chain in zip(self._arm.hands, self._arm.chains, strict=True):
            entries = self._arm.entries(chain)
            home = np.array(self._arm.home)[entries]
            while True:
                place = self._rng.uniform(*self._arm.reach)
                found = reaching(chain, place, home, self._arm.looks_down)
                if np.linalg.norm(chain.tip(found)[:3, 3] - place) < 0.002:
                    break
            places.append(place)
            joints[entries] = found
            joints[self._arm.joints.index(hand.gripper)] = hand.closed
        return np.stack(places), joints

    def lay_out(self, world: "ArmWorld") -> np.ndarray:
        """Moves the balls to the next places. Returns the joint positions that touch them."""
        places, joints = self.next_goal()
        for hand, place in enumerate(places):
            world.move_ball(hand, place)
        return joints

    def lay_out_away(self, world: "ArmWorld") -> None:
        """The same, but where some hand has a way to go."""
        self.lay_out(world)
        while distances(world).max() < APART_M:
            self.lay_out(world)


def expert(world: "ArmWorld", goal: np.ndarray) -> np.ndarray:
    """The next joint targets, float64 [n], on the straight way in joint space to `goal`.

    Each hand moves on its own; its gripper is open until the tip is within `CLOSE_M` of the ball.
    What the servos give way under the arm's weight is added.
    """
    arm, position = world.arm, world.read().position
    leads = np.array(arm.leads)
    action: np.ndarray = position + world.sag()
    far = distances(world) > CLOSE_M
    for hand, chain, away in zip(arm.hands, arm.chains, far, strict=True):
        entries = arm.entries(chain)
        way = goal[entries] - position[entries]
        action[entries] += way / max(1.0, np.abs(way / leads[entries]).max())
        gripper = arm.joints.index(hand.gripper)
        way = (hand.opened if away else hand.closed) - position[gripper]
        action[gripper] += np.clip(way, -leads[gripper], leads[gripper])
    return action
