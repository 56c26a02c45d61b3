"""Trains the embedded judge: rendered cells in, a folder that `vlm/embedded/` reads out."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from kairos_ros.core.errors import ConfigError
from kairos_ros.lab.judges.network import JudgeNetwork
from kairos_ros.lab.judges.prompts import TRAINED
from kairos_ros.lab.judges.scenes import CAMERA, STATES, UNCLEAR, Frames
from kairos_ros.robot.adapters.sim.metaworld_scenes import LOSABLE, SCENES
from kairos_ros.vlm.embedded.tiny_vlm import (
    Description,
    NetworkShape,
    QuestionKind,
    write_description,
    write_weights,
)
from kairos_ros.vlm.embedded.words import UNKNOWN, Vocabulary, vocabulary_of
from kairos_ros.vlm.questions import SAFE, SAFETY, TASK_STATE, UNSAFE

ANSWERS = {SAFETY: (SAFE, UNSAFE), TASK_STATE: STATES}
NO_ANSWER = -100
"""Target of a question that is not asked about a picture."""
FORGET = 0.05
"""Share of the words that a training prompt loses to `<unknown>`."""
SHIFT_PX = 5
"""Pictures are moved by up to this much in training."""
COOLING = 0.4
"""Share of the training, at its end, in which the learning rate falls to nothing; it is constant
before, so that until then a training may be made shorter or longer."""
POINT_WEIGHT, PLACE_WEIGHT = 0.1, 0.5
"""Of the losses for pointing at hand, object and goal, and for telling where they are."""
CENTRE_M, REACH_M, FAR = (0.0, 0.65, 0.1), 0.2, 3.0
"""Places are learned from the middle of the cell in units of REACH_M; what is further than FAR of
these, such as a puck on the floor, is just far."""


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """What defines a training; a resumed one must agree."""

    scenes: tuple[str, ...] = tuple(SCENES)
    losable: int = 200
    """Episodes of each scene whose object can get lost."""
    others: int = 70
    """Episodes of each other scene."""
    epochs: int = 6
    batch_size: int = 32
    learning_rate: float = 1.5e-3
    image_px: int = 240
    seed: int = 0

    def episodes(self) -> dict[str, int]:
        return {s: self.losable if s in LOSABLE else self.others for s in self.scenes}

    def __post_init__(self) -> None:
        unknown = [scene for scene in self.scenes if scene not in SCENES]
        if unknown or not self.scenes:
            raise ConfigError(f"unknown tasks {unknown}; choose from {', '.join(SCENES)}")


class Pictures:
    """All pictures with what may be asked about them."""

    def __init__(self, frames: Mapping[str, Frames]) -> None:
        self.scenes = tuple(frames)
        parts = list(frames.values())
        self.image = torch.from_numpy(np.concatenate([f.image for f in parts]))
        self.state = torch.from_numpy(np.concatenate([f.state for f in parts]).astype(np.int64))
        self.unsafe = torch.from_numpy(np.concatenate([f.unsafe for f in parts]))
        self.place = torch.from_numpy(np.concatenate([f.place for f in parts]))
        self.pixel = torch.from_numpy(np.concatenate([f.pixel for f in parts]))
        self.scene = torch.repeat_interleave(
            torch.arange(len(parts)), torch.tensor([len(f.state) for f in parts])
        )

    def __len__(self) -> int:
        return len(self.image)


def vocabulary() -> tuple[str, ...]:
    """Every word of the prompts, the instructions and the answers."""
    prompts = [prompt for kind in TRAINED.values() for prompt in kind]
    answers = [answer for kind in ANSWERS.values() for answer in kind]
    return vocabulary_of([*prompts, *answers, *SCENES.values()])


class Questions:
    """Words and target words of training questions."""

    def __init__(self, words: tuple[str, ...], scenes: tuple[str, ...], most_words: int) -> None:
        self._vocabulary = Vocabulary(words)
        self._most = most_words
        self._unknown = self._vocabulary.number(UNKNOWN)
        self._texts = {
            kind: torch.tensor(
                [[self._encoded(prompt, SCENES[scene]) for prompt in prompts] for scene in scenes]
            )
            for kind, prompts in TRAINED.items()
        }
        self._answers = {
            kind: torch.tensor([self._vocabulary.number(a) for a in answers])
            for kind, answers in ANSWERS.items()
        }

    def ask(self, pictures: Pictures, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Words int64 [B, 2, L] and target words int64 [B, 2] for safety and task state."""
        scene = pictures.scene[rows]
        asked = [
            texts[scene, torch.randint(texts.shape[1], (len(rows),))]
            for texts in self._texts.values()
        ]
        words = torch.stack(asked, 1)
        forgotten = (torch.rand(words.shape) < FORGET) & (words > self._unknown)
        forgotten[..., 0] = False  # the answer slot
        words = words.masked_fill(forgotten, self._unknown)
        words = words[..., : int((words != 0).sum(-1).max())]
        state = pictures.state[rows]
        targets = torch.stack(
            [
                self._answers[SAFETY][pictures.unsafe[rows].long()],
                self._answers[TASK_STATE][state.clamp(min=0)].masked_fill(
                    state == UNCLEAR, NO_ANSWER
                ),
            ],
            1,
        )
        return words, targets

    def _encoded(self, prompt: str, instruction: str) -> list[int]:
        words = self._vocabulary.encode(prompt, instruction)
        return words + [0] * (self._most - len(words))


def augmented(images: Tensor) -> tuple[Tensor, Tensor]:
    """Float [B, 3, px, px] in about [-1, 1] of uint8 [B, px, px, 3]: moved, relit, with noise.

    And by how many pixels to the right and down their content was moved, int64 [B, 2].
    """
    count, px = images.shape[:2]
    x = images.permute(0, 3, 1, 2).to(torch.float32) / 127.5 - 1.0
    padded = functional.pad(x, (SHIFT_PX,) * 4, mode="replicate")
    corner = torch.randint(2 * SHIFT_PX + 1, (count, 2))
    x = torch.stack(
        [p[:, i : i + px, j : j + px] for p, (i, j) in zip(padded, corner.tolist(), strict=True)]
    )
    gain = 1 + 0.15 * torch.randn(count, 1, 1, 1) + 0.06 * torch.randn(count, 3, 1, 1)
    x = x * gain + 0.1 * torch.randn(count, 1, 1, 1)
    noise = 0.03 * torch.rand(count, 1, 1, 1) * torch.randn(x.shape)
    return x + noise, SHIFT_PX - corner.flip(1)


def cells(pixel: Tensor, moved: Tensor, px: int, grid: int) -> Tensor:
    """int64 [B, 3]: in which of the grid² image tokens each point lies, NO_ANSWER outside of all.

    pixel: [B, 3, 2], shares of the picture; moved: [B, 2], by how many of its `px` pixels.
    """
    at = ((pixel + moved[:, None] / px) * grid).floor().long()
    inside = ((at >= 0) & (at < grid)).all(-1)
    return (at[..., 1] * grid + at[..., 0]).masked_fill(~inside, NO_ANSWER)


def train_judge(
    settings: JudgeSettings,
    pictures: Pictures,
    *,
    name: str,
    out: Path,
    work: Path,
    report: Callable[[str], None],
) -> bool:
    """Train, and write the model folder `out` after every epoch. False where it was interrupted.

    A rerun with the same settings continues after the last whole epoch in `work`; one with more or
    fewer epochs does, too, while neither course has begun to cool.
    """
    torch.manual_seed(settings.seed)
    words = vocabulary()
    shape = NetworkShape(image_px=settings.image_px, words=len(words))
    network = JudgeNetwork(shape).to(memory_format=torch.channels_last)
    questions = Questions(words, pictures.scenes, shape.most_words)
    optimizer = torch.optim.AdamW(
        network.parameters(), settings.learning_rate, weight_decay=0.03, fused=True
    )
    state = work / "judge.safetensors"
    epoch, elapsed_s = _restore(state, network, optimizer, settings)
    steps = len(pictures) // settings.batch_size
    size = f"{len(pictures)} pictures, {_count(network) / 1e6:.2f} M parameters"
    if epoch == settings.epochs:
        report(f"all {epoch} epochs are done already ({size})")
    else:
        report(f"training on {size}, from epoch {epoch + 1} of {settings.epochs}")
    start = time.monotonic() - elapsed_s
    try:
        for epoch in range(epoch, settings.epochs):  # noqa: B020
            torch.manual_seed(settings.seed * 1_000_003 + epoch)
            order = torch.randperm(len(pictures))
            losses = []
            network.train()
            for step in range(steps):
                done = (epoch * steps + step) / (settings.epochs * steps)
                warm_up = (epoch * steps + step + 1) / 200
                for group in optimizer.param_groups:
                    group["lr"] = settings.learning_rate * min(1.0, warm_up, (1 - done) / COOLING)
                rows = order[step * settings.batch_size : (step + 1) * settings.batch_size]
                losses.append(_step(network, optimizer, questions, pictures, rows))
                if (step + 1) % 100 == 0:
                    recent = float(np.mean(losses[-100:]))
                    report(
                        f"epoch {epoch + 1}/{settings.epochs}  step {step + 1}/{steps}"
                        f"  loss {recent:.3f}  {(time.monotonic() - start) / 60:.1f} min"
                    )
            _save(state, network, optimizer, epoch + 1, time.monotonic() - start, settings)
            write_description(out, describe(name, shape, words, settings.scenes))
            write_weights(out, network.weights())
    except KeyboardInterrupt:
        report(f"stopped in epoch {epoch + 1}; run the same command again to continue")
        return False
    record = {
        "settings": asdict(settings),
        "pictures": len(pictures),
        "parameters": _count(network),
        "training_minutes": round((time.monotonic() - start) / 60, 1),
        "cpu_threads": torch.get_num_threads(),
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    return True


def describe(
    name: str, shape: NetworkShape, words: tuple[str, ...], scenes: tuple[str, ...]
) -> Description:
    """config.json of a model that was just trained; its temperature is set by its evaluation."""
    instructions = tuple(SCENES[scene] for scene in scenes)
    asked = tuple(QuestionKind(kind, answers, instructions) for kind, answers in ANSWERS.items())
    return Description(name, shape, words, asked, temperature=1.0, camera=CAMERA)


def _step(
    network: JudgeNetwork,
    optimizer: torch.optim.Optimizer,
    questions: Questions,
    pictures: Pictures,
    rows: Tensor,
) -> float:
    words, targets = questions.ask(pictures, rows)
    images, moved = augmented(pictures.image[rows])
    with torch.autocast("cpu", torch.bfloat16):
        logits, point, place = network.study(
            images.contiguous(memory_format=torch.channels_last), words
        )
    answering = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
    shape = network.shape
    where = cells(pictures.pixel[rows], moved, shape.image_px, shape.grid)
    pointing = functional.cross_entropy(point.float(), where)
    far = (pictures.place[rows] - torch.tensor(CENTRE_M)) / REACH_M
    asked = list(ANSWERS).index(TASK_STATE)
    placing = functional.smooth_l1_loss(place[:, asked].float(), far.clamp(-FAR, FAR), beta=0.2)
    loss = answering + POINT_WEIGHT * pointing + PLACE_WEIGHT * placing
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return answering.item()


def _count(network: JudgeNetwork) -> int:
    return sum(p.numel() for p in network.parameters())


def _save(
    path: Path,
    network: JudgeNetwork,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    elapsed_s: float,
    settings: JudgeSettings,
) -> None:
    tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}/{name}"] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    metadata = {
        "epochs": str(epochs),
        "elapsed_s": repr(elapsed_s),
        "settings": json.dumps(asdict(settings)),
    }
    save_file({k: v.detach().contiguous() for k, v in tensors.items()}, partial, metadata)
    partial.replace(path)


def _restore(
    path: Path, network: JudgeNetwork, optimizer: torch.optim.Optimizer, settings: JudgeSettings
) -> tuple[int, float]:
    """Whole epochs done and seconds spent; (0, 0) where there is no file.

    Raises ConfigError when the file belongs to other settings.
    """
    if not path.exists():
        return 0, 0.0
    with safe_open(path, "pt") as run:
        metadata = run.metadata()
        done, began = int(metadata["epochs"]), json.loads(metadata["settings"])
        wanted = json.loads(json.dumps(asdict(settings)))
        warm = done <= (1 - COOLING) * min(began["epochs"], settings.epochs)
        if wanted != (began | {"epochs": settings.epochs} if warm else began):
            raise ConfigError(
                f"{path} belongs to a training with other settings ({metadata['settings']}); delete"
                " it to start over, or choose another --work folder"
            )
        network.load_state_dict({n: run.get_tensor(f"network/{n}") for n in network.state_dict()})
        for name, parameter in network.named_parameters():
            optimizer.state[parameter] = {"step": run.get_tensor(f"step/{name}")} | {
                # The fused optimizer walks memory: moments must lie as their parameter does.
                key: torch.empty_like(parameter).copy_(run.get_tensor(f"{key}/{name}"))
                for key in ("exp_avg", "exp_avg_sq")
            }
        return done, float(metadata["elapsed_s"])
