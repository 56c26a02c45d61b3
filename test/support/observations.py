"""Requests for the tiny policies."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tiny_policies import CAMERA, INSTRUCTIONS, SIZE, STATE_DIM, WRIST

from kairos_ros.engine.interface import EngineOptions
from kairos_ros.transport.messages import InferRequest


def options(policy: Path | str, **changes) -> EngineOptions:
    tokenizer = Path(policy).parent / "tokenizer"
    fields = {
        "policy": str(policy),
        "device": "cpu",
        "max_batch": 4,
        "tokenizer": str(tokenizer) if tokenizer.is_dir() else "",
    }
    return EngineOptions(**(fields | changes))


def observation(number: int, **changes) -> InferRequest:
    """What robot `number` sees: every robot has its own state, image, instruction and seed."""
    generator = np.random.default_rng(number)
    fields = {
        "robot": f"arm_{number}",
        "session": "s",
        "task": "t",
        "round": 1,
        "attempt": 0,
        "seed": 1000 + number,
        "instruction": INSTRUCTIONS[number % 2],
        "state": generator.uniform(-2, 2, STATE_DIM).astype(np.float32),
        "images": {CAMERA: jpeg(generator, SIZE), WRIST: jpeg(generator, SIZE)},
    }
    return InferRequest(**(fields | changes))


def jpeg(generator: np.random.Generator, size: tuple[int, int]) -> bytes:
    coarse = generator.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(size[::-1]).save(buffer, "JPEG")
    return buffer.getvalue()


def observed(engine: Any, requests: list[InferRequest]) -> dict[str, Any]:
    """What the engine's policy is given of them, before LeRobot's preprocessor."""
    return engine._tensors.batch(engine._copied(engine._rows.read(requests)))
