"""Episodes of one task under horizon policies, the same seeds for each; what has run is kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kairos_ros.core.errors import ConfigError
from kairos_ros.core.horizons.calibration import HorizonCalibration
from kairos_ros.core.horizons.evidence import PairedOutcomes
from kairos_ros.lab.horizons import cells
from kairos_ros.lab.metrics.cells import Key, run_cells, source_version

Outcome = tuple[bool, int]
"""Success and rounds of an episode."""


@dataclass(frozen=True, slots=True)
class TaskRuns:
    """Runs rules of one task on seeds; finished cells are kept in `work`."""

    policy: Path
    policy_id: str
    scene: str
    lead: int
    disturbance: float
    work: Path
    processes: int
    report: Callable[[str], None]

    def run(self, rules: Sequence[str], seeds: range, what: str) -> list[list[Outcome]]:
        """Of every rule (`cells.named_rules`), one outcome per seed."""
        keys: list[Key] = [
            {"policy_id": self.policy_id, "rule": rule, **_NOTHING_HAPPENS, **episodes}
            for rule in rules
            for episodes in self.blocks(seeds)
        ]
        rows = iter(self.cells(what, keys, cells.run_cell, cells.CODE, _rule_line))
        blocks = len(keys) // len(rules)
        joined = [cells.joined([next(rows) for _ in range(blocks)]) for _ in rules]
        return [
            [(bool(ok), n) for ok, n in zip(row["success"], row["rounds"], strict=True)]
            for row in joined
        ]

    def blocks(self, seeds: range) -> list[dict[str, Any]]:
        """What the keys of cells with these seeds have in common with no others."""
        common = {
            "folder": str(self.policy),
            "task": self.scene,
            "disturbance": self.disturbance,
            "lead": self.lead,
        }
        return [
            common | {"first_seed": at, "episodes": min(cells.BLOCK, seeds.stop - at)}
            for at in seeds[:: cells.BLOCK]
        ]

    def cells(
        self,
        what: str,
        keys: Sequence[Key],
        run: Callable[[Key], Any],
        code: Sequence[str],
        line: Callable[[Key, Any], str],
    ) -> list[Any]:
        """Rows of these cells; those that are not kept are run. what: names the file.

        code: sources that decide a row. line: of a finished cell, for people."""
        return run_cells(
            self.work / f"{what}_{self.scene}.jsonl",
            keys,
            run,
            code=source_version(code),
            processes=self.processes,
            finished=lambda left, key, row: self.report(
                f"{self.scene}, {what}: {line(key, row)} ({left} cells left)"
            ),
        )


_NOTHING_HAPPENS = {
    "push_m": 0.0,
    "push_periods": 0,
    "knock_m_s": 0.0,
    "surprise": "",
    "warm_up_seed": 0,
    "surprised_horizon": 0,
}


def planned_tasks(
    calibration: HorizonCalibration, scenes: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Scene -> names of the task in the calibration. Raises ConfigError for one without a plan."""
    names_of = {names[0]: names for names in calibration.tasks}
    if unknown := [scene for scene in scenes if scene not in names_of]:
        raise ConfigError(
            f"no plan of {', '.join(unknown)} in the calibration; it has {', '.join(names_of)}"
        )
    return {scene: names_of[scene] for scene in scenes}


def compared(
    before: Sequence[Outcome], after: Sequence[Outcome], outcomes: PairedOutcomes | None = None
) -> PairedOutcomes:
    """`outcomes` with the pairs of two rules; the first one is the reference."""
    outcomes = outcomes or PairedOutcomes()
    for (reference, _), (candidate, _) in zip(before, after, strict=True):
        outcomes = outcomes.and_pair(reference, candidate)
    return outcomes


def mean_rounds(ran: Sequence[Outcome]) -> float:
    """Per episode."""
    return float(np.mean([n for _, n in ran]))


def _rule_line(key: Key, row: Any) -> str:
    name, _, file = key["rule"].partition("@")
    of = f" of {Path(file.partition('@')[0]).stem}" if file else ""
    return f"{name}{of}, {sum(row['success'])} of {key['episodes']}"
