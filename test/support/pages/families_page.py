"""Writes the tables of docs/families.md: `python test/support/pages/families_page.py`.

Builds a tiny policy of every family, runs the conformance tests of `CHECKS` on it, and puts what it
found between the page's two markers. Writes nothing where a test fails.
"""

import dataclasses
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "families.md"
BEGIN, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"
TEST_FILES = [
    ROOT / "test" / "engine" / "policies" / name
    for name in ("test_policy_engine.py", "test_engine_conformance.py")
]
CHECKS = {
    "test_the_tap_does_not_change_a_single_bit": "With the tap, its chunk equals bit for bit the "
    "one that LeRobot's own call computes without us from the same noise.",
    "test_noise_plus_all_updates_is_the_chunk": "The noise plus all updates is the chunk.",
    "test_noise_is_the_robots_and_not_the_global_generators": "Nothing is drawn from the global "
    "generator.",
    "test_a_chunk_depends_on_all_that_the_robot_sends": "The chunk depends on all that the policy "
    "reads: state, each camera, instruction, seed.",
    "test_a_chunk_does_not_depend_on_batch_mates": "A row does not depend on its batch-mates.",
    "test_an_answer_does_not_depend_on_earlier_calls": "An answer does not depend on earlier ones, "
    "but on those of its own task where the policy keeps a state.",
    "test_robots_with_prompts_of_different_lengths_are_one_pass": "Robots with prompts of "
    "different lengths are one forward pass.",
    "test_a_policy_that_is_saved_and_loaded_again_gives_the_same_chunk": "Saved and loaded again, "
    "it gives the same chunk and updates.",
    "test_bad_observations_fail_alone_with_their_code": "A bad state or image fails alone, with "
    "its code.",
    "test_bfloat16_is_used_when_asked_for": "bfloat16 gives nearly the same chunk.",
}
"""Test -> what it proves; the columns of the table, in this order."""


class Outcomes:
    """Pytest plugin: what came of every check of every kind of `TINY`."""

    def __init__(self) -> None:
        self.reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
        """Check and kind -> one entry per test: why it was skipped, empty where it passed."""
        self._what: dict[str, tuple[str, str]] = {}

    def pytest_collection_modifyitems(self, items):
        for item in items:
            parameters = getattr(item, "callspec", None) and item.callspec.params
            if parameters and (kind := parameters.get("kind", parameters.get("any_kind"))):
                self._what[item.nodeid] = item.originalname, kind

    def pytest_runtest_logreport(self, report):
        if report.nodeid in self._what and (report.when == "call" or report.skipped):
            reason = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else ""
            self.reasons[self._what[report.nodeid]].append(reason)


def main() -> int:
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    import pytest

    outcomes = Outcomes()
    checks = ["-k", " or ".join(CHECKS), *map(str, TEST_FILES)]
    status = pytest.main(["-p", "no:cacheprovider", "--show-capture=no", *checks], [outcomes])
    if status:
        return status
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + served() + refused() + checked(outcomes) + END + after)
    return 0


def served() -> str:
    """One row per type."""
    from tiny_families import TINY

    from kairos_ros.engine.policies.families import family_code
    from kairos_ros.engine.policies.served import FAMILIES

    rows = []
    for kind in FAMILIES:
        family, code = FAMILIES[kind], family_code(kind)
        of_kind = {name: tiny for name, tiny in TINY.items() if tiny.type == kind}
        facts = [_built(name) for name in of_kind]
        needs = [f"`{part.field or part.repository}`" for part in family.parts]
        needs += ["tokenizer"] * any(fact.tokenizer for fact in facts)
        needs += [f"LeRobot's extra `{family.extra}`"] * bool(family.extra)
        fact = facts[0] if facts else _Built("not installed here", "?", "?", False)
        module = sys.modules[f"{family_code.__module__}.{family.module}"]
        rows.append(
            (
                f"`{kind}`",
                _first_paragraph(module),
                ", ".join(dict.fromkeys(built.steps for built in facts or [fact])),
                "no steps" if fact.steps == "0" else _first_paragraph(code.sampler),
                str(code.largest_batch or "many"),
                fact.observations,
                fact.resizes,
                ", ".join(dict.fromkeys(needs)) or "nothing",
            )
        )
    header = (
        "type",
        "what it is",
        "K, by default",
        "tap",
        "robots in a pass",
        "observations",
        "resizes pictures",
        "what must be on the host",
    )
    return _table("Served", header, rows)


def refused() -> str:
    from kairos_ros.engine.policies.served import REFUSED

    return _table("Refused", ("type", "why"), [(f"`{kind}`", why) for kind, why in REFUSED.items()])


def checked(outcomes: Outcomes) -> str:
    """One row per tiny policy, one column per check."""
    from tiny_families import TINY

    notes: dict[str, str] = {}
    rows = []
    for kind in TINY:
        row = [f"`{kind}`", f"`{TINY[kind].type}`"]
        for check in CHECKS:
            reasons = outcomes.reasons[check, kind]
            if not reasons:
                raise LookupError(f"{check} did not run for {kind}: is it still called so?")
            if "" in reasons:
                row.append("pass")
            else:
                row.append(f"({notes.setdefault(reasons[0], chr(ord('a') + len(notes)))})")
        rows.append(tuple(row))
    columns = [str(number) for number in range(1, len(CHECKS) + 1)]
    legend = [f"{number}. {what}" for number, what in zip(columns, CHECKS.values(), strict=True)]
    table = _table("Checked", ("tiny policy", "type", *columns), rows, "\n".join(legend))
    legend = [f"- ({mark}) does not apply: {why}\n" for why, mark in notes.items()]
    return "\n".join([table, "".join(legend)])


@dataclasses.dataclass(frozen=True)
class _Built:
    """What a tiny policy says of itself once it is served."""

    steps: str
    observations: str
    resizes: str
    tokenizer: bool


def _built(kind: str) -> _Built:
    from lerobot.configs import PreTrainedConfig
    from observations import options
    from tiny_policies import TINY, save_policy

    from kairos_ros.engine.policies.policy import load_policy
    from kairos_ros.engine.policies.policy_engine import PolicyEngine

    tiny = TINY[kind]
    with TemporaryDirectory() as folder, tiny.loaded():
        policy = save_policy(kind, Path(folder))
        loaded = load_policy(options(policy), print)
        engine = PolicyEngine(loaded, options(policy, max_batch=1))
        fields = tiny.config(Path(folder))
        preprocessor = json.loads((policy / "policy_preprocessor.json").read_text())
    described, sampler = engine.description, engine._sampler
    defaults = PreTrainedConfig.get_choice_class(tiny.type)
    steps = [
        f"`{name}`" + (f" ({default})" if (default := getattr(defaults, name)) else "")
        for name, value in fields.items()
        if value == described.steps and "steps" in name
    ]
    several = getattr(loaded.config, "n_obs_steps", 1) == sampler.observations > 1
    return _Built(
        steps=", ".join(steps) or str(described.steps),
        observations="`n_obs_steps`" if several else str(sampler.observations),
        resizes=("yes" if described.any_image_size else "no") if described.images else "reads none",
        tokenizer=any(
            step.get("registry_name") == "tokenizer_processor" for step in preprocessor["steps"]
        ),
    )


def _first_paragraph(thing: object) -> str:
    return " ".join((thing.__doc__ or "").strip().split("\n\n")[0].split())


def _table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]], text: str = "") -> str:
    lines = [header, ("---",) * len(header), *rows]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines) if rows else "None."
    return f"\n## {title}\n\n{text}{text and '\n\n'}{table}\n"


if __name__ == "__main__":
    sys.exit(main())
