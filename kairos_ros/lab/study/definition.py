"""What a study file says: the cells of one question, how they are drawn, what is compared.

A study varies a few things. Each is a list of values of a cell's setting, or a mapping from a label
to several settings that change together. All combinations are run, with every seed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kairos_ros.core.errors import ConfigError
from kairos_ros.document.faults import FaultyFileError, first_fault, read_document, read_model
from kairos_ros.lab.sim.recorded import traces_version
from kairos_ros.lab.sim.rules import RECORDED
from kairos_ros.lab.study.cell import Cell
from kairos_ros.lab.study.metrics import METRICS

Value = str | int | float | bool | None
Size = Literal["quick", "full"]
OPTIONS = "options"
"""This setting of a cell is a mapping, to which several things varied may add."""
LARGEST = 20_000
"""Cells of one study; more is a slip of the pen."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SizeOptions(_Section):
    """How much of the study is run."""

    seeds: Annotated[int, Field(ge=1, le=1000)]
    """Cells of every combination, with seeds 0, 1, ..."""
    settings: dict[str, Any] = {}
    """Replace the study's."""
    vary: dict[str, list[Value]] = {}
    """Of what is varied: only these values or labels."""


class Figure(_Section):
    """Small multiples: medians over seeds, with their range from the least to the greatest."""

    kind: Literal["lines", "bars"] = "lines"
    """bars: one per x, lying, without lines."""
    x: str
    lines: str | None = None
    columns: str | None = None
    rows: str | None = None
    y: Annotated[list[str], Field(min_length=1)] = ["latency_mean_s"]
    """Metrics; more than one makes a row of panels each."""
    relative_to: Value = None
    """This x is 100 %."""
    baseline: list[Value] = []
    """Lines, or bars, drawn in grey; the others are ours."""
    bold: list[Value] = []
    x_label: str = ""
    log_y: bool = False


class Compare(_Section):
    """By how much one line is below another, seed by seed."""

    kind: Literal["reduction"] = "reduction"
    metric: Annotated[list[str], Field(min_length=1)] = ["latency_mean_s"]
    ours: dict[str, Value]
    baseline: dict[str, Value]
    at: dict[str, Value] = {}
    """Where. `worst`: at the value where the baseline's robots stall most."""
    per: list[str] = []
    """A number for each of its values."""
    paper: dict[str, str] = {}
    """Metric -> what Dai et al. give for this reduction."""


class Best(_Section):
    """Which value of something is best, and by how much it beats a reference."""

    kind: Literal["best"]
    over: str
    reference: Value
    metric: Annotated[list[str], Field(min_length=1)] = ["latency_mean_s"]
    at: dict[str, Value] = {}
    per: list[str] = []
    paper: dict[str, str] = {}
    """Metric -> what Dai et al. give for the best value."""


Claim = Annotated[Compare | Best, Field(discriminator="kind")]


class Study(_Section):
    """The content of a study file."""

    question: str
    settings: dict[str, Any] = {}
    """Of every cell; what is not set has the defaults of `Cell`."""
    vary: Annotated[dict[str, list[Value] | dict[str, dict[str, Any]]], Field(min_length=1)]
    sizes: dict[Size, SizeOptions]
    figure: Figure
    claims: Annotated[list[Claim], Field(min_length=1)]
    differs: str = ""
    """What is not as in Dai et al.'s experiment, where `paper` compares with it."""

    @model_validator(mode="before")
    @classmethod
    def _reductions_unless_said_otherwise(cls, data: Any) -> Any:
        for claim in data.get("claims") or [] if isinstance(data, Mapping) else []:
            if isinstance(claim, dict):
                claim.setdefault("kind", "reduction")
        return data

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        figure = self.figure
        for name in (*figure.y, *(name for claim in self.claims for name in claim.metric)):
            if name not in METRICS:
                raise ValueError(f"there is no metric {name!r}; there are {_list(METRICS)}")
        for axis in (figure.x, figure.lines, figure.columns, figure.rows):
            self._varied("figure", axis)
        if figure.rows and len(figure.y) > 1:
            raise ValueError("figure: rows are either a thing varied or several y, not both")
        drawn = {figure.x, figure.lines, figure.columns, figure.rows}
        if left := set(self.vary) - drawn:
            raise ValueError(f"figure: {_list(left)} is varied but neither x, lines, columns, rows")
        if (figure.lines is None) != (figure.kind == "bars"):
            raise ValueError("figure: lines says what the lines tell apart; bars have none")
        for value in (*figure.baseline, *figure.bold):
            self._value("figure", figure.lines or figure.x, value)
        for i, claim in enumerate(self.claims):
            self._claim(f"claims.{i}", claim)
        for size in self.sizes.values():
            for name, values in size.vary.items():
                self._varied("sizes", name)
                for value in values:
                    self._value("sizes", name, value)
        return self

    def labels(self, name: str, size: Size) -> list[Value]:
        """Values or labels of a thing varied, in the file's order."""
        chosen = self.sizes[size].vary.get(name)
        every = list(self.vary[name])
        return every if chosen is None else [value for value in every if value in chosen]

    def _claim(self, where: str, claim: Compare | Best) -> None:
        fixed: list[tuple[str, Value]] = [*claim.at.items()]
        if isinstance(claim, Compare):
            fixed += [*claim.ours.items(), *claim.baseline.items()]
            if set(claim.ours) != set(claim.baseline):
                raise ValueError(f"{where}: ours and baseline must name the same things")
        else:
            fixed.append((claim.over, claim.reference))
        if unknown := set(claim.paper) - set(claim.metric):
            raise ValueError(f"{where}: paper has {_list(unknown)}, which is no metric of it")
        for name, value in fixed:
            self._varied(where, name)
            if value != "worst":
                self._value(where, name, value)
        for name in claim.per:
            self._varied(where, name)
        if left := set(self.vary) - {name for name, _ in fixed} - set(claim.per):
            raise ValueError(f"{where}: says nothing of {_list(left)}; add it to at or per")

    def _varied(self, where: str, name: str | None) -> None:
        if name is not None and name not in self.vary:
            raise ValueError(f"{where}: {name!r} is not varied here, only {_list(self.vary)}")

    def _value(self, where: str, name: str, value: Value) -> None:
        if value not in self.vary[name]:
            raise ValueError(
                f"{where}: {name} has no value {value!r}, only {_list(self.vary[name])}"
            )


@dataclass(frozen=True, slots=True)
class Combination:
    """A cell, and what of the study it stands for."""

    labels: Mapping[str, Value]
    cell: Cell


def read_study(path: Path) -> Study:
    """Raises FaultyFileError with line, column and field of everything that is wrong, ConfigError
    for a file that cannot be read, and for a cell with a wrong setting."""
    try:
        document = read_document(path)
    except FaultyFileError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{error}; 'kairos study --list' shows names") from None
    study = read_model(path, document, Study, tags={"reduction": Compare, "best": Best})
    for size in study.sizes:
        combinations(study, size, str(path))  # every cell must be a valid one
    return study


def combinations(study: Study, size: Size, where: str = "study") -> list[Combination]:
    """All cells of a size, seed by seed. Raises ConfigError for a cell with a wrong setting."""
    if size not in study.sizes:
        raise ConfigError(f"{where}: sizes has no {size}, only {_list(study.sizes)}")
    options = study.sizes[size]
    names = list(study.vary)
    choices = [study.labels(name, size) for name in names]
    count = options.seeds
    for values in choices:
        count *= len(values)
    if not 0 < count <= LARGEST:
        raise ConfigError(f"{where}: sizes.{size} has {count} cells; 1 to {LARGEST} are allowed")
    return [
        Combination(labels, _cell(study, options, labels, seed, where))
        for seed in range(options.seeds)
        for labels in _products(names, choices)
    ]


def of_policy(cells: list[Combination], folder: Path) -> list[Combination]:
    """The same cells, those of recorded workloads with the traces of this policy.

    Raises ConfigError where no traces of it were recorded.
    """
    if all(c.cell.workload != RECORDED for c in cells):
        return cells
    traces = {"policy": str(folder), "traces": traces_version(folder)}
    return [
        replace(c, cell=c.cell.model_copy(update=traces)) if c.cell.workload == RECORDED else c
        for c in cells
    ]


def _products(names: list[str], choices: list[list[Value]]) -> Iterator[dict[str, Value]]:
    return (dict(zip(names, values, strict=True)) for values in product(*choices))


def _cell(
    study: Study, options: SizeOptions, labels: Mapping[str, Value], seed: int, where: str
) -> Cell:
    settings: dict[str, Any] = {**study.settings, **options.settings, "seed": seed}
    for name, value in labels.items():
        varied = study.vary[name]
        changed: dict[str, Any]
        changed = varied[str(value)] if isinstance(varied, dict) else {name: value}
        if isinstance(changed.get(OPTIONS), dict):
            changed = {**changed, OPTIONS: {**settings.get(OPTIONS, {}), **changed[OPTIONS]}}
        settings |= changed
    try:
        return Cell.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(f"{where}: the cell {dict(labels)}: {first_fault(error, Cell)}") from None


def _list(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"
