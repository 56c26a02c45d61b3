"""Plain fields of what a peer sent, checked one by one. What does not fit is a WireError."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from typing import Any

from kairos_ros.core.errors import RefusalCode, WireError

Check = Callable[[Mapping[str, Any], str], Any]


def text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise WireError(f"{key} is {type(value).__name__}, expected text")
    return value


def count(fields: Mapping[str, Any], key: str) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value < 2**64:
        raise WireError(f"{key} is not a whole number from 0 to 2**64 - 1")
    return value


def number(fields: Mapping[str, Any], key: str) -> float:
    value: Any = fields.get(key)
    if type(value) not in (int, float):
        raise WireError(f"{key} is {type(value).__name__}, expected a number")
    if not math.isfinite(value):
        raise WireError(f"{key} is {value}, expected a finite number")
    return float(value)


def list_of(
    fields: Mapping[str, Any], key: str, fits: Callable[[Any], bool] | None = None, what: str = ""
) -> list[Any]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise WireError(f"{key} is {type(value).__name__}, expected a list")
    if fits and not all(map(fits, value)):
        raise WireError(f"{key} holds something else than {what}")
    return value


def flag(fields: Mapping[str, Any], key: str) -> bool:
    value = fields.get(key)
    if type(value) is not bool:
        raise WireError(f"{key} is neither true nor false")
    return value


def tuple_of(fields: Mapping[str, Any], key: str, *check: Any) -> tuple[Any, ...] | None:
    return None if fields.get(key) is None else tuple(list_of(fields, key, *check))


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_positive(value: Any) -> bool:
    return type(value) is float and 0 < value < math.inf


def is_point(value: Any) -> bool:
    kinds = list(map(type, value)) if isinstance(value, list) else []
    return kinds == [int, float] and value[0] > 0 and is_positive(value[1])


def serial(value: Any) -> int | None:
    """A number that a peer gave to something; None for anything else."""
    return value if type(value) is int and 0 <= value < 2**63 else None


def refusal_code(fields: Mapping[str, Any]) -> RefusalCode:
    value: Any = fields.get("code")
    try:
        return RefusalCode(value)
    except ValueError as error:
        raise WireError("code is not a refusal code that this side knows") from error


BY_TYPE: Mapping[Any, Check] = {str: text, int: count, float: number, bool: flag}


def checks_of(kind: type) -> Mapping[str, Check]:
    """How the plain fields of a dataclass are checked, by their types."""
    return {one.name: BY_TYPE[one.type] for one in fields_of(kind) if one.type in BY_TYPE}
