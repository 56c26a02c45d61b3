"""Subscriptions whose messages are measured before they become objects.

DDS hands over a message of any size. As bytes it costs little, as objects it may cost seconds,
since every element of a list of texts or messages becomes one (`python -m bench large_messages`).
So messages are taken as bytes, and only those within their bounds are deserialised.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription
from rosidl_parser.definition import (
    AbstractSequence,
    AbstractString,
    Array,
    BasicType,
    NamespacedType,
)

from kairos_ros.core.errors import WireError
from kairos_ros.core.wire_check import ID_BYTES, TooLargeError

STATE_BYTES = 200_000
"""Largest status, verdict, plan, event or the like."""
PICTURE_BYTES = 8_000_000
"""Largest picture, chunk or question with pictures."""
FLEET_BYTES = 8_000_000
"""Largest state of a whole fleet."""
MOST_WAITING = 1000
"""Messages that are handled at once."""
ELEMENTS = 5000
"""Most texts and messages in the lists of one message, counted through all levels."""

_SIZES = {
    **dict.fromkeys(("boolean", "octet", "char", "uint8", "int8"), 1),
    **dict.fromkeys(("uint16", "int16", "wchar"), 2),
    **dict.fromkeys(("uint32", "int32", "float"), 4),
    **dict.fromkeys(("uint64", "int64", "double"), 8),
}
_HEADER = 4
_ORDERS: dict[bytes, Literal["big", "little"]] = {b"\x00\x00": "big", b"\x00\x01": "little"}


def subscribe(
    node: Node,
    kind: Any,
    topic: str,
    callback: Callable[[Any], None],
    profile: QoSProfile,
    *,
    most_bytes: int = STATE_BYTES,
    refused: Callable[[WireError, bytes], None] = lambda error, raw: None,
    robot: str = "",
) -> Subscription:
    """As `node.create_subscription`, without event handlers, each of which costs the executor time.

    refused: called instead of `callback` where `read` raises, with what came. robot: of a topic
    that all robots share, whose messages are wanted; others may come where DDS does not filter.
    """

    def came(raw: bytes) -> None:
        try:
            message = read(raw, kind, most_bytes)
        except WireError as error:
            refused(error, raw)
            return
        callback(message)

    return node.create_subscription(
        kind,
        topic,
        came,
        profile,
        raw=True,
        event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
        **(_only(robot) if robot else {}),
    )


def take_waiting(subscription: Subscription) -> None:
    """Handles what has come on a topic of `subscribe` and waits for the executor, which takes one
    message at a time and goes round all topics in between. Only in the executor's thread."""
    came = cast(Callable[[bytes], None], subscription.callback)
    for _ in range(MOST_WAITING):
        with subscription.handle:
            taken = subscription.handle.take_message(subscription.msg_type, True)
        if taken is None:
            return
        came(taken[0])


def _only(robot: str) -> dict[str, Any]:
    """Lets DDS drop what is of other robots, where this rclpy can tell it to: since Kilted."""
    try:
        from rclpy.subscription_content_filter_options import ContentFilterOptions
    except ImportError:
        return {}
    return {"content_filter_options": ContentFilterOptions("robot = %0", [f"'{robot}'"])}


def read(raw: bytes, kind: Any, most_bytes: int = STATE_BYTES) -> Any:
    """A message of `kind` from CDR. Raises TooLargeError, and WireError for what is none."""
    if len(raw) > most_bytes:
        raise TooLargeError(f"a message of {len(raw)} bytes, at most {most_bytes} are accepted")
    layout = _layout(kind)
    if _has_lists(layout):
        _Measure(raw).skip(layout)
    try:
        return deserialize_message(raw, kind)
    except (_rclpy.RMWError, ValueError) as error:
        raise WireError(f"{len(raw)} bytes are no {kind.__name__}") from error


def head(raw: bytes, kind: Any) -> Any:
    """What a message that was refused begins with: its texts and numbers up to the first that is
    too long or missing, and up to the first list."""
    message = kind()
    try:
        measure = _Measure(raw)
        for (name, of), wire in zip(_layout(kind).fields, kind.SLOT_TYPES, strict=True):
            if isinstance(of, _Text):
                setattr(message, name, measure.text(ID_BYTES))
            elif isinstance(of, _Basic) and "int" in wire.typename:
                setattr(message, name, measure.number(of.size))
            else:
                break
    except WireError:
        pass
    return message


@dataclass(frozen=True, slots=True)
class _Basic:
    size: int


@dataclass(frozen=True, slots=True)
class _Text:
    pass


@dataclass(frozen=True, slots=True)
class _Struct:
    fields: tuple[tuple[str, "_Layout"], ...]


@dataclass(frozen=True, slots=True)
class _Many:
    of: "_Layout"
    count: int | None
    """None: told by the message."""


_Layout = _Basic | _Text | _Struct | _Many


@cache
def _layout(kind: Any) -> _Struct:
    names = kind.get_fields_and_field_types()
    return _Struct(tuple(zip(names, map(_laid_out, kind.SLOT_TYPES), strict=True)))


def _laid_out(of: Any) -> _Layout:
    match of:
        case BasicType():
            return _Basic(_SIZES[of.typename])
        case AbstractString():
            return _Text()
        case NamespacedType():
            module = importlib.import_module(".".join(of.namespaces))
            return _layout(getattr(module, of.name))
        case Array():
            return _Many(_laid_out(of.value_type), of.size)
        case AbstractSequence():
            return _Many(_laid_out(of.value_type), None)
    raise TypeError(f"no bounds for a field of type {of}")


def _has_lists(of: _Layout) -> bool:
    """Whether anything in it is a list of texts or of messages."""
    match of:
        case _Struct(fields):
            return any(_has_lists(one) for _, one in fields)
        case _Many(element):
            return not isinstance(element, _Basic)
    return False


class _Measure:
    """Walks through a CDR message and counts what is in its lists. Raises WireError where it ends
    too early, TooLargeError beyond the bounds."""

    def __init__(self, raw: bytes) -> None:
        order = _ORDERS.get(bytes(raw[:2]))
        if order is None or len(raw) < _HEADER:
            raise WireError(f"{len(raw)} bytes are no message in CDR")
        self._raw = raw
        self._order = order
        self._at = _HEADER
        self._elements = 0

    def skip(self, of: _Layout) -> None:
        match of:
            case _Basic(size):
                self._basic(size)
            case _Text():
                self._pass(self._length())
            case _Struct(fields):
                for _, field in fields:
                    self.skip(field)
            case _Many(element, count):
                self._skip_all(element, self._length() if count is None else count)

    def number(self, size: int) -> int:
        return int.from_bytes(self._basic(size), self._order)

    def text(self, most_bytes: int) -> str:
        size = self._length()
        begin = self._at
        if size > most_bytes + 1:
            raise TooLargeError(f"a text of {size} bytes")
        self._pass(size)
        return self._raw[begin : self._at - 1].decode(errors="replace")

    def _skip_all(self, of: _Layout, count: int) -> None:
        if isinstance(of, _Basic):
            if count:
                self._at += -(self._at - _HEADER) % of.size
                self._pass(count * of.size)
            return
        self._elements += count
        if self._elements > ELEMENTS:
            raise TooLargeError(f"a message with more than {ELEMENTS} elements in its lists")
        for _ in range(count):
            self.skip(of)

    def _basic(self, size: int) -> bytes:
        self._at += -(self._at - _HEADER) % size
        self._pass(size)
        return self._raw[self._at - size : self._at]

    def _length(self) -> int:
        return self.number(4)

    def _pass(self, size: int) -> None:
        self._at += size
        if self._at > len(self._raw):
            raise WireError(f"a message of {len(self._raw)} bytes is cut short")
