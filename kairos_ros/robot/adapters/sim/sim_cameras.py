"""Camera images of a simulated robot, as JPEG."""

import atexit
import os
import sys
import weakref
from collections.abc import Collection, Mapping
from ctypes.util import find_library
from io import BytesIO
from typing import Any, Protocol

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.robot.adapters.sim.intruder import Body, draw

JPEG_QUALITY = 90
IN_VIEW = 0.5
"""Share of a body's parts that must be in a picture for the body to be seen there."""


def render_off_screen() -> None:
    """Let MuJoCo render without a display, through EGL, unless MUJOCO_GL names another way.

    MuJoCo reads the variable once, when it is imported. Raises ConfigError when that is past, and
    where there is no EGL.
    """
    if "mujoco" in sys.modules and not os.environ.get("MUJOCO_GL"):
        raise ConfigError("set MUJOCO_GL=egl: MuJoCo was imported without it and cannot render")
    if os.environ.setdefault("MUJOCO_GL", "egl") != "egl":
        return
    if not (find_library("EGL") and (find_library("OpenGL") or find_library("GL"))):
        raise ConfigError(
            "cameras of simulated arms are rendered with EGL, which is not installed: apt install "
            "libegl1 libopengl0 libgl1-mesa-dri, or set MUJOCO_GL to osmesa or glfw"
        )


class Cameras(Protocol):
    """What `observe` renders with."""

    def render(self) -> dict[str, bytes]:
        """Camera key -> JPEG bytes of the scene as it is now."""
        ...

    def show(self, body: Body) -> None:
        """From now on, draw `body` into the scene; an empty one takes it away.

        Raises ConfigError where the cameras cannot.
        """
        ...

    def see(self, body: Body) -> bool:
        """Whether `body` would be in every picture, by where its parts are; nothing is rendered."""
        ...

    def close(self) -> None: ...


class RenderedFrame:
    """The one frame that a Gymnasium environment renders, under every key."""

    def __init__(self, env: Any, images: Mapping[str, tuple[int, int]]) -> None:
        if env.render_mode != "rgb_array":
            raise ConfigError(
                f"the environment has render_mode={env.render_mode!r}; images need 'rgb_array'"
            )
        self._env = env
        self._images = images

    def render(self) -> dict[str, bytes]:
        frame = self._env.render()
        return {key: jpeg(frame, size) for key, size in self._images.items()}

    def show(self, body: Body) -> None:
        if body:
            raise ConfigError(
                "the environment renders itself, so no body can be drawn into it; use a scene of"
                " Meta-World"
            )

    def see(self, body: Body) -> bool:
        return False

    def close(self) -> None:
        """Nothing to free: the environment owns its renderer."""


class MujocoCameras:
    """Named cameras of a MuJoCo environment, without shadows and reflections, which cost most.

    Call `render_off_screen` before MuJoCo is imported.
    """

    def __init__(
        self,
        env: Any,
        images: Mapping[str, tuple[int, int]],
        upside_down: Collection[str] = (),
    ) -> None:
        import mujoco

        self._data = env.unwrapped.data
        self._model = model = env.unwrapped.model
        known = [model.camera(i).name for i in range(model.ncam)]
        unknown = sorted(set(images) - set(known))
        if unknown:
            raise ConfigError(f"the scene has no camera {unknown}; use some of {', '.join(known)}")
        model.vis.global_.offheight = max(h for h, _ in images.values())
        model.vis.global_.offwidth = max(w for _, w in images.values())
        model.vis.quality.offsamples = 0
        # A renderer loads the whole scene: cameras of one size share it.
        by_size = {size: mujoco.Renderer(model, *size) for size in dict.fromkeys(images.values())}
        self._renderers = {key: by_size[size] for key, size in images.items()}
        for renderer in self._renderers.values():
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._images = images
        self._upside_down = upside_down
        self._shown: Body = ()
        # MuJoCo ends its EGL display at exit, and complains of a renderer that is freed after that.
        atexit.register(_close, weakref.ref(self))

    def render(self) -> dict[str, bytes]:
        return {key: jpeg(self.frame(key), self._images[key]) for key in self._renderers}

    def frame(self, key: str) -> np.ndarray:
        """uint8 [height, width, 3] of the scene as it is now, upright."""
        renderer = self._renderers[key]
        renderer.update_scene(self._data, camera=key)
        draw(self._shown, renderer.scene)
        frame = renderer.render()
        return np.flip(frame, (0, 1)) if key in self._upside_down else frame

    def show(self, body: Body) -> None:
        self._shown = body

    def see(self, body: Body) -> bool:
        return all(self._in_view(key, body) >= IN_VIEW for key in self._renderers)

    def _in_view(self, key: str, body: Body) -> float:
        """The share of the parts of `body` whose centres are in the picture."""
        camera, (height, width) = self._model.camera(key).id, self._images[key]
        turn, at = self._data.cam_xmat[camera].reshape(3, 3), self._data.cam_xpos[camera]
        seen = (np.array([part.at for part in body]) - at) @ turn  # it looks along -z
        reach = -seen[:, 2] * np.tan(np.radians(self._model.cam_fovy[camera]) / 2)
        inside = (abs(seen[:, 0]) < reach * width / height) & (abs(seen[:, 1]) < reach)
        return float(inside.mean())

    def close(self) -> None:
        for renderer in dict.fromkeys(self._renderers.values()):
            renderer.close()


def _close(cameras: "weakref.ref[MujocoCameras]") -> None:
    if living := cameras():
        living.close()


def jpeg(frame: np.ndarray, size: tuple[int, int]) -> bytes:
    """`frame` uint8 [h, w, 3] as JPEG, resized to `size` (height_px, width_px) if it differs."""
    from PIL import Image

    image = Image.fromarray(frame)
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]))
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()
