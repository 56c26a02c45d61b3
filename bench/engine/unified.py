"""A policy that answers questions besides, from one prefill or from two (OxyGen).

At every frame a pi05 gives a chunk, and a question about that frame is asked, whose answer has N
tokens. Three ways to do both, on the same weights:

- isolated: the chunk, then a prefill of the same frame for the question, then its N tokens, alone;
- shared prefill: the question starts on the keys and values of the chunk; then its N tokens, alone;
- shared and batched: as before, but after every frame all questions in flight are decoded k tokens
  further, in one batch: N / k of them in the long run.

Blocks of frames alternate between the three, and a block of the third begins when as many questions
are in flight as there will be. Seconds are those of CPU time on one thread, so that what else the
machine does counts less; on a GPU, of the wall clock. Weights are random. Answers do not end early.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.support.report import Result, new_figure
from bench.support.servers import ROOT
from kairos_ros.lab.metrics.figure_style import BASELINE, OURS

LENGTHS = (10, 20, 30)
"""Tokens of an answer: N."""
K = 5
ISOLATED, SHARED, BATCHED = "isolated", "shared prefill", "shared and batched"
ARMS = (ISOLATED, SHARED, BATCHED)
QUESTION = "what now? "
GEMMA = {"width": 768, "mlp_dim": 3072, "num_heads": 8, "num_kv_heads": 1, "head_dim": 96}
SIZE: dict[str, Any] = {
    "gemma": {**GEMMA, "depth": 12},
    "expert": {"width": 384, "mlp_dim": 1536},
    "vision": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
        "patch_size": 14,
    },
    "vocabulary": 8192,
}
"""Arguments of `tiny_families.pi.small_pi`: about 180 million parameters."""
CHANGES = {"image_resolution": (112, 112), "num_inference_steps": 10, "chunk_size": 16}
TITLE = "One prefill and one batch for all questions"

Seconds = dict[str, dict[int, list[float]]]
"""Way to do it -> N -> seconds per frame, of every block."""


def run(folder: Path, quick: bool) -> Result:
    """Measures in a process of its own, with one thread."""
    blocks, frames = (1, 1) if quick else (3, 3)
    options = ("--blocks", str(blocks), "--frames", str(frames))
    data = measured_apart("bench.engine.unified", folder, *options)
    seconds: Seconds = {
        arm: {int(length): values for length, values in of.items()}
        for arm, of in data["seconds"].items()
    }
    return Result(HEADER, rows(seconds), data, lambda file: plot(file, seconds))


def measured_apart(module: str, folder: Path, *options: str) -> dict[str, Any]:
    """What a module with a tiny policy writes to measured.json in `folder`, in a process of its own
    with one thread."""
    folder.mkdir(parents=True, exist_ok=True)
    path = (str(ROOT), str(ROOT / "test/support/policies"), os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", module, str(folder), *options]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    data: dict[str, Any] = json.loads((folder / "measured.json").read_text())
    return data


HEADER = ["N", "way", "s per frame", "least, most", "frames/s", "tokens/s", "times isolated"]


def rows(seconds: Seconds) -> list[list[str]]:
    """Of the table: a row for each N and way to do it."""
    made = []
    for length in seconds[ISOLATED]:
        for arm in ARMS:
            found = seconds[arm][length]
            each = median(found)
            made.append(
                [
                    str(length),
                    arm,
                    f"{each:.3f}",
                    f"{min(found):.3f}, {max(found):.3f}",
                    f"{1 / each:.2f}",
                    f"{length / each:.1f}",
                    f"{median(seconds[ISOLATED][length]) / each:.2f}",
                ]
            )
    return made


def plot(file: Path, seconds: Seconds) -> None:
    """Frames per second against N."""
    about = f"pi05 with random weights, a question per frame, k = {K}, medians and spread"
    with new_figure(file, TITLE, about) as axes:
        for arm, colour, style in zip(
            ARMS, (BASELINE, BASELINE, OURS), ("-", "--", "-"), strict=True
        ):
            rates = {n: [1 / value for value in found] for n, found in seconds[arm].items()}
            middle = [median(found) for found in rates.values()]
            axes.plot(list(rates), middle, style, color=colour, marker="o", label=arm)
            lows, highs = zip(*((min(found), max(found)) for found in rates.values()), strict=True)
            axes.fill_between(list(rates), lows, highs, color=colour, alpha=0.15, linewidth=0)
        axes.set_xlabel("tokens of an answer")
        axes.set_ylabel("frames per second")
        axes.set_xticks(LENGTHS)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)


def measure(
    engine: Any,
    clock: Callable[[], float],
    blocks: int,
    frames: int,
    lengths: Sequence[int] = LENGTHS,
) -> Seconds:
    """Of a loaded engine that answers questions (`PolicyEngine`). clock: seconds, with all that was
    begun done."""
    sides = {
        ISOLATED: _Side(engine, alone=True, steps=max(lengths)),
        SHARED: _Side(engine, alone=False, steps=max(lengths)),
        BATCHED: _Side(engine, alone=False, steps=K),
    }
    found: Seconds = {arm: {length: [] for length in lengths} for arm in ARMS}
    for block in range(blocks):
        for length in lengths:
            for place in range(len(ARMS)):
                arm = ARMS[(place + block) % len(ARMS)]
                found[arm][length].append(sides[arm].block(length, frames, clock))
    return found


class _Side:
    """One way to do it. Decoders are made anew, over the same engine."""

    def __init__(self, engine: Any, *, alone: bool, steps: int) -> None:
        from kairos_ros.engine.policies.language.unified_decoder import unified_decoder
        from kairos_ros.engine.profiling import sample_request

        self._engine, self._alone = engine, alone
        self._requests = [sample_request(engine.description, row, "") for row in range(4)]
        engine.warm_up(1)
        each = engine.answering.slot_bytes
        self._decoder = unified_decoder(engine._loaded, engine._tap.take(), 16 * each)
        self._decoder._steps = steps
        self._decoder._end = -1  # an answer has as many tokens as it may have

    def block(self, length: int, frames: int, clock: Callable[[], float]) -> float:
        """Seconds per frame. Raises RuntimeError where answers were not those that were asked."""
        before = -(-length // self._decoder._steps) if self._decoder._steps < length else 1
        answered = 0
        for number in range(before):
            self._frame(number, length)
        start = clock()
        for number in range(before, before + frames):
            answered += self._frame(number, length)
        took = (clock() - start) / frames
        if answered != frames:
            raise RuntimeError(f"{answered} answers in {frames} frames")
        for key in range(before + frames):
            self._decoder.withdraw(key)
        return took

    def _frame(self, number: int, length: int) -> int:
        """Answers that were finished."""
        from kairos_ros.transport.language_messages import LanguageAnswer, LanguageQuestion

        engine, request = self._engine, self._requests[number % len(self._requests)]
        question = LanguageQuestion(request.robot, QUESTION, most_tokens=length)
        assert self._decoder.ask(number, question, now_s=0.0) is None
        engine.answering = None if self._alone else self._decoder
        engine.infer([request])
        if self._alone:
            self._decoder.frame([request], prefill_again(engine, request))
        outcomes = self._decoder.go_on(now_s=0.0)
        for _, outcome in outcomes:
            if not isinstance(outcome, LanguageAnswer) or len(outcome.tokens) != length:
                raise RuntimeError(f"expected {length} tokens: {outcome}")
        return len(outcomes)


def prefill_again(engine: Any, request: Any) -> Any:
    """What a language model of its own computes of the observation before it can say anything."""
    import torch
    from lerobot.policies.common.vla_utils import make_att_2d_masks, prepare_attention_masks_4d

    from kairos_ros.engine.policies.language.prefill import Prefill

    loaded = engine._loaded
    policy, model = loaded.policy, loaded.policy.model
    with torch.inference_mode():
        rows = engine._rows.read([request])
        batch = loaded.preprocess(engine._tensors.batch(engine._copied(rows)))
        images, masks = policy._preprocess_images(batch)
        prompt = (batch[f"observation.language.{key}"] for key in ("tokens", "attention_mask"))
        embedded, valid, attending = model.embed_prefix(images, masks, *prompt)
        _, cache = model.paligemma_with_expert.forward(
            attention_mask=prepare_attention_masks_4d(make_att_2d_masks(valid, attending)),
            position_ids=torch.cumsum(valid, dim=1) - 1,
            past_key_values=None,
            inputs_embeds=[embedded, None],
            use_cache=True,
        )
    layers = list(cache)
    return Prefill(tuple(layer[0] for layer in layers), tuple(layer[1] for layer in layers), valid)


def save_and_load(folder: Path) -> tuple[Any, int]:
    """An engine of a new policy of SIZE, and how many parameters it has."""
    import tiny_policies
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    from tiny_families.pi import small_pi

    from kairos_ros.engine.interface import EngineOptions
    from kairos_ros.engine.policies.policy_engine import load_policy_engine

    features = {
        "observation.state": PolicyFeature(FeatureType.STATE, (7,)),
        **{f"observation.images.{name}": tiny_policies.visual(112, 112) for name in ("a", "b")},
    }
    config = tiny_policies.tiny_config("pi05", folder, input_features=features, **CHANGES)
    config.n_action_steps = config.chunk_size
    torch.manual_seed(0)
    with small_pi(**SIZE):
        with tiny_policies.TINY["pi05"].built(folder):
            policy = get_policy_class(config.type)(config)
            tiny_policies.randomise(policy)
            before, after = make_pre_post_processors(
                config, dataset_stats=tiny_policies.statistics(config)
            )
        for part in (policy, before, after):
            part.save_pretrained(folder / "policy")
        options = EngineOptions(
            str(folder / "policy"),
            device="cpu",
            max_batch=1,
            tokenizer=str(folder / "tokenizer"),
            language_mib=64,
        )
        engine = load_policy_engine(options, lambda stage: print(stage, flush=True))
    return engine, sum(parameter.numel() for parameter in policy.parameters())


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="gets measured.json")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--frames", type=int, default=3, help="of each block")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kairos-unified-") as work:
        engine, parameters = save_and_load(Path(work))
    load = os.getloadavg()
    seconds = measure(engine, time.process_time, arguments.blocks, arguments.frames)
    found = {
        "parameters": parameters,
        "k": K,
        "clock": "CPU time",
        "load_average_at_the_start": load,
        "seconds": seconds,
    }
    (arguments.folder / "measured.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
