"""What the demo looks like: a picture that moves on a terminal, plain lines elsewhere, and a summary.

Rule: everything is `Text`, and nothing that came from outside is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from carom.cli.demo import shop
from carom.cli.demo.story import Board, Finding, Place, Row
from carom.cli.output import shown

WIDTH = 80
HEIGHT = 22
LINES = 7
"""How many of the last lines are seen below the picture."""

_PLACES: tuple[tuple[Place, str, str], ...] = (
    ("queue", "queue", "blue"),
    ("handler", "handler", "yellow"),
    ("waiting", "waiting", "magenta"),
    ("done", "done", "green"),
    ("dead", "dead letter", "red"),
)


def console(stream: IO[str], *, live: bool) -> Console:
    """Return a console of the demo's width; colours are for terminals, and for those who did not say no."""
    return Console(
        file=stream,
        width=None if live else WIDTH,
        color_system="auto" if live else None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def can_move(stream: IO[str]) -> bool:
    """Tell whether a picture can be drawn again and again: on a terminal that is large enough."""
    if not stream.isatty():
        return False
    found = Console(file=stream)
    return not found.is_dumb_terminal and found.width >= WIDTH - 2 and found.height >= HEIGHT


def put(out: Console, *things: RenderableType) -> None:
    """Print things; where nobody looks at a terminal, without the blanks that only fill it."""
    if out.is_terminal:
        out.print(*things, sep="\n")
        return
    with out.capture() as captured:
        out.print(*things, sep="\n")
    out.print(Text("\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())), soft_wrap=True)


class Plain:
    """Shows the lines as they come."""

    def __init__(self, out: Console) -> None:
        """Show nothing yet."""
        self._out = out
        self._shown = 0

    def show(self, board: Board) -> None:
        """Print what is new."""
        for at, line in board.lines[self._shown :]:
            self._out.print(Text(f"{at:5.1f} s  {line}"), soft_wrap=True)
        self._shown = len(board.lines)


class Moving:
    """Draws the board, again and again in the same place."""

    def __init__(self, live: Live, broker: str) -> None:
        """Draw nothing yet."""
        self._live = live
        self._broker = broker

    def show(self, board: Board) -> None:
        """Draw the board as it is now."""
        self._live.update(drawn(board, self._broker), refresh=True)


@contextmanager
def view(out: Console, broker: str, *, live: bool) -> Iterator[Plain | Moving]:
    """Yield what shows a board."""
    if not live:
        yield Plain(out)
        return
    with Live(console=out, auto_refresh=False, transient=True, redirect_stderr=False, redirect_stdout=False) as picture:
        yield Moving(picture, broker)


def drawn(board: Board, broker: str) -> RenderableType:
    """Return the picture: the orders and where they are, what the broker holds, and what happened last."""
    head = Table.grid(expand=False)
    head.add_column(width=WIDTH - 14)
    head.add_column(width=8, justify="right")
    head.add_row(Text(f"a small shop on {broker}", style="bold"), Text(f"{board.now:.1f} s", style="dim"))
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column("order", width=25, no_wrap=True)
    for _, title, _ in _PLACES:
        table.add_column(title, width=len(title), justify="center", no_wrap=True)
    for row in board.rows.values():
        table.add_row(_title(row), *(_cell(row, place, style, board.now) for place, _, style in _PLACES))
    last = board.lines[-LINES:]
    lines = [Text.assemble((f"{at:5.1f} s  ", "dim"), line, no_wrap=True, overflow="ellipsis") for at, line in last]
    lines += [Text("")] * (LINES - len(lines))
    return Padding(Group(head, Text(""), table, Text(""), _holds(board), Text(""), *lines), (1, 0, 0, 1))


def _title(row: Row) -> Text:
    return Text.assemble((f"{row.chapter.number} ", "dim"), (row.chapter.title, "" if row.place else "dim"))


def _cell(row: Row, place: Place, style: str, now: float) -> Text:
    left = row.back_at - now
    at = "queue" if row.place == "waiting" and left <= 0 else row.place
    if at != place:
        return Text("·", style="dim")
    if place == "waiting":
        return Text(f"{left:.1f}s", style=f"bold {style}")
    return Text(row.reason if place == "dead" else "●", style=f"bold {style}")


def _holds(board: Board) -> Text:
    """Say what the broker holds, as it says itself."""
    waiting = sum(count for queue, count in board.depths.items() if ".delay" in queue)
    dead = sum(count for queue, count in board.depths.items() if queue.endswith(".dlq"))
    parts = (
        _many(board.depths.get(shop.QUEUE, 0), "order"),
        f"{waiting} waiting",
        _many(dead, "dead letter"),
        _many(board.depths.get(shop.RECEIPTS, 0), "receipt"),
    )
    worker = _STARTS[board.starts - 1] if board.starts <= len(_STARTS) else f"{board.starts}th start"
    return Text.assemble(
        ("broker: ", "dim"),
        ", ".join(parts),
        ("   worker: ", "dim"),
        (worker if board.starts else "", "yellow" if board.crashes else ""),
    )


_STARTS = ("1st start", "2nd start", "3rd start", "4th start")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def summary(found: tuple[Finding, ...], problems: tuple[str, ...], *, crashes: int, seconds: float) -> RenderableType:
    """Return where every message is, why, and what that shows."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim")
    table.add_column("order", width=25)
    table.add_column("is now", width=25)
    table.add_column("which shows", width=22)
    for one in found:
        title = Text.assemble((f"{one.chapter.number} ", "dim"), one.chapter.title)
        table.add_row(title, _place(one), Text(one.problem or one.chapter.lesson, style="red" if one.problem else ""))
    if problems:
        verdict = Text("It did not all happen as it should:", style="bold red")
        lines = [Text(f"  {shown(problem)}") for problem in problems]
    else:
        charged = sum(one.place == "done" for one in found)
        verdict = Text(
            f"All of it happened, in {seconds:.0f} seconds: {charged} orders charged, "
            f"{len(found) - charged} dead letters, {crashes} dead workers, nothing lost. "
            "Read from the broker, not from the script.",
            style="green",
        )
        lines = []
    return Padding(Group(table, Text(""), verdict, *lines), (1, 0, 0, 1))


def _place(finding: Finding) -> Text:
    if finding.place == "done":
        at = f" at attempt {finding.attempt}" if finding.attempt > 1 else ""
        return Text.assemble(("● ", "green"), f"charged{at}")
    if finding.place == "dead":
        return Text.assemble(("● ", "red"), f"dead letter: {finding.reason}")
    return Text.assemble(("? ", "bold red"), "nowhere to be found")


def advice(commands: Mapping[str, str]) -> RenderableType:
    """Return what to try next: commands, and what each does."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for command, what in commands.items():
        grid.add_row(Text(command, style="bold"), Text(what, style="dim"))
    return Padding(Group(Text("Next", style="dim"), grid), (1, 0, 1, 1))
