"""One side of `python -m bench load`, in a process of its own; prints JSON in its last line.

    python -m bench.engine.load_side save FOLDER [--parameters small|medium]
    python -m bench.engine.load_side kairos_ros|lerobot FOLDER [--dtype float32|bfloat16]

Needs test/support/policies on PYTHONPATH: the small pi05 of the tests is made larger.
"""

import argparse
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIDES = ("kairos_ros", "lerobot")
DTYPES = ("float32", "bfloat16")
EVERY_S = 0.002
"""Between two samples of memory."""
VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 4,
    "num_attention_heads": 12,
    "patch_size": 14,
}
GEMMA = {"width": 768, "mlp_dim": 3072, "num_heads": 8, "num_kv_heads": 1, "head_dim": 96}
SIZES: dict[str, dict[str, Any]] = {
    "small": {"gemma": {**GEMMA, "depth": 6}, "vision": VISION, "vocabulary": 8192},
    "medium": {
        "gemma": {**GEMMA, "width": 1024, "mlp_dim": 4096, "head_dim": 128, "depth": 9},
        "vision": VISION,
        "vocabulary": 8192,
    },
}
"""Arguments of `tiny_families.pi.small_pi`."""


def save(folder: Path, size: str) -> dict[str, Any]:
    """Writes the policy folder and its tokenizer; returns how many parameters it has."""
    import tiny_policies
    import torch
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from tiny_families.pi import small_pi

    config = tiny_policies.tiny_config("pi05", folder)
    torch.manual_seed(0)
    with small_pi(**SIZES[size]), tiny_policies.TINY["pi05"].built(folder):
        policy = get_policy_class(config.type)(config)
        before, after = make_pre_post_processors(
            config, dataset_stats=tiny_policies.statistics(config)
        )
    for part in (policy, before, after):
        part.save_pretrained(folder / "policy")
    return {"parameters": sum(parameter.numel() for parameter in policy.parameters())}


def load(side: str, folder: Path, size: str, dtype: str) -> dict[str, Any]:
    """Seconds of CPU and of wall, and bytes; see `bench.engine.load`."""
    import torch
    from tiny_families.pi import small_pi

    torch.set_num_threads(1)
    with small_pi(**SIZES[size]):
        loading = (ours if side == "kairos_ros" else lerobots)(folder, dtype)
        with PeakMemory() as memory:
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            policy, verifying_cpu_s = loading()
            cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    weights_b = sum(p.numel() * p.element_size() for p in policy.parameters())
    return {
        "cpu_s": cpu_s,
        "wall_s": wall_s,
        "verifying_cpu_s": verifying_cpu_s,
        "peak_b": memory.peak_b,
        "weights_b": weights_b,
    }


Loading = Callable[[], tuple[Any, float | None]]
"""Returns the policy, and seconds of CPU that verifying took; None: it verified nothing."""


def ours(folder: Path, dtype: str) -> Loading:
    from kairos_ros.engine.interface import EngineOptions
    from kairos_ros.engine.policies.policy import load_policy

    options = EngineOptions(
        str(folder / "policy"), device="cpu", dtype=dtype, tokenizer=str(folder / "tokenizer")
    )

    def loading() -> tuple[Any, float | None]:
        began: list[tuple[str, float]] = []
        loaded = load_policy(options, lambda stage: began.append((stage, time.process_time())))
        stages = [stage for stage, _ in began]
        place = stages.index("verifying weights")
        return loaded.policy, began[place + 1][1] - began[place][1]

    return loading


def lerobots(folder: Path, dtype: str) -> Loading:
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    path = str(folder / "policy")
    overrides = {
        "device_processor": {"device": "cpu"},
        "tokenizer_processor": {"tokenizer_name": str(folder / "tokenizer")},
    }

    def loading() -> tuple[Any, None]:
        config = PreTrainedConfig.from_pretrained(path)
        config.device, config.dtype = "cpu", dtype
        policy = get_policy_class(config.type).from_pretrained(path, config=config)
        policy.eval()
        make_pre_post_processors(config, pretrained_path=path, preprocessor_overrides=overrides)
        return policy, None

    return loading


class PeakMemory:
    """Within it, the largest RssAnon of this process, minus what it was at the start, in bytes."""

    def __enter__(self) -> "PeakMemory":
        self._start_b = self._largest_b = anonymous_b()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._largest_b = max(self._largest_b, anonymous_b())

    @property
    def peak_b(self) -> int:
        return self._largest_b - self._start_b

    def _sample(self) -> None:
        while not self._done.wait(EVERY_S):
            self._largest_b = max(self._largest_b, anonymous_b())


def anonymous_b() -> int:
    """RssAnon of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("save", *SIDES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parameters", choices=SIZES, default="small")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if arguments.what == "save":
        found = save(arguments.folder, arguments.parameters)
    else:
        found = load(arguments.what, arguments.folder, arguments.parameters, arguments.dtype)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
