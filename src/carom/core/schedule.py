"""The schedule of a retry policy: attempt, delay before it, time since the first. And as a table for people.

Rule: the table is drawn as people know it (`1 (initial)`, `2 (1st retry)` … `5+ → DLQ`), and nothing in it is guessed:
what a custom policy decides later is said to be decided then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from carom.core.durations import text

_HEADINGS = ("Attempt", "Delay Before", "Header Count", "In Delay Queue", "Total Elapsed Time")


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt of a schedule: the delay before it, and when it comes, counted from the first.

    Jitter may make it later. Both are None where only the function of a custom policy knows.
    """

    attempt: int
    delay_ms: int | None
    elapsed_ms: int | None


def table(steps: Iterable[Step]) -> str:
    """Write steps as a Markdown table that also reads well as plain text; the last line is what follows them."""
    body = [_row(step) for step in steps]
    rows = [_HEADINGS, *body, (f"{len(body) + 1}+", "-", "-", "→ DLQ", "-")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def _row(step: Step) -> tuple[str, str, str, str, str]:
    if step.attempt == 1:
        return ("1 (initial)", "0s", "-", "No", "0s")
    delay = "chosen then" if step.delay_ms is None else text(step.delay_ms)
    elapsed = "-" if step.elapsed_ms is None else text(step.elapsed_ms)
    nth = f"{step.attempt} ({_ordinal(step.attempt - 1)} retry)"
    return (nth, delay, str(step.attempt), "No" if step.delay_ms == 0 else f"Yes ({delay})", elapsed)


def _ordinal(number: int) -> str:
    in_the_teens = number // 10 % 10 == 1
    return f"{number}{'th' if in_the_teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
