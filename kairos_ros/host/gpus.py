"""The GPUs of this host, without loading anything that uses them."""

import os
import re
from pathlib import Path

DEVICE = re.compile(r"nvidia\d+")


def cuda_gpus() -> int:
    """How many CUDA GPUs programs of this process's environment see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        listed = [text.strip() for text in visible.split(",")]
        return len([text for text in listed if text and text != "-1"])
    return sum(bool(DEVICE.fullmatch(path.name)) for path in Path("/dev").glob("nvidia*"))
