"""Forward kinematics from URDF, against values known by hand and against MuJoCo."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.description.kinematics import Chain
from kairos_ros.robot.description.urdf import read_urdf

ARMS = Path(__file__).parents[3] / "models" / "arms"
TIPS = {
    "so101": ("base_link", "gripper_frame_link"),
    "bi_so101": ("base_link", "right_gripper_frame_link"),
    "franka": ("panda_link0", "panda_hand_tcp"),
}


def text(arm: str) -> str:
    return (ARMS / f"{arm}.urdf").read_text()


def chain(arm: str) -> Chain:
    return Chain.from_urdf(text(arm), *TIPS[arm])


def somewhere(arm: Chain, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(*arm.limits.T)


def test_a_stretched_panda_reaches_the_height_that_its_data_sheet_gives():
    """Denavit-Hartenberg: d1 0.333, d3 0.316, d5 0.384, a7 0.088, flange 0.107 down."""
    panda = Chain.from_urdf(text("franka"), "panda_link0", "panda_link8")
    tip = panda.tip(np.zeros(7))
    assert np.allclose(tip[:3, 3], [0.088, 0.0, 0.333 + 0.316 + 0.384 - 0.107])
    assert np.allclose(tip[:3, 2], [0.0, 0.0, -1.0])  # it looks down


@pytest.mark.parametrize("arm", TIPS)
def test_every_link_is_where_mujoco_has_it(arm):
    spec = mujoco.MjSpec.from_string(text(arm))
    spec.compiler.fusestatic = False
    model = spec.compile()
    data = mujoco.MjData(model)
    ours = chain(arm)
    for seed in range(20):
        q = somewhere(ours, seed)
        for name, value in zip(ours.joints, q, strict=True):
            data.qpos[model.joint(name).qposadr[0]] = value
        mujoco.mj_kinematics(model, data)
        links = ours.links(q)
        assert len(links) == len(ours.path) + 1
        for name, pose in links.items():
            if name != ours.base:  # MuJoCo makes it the world
                assert np.allclose(pose[:3, 3], data.body(name).xpos, atol=1e-6)
                assert np.allclose(pose[:3, :3].ravel(), data.body(name).xmat, atol=1e-6)


@pytest.mark.parametrize("arm", TIPS)
def test_the_jacobian_is_the_slope_of_the_tip(arm):
    ours = chain(arm)
    q = somewhere(ours, 3)
    jacobian = ours.jacobian(q)
    for i in range(len(q)):
        step = np.zeros(len(q))
        step[i] = 1e-6
        before, after = ours.tip(q - step), ours.tip(q + step)
        assert np.allclose((after - before)[:3, 3] / 2e-6, jacobian[:3, i], atol=1e-6)
        turning = (after - before)[:3, :3] / 2e-6 @ ours.tip(q)[:3, :3].T
        assert np.allclose(turning[[2, 0, 1], [1, 2, 0]], jacobian[3:, i], atol=1e-6)


def test_both_arms_of_the_pair_move_like_the_single_one():
    one = chain("so101")
    q = somewhere(one, 0)
    for side, y in (("left", 0.2), ("right", -0.2)):
        pair = Chain.from_urdf(text("bi_so101"), "base_link", f"{side}_gripper_frame_link")
        assert pair.joints == tuple(f"{side}_{name}" for name in one.joints)
        assert np.allclose(pair.tip(q)[:3, 3], one.tip(q)[:3, 3] + [0.0, y, 0.0])


def test_a_finger_follows_the_one_that_it_mimics():
    panda = read_urdf(text("franka"))
    follower = panda.joints["panda_finger_joint2"]
    assert panda.value(follower, {"panda_finger_joint1": 0.03}) == 0.03


@pytest.mark.parametrize(
    ("urdf", "complaint"),
    [
        ("<robot", "not valid XML"),
        ("<sdf/>", "<sdf>"),
        ("<robot/>", "exactly one"),
        ('<robot><link name="a"/><link name="b"/></robot>', "hang on no joint"),
        (
            '<robot><link name="a"/><joint name="j" type="fixed"><parent link="a"/>'
            '<child link="z"/></joint></robot>',
            "'z', which is missing",
        ),
        (
            '<robot><link name="a"/><link name="b"/><joint name="j" type="ball">'
            '<parent link="a"/><child link="b"/></joint></robot>',
            "'ball'",
        ),
        (
            '<robot><link name="a"/><link name="b"/><joint name="j" type="fixed">'
            '<origin xyz="1 2"/><parent link="a"/><child link="b"/></joint></robot>',
            "xyz='1 2'",
        ),
    ],
)
def test_a_bad_description_is_named(urdf, complaint):
    with pytest.raises(ConfigError, match=complaint):
        read_urdf(urdf)


def test_links_that_no_chain_connects_are_named():
    with pytest.raises(ConfigError, match="no link 'gripper'"):
        Chain.from_urdf(text("so101"), "base_link", "gripper")
    with pytest.raises(ConfigError, match="no joints lead"):
        Chain.from_urdf(text("so101"), "wrist_link", "base_link")
