"""A judge that runs a vision-language model of `transformers` in this process.

The only module of this package that imports torch; what does not use it never loads it.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from kairos_ros.core.errors import ConfigError
from kairos_ros.vlm.endpoint.chat_request import question_text
from kairos_ros.vlm.judge import Cost, Failure, FailureCode, Question, Verdict, complaint


class InProcessJudge:
    """Judge over a folder that `transformers` loads as an image-text-to-text model.

    Nothing is generated, so there is nothing to parse: what the model finds likely to follow the
    prompt is compared among the allowed answers, by their first tokens where these differ, else by
    whole answers. Questions are answered one after the other.
    """

    def __init__(self, folder: Path, *, device: str = "auto", dtype: str = "auto") -> None:
        """device: auto, cpu, cuda or cuda:N; dtype: auto, float32 or bfloat16.

        Raises ConfigError for a folder that is no such model.
        """
        if not folder.is_dir():
            raise ConfigError(f"there is no model folder {folder}")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
            self._network = AutoModelForImageTextToText.from_pretrained(
                folder, local_files_only=True, dtype=dtype
            )
        except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
            raise ConfigError(
                f"folder {folder} does not load as a vision-language model with its processor"
                f" ({error!r:.300})"
            ) from error
        if not hasattr(self._processor, "tokenizer") or not self._processor.chat_template:
            raise ConfigError(f"folder {folder} has no tokenizer or no chat template to ask with")
        self._network.to(device).eval()
        self._device = device
        self.model = f"transformers:{folder.name}"

    def judge(self, questions: Sequence[Question]) -> list[Verdict | Failure]:
        start = time.perf_counter()
        return [self._judge_one(question, start) for question in questions]

    def close(self) -> None:
        del self._network
        if self._device.startswith("cuda"):
            torch.cuda.empty_cache()

    def _judge_one(self, question: Question, start: float) -> Verdict | Failure:
        if wrong := complaint(question):
            latency_s = time.perf_counter() - start
            return Failure(FailureCode.BAD_QUESTION, wrong, latency_s, self.model)
        try:
            odds, cost = self._odds(question)
        except (ValueError, RuntimeError, IndexError, torch.OutOfMemoryError) as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            latency_s = time.perf_counter() - start
            return Failure(FailureCode.SERVER_ERROR, message, latency_s, self.model)
        latency_s = time.perf_counter() - start
        if not bool(torch.isfinite(odds).all()):
            message = "the model's probabilities are not finite; load it as float32"
            return Failure(FailureCode.BAD_ANSWER, message, latency_s, self.model, cost)
        answer = question.answers[int(odds.argmax())]
        likely = dict(zip(question.answers, odds.tolist(), strict=True))
        return Verdict(answer, likely, latency_s, self.model, cost)

    @torch.inference_mode()
    def _odds(self, question: Question) -> tuple[torch.Tensor, Cost]:
        """float64 [answers], probabilities among the allowed answers."""
        prompt = self._inputs(question)
        told = [self._tokens(answer) for answer in question.answers]
        length = prompt["input_ids"].shape[1]
        if len({tokens[0] for tokens in told}) == len(told):
            # The first tokens tell the answers apart, and each answer's rest follows from it.
            logits = self._network(**prompt).logits[0, -1].double()
            scores = logits[[tokens[0] for tokens in told]]
            return torch.softmax(scores, 0).cpu(), Cost(length, 1)
        scores = torch.stack([self._score(prompt, tokens) for tokens in told])
        return torch.softmax(scores, 0).cpu(), Cost(length * len(told), sum(map(len, told)))

    def _score(self, prompt: dict[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
        """Log probability of `tokens` after the prompt, float64 []."""
        told = torch.tensor([tokens], device=self._device)
        longer = dict(prompt)
        for name, fill in (("input_ids", told), ("attention_mask", torch.ones_like(told))):
            longer[name] = torch.cat([prompt[name], fill], 1)
        if "mm_token_type_ids" in prompt:
            kinds = prompt["mm_token_type_ids"]
            longer["mm_token_type_ids"] = torch.cat([kinds, torch.zeros_like(told)], 1)
        logits = self._network(**longer).logits[0, -len(tokens) - 1 : -1].double()
        return torch.log_softmax(logits, -1).gather(1, told.T).sum()

    def _inputs(self, question: Question) -> dict[str, torch.Tensor]:
        pictures = [Image.fromarray(image) for image in question.images]
        content = [{"type": "image"} for _ in pictures]
        said = [
            {
                "role": "user",
                "content": [*content, {"type": "text", "text": question_text(question)}],
            }
        ]
        text = self._processor.apply_chat_template(said, add_generation_prompt=True)
        inputs = self._processor(text=[text], images=pictures, return_tensors="pt")
        return {name: value.to(self._device) for name, value in inputs.items()}

    def _tokens(self, answer: str) -> list[int]:
        tokens: list[int] = self._processor.tokenizer(answer, add_special_tokens=False)["input_ids"]
        if not tokens:
            raise ValueError(f"the tokenizer makes nothing of the answer {answer!r}")
        return tokens
