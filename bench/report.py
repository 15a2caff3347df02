"""What is printed: a line of JSON for a program, a table for people.

Rule: every number that is shown was measured in this run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cases import Benchmark
from bench.runner import Result


def line(result: Result) -> str:
    """Return a result as one line of JSON; what there is nothing to say of is left out."""
    said: dict[str, Any] = asdict(result)
    always = ("bench", "case", "per_second", "ratio_to")
    return json.dumps(
        {name: value for name, value in said.items() if name in always or value not in (None, "", {}, ())}
    )


def show(benchmark: Benchmark, results: Sequence[Result]) -> None:
    """Print a table."""
    table = Table(title=f"{benchmark.name}: {benchmark.about}", title_justify="left")
    table.add_column("case")
    table.add_column("messages/s", justify="right")
    table.add_column("compared with")
    table.add_column("target")
    for result in results:
        number = "" if result.per_second is None else f"{result.per_second:,.0f}"
        table.add_row(result.case, number, _compared(result), _target(result), style="red" if result.error else None)
    console = Console(width=None if Console().is_terminal else 160)
    console.print(table)


def _compared(result: Result) -> str:
    if result.error:
        return result.error
    ratios = [f"{ratio:.2f} of {name}" for name, ratio in result.ratio_to.items()]
    more = [f"{name} {value:,.0f}" for name, value in result.more.items()]
    return "\n".join([*ratios, *more])


def _target(result: Result) -> str:
    if not result.target:
        return ""
    said = ", ".join(f"{name} {value:g}" for name, value in result.target.items())
    return f"{said}: {'reached' if result.reached else 'not measured' if result.reached is None else 'missed'}"
