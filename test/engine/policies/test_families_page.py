"""docs/families.md speaks of the families that are served, and of those that are refused."""

import re

import pytest
from families_page import CHECKS, PAGE, TEST_FILES

from kairos_ros.engine.policies.served import FAMILIES, REFUSED

WRITTEN_BY = "write it again: .venv/bin/python test/support/pages/families_page.py"


def rows(title: str) -> list[list[str]]:
    """The cells of every row of a table of the page, without its header."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (table,) = [part for part in section if part.startswith(title)]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_the_page_has_a_row_for_every_type_that_is_served():
    assert [row[0] for row in rows("Served")] == list(FAMILIES), WRITTEN_BY
    assert not FAMILIES.keys() & REFUSED.keys()


def test_the_page_says_of_every_refused_type_why():
    assert {row[0]: row[1] for row in rows("Refused")} == REFUSED, WRITTEN_BY


@pytest.mark.slow
def test_every_served_type_is_checked_and_every_check_is_on_the_page():
    from tiny_families import TINY

    installed = {kind for kind, family in FAMILIES.items() if not family.packages}
    assert {tiny.type for tiny in TINY.values()} >= installed
    checked = [row for row in rows("Checked") if row[1] in installed]
    kinds = [[kind, tiny.type] for kind, tiny in TINY.items() if tiny.type in installed]
    assert [row[:2] for row in checked] == kinds, WRITTEN_BY
    assert all(len(row) == 2 + len(CHECKS) for row in checked), WRITTEN_BY
    tests = "".join(file.read_text() for file in TEST_FILES)
    assert all(f"def {check}(" in tests for check in CHECKS)
