"""Any message of any type: mostly what is nearly right, now and then what nobody should send."""

import importlib
import random
from array import array
from typing import Any

from rosidl_parser.definition import (
    AbstractSequence,
    AbstractString,
    Array,
    BasicType,
    NamespacedType,
)

TEXTS = (
    "",
    "arm_1",
    "arm here",
    "a\n[FATAL] x",
    "\x1b[2J",
    "²",
    "\u202e",
    "{",
    "[/red]",
    "x" * 4000,
)
FLOATS = (0.0, -1.0, 0.5, 30.0, 1e-38, 3e38, float("nan"), float("inf"), -float("inf"))
BITS = {"int8": 8, "uint8": 8, "octet": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32}
BITS |= {"int64": 64, "uint64": 64, "char": 8}
CODES = {"int8": "b", "uint8": "B", "octet": "B", "int16": "h", "uint16": "H", "int32": "i"}
CODES |= {"uint32": "I", "int64": "q", "uint64": "Q", "float": "f", "double": "d"}


def any_message(rng: random.Random, kind: Any, texts: tuple[str, ...], depth: int = 0) -> Any:
    """texts: names and ids that are right."""
    message = kind()
    for name, of in zip(kind.get_fields_and_field_types(), kind.SLOT_TYPES, strict=True):
        if rng.random() < 0.85:
            setattr(message, name, _any(rng, of, texts, depth))
    return message


def _any(rng: random.Random, of: Any, texts: tuple[str, ...], depth: int) -> Any:
    match of:
        case AbstractString():
            return rng.choice(texts if rng.random() < 0.7 else TEXTS)
        case BasicType():
            return _number(rng, of.typename)
        case NamespacedType():
            module = importlib.import_module(".".join(of.namespaces))
            return any_message(rng, getattr(module, of.name), texts, depth + 1)
        case Array() | AbstractSequence():
            count = of.size if isinstance(of, Array) else rng.choice((0, 1, 2, 4, 20))
            if depth > 2 and not isinstance(of, Array):
                count = min(count, 2)
            values = [_any(rng, of.value_type, texts, depth + 1) for _ in range(count)]
            basic = isinstance(of.value_type, BasicType)
            if basic and isinstance(of, AbstractSequence) and of.value_type.typename in CODES:
                return array(CODES[of.value_type.typename], values)
            return values
    raise TypeError(of)


def _number(rng: random.Random, name: str) -> Any:
    if name == "boolean":
        return rng.random() < 0.5
    if name in ("float", "double"):
        return rng.choice(FLOATS)
    bits = BITS[name]
    low, high = (
        (0, 2**bits - 1)
        if name[0] in "uo" or name == "char"
        else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    value = rng.choice((0, 1, 2, 3, 7, 20, low, high))
    return bytes([value]) if name == "octet" else value
