"""Simulated arms of one scene, several to a process, so that simulators run beside one another."""

import contextlib
import signal
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError, KairosError
from kairos_ros.core.exchange import Observation
from kairos_ros.robot.adapter import TaskGoal

ENDS_WITHIN_S = 10.0
ANSWERS_WITHIN_S = 600.0
"""Of every process: time to make its simulators, or to lay out or move each of them once. One that
takes longer hangs."""


@dataclass(frozen=True, slots=True)
class SceneView:
    """How a policy shall see scenes."""

    states: tuple[str, ...]
    """Features that make up its state, in this order."""
    images: tuple[str, ...]
    """Features of the environment that it reads as pictures; those that are not there are left
    out, as it may do without."""
    observations: int = 1
    """That it reads, a control period apart."""
    first_seed: int = 0
    lossless: bool = True
    """Pictures as PNG, which are the simulator's pixels; else JPEG, as robots send them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of LeRobot's configuration of the environment."""
    max_actions: int = 0
    """After so many an episode has failed; 0: as the scene says."""


@dataclass(frozen=True, slots=True)
class SceneAbout:
    """What a scene says of itself."""

    instruction: str
    max_actions: int
    """After so many an episode has failed."""
    state_dim: int
    action_dim: int
    images: Collection[str]


@dataclass(frozen=True, slots=True)
class Stood:
    """How an arm stands, after a reset or after actions."""

    looks: tuple[Observation, ...]
    """The newest observations, oldest first, as many as the policy reads and there are."""
    executed: int
    success: bool
    over: bool
    """The episode has ended, by success or because it took too long."""


class SceneArms:
    """All arms of one scene. A context manager; leaving it ends the processes.

    Arms are numbered from 0; each is in one of `processes` processes, `per_process` in each; with
    0 processes they are all in this one. Raises ConfigError on entering where the scene cannot be
    made.
    """

    def __init__(self, scene: str, view: SceneView, processes: int, per_process: int) -> None:
        self._stack = contextlib.ExitStack()
        self._pipes: list[Connection] = []
        self._here: _Group | None = None
        self._per_process = per_process
        self._scene, self._view, self._processes = scene, view, processes

    def __enter__(self) -> "SceneArms":
        context = get_context("spawn")
        if not self._processes:
            self._here = self._stack.enter_context(
                _Group(self._scene, self._view, self._per_process)
            )
            self.about: SceneAbout = self._here.about
            return self
        try:
            for _ in range(self._processes):
                ours, theirs = context.Pipe()
                work = context.Process(
                    target=_run, args=(theirs, self._scene, self._view, self._per_process)
                )
                work.start()
                theirs.close()
                self._pipes.append(ours)
                self._stack.callback(_end, work, ours)
            abouts = [self._hear(pipe) for pipe in self._pipes]
        except BaseException:
            self._stack.close()
            raise
        self.about = abouts[0]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return max(1, self._processes) * self._per_process

    def go(self, resets: Mapping[int, int], actions: Mapping[int, np.ndarray]) -> dict[int, Stood]:
        """Lays scenes out anew by their seed, and executes actions float32 [n, D]: arm -> what.

        An arm stops by itself where its episode ends. Raises KairosError where a simulator fails.
        """
        if self._here is not None:
            return self._here.go(resets, actions)
        told: dict[int, tuple[dict[int, int], dict[int, np.ndarray]]] = {}
        for arm, seed in resets.items():
            at = told.setdefault(arm // self._per_process, ({}, {}))
            at[0][arm % self._per_process] = seed
        for arm, chunk in actions.items():
            at = told.setdefault(arm // self._per_process, ({}, {}))
            at[1][arm % self._per_process] = chunk
        for process, work in told.items():
            self._pipes[process].send(work)
        return {
            process * self._per_process + arm: stood
            for process in told
            for arm, stood in self._hear(self._pipes[process]).items()
        }

    def _hear(self, pipe: Connection) -> Any:
        if not pipe.poll(ANSWERS_WITHIN_S):
            raise KairosError(
                f"a simulator of {self._scene} has not answered for {ANSWERS_WITHIN_S:g} s"
            )
        try:
            heard = pipe.recv()
        except EOFError:
            raise KairosError(
                f"a simulator of {self._scene} ended without a word; is there memory enough for "
                f"{len(self)} of them? See --arms and --processes"
            ) from None
        if isinstance(heard, KairosError):
            raise heard
        return heard


class _Arm:
    def __init__(self, scene: str, view: SceneView) -> None:
        from kairos_ros.robot.adapters.lerobot.lerobot_scenes import LeRobotScene, lerobot_body
        from kairos_ros.robot.adapters.sim.sim import SimAdapter

        body = lerobot_body(
            scene,
            states=view.states,
            first_seed=view.first_seed,
            lossless=view.lossless,
            options=view.options,
        )
        made: LeRobotScene = body.make(scene)
        pictures = {key: value.shape[:2] for key, value in made.pictures().items()}
        images = {key: pictures[key] for key in view.images if key in pictures}
        self._body = SimAdapter(body, images=images)
        most = view.max_actions or made.max_actions
        self.about = SceneAbout(
            made.instruction, most, body.state_dim, body.action_dim, list(pictures)
        )
        self._scene = scene
        self._looks: deque[Observation] = deque(maxlen=view.observations)
        self._executed = 0

    def reset(self, seed: int) -> Stood:
        self._body.reset(TaskGoal(self.about.instruction, self._scene, seed))
        self._executed = 0
        self._looks.clear()
        self._looks.append(self._body.observe())
        return self._stood(0)

    def act(self, actions: np.ndarray) -> Stood:
        for at, action in enumerate(actions, 1):
            self._body.act(action)
            self._executed += 1
            if self._over:
                return self._stood(at)
            if len(actions) - at < (self._looks.maxlen or 1):
                self._looks.append(self._body.observe())
        return self._stood(len(actions))

    @property
    def _over(self) -> bool:
        return self._body.succeeded() or self._body.over or self._executed >= self.about.max_actions

    def _stood(self, executed: int) -> Stood:
        return Stood(tuple(self._looks), executed, self._body.succeeded(), self._over)

    def close(self) -> None:
        self._body.close()


class _Group:
    """Arms of one process. A context manager."""

    def __init__(self, scene: str, view: SceneView, count: int) -> None:
        self._arms = [_Arm(scene, view) for _ in range(count)]
        self.about = self._arms[0].about

    def __enter__(self) -> "_Group":
        return self

    def __exit__(self, *_: object) -> None:
        for arm in self._arms:
            arm.close()

    def go(self, resets: Mapping[int, int], actions: Mapping[int, np.ndarray]) -> dict[int, Stood]:
        stood = {arm: self._arms[arm].reset(seed) for arm, seed in resets.items()}
        return stood | {arm: self._arms[arm].act(chunk) for arm, chunk in actions.items()}


def _run(pipe: Connection, scene: str, view: SceneView, count: int) -> None:
    """A process of arms, until its pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    try:
        with _Group(scene, view, count) as group:
            pipe.send(group.about)
            while True:
                pipe.send(group.go(*pipe.recv()))
    except (EOFError, BrokenPipeError):
        pass
    except KairosError as error:
        pipe.send(error)
    except Exception as error:  # whatever a simulator raises
        pipe.send(ConfigError(f"scene {scene} failed: {type(error).__name__}: {error}"))


def _end(work: Any, pipe: Connection) -> None:
    pipe.close()
    work.join(ENDS_WITHIN_S)
    if work.is_alive():
        work.kill()
        work.join()
