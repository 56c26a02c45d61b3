"""Which messages of a bag say what cannot be: times that are none, counts beyond all sense.

A bag holds whatever anybody published. One such message must not decide what a page or a trace
file shows of all the others, so it is left out where the bag is read, and counted.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np

LONGEST_S = 1e6
"""Of anything that a message tells as a duration: eleven days."""
MOST_HZ = 1e4
MOST_TEXT = 10_000
"""Characters."""
MOST_ACTIONS = 65_536
"""Of one chunk."""
MOST_COUNT = 10**9
_ACTIONS = {
    *("horizon", "chunk_size", "action_dim", "steps", "batch_size", "round_executed"),
    *("actions_executed", "actions_remaining", "chunk_index"),
}
"""Fields that count actions of one chunk, or are as small."""
_UNKNOWN = {
    *("round_latency_s", "round_started_s", "round_ended_s", "frame_age_s"),
    *("queued_s", "compute_s", "server_s"),
}
"""Fields that are NaN where there is nothing to tell."""
_SIGNED = {"SafetyVerdict", "TaskProgress", "Plan", "PipelineEvent"}
"""Judges' times may be negative: what reads them knows."""
_COUNTS = {"round", "attempt", "actions", "refusals", "dropped", "guarded"}
_PER_ROUND = ("round_latency_s", "round_executed", "round_started_s", "round_ended_s")
_JUMPS = {"seam", "round_seam", "mean_step"}
"""Fields that tell a jump between two actions, NaN where there was none."""
_SURPRISES = {"surprise", "round_surprise"}
MOST_SURPRISE = 10
MOST_JUMP = 1e6

_Check = Callable[[Any], bool]


def fault(kind: str, body: Any) -> str:
    """Why a decoded message of type `kind` (`kairos_ros/msg/...`) makes no sense; empty if it does.

    Says which field it is, but no value, so that the same fault of many messages reads the same.
    """
    least_s = -LONGEST_S if kind.rpartition("/")[2] in _SIGNED else 0.0
    told = _first_wrong(body, least_s)
    if not told and kind.endswith("/ChunkRequest"):
        told = _first_wrong(body.execution, least_s)
    if not told and kind.endswith("/TaskEvent"):
        rounds = {len(getattr(body, name)) for name in _PER_ROUND}
        for name in ("round_seam", "round_surprise"):
            if len(getattr(body, name, ())):  # older bags do not tell
                rounds.add(len(getattr(body, name)))
        told = "its rounds are told by lists of different lengths" if len(rounds) > 1 else ""
    return told


def _first_wrong(body: Any, least_s: float) -> str:
    kind: type = type(body)
    for name, wanted, right in _checks(kind, least_s):
        if not right(getattr(body, name)):
            return f"{name} is no {wanted}"
    return ""


@cache
def _checks(body: type, least_s: float) -> tuple[tuple[str, str, _Check], ...]:
    return tuple(_of_fields(body, least_s))


def _of_fields(body: type, least_s: float) -> Iterator[tuple[str, str, _Check]]:
    """Name of a field, what it must be, and whether a value is that."""
    for field in fields(body):
        kind = str(field.type)
        if "ClassVar" in kind:
            continue
        if "str" in kind:
            yield field.name, f"text of at most {MOST_TEXT} characters", _is_text
        elif field.name.endswith("_s") and "float" in kind:
            wanted = f"time of {least_s:g} to {LONGEST_S:g} s"
            yield field.name, wanted, _within(least_s, LONGEST_S, field.name in _UNKNOWN)
        elif field.name.endswith("_hz"):
            yield field.name, f"rate of 0 to {MOST_HZ:g} Hz", _within(0.0, MOST_HZ)
        elif field.name in _JUMPS:
            wanted = f"jump of 0 to {MOST_JUMP:g}"
            yield field.name, wanted, _within(0.0, MOST_JUMP, unknown=True)
        elif field.name in _SURPRISES:
            wanted = f"number of 0 to {MOST_SURPRISE}"
            yield field.name, wanted, _within(0.0, MOST_SURPRISE)
        elif field.name in _ACTIONS:
            yield field.name, f"number up to {MOST_ACTIONS}", _within(0, MOST_ACTIONS)
        elif field.name in _COUNTS and "float" not in kind:
            yield field.name, f"number up to {MOST_COUNT}", _within(0, MOST_COUNT)


def _within(least: float, most: float, unknown: bool = False) -> _Check:
    def right(value: Any) -> bool:
        values = np.asarray(value, float)
        inside = (values >= least) & (values <= most)
        if unknown:
            inside |= np.isnan(values)
        return bool(inside.all())

    return right


def _is_text(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return all(len(text) <= MOST_TEXT for text in texts)
