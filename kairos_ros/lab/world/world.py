"""An arm in MuJoCo: the body behind a simulated driver, built from the arm's URDF alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.description.arm import ArmDescription, JointReading, View, view_axes

TIMESTEP_S = 0.002
_AS_IT_IS = '<mujoco><compiler discardvisual="false" fusestatic="false"/></mujoco>'
"""MuJoCo drops what is only seen, and joins links without a joint between them, unless told so."""
BALL_RADIUS_M = 0.018
BALL_COLOURS = ((0.86, 0.27, 0.15, 1.0), (0.16, 0.45, 0.85, 1.0))


class ArmWorld:
    """One arm, its servos, a floor, and one ball per hand to be touched.

    Nothing collides: the description has no collision shapes.
    """

    def __init__(self, arm: ArmDescription, start: Sequence[float] = ()) -> None:
        """`start`: one position per joint, also outside its limits; empty: the arm's home.

        Raises ConfigError for another number of positions.
        """
        if len(start) not in (0, len(arm.joints)):
            raise ConfigError(
                f"start has {len(start)} positions; {arm.name} has {len(arm.joints)} joints: "
                f"{', '.join(arm.joints)}"
            )
        self.arm = arm
        self.model = _model(arm)
        self.data = mujoco.MjData(self.model)
        # A finger that mimics another has a servo of its own, told the same.
        self._driven = [
            list(arm.joints).index(arm.urdf.joints[name].mimics or name) for name in arm.servos
        ]
        self._own = [list(arm.servos).index(name) for name in arm.joints]
        self._qpos = [self.model.joint(name).qposadr[0] for name in arm.servos]
        self._qvel = [self.model.joint(name).dofadr[0] for name in arm.servos]
        self._owed_s = 0.0  # less than a time step
        self.place(np.array(start or arm.home, np.float64))

    @property
    def time_s(self) -> float:
        """Since the world began."""
        return float(self.data.time)

    def place(self, positions: np.ndarray) -> None:
        """Put the joints there, at rest, float64 [n]."""
        self.data.qpos[self._qpos] = positions[self._driven]
        self.data.qvel[:] = 0.0
        self.data.ctrl[:] = positions[self._driven]
        mujoco.mj_forward(self.model, self.data)

    def show(self, qpos: np.ndarray, mocap_pos: np.ndarray) -> None:
        """Take over where another world of the same arm has everything; for cameras."""
        self.data.qpos[:], self.data.mocap_pos[:] = qpos, mocap_pos
        mujoco.mj_forward(self.model, self.data)

    def power(self, on: bool) -> None:
        """Without power the servos only brake by their own friction: the arm sinks."""
        stiffness = [servo.stiffness * on for servo in self.arm.servos.values()]
        self.model.actuator_gainprm[:, 0] = stiffness
        self.model.actuator_biasprm[:, 1] = np.negative(stiffness)

    def step(self, setpoint: np.ndarray, duration_s: float) -> None:
        """Let the servos pull towards `setpoint` float64 [n] for `duration_s`."""
        self.data.ctrl[:] = setpoint[self._driven]
        self._owed_s += duration_s
        steps = int(self._owed_s / TIMESTEP_S + 1e-6)
        self._owed_s -= steps * TIMESTEP_S
        mujoco.mj_step(self.model, self.data, steps)

    def read(self) -> JointReading:
        own = self._own
        return JointReading(
            self.data.qpos[self._qpos][own],
            self.data.qvel[self._qvel][own],
            self.data.actuator_force[own],
        )

    def sag(self) -> np.ndarray:
        """How far each joint gives way under the arm's weight, float64 [n]."""
        load = (self.data.qfrc_bias - self.data.qfrc_gravcomp)[self._qvel][self._own]
        stiffness = [self.arm.servos[name].stiffness for name in self.arm.joints]
        way: np.ndarray = load / stiffness
        return way

    def tip(self, hand: int) -> np.ndarray:
        """Of a hand, float64 [3] in m in the frame of that hand's base."""
        return self._in_base(hand, self.data.body(self.arm.hands[hand].tip).xpos)

    def ball(self, hand: int) -> np.ndarray:
        """Where the hand's ball is, float64 [3] in m in the frame of that hand's base."""
        return self._in_base(hand, self.data.mocap_pos[hand])

    def move_ball(self, hand: int, position: np.ndarray) -> None:
        """Put it there, float64 [3] in m in the frame of the hand's base."""
        base = self._base(hand)
        self.data.mocap_pos[hand] = base.xpos + base.xmat.reshape(3, 3) @ position
        mujoco.mj_kinematics(self.model, self.data)  # a camera sees it there at once

    def _in_base(self, hand: int, position: np.ndarray) -> np.ndarray:
        base = self._base(hand)
        there: np.ndarray = base.xmat.reshape(3, 3).T @ (position - base.xpos)
        return there

    def _base(self, hand: int) -> Any:
        name = self.arm.hands[hand].base
        return self.data.body("world" if name == self.arm.urdf.root else name)


def _model(arm: ArmDescription) -> mujoco.MjModel:
    spec = mujoco.MjSpec.from_string(arm.description.replace("</robot>", _AS_IT_IS + "</robot>"))
    spec.option.timestep = TIMESTEP_S
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    for joint in spec.joints:
        # MuJoCo's limits would throw out a joint that starts beyond them; a driver's do not.
        joint.limited = mujoco.mjtLimited.mjLIMITED_FALSE
        joint.armature = arm.servos[joint.name].inertia
    for body in spec.bodies:
        body.gravcomp = float(arm.weightless)
    for name, servo in arm.servos.items():
        actuator = spec.add_actuator(name=name, target=name)
        actuator.trntype = mujoco.mjtTrn.mjTRN_JOINT
        actuator.gainprm[0] = servo.stiffness
        actuator.biastype = mujoco.mjtBias.mjBIAS_AFFINE
        actuator.biasprm[:3] = 0.0, -servo.stiffness, -servo.damping
        actuator.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        actuator.forcerange = -servo.force, servo.force
    world = spec.worldbody
    world.add_geom(
        type=mujoco.mjtGeom.mjGEOM_PLANE, size=[4, 4, 0.1], rgba=[0.72, 0.74, 0.76, 1],
        contype=0, conaffinity=0,
    )  # fmt: skip
    world.add_light(pos=[0.5, -1, 2.5], dir=[-0.1, 0.4, -1], diffuse=[0.7, 0.7, 0.7])
    spec.add_texture(
        name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, width=64, height=64,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT, rgb1=[0.82, 0.87, 0.92], rgb2=[1, 1, 1],
    )  # fmt: skip
    for number, hand in enumerate(arm.hands):
        ball = world.add_body(name=f"{hand.prefix}ball", mocap=True, pos=[0.3, 0.0, 0.1])
        ball.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[BALL_RADIUS_M, 0, 0],
            rgba=BALL_COLOURS[number], contype=0, conaffinity=0,
        )  # fmt: skip
    _add_cameras(spec, arm.urdf.root, arm.views)
    return spec.compile()


def _add_cameras(spec: mujoco.MjSpec, root: str, views: Mapping[str, View]) -> None:
    for name, view in views.items():
        link = spec.worldbody if view.link == root else spec.body(view.link)
        camera = link.add_camera(name=name, pos=view.eye, fovy=view.vertical_degrees)
        right, down, _ = view_axes(view).T
        camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
        camera.alt.xyaxes = [*right, *-down]
