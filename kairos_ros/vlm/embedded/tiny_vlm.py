"""The embedded model's forward pass in numpy, so that a judge needs neither torch nor a GPU.

Strided convolutions turn the image into a grid of tokens; the question's words attend to each
other and to the image's tokens; the word that fills the answer slot is the answer. The same network
in torch, for training, is `lab/judges/network.py`; a test holds the two together.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from kairos_ros.core.errors import ConfigError

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Sizes of the network."""

    image_px: int = 240
    """The image is square."""
    channels: tuple[int, ...] = (16, 32, 64, 128)
    """Of the convolutions that halve the image, in order."""
    residual: int = 2
    """Convolutions at full depth after them."""
    width: int = 128
    """Of the token stream."""
    blocks: int = 2
    heads: int = 4
    words: int = 64
    """Size of the vocabulary."""
    most_words: int = 48
    """Longest text, with the answer slot."""

    @property
    def grid(self) -> int:
        """Image tokens per side."""
        return self.image_px >> len(self.channels)


class TinyVLM:
    """Weights and the forward pass."""

    def __init__(self, shape: NetworkShape, weights: Mapping[str, Floats]) -> None:
        self.shape = shape
        self._w = {name: np.ascontiguousarray(value, np.float32) for name, value in weights.items()}

    def see(self, images: NDArray[np.uint8]) -> Floats:
        """Image tokens float32 [B, grid², width] of `images` uint8 [B, image_px, image_px, 3]."""
        x = images.astype(np.float32) / 127.5 - 1.0
        for i in range(len(self.shape.channels)):
            x = np.maximum(self._conv(f"down.{i}", x, stride=2), 0)
        for i in range(self.shape.residual):
            x = np.maximum(x + self._conv(f"residual.{i}", x, stride=1), 0)
        tokens = x.reshape(len(x), -1, x.shape[-1])
        return self._norm("see_norm", self._linear("see", tokens)) + self._w["where"]

    def answer(self, seen: Floats, words: Sequence[int]) -> Floats:
        """Logits float32 [words] of the answer slot.

        `seen`: tokens [grid², width] of the image; `words`: the question, the slot first.
        """
        x = self._w["word"][list(words)] + self._w["place"][: len(words)]
        for i in range(self.shape.blocks):
            own = self._norm(f"block.{i}.read_norm", x)
            x = x + self._attend(f"block.{i}.read", own, own)
            x = x + self._attend(f"block.{i}.look", self._norm(f"block.{i}.look_norm", x), seen)
            hidden = self._linear(f"block.{i}.up", self._norm(f"block.{i}.think_norm", x))
            x = x + self._linear(f"block.{i}.down", np.maximum(hidden, 0))
        logits: Floats = self._norm("last_norm", x[:1])[0] @ self._w["word"].T
        return logits

    def _conv(self, name: str, x: Floats, stride: int) -> Floats:
        """3×3 convolution with a border of zeros, [B, H, W, C] -> [B, H/stride, W/stride, O]."""
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = sliding_window_view(padded, (3, 3), axis=(1, 2))  # type: ignore[call-overload]  # its stub knows one axis
        patches = windows[:, ::stride, ::stride]
        rows = patches.reshape(-1, x.shape[-1] * 9)
        out: Floats = rows @ self._w[f"{name}.weight"].reshape(-1, rows.shape[1]).T
        return (out + self._w[f"{name}.bias"]).reshape(*patches.shape[:3], -1)

    def _attend(self, name: str, x: Floats, to: Floats) -> Floats:
        heads = self.shape.heads
        q = self._linear(f"{name}.query", x).reshape(len(x), heads, -1).transpose(1, 0, 2)
        k = self._linear(f"{name}.key", to).reshape(len(to), heads, -1).transpose(1, 2, 0)
        v = self._linear(f"{name}.value", to).reshape(len(to), heads, -1).transpose(1, 0, 2)
        weight = softmax(q @ k / np.float32(q.shape[-1]) ** np.float32(0.5))
        return self._linear(f"{name}.out", (weight @ v).transpose(1, 0, 2).reshape(x.shape))

    def _linear(self, name: str, x: Floats) -> Floats:
        return x @ self._w[f"{name}.weight"].T + self._w[f"{name}.bias"]

    def _norm(self, name: str, x: Floats) -> Floats:
        centred = x - x.mean(-1, keepdims=True)
        scale = np.sqrt(np.square(centred).mean(-1, keepdims=True) + np.float32(1e-5))
        normed: Floats = centred / scale * self._w[f"{name}.weight"] + self._w[f"{name}.bias"]
        return normed


def softmax(x: Floats) -> Floats:
    """Over the last axis."""
    e: Floats = np.exp(x - x.max(-1, keepdims=True))
    shares: Floats = e / e.sum(-1, keepdims=True)
    return shares


@dataclass(frozen=True, slots=True)
class QuestionKind:
    """One kind of question that a model was trained to answer."""

    kind: str
    answers: tuple[str, ...]
    instructions: tuple[str, ...]
    """The tasks it may be asked about."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a model folder's config.json says."""

    name: str
    shape: NetworkShape
    words: tuple[str, ...]
    asked: tuple[QuestionKind, ...]
    temperature: float
    """Divides the logits, so that probabilities mean what they say on held-out scenes."""
    camera: str
    """The simulated camera that the model was trained behind."""


def write_description(folder: Path, description: Description) -> None:
    """config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "config.partial"
    partial.write_text(json.dumps(asdict(description), indent=2) + "\n")
    partial.replace(folder / "config.json")


def write_weights(folder: Path, weights: Mapping[str, Floats]) -> None:
    """model.safetensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "model.partial"
    save_file({name: np.ascontiguousarray(value) for name, value in weights.items()}, partial)
    partial.chmod(0o644)  # safetensors writes files that only their owner can read
    partial.replace(folder / "model.safetensors")


def read_model(folder: Path) -> tuple[Description, TinyVLM]:
    """What config.json and model.safetensors of `folder` say.

    Raises ConfigError for a folder that holds no such model.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        data = json.loads((folder / "config.json").read_text())
        shape = NetworkShape(**(data["shape"] | {"channels": tuple(data["shape"]["channels"])}))
        asked = tuple(
            QuestionKind(a["kind"], tuple(a["answers"]), tuple(a["instructions"]))
            for a in data["asked"]
        )
        given = data | {"shape": shape, "asked": asked, "words": tuple(data["words"])}
        return Description(**given), TinyVLM(shape, load_file(folder / "model.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ConfigError(
            f"judge folder {folder} holds no embedded judge ({error!r:.200}); "
            "'kairos train-judge' writes one, models/factory_judge ships"
        ) from error
