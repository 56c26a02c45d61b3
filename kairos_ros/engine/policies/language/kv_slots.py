"""The states of questions that are being answered: keys and values, tokens, done (OxyGen).

A slot is as long as the longest prefill, question and answer together, and all slots are allocated
when the policy is loaded: memory is bounded, and a question that has a slot can be answered to its
end. Slots in use are the first ones, without a gap, so that a batch of all of them is a view and
nothing is copied to form it.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kairos_ros.engine.policies.language.prefill import Prefill


@dataclass(slots=True)
class QuestionState:
    """Of one question, beside its keys and values."""

    length: int
    """Positions of its slot that are filled: prefill, question, and what of the answer was read."""
    said: list[int] = field(default_factory=list)
    """Tokens of the answer so far."""
    done: bool = False


def slot_bytes(prefill: Prefill, length: int) -> int:
    """What one slot of `length` positions takes, for prefills such as this one."""
    layers = zip(prefill.keys, prefill.values, strict=True)
    return sum(
        length * kept.shape[1] * kept.shape[3] * kept.element_size()
        for layer in layers
        for kept in layer
    )


class KvSlots:
    """Manager of the states. Keys of questions are anything hashable."""

    def __init__(self, like: Prefill, slots: int, length: int) -> None:
        """like: any prefill of the policy, for its layers, shapes and dtype. `slots` of `length`
        positions each are allocated."""
        self.length = length
        self._keys = [_slots(layer, slots, length) for layer in like.keys]
        self._values = [_slots(layer, slots, length) for layer in like.values]
        self._order: list[Hashable] = []
        """Whose slot each is, from the first on."""
        self._states: dict[Hashable, QuestionState] = {}

    def __len__(self) -> int:
        """Slots in use."""
        return len(self._order)

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The questions, in the order of their slots."""
        return tuple(self._order)

    def store(self, key: Hashable, prefill: Prefill, row: int) -> QuestionState:
        """Gives a new question the next slot, and copies a row of a prefill into it, without its
        padding. Raises IndexError where no slot is free or the row is longer than a slot."""
        spot, valid = len(self._order), prefill.valid[row]
        length = int(valid.sum())
        if spot == len(self._keys[0]) or length > self.length:
            raise IndexError(f"a prefill of {length} positions does not fit: slot {spot}")
        for kept, layer in zip(self._keys, prefill.keys, strict=True):
            kept[spot, :, :length] = layer[row, :, valid]
        for kept, layer in zip(self._values, prefill.values, strict=True):
            kept[spot, :, :length] = layer[row, :, valid]
        self._order.append(key)
        self._states[key] = QuestionState(length)
        return self._states[key]

    def retrieve(self, key: Hashable) -> QuestionState:
        """The state of a question that has a slot."""
        return self._states[key]

    def update(self, key: Hashable, token: int, *, done: bool) -> None:
        """The question's answer goes on with a token, and is done with it or not."""
        state = self._states[key]
        state.said.append(token)
        state.done = done

    def remove(self, key: Hashable) -> None:
        """Frees the slot of a question: the last slot in use moves there."""
        hole, last = self._order.index(key), len(self._order) - 1
        if hole != last:
            length = self._states[self._order[last]].length
            for kept in (*self._keys, *self._values):
                kept[hole, :, :length] = kept[last, :, :length]
            self._order[hole] = self._order[last]
        self._order.pop()
        del self._states[key]

    def clear(self) -> None:
        """Frees all slots."""
        self._order.clear()
        self._states.clear()

    def batch(self, tokens: dict[Hashable, list[int]]) -> "KvBatch":
        """Questions that read these tokens next, together."""
        slots = [slot for slot, key in enumerate(self._order) if key in tokens]
        keys = [self._order[slot] for slot in slots]
        lengths = [self._states[key].length for key in keys]
        return KvBatch(self._keys, self._values, slots, lengths, [tokens[key] for key in keys])

    def unbatch(self, batch: "KvBatch", logits: Tensor) -> dict[Hashable, Tensor]:
        """Advances the states of a batch that was computed. logits [n, vocabulary], those after the
        last token of each question; returns them by question."""
        keys = [self._order[slot] for slot in batch.slots]
        for key, read in zip(keys, batch.tokens, strict=True):
            self._states[key].length += len(read)
        return dict(zip(keys, logits, strict=True))


class KvBatch:
    """Slots as the cache that the layers of transformers write to and read from, for one pass.

    Rows of fewer tokens are padded at the end. What the padding writes lies behind the filled
    positions of its slot: it is masked now, and overwritten later.
    """

    def __init__(
        self,
        keys: list[Tensor],
        values: list[Tensor],
        slots: list[int],
        lengths: list[int],
        tokens: list[list[int]],
    ) -> None:
        """keys, values: all slots [slots, heads, length, dim] of each layer. slots: those of the
        batch, ascending; lengths and tokens are theirs."""
        device = keys[0].device
        self.slots, self.tokens = slots, tokens
        most = max(map(len, tokens))
        self._keys, self._values = keys, values
        self._reach = max(lengths) + most
        self._rows = torch.tensor(slots, device=device)
        gapless = slots[-1] - slots[0] == len(slots) - 1
        self._read = slice(slots[0], slots[-1] + 1) if gapless else self._rows
        self.positions = torch.tensor(lengths, device=device)[:, None] + torch.arange(
            most, device=device
        )
        """int64 [n, q]: of every token in its slot, which is its rotary position, too."""
        self.padded = torch.tensor(
            [read + [0] * (most - len(read)) for read in tokens], device=device
        )
        """int64 [n, q]."""
        self.last = torch.tensor([len(read) - 1 for read in tokens], device=device)
        """int64 [n]: where the last token of each row is."""
        self.seen = torch.arange(self._reach, device=device) <= self.positions[..., None]
        """bool [n, q, reach]: a token sees all that its slot holds before it, and itself."""

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Called by a layer with the new [n, heads, q, dim]; returns all [n, heads, reach, dim]."""
        found = []
        for kept, new in ((self._keys[layer], keys), (self._values[layer], values)):
            kept[self._rows[:, None], :, self.positions] = new.transpose(1, 2).to(kept.dtype)
            found.append(kept[self._read, :, : self._reach])
        return found[0], found[1]

    def get_seq_length(self, _layer: int = 0) -> int:
        """Asked by transformers for positions that are given here anyway."""
        return 0


def _slots(layer: Tensor, slots: int, length: int) -> Tensor:
    _, heads, _, dim = layer.shape
    return layer.new_empty((slots, heads, length, dim)).zero_()  # touches it: it counts as taken
