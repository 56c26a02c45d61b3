"""Scheduling scenarios as users write them in JSON, checked and completed.

Options that a scenario does not name are those of the algorithm as printed in Dai et al. §3.2.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from kairos_ros.document.faults import FaultyFileError, fault_at, faults_of
from kairos_ros.document.marked_yaml import MarkedYaml
from kairos_ros.document.marked_yaml import Path as FieldPath
from kairos_ros.document.text_file import read_json, read_text

Warn = Callable[[str], None]

LARGEST = 10**15
LONGEST_MS = 9 * 10**12
"""Lifetimes and histories together must stay below 2^63 ns."""
REMARKS = {"name", "why", "expect"}
"""Fields that anything may have and nothing reads."""


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_limit(value: Any) -> Any:
    return LARGEST if value in (None, "all") else value


Text = Annotated[str, BeforeValidator(_as_text), Field(min_length=1)]
Time = Annotated[int, Field(ge=-LARGEST, le=LARGEST, description="in ms")]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Interval = Annotated[
    list[Time], Field(min_length=2, max_length=2, description="start and end in ms")
]
Estimates = list[Annotated[float, Field(ge=0, description="in ms")]]


class _Section(BaseModel):
    """A part of the file; fields that nothing reads are reported, not refused."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class AlgorithmOptions(_Section):
    """Of the algorithm; the defaults are those of the printed one (clamp: papers' reading 1)."""

    model_config = ConfigDict(extra="forbid")

    wait: Literal["side", "unified"] = "side"
    dominance: Literal["measured", "profile"] = "measured"
    age: Literal["ceil", "floor"] = "ceil"
    clamp: bool = True
    ongoing: bool = False
    init: bool = False
    B: Annotated[int, Field(ge=1, le=LARGEST, description="buckets")] = 10
    A: Annotated[int | None, Field(ge=1, le=LARGEST, description="null: no aging")] = 5
    first_e: Count = 0
    L0: Count = 0
    capacity: Annotated[Count, BeforeValidator(_as_limit)] = LARGEST
    """Requests of one batch; "all" in the file for no limit."""

    @property
    def readings(self) -> dict[str, Any]:
        """How the policy reads the paper."""
        names = ("wait", "dominance", "age", "clamp", "ongoing", "init")
        return {name: getattr(self, name) for name in names}


class Round(_Section):
    """Generation and execution; None where not recorded."""

    G: Interval | None = None
    E: Interval | None = None


class Request(_Section):
    """A pending request and what its task has done."""

    id: Text
    t_start: Time
    skipped: Count = 0
    rounds: list[Round] = []

    @property
    def times_ms(self) -> list[int]:
        """All that occur."""
        sides = [side for one in self.rounds for side in (one.G, one.E) if side]
        return [self.t_start, *(t for side in sides for t in side)]


class SchedulingCase(_Section):
    """One decision to make."""

    name: Text = ""
    now_ms: Time
    requests: list[Request]
    options: AlgorithmOptions = AlgorithmOptions()

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, data: Any) -> Any:
        """Options may stand in "options" or beside it, as B, A and capacity do in the examples."""
        if not isinstance(data, Mapping) or not isinstance(data.get("options", {}), Mapping):
            return data
        beside = {key: data[key] for key in AlgorithmOptions.model_fields if key in data}
        given = data.get("options", {})
        for key in beside.keys() & given.keys():
            if beside[key] != given[key]:
                raise ValueError(f"{key} is both {beside[key]!r} and {given[key]!r}")
        rest = {key: value for key, value in data.items() if key not in beside}
        return {**rest, "options": {**beside, **given}}

    @property
    def times_ms(self) -> list[int]:
        """All that occur."""
        return [self.now_ms, *(t for request in self.requests for t in request.times_ms)]


class PlacementCase(_Section):
    """One placement of an order on two tiers, with given estimates."""

    name: Text = ""
    order: list[Text]
    n_e: Annotated[Count | None, Field(alias="N_e")] = None
    """Requests that fit the edge now; None: all."""
    n_c: Annotated[Count, Field(alias="N_c")] = 0
    edge_delay_ms: Estimates = []
    """[i]: edge delay of the i-th request beyond N_e. One number in the file: of all."""
    cloud_latency_ms: Estimates = []
    """[c]: cloud latency of the request that would be the (c + 1)-th sent there."""

    @model_validator(mode="before")
    @classmethod
    def _repeat_numbers(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("order"), list):
            return data
        fields = {"edge_delay_ms", "cloud_latency_ms"} & data.keys()
        one = {key: data[key] for key in fields if isinstance(data[key], int | float)}
        return {**data, **{key: [value] * len(data["order"]) for key, value in one.items()}}


class ScenarioFile(_Section):
    """Scenarios of both kinds."""

    scheduling: list[SchedulingCase] = []
    placement: list[PlacementCase] = []

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        if not {"scheduling", "placement"} & self.model_fields_set:
            raise ValueError("the file holds neither 'scheduling' nor 'placement'")
        return self


def read_cases(path: Path, warn: Warn) -> ScenarioFile:
    """Every case has a name. A field that nothing reads is reported through `warn`.

    Raises FaultyFileError with line, column and field of everything that is wrong, ConfigError for
    a file that cannot be read.
    """
    data = read_json(path)
    try:
        file = ScenarioFile.model_validate(data)
    except ValidationError as error:
        document = _document(path)
        raise FaultyFileError(path, faults_of(document, ScenarioFile, error)) from None
    if problems := list(_problems(file)):
        document = _document(path)
        raise FaultyFileError(path, [fault_at(document, *problem) for problem in problems])
    for where, section in _sections(file):
        for field in sorted((section.model_extra or {}).keys() - REMARKS):
            warn(f"{where}: nothing reads the field {field!r}")
    return file


def case_names(file: ScenarioFile) -> tuple[list[str], list[str]]:
    """Of scheduling and placement, in order; a case without one is called by its place."""
    return (
        [case.name or f"scheduling[{i}]" for i, case in enumerate(file.scheduling)],
        [case.name or f"placement[{i}]" for i, case in enumerate(file.placement)],
    )


def _document(path: Path) -> MarkedYaml:
    """Where everything stands: JSON is YAML, but for its tabs."""
    return MarkedYaml(read_text(path).replace("\t", " "))


def _problems(file: ScenarioFile) -> Iterator[tuple[FieldPath, str]]:
    """What is wrong with values that are right by themselves."""
    for section, names in zip(("scheduling", "placement"), case_names(file), strict=True):
        yield from _twice(names, (section,), "name")
    for i, case in enumerate(file.scheduling):
        at: FieldPath = ("scheduling", i)
        yield from _twice([r.id for r in case.requests], (*at, "requests"), "id")
        for j, request in enumerate(case.requests):
            yield from _of_request(request, case.now_ms, (*at, "requests", j))
        span = max(case.times_ms) - min(case.times_ms)
        if span * (1 + max((len(r.rounds) for r in case.requests), default=0)) > LONGEST_MS:
            yield at, f"its times span {span} ms, too long to count in nanoseconds"
    for i, placement in enumerate(file.placement):
        for name, count in Counter(placement.order).items():
            if count > 1:
                yield ("placement", i, "order"), f"{name!r} occurs twice"


def _of_request(request: Request, now_ms: int, at: FieldPath) -> Iterator[tuple[FieldPath, str]]:
    if request.t_start > now_ms:
        yield (*at, "t_start"), f"{request.t_start} is after now_ms, {now_ms}"
    for k, one in enumerate(request.rounds):
        here = (*at, "rounds", k)
        if one.G is None and one.E is None:
            yield here, "it has neither G nor E; leave the round out"
        for side in ("G", "E"):
            interval = getattr(one, side)
            if interval and interval[1] < interval[0]:
                yield (*here, side), f"it ends at {interval[1]}, before it starts at {interval[0]}"


def _twice(names: list[str], at: FieldPath, field: str) -> Iterator[tuple[FieldPath, str]]:
    for i, name in enumerate(names):
        if name in names[:i]:
            yield (*at, i, field), f"{name!r} occurs twice"


def _sections(file: ScenarioFile) -> Iterator[tuple[str, BaseModel]]:
    """Every part of the file that may have fields that nothing reads, by what people call it."""
    scheduling, placement = case_names(file)
    for name, case in zip(scheduling, file.scheduling, strict=True):
        yield name, case
        for i, request in enumerate(case.requests):
            where = f"{name}: requests[{i}] ({request.id})"
            yield where, request
            yield from ((f"{where}: rounds[{j}]", one) for j, one in enumerate(request.rounds))
    yield from zip(placement, file.placement, strict=True)
