"""Answers questions from the prefills of the chunks, all of them in one batch (OxyGen).

Per frame: one prefill, the denoising on it, and then here: questions about its robots start on the
same keys and values, and all questions, those of earlier frames and of other robots included, are
decoded in STEPS_PER_TURN steps, together. Decoding is greedy, so that an answer depends on the
frame and the question only.
"""

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lerobot.processor import TokenizerProcessorStep
from torch import Tensor

from kairos_ros.core.errors import ConfigError, PolicyError, RefusalCode
from kairos_ros.core.language.choice import Choice
from kairos_ros.core.language.decoding import Choose, Decoding, StepTimes, decode_all
from kairos_ros.core.language.load import LanguageLoad
from kairos_ros.core.language.schedule import MOST_WAITING, LanguageSchedule
from kairos_ros.engine.interface import EngineLostError, EngineOptions
from kairos_ros.engine.policies.language.head import PaliGemmaHead
from kairos_ros.engine.policies.language.kv_slots import KvSlots, slot_bytes
from kairos_ros.engine.policies.language.prefill import Prefill, PrefillTap
from kairos_ros.engine.policies.policy import LoadedPolicy
from kairos_ros.engine.policies.served import LEAVE_OUT, not_speaking
from kairos_ros.transport.language_messages import (
    MOST_TOKENS,
    LanguageAnswer,
    LanguageFailure,
    LanguageOutcome,
    LanguageQuestion,
)
from kairos_ros.transport.messages import InferRequest

log = logging.getLogger(__name__)

STEPS_PER_TURN = 5
"""Between two batches of chunks, of one token of an answer each: k of OxyGen."""
MOST_QUESTION_TOKENS = 256
MIB = 2**20

Outcomes = list[tuple[Hashable, LanguageOutcome]]


@dataclass(slots=True)
class _Open:
    """A question that has no answer yet."""

    question: LanguageQuestion
    tokens: list[int]
    choice: Choice | None
    most: int
    """Tokens that its answer may have."""
    until_s: float
    first_s: float = 0.0
    """When its first token was said; of a question that has a slot."""
    odds: tuple[float, ...] = ()
    task: str = ""
    round: int = 0


@dataclass(frozen=True, slots=True)
class _Frame:
    """Observations that were prefilled together."""

    requests: dict[str, tuple[int, InferRequest]]
    """Robot -> row of the prefill, and what it asked."""
    prefill: Prefill


class UnifiedDecoder:
    """See `interface.QuestionAnswering`. `frame` is told of every batch, in between."""

    def __init__(
        self,
        head: PaliGemmaHead,
        tokenizer: Any,
        like: Prefill,
        longest: int,
        budget_bytes: int,
        steps: int = STEPS_PER_TURN,
        choose: Choose = decode_all,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """like: any prefill. longest: positions that one may have. clock: seconds that a step
        takes are read from it. Raises ConfigError for a budget
        that has no room for one question, and PolicyError for a tokenizer that ends nothing."""
        length = longest + MOST_QUESTION_TOKENS + MOST_TOKENS
        self.slot_bytes = needed = slot_bytes(like, length)
        """What one question takes."""
        slots = budget_bytes // needed
        if not slots:
            raise ConfigError(
                f"language_mib is {budget_bytes // MIB}; one question takes {-(-needed // MIB)} MiB"
            )
        if tokenizer.eos_token_id is None:
            raise PolicyError("its tokenizer has no token that ends an answer")
        self._head, self._tokenizer, self._steps = head, tokenizer, steps
        self._choose, self._clock = choose, clock
        self._ahead_s = 0.0
        """Of the clock of `go_on` before that one."""
        self._times = StepTimes()
        self._end: int = tokenizer.eos_token_id
        self._slots = KvSlots(like, slots, length)
        self._slot_count = slots
        self._schedule = LanguageSchedule(slots)
        self._open: dict[Hashable, _Open] = {}
        self._frames: list[_Frame] = []

    @property
    def load(self) -> LanguageLoad:
        """As the interface says."""
        schedule = self._schedule
        return LanguageLoad(
            schedule.waiting,
            schedule.answering,
            self._slot_count,
            schedule.put_off,
            schedule.restarts,
        )

    def ask(
        self, key: Hashable, question: LanguageQuestion, now_s: float
    ) -> LanguageFailure | None:
        """As the interface says."""
        tokens = self._tokens(question.text)
        if len(tokens) > MOST_QUESTION_TOKENS:
            reason = f"the question has {len(tokens)} tokens; at most {MOST_QUESTION_TOKENS}"
            return LanguageFailure(RefusalCode.MALFORMED, reason)
        answers = tuple((*self._tokens(answer), self._end) for answer in question.answers)
        if not tokens or len(set(answers)) < len(answers) or any(len(one) < 2 for one in answers):
            reason = "the policy's tokenizer makes nothing of it, or the same of two answers"
            return LanguageFailure(RefusalCode.MALFORMED, reason)
        if max(map(len, answers), default=0) > MOST_TOKENS:
            reason = f"an allowed answer has more than {MOST_TOKENS - 1} tokens"
            return LanguageFailure(RefusalCode.MALFORMED, reason)
        until_s = now_s + question.wait_s
        if not self._schedule.ask(key, question.robot, until_s):
            return LanguageFailure(RefusalCode.OVERLOADED, f"{MOST_WAITING} questions wait already")
        choice = Choice(answers) if answers else None
        most = max(map(len, answers), default=question.most_tokens)
        self._open[key] = _Open(question, tokens, choice, most, until_s)
        return None

    def withdraw(self, key: Hashable) -> None:
        """As the interface says."""
        if key in self._open:
            self._close(key)

    def frame(self, requests: Sequence[InferRequest | None], prefill: Prefill) -> None:
        """The prefill of a batch that was denoised, and whose rows they are; None: nobody's. It is
        kept until the next `go_on`, if a question waits for it."""
        found = {request.robot: (row, request) for row, request in enumerate(requests) if request}
        if self._schedule.wants(found.keys()):
            self._frames.append(_Frame(found, prefill))

    def go_on(self, now_s: float) -> Outcomes:
        """As the interface says."""
        with torch.inference_mode():
            return self._go_on(now_s)

    def _go_on(self, now_s: float) -> Outcomes:
        self._ahead_s = now_s - self._clock()
        outcomes: Outcomes = [self._late(key) for key in self._schedule.expired(now_s)]
        frames, self._frames = self._frames, []
        try:
            for frame in frames:
                outcomes += self._start(frame)
            for _ in range(self._steps):
                if not len(self._slots):
                    break
                outcomes += self._step()
        except torch.AcceleratorError as error:
            raise EngineLostError(f"the device failed: {error}") from error
        except Exception as error:  # whatever a model raises
            log.exception("the questions that were being answered fail")
            reason = f"the policy failed: {type(error).__name__}: {error}"
            failed = [key for key in self._open if self._schedule.has_slot(key)]
            self._slots.clear()
            outcomes += [self._fail(key, RefusalCode.ENGINE_FAILED, reason) for key in failed]
        return outcomes

    def _start(self, frame: _Frame) -> Outcomes:
        """Gives questions about the frame's robots their slots, and reads them."""
        turn = self._schedule.frame(frame.requests.keys())
        for key in turn.restarted:
            self._slots.remove(key)
            self._open[key].odds = ()
        outcomes: Outcomes = []
        read = {}
        for key in turn.started:
            row, request = frame.requests[self._schedule.robot(key)]
            opened = self._open[key]
            opened.task, opened.round = request.task, request.round
            self._slots.store(key, frame.prefill, row)
            read[key] = opened.tokens
        outcomes += self._read(read) if read else []
        for key in read.keys() & self._open.keys():
            self._open[key].first_s = self._now_s()
        return outcomes

    def _step(self) -> Outcomes:
        """Decodes some of the answers one token further."""
        answers = [self._decoding(key) for key in self._slots.keys]
        chosen = self._choose(answers, self._times, self._now_s())
        start_s = self._clock()
        outcomes = self._read({key: self._slots.retrieve(key).said[-1:] for key in chosen})
        longest = max(one.length for one in answers if one.key in chosen)
        self._times.saw(len(chosen), longest, self._clock() - start_s)
        return outcomes

    def _decoding(self, key: Hashable) -> Decoding:
        opened, state = self._open[key], self._slots.retrieve(key)
        said = len(state.said)
        return Decoding(key, state.length, said, opened.most, opened.first_s, opened.until_s)

    def _now_s(self) -> float:
        """On the clock of `go_on`."""
        return self._ahead_s + self._clock()

    def _read(self, tokens: dict[Hashable, list[int]]) -> Outcomes:
        """Has the questions read these tokens and say the next one each."""
        batch = self._slots.batch(tokens)
        logits = self._slots.unbatch(batch, self._head.read(batch))
        said = [self._say(key, scores) for key, scores in logits.items()]
        return [one for one in said if one is not None]

    def _say(self, key: Hashable, logits: Tensor) -> tuple[Hashable, LanguageOutcome] | None:
        """The most likely of the allowed tokens [vocabulary]; the outcome where that ends it."""
        if not bool(torch.isfinite(logits).all()):
            return self._fail(key, RefusalCode.ENGINE_FAILED, "the policy gave NaN or infinity")
        opened, state = self._open[key], self._slots.retrieve(key)
        choice = opened.choice
        if choice is None:
            token = int(logits.argmax())
            over = token == self._end or len(state.said) + 1 == opened.question.most_tokens
            self._slots.update(key, token, done=over)
            return self._answer(key, self._text(state.said)) if over else None
        allowed = choice.next(state.said)
        scores = logits[list(allowed)]
        if not state.said and choice.by_first_token:
            first = [allowed.index(answer[0]) for answer in choice.answers]
            opened.odds = tuple(torch.softmax(scores.double(), 0)[first].tolist())
        token = allowed[int(scores.argmax())]
        decided = choice.decided([*state.said, token])
        self._slots.update(key, token, done=decided is not None)
        if decided is None:
            return None
        return self._answer(key, opened.question.answers[decided])

    def _answer(self, key: Hashable, text: str) -> tuple[Hashable, LanguageOutcome]:
        opened, said = self._open[key], tuple(self._slots.retrieve(key).said)
        self._close(key)
        return key, LanguageAnswer(text, said, opened.odds, opened.task, opened.round)

    def _late(self, key: Hashable) -> tuple[Hashable, LanguageOutcome]:
        question = self._open[key].question
        state = "it was being answered" if self._schedule.has_slot(key) else "it waited"
        reason = (
            f"no answer about {question.robot} in {question.wait_s:g} s: {state}; it begins with "
            f"an observation of this robot and needs one of {self._slot_count} slots"
        )
        return self._fail(key, RefusalCode.DEADLINE, reason)

    def _fail(
        self, key: Hashable, code: RefusalCode, reason: str
    ) -> tuple[Hashable, LanguageOutcome]:
        self._close(key)
        return key, LanguageFailure(code, reason)

    def _close(self, key: Hashable) -> None:
        """Forgets a question, and frees its slot where it has one."""
        if key in self._slots.keys:
            self._slots.remove(key)
        self._schedule.end(key)
        del self._open[key]

    def _tokens(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens

    def _text(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text.strip()


def unified_decoder(
    loaded: LoadedPolicy, like: Prefill, budget_bytes: int, choose: Choose = decode_all
) -> UnifiedDecoder:
    """Of a policy whose type is in `served.SPEAKING`. Raises ConfigError and PolicyError, as the
    constructor."""
    steps: list[Any] = loaded.preprocess.steps  # type: ignore[attr-defined]  # it is a pipeline
    reader = next((step for step in steps if isinstance(step, TokenizerProcessorStep)), None)
    if reader is None:
        raise PolicyError(f"{loaded.policy_id} has no tokenizer in its saved preprocessor")
    longest = like.valid.shape[1]
    if reader.padding != "max_length":  # a longer instruction makes a longer prefill
        longest += reader.max_length
    head = PaliGemmaHead(loaded.policy.model)
    return UnifiedDecoder(head, reader.input_tokenizer, like, longest, budget_bytes, choose=choose)


def prefill_tap(loaded: LoadedPolicy, options: EngineOptions) -> PrefillTap | None:
    """Where it shall answer questions. Raises PolicyError for a policy that cannot."""
    if not options.language_mib:
        return None
    if why := not_speaking(loaded.config.type):
        raise PolicyError(f"{why}; {LEAVE_OUT}")
    return PrefillTap(loaded.policy.model)
