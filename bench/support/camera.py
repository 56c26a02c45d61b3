"""Camera pictures with the statistics of real ones."""

import numpy as np
from numpy.typing import NDArray

CAMERAS = ("front", "left", "wrist")
SIZE = 224
Floats = NDArray[np.float64]


def picture(seed: int, size: int = SIZE) -> NDArray[np.uint8]:
    """uint8 [size, size, 3]: amplitude falls with frequency as in natural pictures, with edges.

    As JPEG it takes about what a camera's picture of a table top takes (noise alone: three times
    as much; a flat colour: next to nothing).
    """
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    frequency[0, 0] = 1.0
    luminance = _spectral(rng, frequency**-1.5, size)
    colour = np.stack([_spectral(rng, frequency**-1.8, size) for _ in range(3)], -1)
    y, x = np.mgrid[:size, :size]
    for _ in range(6):
        (cx, cy), radius = rng.integers(0, size, 2), rng.integers(10, size // 4)
        inside = (x - cx) ** 2 + (y - cy) ** 2 < radius**2
        luminance[inside] += rng.normal()
        colour[inside] += rng.normal(size=3)
    pixels = 120 + 40 * luminance[..., None] + 15 * colour
    return np.asarray(np.clip(pixels, 0, 255), np.uint8)


def _spectral(rng: np.random.Generator, amplitude: Floats, size: int) -> Floats:
    """A picture [size, size] of random phases, mean 0 and standard deviation 1."""
    waves = amplitude * np.exp(2j * np.pi * rng.random(amplitude.shape))
    field: Floats = np.fft.irfft2(waves, s=(size, size))
    field -= field.mean()
    field /= field.std()
    return field
