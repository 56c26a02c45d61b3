"""What every engine is, whether it runs a policy or emulates one. Imports no torch."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kairos_ros.core.errors import KairosError
from kairos_ros.core.language.decoding import DEFAULT_CHOICE
from kairos_ros.core.language.load import LanguageLoad
from kairos_ros.transport.language_messages import (
    LanguageFailure,
    LanguageOutcome,
    LanguageQuestion,
)
from kairos_ros.transport.messages import EngineDescription, InferOutcome, InferRequest

Progress = Callable[[str], None]
"""Told what a loading engine does now, in a few words."""


class EngineLostError(KairosError):
    """The device is unusable and only a new process helps (a CUDA error is sticky, for example)."""


PreparedBatch = Callable[[], list[InferOutcome]]
"""Computes the batch that it was made of; see `Engine.infer`."""


class QuestionAnswering(Protocol):
    """Answers questions in words from the observations that an engine is given for chunks. Used
    from the engine's thread. Times are seconds of one monotonic clock."""

    @property
    def load(self) -> LanguageLoad: ...

    def ask(
        self, key: Hashable, question: LanguageQuestion, now_s: float
    ) -> LanguageFailure | None:
        """Takes a new question, which is answered from the next observation of its robot; or says
        why not."""
        ...

    def withdraw(self, key: Hashable) -> None:
        """Nobody waits for this answer any more. An unknown question changes nothing."""
        ...

    def go_on(self, now_s: float) -> list[tuple[Hashable, LanguageOutcome]]:
        """Starts questions on the newest observations and decodes all of them a few tokens further;
        to be called after every batch, and while there is none. Returns what has ended, each
        question once, those that are out of time included.

        Raises EngineLostError when no further call can succeed.
        """
        ...


@runtime_checkable
class Engine(Protocol):
    """Turns observations of different robots into chunks. Used from one thread, but for
    `prepare`."""

    description: EngineDescription

    @property
    def answering(self) -> QuestionAnswering | None:
        """None: this engine answers no questions."""
        ...

    def prepare(self, requests: Sequence[InferRequest]) -> PreparedBatch:
        """Does what can be done while another batch is computed: checks, and decodes pictures.
        Called from any thread; what it returns is called from the engine's."""
        ...

    def infer(self, requests: Sequence[InferRequest]) -> list[InferOutcome]:
        """Prepares and computes: one outcome per request, in order; a bad request fails alone.

        An outcome depends on its own request only: not on batch-mates, nor on earlier calls. One of
        a policy with a `keyframe_stride` depends on the earlier rounds of its task, too.
        Raises EngineLostError, and nothing else, when no further call can succeed.
        """
        ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a policy shall run."""

    policy: str
    """A LeRobot policy folder, a hub id, `emulated:...` or `paced:...`."""
    device: str = "auto"
    """auto (cuda where present, else cpu), cpu, cuda or cuda:N."""
    dtype: str = "auto"
    """auto (as the policy's configuration says, else float32), float32 or bfloat16."""
    threads: int = 1
    """CPU threads of one forward pass."""
    max_batch: int = 16
    tokenizer: str = ""
    """Folder or hub id that replaces the tokenizer named by the saved preprocessor."""
    allowed_steps: str = ""
    """Processor steps that the policy may use besides those that only compute, comma-separated:
    registered names, or import paths of steps that nobody registers. They run as this user."""
    rtc: bool = False
    """Real-time chunking: a chunk is guided to begin with what its robot has committed."""
    compile: bool = False
    """What every sampler step calls goes through torch.compile; loading takes minutes longer."""
    language_mib: int = 0
    """Memory for questions that the policy answers in words, MiB; 0: it answers none."""
    language_decoding: str = DEFAULT_CHOICE
    """Which of the answers a step decodes, see `core.language.decoding.CHOICES`."""
