"""What the doctor finds in each layout's own topology is what docs/layouts.md admits to, no more and no less."""

from __future__ import annotations

from pathlib import Path

import pytest
from layout_stage import EVERY

from carom.core.lint import Level, of_topology, review

PAGE = Path(__file__).parent.parent.parent / "docs" / "layouts.md"
HEADING = "## What the doctor says of them"
VERSIONS = ("3.13.1", "4.0.2", "4.3.5")


def admitted():
    """Return the rows of the page: a layout and, for each version, the codes; a note's is in brackets."""
    section = PAGE.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {
        row[0].strip("`"): [set(cell.replace("`", "").split(", ")) - {"nothing"} for cell in row[1:]] for row in rows
    }


def found(layout, version):
    findings = review(of_topology(layout.topology, version))
    return {f"({one.code})" if one.level is Level.NOTE else one.code for one in findings}


@pytest.mark.parametrize("name", EVERY)
def test_the_doctor_finds_in_a_layout_what_its_page_admits_to_and_nothing_else(name):
    assert dict(zip(VERSIONS, admitted()[name], strict=True)) == {
        version: found(EVERY[name].layout, version) for version in VERSIONS
    }


def test_the_page_has_no_layout_that_is_not_looked_at():
    assert set(admitted()) == set(EVERY)
