"""A simulated robot body: any Gymnasium environment with a task, Meta-World's arm by default."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.core.exchange import Observation
from kairos_ros.core.pipeline import TaskState
from kairos_ros.host.extras import require
from kairos_ros.robot.adapter import RobotSpec, TaskGoal
from kairos_ros.robot.adapters.sim import metaworld_scenes as metaworld
from kairos_ros.robot.adapters.sim.intruder import Body
from kairos_ros.robot.adapters.sim.sim_cameras import (
    Cameras,
    MujocoCameras,
    RenderedFrame,
    render_off_screen,
)


class SimulationError(KairosError):
    """The simulator's physics diverged; the episode cannot go on."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """Where a simulated scene stood, for `SimAdapter.restore`."""

    physics: np.ndarray
    """float64, MuJoCo's integration state: positions, velocities, actuators, mocap, warm start."""
    env: Mapping[str, Any]
    """Numbers and arrays that the environment keeps beside it."""
    adapter: Mapping[str, Any]


UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4")
"""Cameras of Meta-World that are mounted so."""

Homeward = Callable[[np.ndarray, np.ndarray], np.ndarray | None]
"""State, safe state -> next action on the way there, None once there."""


@dataclass(frozen=True, slots=True)
class SimBody:
    """How an environment becomes a robot."""

    make: Callable[[str], Any]
    """Scene name -> Gymnasium environment; slow, so the adapter keeps the result."""
    reset: Callable[[Any, int], np.ndarray]
    """Environment, seed -> first observation; the same seed gives the same scene."""
    state: Callable[[np.ndarray], np.ndarray]
    """Observation -> float32 [state_dim] that the policy reads."""
    state_dim: int
    action_dim: int
    kept_on_hold: Sequence[int] = ()
    """Action entries that `hold` repeats from the last action (a gripper); the others become 0."""
    at_rest: Callable[[np.ndarray], np.ndarray] | None = None
    """State -> the action that stays there, for one that holds before its first action; None: 0."""
    scene_of: Callable[[str], str] = lambda instruction: ""
    """Instruction -> the scene that is laid out for a goal which names none."""
    homeward: Homeward | None = None
    """None: it knows no way."""
    cameras: Callable[[Any, Mapping[str, tuple[int, int]]], Cameras] = RenderedFrame
    """Environment, camera key -> (height_px, width_px): opens what `observe` renders with."""
    lost: Callable[[Any, str], bool | None] = lambda env, scene: False
    """Environment, scene -> whether the task's object is out of reach; None: unclear."""
    knock: Callable[[Any, np.ndarray], None] | None = None
    """Environment, velocity float64 [3] in m/s: kicks the loose object of the scene."""
    push: Callable[[Any, np.ndarray], None] | None = None
    """Environment, offset float64 [3] in m: moves the hand aside."""


def metaworld_body(*, proprioception: bool = False) -> SimBody:
    """Meta-World's Sawyer arm: one environment per scene of `metaworld_scenes.SCENES`.

    `proprioception`: its state is what the arm knows of itself, float32 [8]
    (`metaworld_scenes.hand_state`), and not the simulator's, float32 [39], which has the objects'
    poses and the goal.

    Camera keys are Meta-World's: corner, corner2, corner3, corner4, topview, behindGripper,
    gripperPOV.
    """
    require("metaworld")
    return SimBody(
        make=metaworld.make_scene,
        reset=metaworld.reset_scene,
        state=metaworld.hand_state if proprioception else metaworld.policy_state,
        state_dim=metaworld.HAND_DIM if proprioception else metaworld.STATE_DIM,
        action_dim=metaworld.ACTION_DIM,
        kept_on_hold=(metaworld.GRIPPER,),
        scene_of=metaworld.scene_of,
        homeward=metaworld.hand_homeward if proprioception else metaworld.homeward,
        cameras=metaworld_cameras,
        lost=metaworld.object_lost,
        knock=metaworld.knock_object,
        push=metaworld.push_hand,
    )


def metaworld_cameras(env: Any, images: Mapping[str, tuple[int, int]]) -> MujocoCameras:
    """Meta-World's cameras; those in the corners are mounted upside down."""
    return MujocoCameras(env, images, UPSIDE_DOWN)


def gymnasium_body(env_id: str, *, kept_on_hold: Sequence[int] = (), **env_kwargs: Any) -> SimBody:
    """One registered Gymnasium environment, whatever the scene.

    Its observations and actions must be vectors; `info["success"]` or `info["is_success"]` tells
    whether the task is done.

    Raises ConfigError where it is not registered or its spaces do not fit.
    """
    require("gymnasium")
    import gymnasium

    def make(_scene: str) -> Any:
        # -1: no step limit; a robot that waits must not end the simulation.
        return gymnasium.make(env_id, max_episode_steps=-1, disable_env_checker=True, **env_kwargs)

    try:
        probe = make("")
    except gymnasium.error.Error as error:
        raise ConfigError(f"gymnasium environment {env_id!r} cannot be made: {error}") from error
    spaces = probe.observation_space, probe.action_space
    probe.close()
    if any(not isinstance(s, gymnasium.spaces.Box) or len(s.shape) != 1 for s in spaces):
        raise ConfigError(
            f"gymnasium environment {env_id!r} has observation space {spaces[0]} and action space"
            f" {spaces[1]}; both must be Box vectors (wrap it, for example in FlattenObservation)"
        )
    return SimBody(
        make=make,
        reset=lambda env, seed: env.reset(seed=seed)[0],
        state=lambda obs: np.asarray(obs, np.float32),
        state_dim=spaces[0].shape[0],
        action_dim=spaces[1].shape[0],
        kept_on_hold=tuple(kept_on_hold),
    )


class SimAdapter:
    """RobotAdapter over a simulated body. The simulator steps once per `act` or `hold`.

    `images` maps camera keys to (height_px, width_px), rendered as JPEG on `observe`. A Gymnasium
    environment has one camera and needs `render_mode="rgb_array"`. `safe_state` is where the arm
    goes when it shall be out of the way, in the state's first entries and units (Meta-World: the
    hand's x, y, z in m); without it, where it was when the scene was laid out.
    """

    def __init__(
        self,
        body: SimBody | None = None,
        *,
        control_rate_hz: float = 30.0,
        images: Mapping[str, tuple[int, int]] | None = None,
        safe_state: Sequence[float] = (),
    ) -> None:
        if images:
            render_off_screen()
        self._body = body or metaworld_body()
        self.spec = RobotSpec(
            self._body.state_dim, self._body.action_dim, control_rate_hz, dict(images or {})
        )
        self._shown: Body = ()
        self.has_safe_state = self._body.homeward is not None
        self._safe_state = np.asarray(safe_state, np.float32)
        if len(safe_state) and not self.has_safe_state:
            raise ConfigError("this simulated body knows no way to a safe_state; leave that out")
        if len(safe_state) > self._body.state_dim or not np.isfinite(self._safe_state).all():
            raise ConfigError(
                f"safe_state is {list(safe_state)}; give finite numbers, {self._body.state_dim} at "
                "most"
            )
        self._envs: dict[str, Any] = {}
        self._env: Any = None
        self._over = False
        self._cameras: Cameras | None = None

    def reset(self, goal: TaskGoal) -> None:
        """Lay out `goal.scene`, or its instruction's, by `goal.seed`. Raises ConfigError for an
        unknown one."""
        scene = goal.scene or self._body.scene_of(goal.instruction)
        if scene not in self._envs:
            self._envs[scene] = self._body.make(scene)
        if self._env is not self._envs[scene]:
            self._close_cameras()
        self._env, self._scene = self._envs[scene], scene
        self._obs = self._body.reset(self._env, goal.seed)
        self._start = self._body.state(self._obs)
        self._last_action: np.ndarray = np.zeros(self._body.action_dim, np.float32)
        if self._body.at_rest is not None:
            self._last_action = np.asarray(self._body.at_rest(self._start), np.float32)
        self._succeeded = self._succeeds = False
        self._over = False
        if self.spec.images and self._cameras is None:
            self.observe()  # opens the cameras: that may take seconds, and a reset may, too

    def observe(self) -> Observation:
        state = self.state()
        if not self.spec.images:
            return Observation(state)
        if self._cameras is None:
            self._cameras = self._body.cameras(self._env, self.spec.images)
            self._cameras.show(self._shown)
        return Observation(state, self._cameras.render())

    def state(self) -> np.ndarray:
        """float32 [state_dim]."""
        self._require_reset()
        return self._body.state(self._obs)

    def act(self, action: np.ndarray) -> None:
        """One control period. Raises SimulationError when the physics diverges."""
        action = np.asarray(action, np.float32)
        if action.shape != (self._body.action_dim,) or not np.isfinite(action).all():
            raise SimulationError(
                f"action {action} is not {self._body.action_dim} finite numbers; check the action"
                " guard between the policy and the robot"
            )
        self._require_reset()
        self._last_action = action
        self._step(action)

    def hold(self) -> None:
        """One control period without motion; the gripper stays as the last action left it."""
        self._require_reset()
        action = np.zeros(self._body.action_dim, np.float32)
        kept = list(self._body.kept_on_hold)
        action[kept] = self._last_action[kept]
        self._step(action)

    def toward_safe_state(self) -> np.ndarray | None:
        """See `Homing`; the gripper stays as the last action left it."""
        target = self._start.copy()
        target[: len(self._safe_state)] = self._safe_state
        homeward = cast(Homeward, self._body.homeward)  # it has a safe state
        action = homeward(self.state(), target)
        if action is not None:
            kept = list(self._body.kept_on_hold)
            action[kept] = self._last_action[kept]
        return action

    @property
    def environment(self) -> Any:
        """The Gymnasium environment that was laid out last."""
        self._require_reset()
        return self._env

    @property
    def observation(self) -> np.ndarray:
        """The environment's own, as scripted experts read it."""
        self._require_reset()
        seen: np.ndarray = self._obs
        return seen

    def succeeded(self) -> bool:
        """Whether the simulator has reported success since the last reset."""
        return self._succeeded

    @property
    def over(self) -> bool:
        """Whether the environment has ended the episode by itself; it does not move any more."""
        return self._over

    def save(self) -> SavedState:
        """Everything that decides how the episode goes on. Raises ConfigError for an environment
        that is not MuJoCo's."""
        self._require_reset()
        env = self._env.unwrapped
        return SavedState(
            _physics_of(env),
            {name: copy(value) for name, value in vars(env).items() if isinstance(value, PLAIN)},
            {name: copy(getattr(self, name)) for name in SAVED},
        )

    def restore(self, saved: SavedState) -> None:
        """Back to a state of the scene and seed of the last reset, bit for bit; it may have been
        saved in another adapter."""
        import mujoco

        self._require_reset()
        env = self._env.unwrapped
        spec = mujoco.mjtState.mjSTATE_INTEGRATION
        mujoco.mj_setState(env.model, env.data, saved.physics, spec)
        mujoco.mj_forward(env.model, env.data)
        mujoco.mj_setState(env.model, env.data, saved.physics, spec)  # and its warm start
        for name, value in saved.env.items():
            setattr(env, name, copy(value))
        for name, value in saved.adapter.items():
            setattr(self, name, copy(value))

    def task_state(self) -> TaskState | None:
        """The truth about the task, now; None at the edge of where its object is lost."""
        self._require_reset()
        if self._succeeds:
            return TaskState.DONE
        lost = self._body.lost(self._env, self._scene)
        return None if lost is None else TaskState.FAILED if lost else TaskState.ONGOING

    def show(self, body: Body) -> None:
        """Draw `body` (`intruder.py`) into every camera's image until the next call.

        An empty one takes it away. The physics is not touched. Raises ConfigError where the
        cameras cannot.
        """
        self._shown = body
        if self._cameras is not None:
            self._cameras.show(body)

    def sees(self, body: Body) -> bool:
        """Whether `body`, shown now, would be in the picture of every camera."""
        return self._cameras is not None and self._cameras.see(body)

    def knock(self, velocity: np.ndarray) -> None:
        """Kick the scene's loose object with `velocity`, float64 [3] in m/s.

        Raises ConfigError where nothing is loose.
        """
        self._require_reset()
        if self._body.knock is None:
            raise ConfigError("this simulated body has no object to knock; use a Meta-World scene")
        self._body.knock(self._env, velocity)

    def push(self, offset: np.ndarray) -> None:
        """Move the hand by `offset`, float64 [3] in m, as somebody would who pushes it.

        Raises ConfigError where the body has none.
        """
        self._require_reset()
        if self._body.push is None:
            raise ConfigError("this simulated body has no hand to push; use a Meta-World scene")
        self._body.push(self._env, offset)

    def close(self) -> None:
        self._close_cameras()
        for env in self._envs.values():
            env.close()
        self._envs.clear()
        self._env = None

    def _step(self, action: np.ndarray) -> None:
        if self._over:  # an environment that ended itself must not be stepped on
            return
        obs, _, terminated, truncated, info = self._env.step(action)
        if not np.isfinite(obs).all() or _physics_warnings(self._env):
            raise SimulationError(
                f"the physics of {self._env.unwrapped.__class__.__name__} diverged after action"
                f" {action}; reset the scene"
            )
        self._obs = obs
        self._over = bool(terminated or truncated)
        self._succeeds = bool(info.get("success", info.get("is_success", False)))
        self._succeeded |= self._succeeds

    def _close_cameras(self) -> None:
        if self._cameras is not None:
            self._cameras.close()
            self._cameras = None

    def _require_reset(self) -> None:
        if self._env is None:
            raise ConfigError("the simulated robot has no scene yet; call reset(goal) first")


PLAIN = (np.ndarray, np.generic, int, float, bool, str, type(None))
SAVED = ("_obs", "_last_action", "_succeeded", "_succeeds", "_over")


def _physics_of(env: Any) -> np.ndarray:
    import mujoco

    if not hasattr(env, "model") or not hasattr(env, "data"):
        raise ConfigError("only MuJoCo's environments can be saved; use a Meta-World scene")
    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    physics = np.empty(mujoco.mj_stateSize(env.model, spec))
    mujoco.mj_getState(env.model, env.data, physics, spec)
    return physics


def _physics_warnings(env: Any) -> int:
    """How often MuJoCo met NaN or huge values since the reset; it goes on from a reset scene."""
    data = getattr(env.unwrapped, "data", None)
    if data is None or not hasattr(data, "warning"):
        return 0
    import mujoco

    kinds = mujoco.mjtWarning
    bad = kinds.mjWARN_BADQPOS, kinds.mjWARN_BADQVEL, kinds.mjWARN_BADQACC
    return sum(data.warning[kind].number for kind in bad)
