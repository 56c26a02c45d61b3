"""What LeRobot's cameras give: still alive, and as JPEG."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

JPEG_QUALITY = 90
STRIDE = 8
"""Every so many pixels are compared, down and across: what a camera sees is noisy everywhere."""


@dataclass(frozen=True, slots=True)
class _Look:
    pixels: np.ndarray
    since_ns: int


class PixelWatch:
    """Finds cameras that give the same pixels again and again. Times are ns of any steady clock."""

    def __init__(self, frozen_after_s: float) -> None:
        """frozen_after_s: 0: they may, as simulated cameras do before a still scene."""
        self._frozen_after_s = frozen_after_s
        self._looks: dict[str, _Look] = {}

    def frozen(
        self, cameras: Iterable[str], observation: Mapping[str, np.ndarray], now_ns: int
    ) -> str:
        """Which camera of those is frozen; empty for none. Pictures are uint8 [h, w, 3]."""
        if not self._frozen_after_s:
            return ""
        for camera in cameras:
            pixels = observation[camera][::STRIDE, ::STRIDE]
            last = self._looks.get(camera)
            if last is None or not np.array_equal(pixels, last.pixels):
                self._looks[camera] = _Look(pixels.copy(), now_ns)
            elif (same_s := (now_ns - last.since_ns) / 1e9) > self._frozen_after_s:
                return f"camera {camera} has shown the same pixels for {same_s:.1f} s"
        return ""


def as_jpeg(frame: np.ndarray, size: tuple[int, int]) -> bytes:
    """`frame`, uint8 RGB [h, w, 3], as JPEG of `size` (height_px, width_px).

    With OpenCV, which LeRobot brings: half the time of Pillow in the control thread.
    """
    import cv2

    if frame.shape[:2] != size:
        frame = cv2.resize(frame, (size[1], size[0]), interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
    _, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return encoded.tobytes()
