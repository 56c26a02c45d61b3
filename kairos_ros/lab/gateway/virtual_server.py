"""A server of a vision-language model in virtual time: continuous batching, as vLLM does it.

One iteration reads up to `chunk` tokens of prompts that are not read yet, first come, first served,
and makes one token for every call whose prompt is read. Where the cache is full, the call that came
last leaves it and is read again, with what it had made, when there is room: a preemption.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field


class ServerModel(BaseModel):
    """How fast a server is, and how large."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prefill_tokens_per_s: float = Field(gt=0)
    step_ms: float = Field(gt=0)
    """An iteration at least; twenty calls and five take nearly as long."""
    step_ms_per_call: float = Field(ge=0)
    memory_tokens: int = Field(ge=1)
    """Room of its key-value cache."""
    chunk: int = Field(ge=1)
    """Tokens of prompts that one iteration reads at most."""


@dataclass(slots=True)
class Work:
    """A call at a server."""

    number: int
    prompt: int
    output: int
    """Tokens that it makes before it has ended, at least 1."""
    made: int = 0
    read: int = 0
    """Of the prompt and what was made before a preemption."""

    @property
    def to_read(self) -> int:
        return self.prompt + self.made - self.read if self.read < self.prompt else 0

    @property
    def memory(self) -> int:
        return self.prompt + self.made


@dataclass(slots=True)
class VirtualServer:
    """Times in ns."""

    model: ServerModel
    preemptions: int = 0
    ends_ns: int | None = None
    """When the iteration that runs ends; None: idle."""
    _works: list[Work] = field(default_factory=list)
    """In the cache, in the order in which they came."""
    _outside: list[Work] = field(default_factory=list)
    """Wait for room in the cache."""
    _reads: dict[int, int] = field(default_factory=dict)
    """Of the iteration that runs: number of a call -> tokens of its prompt."""

    def give(self, work: Work, now_ns: int) -> None:
        self._outside.append(work)
        if self.ends_ns is None:
            self._begin(now_ns)

    def end(self, now_ns: int) -> Sequence[Work]:
        """The iteration is over; returns the calls that have ended with it."""
        ended: list[Work] = []
        for work in list(self._works):
            if work.number in self._reads:
                work.read += self._reads[work.number]
            elif not work.to_read:
                work.made += 1
                work.read += 1
                if work.made >= work.output:
                    ended.append(work)
                    self._works.remove(work)
        self._begin(now_ns)
        return ended

    def _begin(self, now_ns: int) -> None:
        self._make_room()
        self._reads = {}
        left = self.model.chunk
        for work in self._works:
            if left and (reads := min(left, work.to_read)):
                self._reads[work.number] = reads
                left -= reads
        if not self._works:
            self.ends_ns = None
            return
        tokens = sum(self._reads.values())
        took_s = (self.model.step_ms + self.model.step_ms_per_call * len(self._works)) / 1e3
        took_s += tokens / self.model.prefill_tokens_per_s
        self.ends_ns = now_ns + round(took_s * 1e9)

    def _make_room(self) -> None:
        room = self.model.memory_tokens
        while len(self._works) > 1 and sum(one.memory for one in self._works) > room:
            last = self._works.pop()
            last.read = 0
            self._outside.insert(0, last)
            self.preemptions += 1
        used = sum(one.memory for one in self._works)
        while self._outside and (not self._works or used + self._outside[0].memory < room):
            used += self._outside[0].memory
            self._works.append(self._outside.pop(0))
