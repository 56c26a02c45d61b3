"""Scheduling scenarios as users write them in JSON, checked and completed.

Options that a scenario does not name are those of the algorithm as printed in 000 §3.2.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kairos_ros.core.errors import ConfigError

Warn = Callable[[str], None]
Interval = tuple[int, int]

LARGEST = 10**15
LONGEST_MS = 9 * 10**12
"""Lifetimes and histories together must stay below 2^63 ns."""

CHOICES = {
    "wait": ("side", "unified"),
    "dominance": ("measured", "profile"),
    "age": ("ceil", "floor"),
    "clamp": (True, False),
    "ongoing": (False, True),
    "init": (False, True),
}
"""Option -> its values, the printed algorithm's first (clamp: papers' reading 1)."""
NUMBERS = {"B": (10, 1), "A": (5, 1), "first_e": (0, 0), "L0": (0, 0)}
"""Option -> (default, least value); A may be null: no aging."""
OPTIONS = {*CHOICES, *NUMBERS, "capacity"}
REMARKS = {"name", "why", "expect"}


@dataclass(frozen=True, slots=True)
class Request:
    """A pending request and what its task has done. Times in ms."""

    id: str
    start_ms: int
    skipped: int
    rounds: list[tuple[Interval | None, Interval | None]]
    """(G, E) per round; None where not recorded."""


@dataclass(frozen=True, slots=True)
class SchedulingCase:
    """One decision to make."""

    name: str
    now_ms: int
    requests: list[Request]
    options: dict[str, Any]
    """All of OPTIONS."""
    origin_ms: int
    """The earliest time that occurs."""


@dataclass(frozen=True, slots=True)
class PlacementCase:
    """One placement of an order on two tiers, with given estimates in ms."""

    name: str
    order: list[str]
    n_e: int
    n_c: int
    edge_delay_ms: list[float]
    """[i]: edge delay of the i-th request beyond N_e."""
    cloud_latency_ms: list[float]
    """[c]: cloud latency of the request that would be the (c + 1)-th sent there."""


def read_cases(data: Any, warn: Warn) -> tuple[list[SchedulingCase], list[PlacementCase]]:
    """Reads {"scheduling": [...], "placement": [...]}.

    Raises ConfigError that names scenario and field. A field that nothing reads is reported
    through `warn`, an unknown option is an error.
    """
    _object(data, "the file")
    if not {"scheduling", "placement"} & set(data):
        raise ConfigError("the file holds neither 'scheduling' nor 'placement'")
    return (
        [_scheduling(name, case, warn) for name, case in _named(data, "scheduling")],
        [_placement(name, case, warn) for name, case in _named(data, "placement")],
    )


def _scheduling(name: str, case: Mapping[str, Any], warn: Warn) -> SchedulingCase:
    _warn_unread(case, OPTIONS | REMARKS | {"now_ms", "requests", "options"}, name, warn)
    now = _time(case.get("now_ms"), f"{name}: now_ms")
    items = _list(case.get("requests"), f"{name}: requests")
    requests = [_request(f"{name}: requests[{i}]", r, now, warn) for i, r in enumerate(items)]
    _no_twice([r.id for r in requests], f"{name}: request id")
    times = [now, *(t for r in requests for t in _times(r))]
    span = max(times) - min(times)
    if span * (1 + max((len(r.rounds) for r in requests), default=0)) > LONGEST_MS:
        raise ConfigError(f"{name}: its times span {span} ms, too long to count in nanoseconds")
    return SchedulingCase(name, now, requests, _options(name, case), min(times))


def _placement(name: str, case: Mapping[str, Any], warn: Warn) -> PlacementCase:
    fields = {"order", "N_e", "N_c", "edge_delay_ms", "cloud_latency_ms"}
    _warn_unread(case, fields | REMARKS, name, warn)
    order = [_text(r, f"{name}: order") for r in _list(case.get("order"), f"{name}: order")]
    _no_twice(order, f"{name}: order:")
    n_e = _count(case.get("N_e", len(order)), f"{name}: N_e")
    n_c = _count(case.get("N_c", 0), f"{name}: N_c")
    rest = len(order[n_e:])
    edge, cloud = (
        _estimates(case.get(field, []), rest, f"{name}: {field}")
        for field in ("edge_delay_ms", "cloud_latency_ms")
    )
    return PlacementCase(name, order, n_e, n_c, edge, cloud)


def _options(name: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """Options may stand in "options" or beside it, as B, A and capacity do in the examples."""
    given = _object(case.get("options", {}), f"{name}: options")
    unknown = sorted(set(given) - OPTIONS)
    if unknown:
        known = ", ".join(sorted(OPTIONS))
        raise ConfigError(f"{name}: there is no option {unknown[0]!r}; the options are: {known}")
    beside = {key: case[key] for key in OPTIONS & set(case)}
    for key in sorted(beside.keys() & given.keys()):
        if beside[key] != given[key]:
            raise ConfigError(f"{name}: {key} is both {beside[key]!r} and {given[key]!r}")
    named = {**beside, **given}
    options: dict[str, Any] = {}
    for key, values in CHOICES.items():
        value = options[key] = named.get(key, values[0])
        if type(value) is not type(values[0]) or value not in values:
            allowed = " or ".join(str(v).lower() for v in values)
            raise ConfigError(f"{name}: {key} must be {allowed}, not {value!r}")
    for key, (default, least) in NUMBERS.items():
        value = named.get(key, default)
        never = key == "A" and value is None
        options[key] = None if never else _count(value, f"{name}: {key}", least)
    capacity = named.get("capacity")
    everyone = capacity in (None, "all")
    options["capacity"] = LARGEST if everyone else _count(capacity, f"{name}: capacity")
    return options


def _request(where: str, data: Any, now: int, warn: Warn) -> Request:
    _object(data, where)
    identity = _text(data.get("id"), f"{where}.id")
    where = f"{where} ({identity})"
    _warn_unread(data, REMARKS | {"id", "t_start", "skipped", "rounds"}, where, warn)
    start = _time(data.get("t_start"), f"{where}: t_start")
    if start > now:
        raise ConfigError(f"{where}: t_start {start} is after now_ms {now}")
    skipped = _count(data.get("skipped", 0), f"{where}: skipped")
    rounds = [
        _round(f"{where}: rounds[{j}]", item, warn)
        for j, item in enumerate(_list(data.get("rounds", []), f"{where}: rounds"))
    ]
    return Request(identity, start, skipped, rounds)


def _round(where: str, data: Any, warn: Warn) -> tuple[Interval | None, Interval | None]:
    _object(data, where)
    _warn_unread(data, {"G", "E"}, where, warn)
    generation, execution = (_interval(data.get(side), f"{where}.{side}") for side in "GE")
    if generation is None and execution is None:
        raise ConfigError(f"{where} has neither G nor E; leave the round out")
    return generation, execution


def _interval(value: Any, where: str) -> Interval | None:
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2):
        raise ConfigError(f"{where} must be [start, end] in ms, or null, not {value!r}")
    start, end = (_time(t, where) for t in value)
    if end < start:
        raise ConfigError(f"{where} ends at {end}, before it starts at {start}")
    return start, end


def _times(request: Request) -> Iterator[int]:
    yield request.start_ms
    for sides in request.rounds:
        yield from (t for interval in sides if interval for t in interval)


def _named(data: Mapping[str, Any], section: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    seen: list[str] = []
    for i, case in enumerate(_list(data.get(section, []), section)):
        _object(case, f"{section}[{i}]")
        seen.append(_text(case.get("name", f"{section}[{i}]"), f"{section}[{i}].name"))
        _no_twice(seen, f"{section}: scenario name")
        yield seen[-1], case


def _time(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST:
        raise ConfigError(f"{where} must be an integer number of ms, {_found(value)}")
    return value


def _count(value: Any, where: str, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise ConfigError(f"{where} must be an integer of at least {least}, {_found(value)}")
    return value


def _estimates(value: Any, requests: int, where: str) -> list[float]:
    """A list, or one number for all."""
    values = value if isinstance(value, list) else [value] * max(requests, 1)
    for v in values:
        if isinstance(v, bool) or not isinstance(v, int | float) or not v >= 0:
            raise ConfigError(f"{where} must hold times in ms of at least 0, {_found(v)}")
    return values


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} must be a list, {_found(value)}")
    return value


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ConfigError(f"{where} must be text, {_found(value)}")
    return str(value)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a JSON object, {_found(value)}")
    return value


def _found(value: Any) -> str:
    return "but it is missing" if value is None else f"not {value!r}"


def _warn_unread(data: Mapping[str, Any], fields: set[str], where: str, warn: Warn) -> None:
    for field in sorted(set(data) - fields):
        warn(f"{where}: nothing reads the field {field!r}")


def _no_twice(values: list[str], what: str) -> None:
    twice = next((v for v in values if values.count(v) > 1), None)
    if twice is not None:
        raise ConfigError(f"{what} {twice!r} occurs twice")
