"""``carom dead``: the first dead letters of a queue, by their number: looked at, put back, thrown away.

Rule: whoever looks, or changes something, is told first what it costs; nothing is thrown away that nobody said yes to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

import click

from carom.cli.connecting import at
from carom.cli.loading import load
from carom.cli.options import app_dir_option, broker_option, check_shared, option, speaking
from carom.cli.output import FAILED, NOTHING_MATCHED, OK, PARTLY, Output, is_meant, shown, table
from carom.core.letters import Letter
from carom.runtime.dead_letters import DeadLetters, Moved

T = TypeVar("T")
MOST, LISTED = 10_000, 20
_COSTS = "a dead letter that was looked at and given back counts as returned once, and is redelivered from then on"


@click.group(short_help="Show, replay or discard dead letters.")
def dead() -> None:
    """Show the first dead letters of a queue, send them back to it, or throw them away."""


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what all of them have."""
    queue = option("--queue", required=True, metavar="NAME", help="The queue they died for, or the one they are in.")
    broker = broker_option("Another broker than the app's own.")
    for one in (speaking, app_dir_option, broker, queue, click.argument("app", metavar="APP")):
        function = one(function)
    return function


def _count(words: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return option("--count", type=click.IntRange(1, MOST), help=words, **settings)


_yes = option("--yes", "-y", is_flag=True, help="Do not ask.")
_dry_run = option("--dry-run", is_flag=True, help="Only show which they would be.")


@dead.command("list")
@_count("How many at most, first come first.", default=LISTED)
@_options
def list_letters(out: Output, *, app: str, broker: str | None, queue: str, count: int, app_dir: str) -> int:
    """List the first dead letters of a queue of APP, such as shop:app. Each is handed back once.

    It is hidden from everybody else meanwhile, and the broker counts the return.
    """
    return _show(out, _asked(app, app_dir, broker, queue, lambda letters: letters.list(count)))


@dead.command
@_count("How many at most, first come first.", required=True)
@_yes
@_dry_run
@_options
def replay(
    out: Output,
    *,
    app: str,
    broker: str | None,
    queue: str,
    count: int,
    yes: bool,
    dry_run: bool,
    app_dir: str,
) -> int:
    """Send the first dead letters of a queue of APP, such as shop:app, back to it, for a new life.

    Attempts are counted anew. Each is published and confirmed before its dead letter is gone.
    """
    if dry_run:
        return _show(out, _asked(app, app_dir, broker, queue, lambda letters: letters.list(count)))
    if not (yes or is_meant(f"Replay up to {count} dead letters of {queue}?")):
        out.say("carom: nothing was changed")
        return OK
    moved = _asked(app, app_dir, broker, queue, lambda letters: letters.replay(count))
    return told(out, moved, "replayed", "dead letter")


@dead.command
@_count("How many at most, first come first.", required=True)
@_yes
@_dry_run
@_options
def discard(
    out: Output,
    *,
    app: str,
    broker: str | None,
    queue: str,
    count: int,
    yes: bool,
    dry_run: bool,
    app_dir: str,
) -> int:
    """Throw the first dead letters of a queue of APP, such as shop:app, away. Nothing brings them back."""
    if dry_run:
        return _show(out, _asked(app, app_dir, broker, queue, lambda letters: letters.list(count)))
    if not (yes or is_meant(f"Throw up to {count} dead letters of {queue} away, for ever?")):
        out.say("carom: nothing was changed")
        return OK
    gone = _asked(app, app_dir, broker, queue, lambda letters: letters.discard(count))
    return told(out, Moved(gone), "discarded", "dead letter")


def told(out: Output, moved: Moved, done: str, what: str) -> int:
    """Say what came of moving messages, and return the exit code that stands for it."""
    for identity, why in moved.stays:
        out.say(f"stays: {identity or 'one without an id'}: {why}")
    out.say(f"{moved.done} {what}{'' if moved.done == 1 else 's'} {done}, {len(moved.stays)} still there")
    out.data("", {done: moved.done, "stays": [{"id": identity, "why": why} for identity, why in moved.stays]})
    if moved.stays:
        return PARTLY if moved.done else FAILED
    return OK if moved.done else NOTHING_MATCHED


def _show(out: Output, letters: Sequence[Letter]) -> int:
    out.data(_table(letters), {"dead_letters": [asdict(one) for one in letters]})
    if not letters:
        out.say("carom: there is no dead letter")
        return NOTHING_MATCHED
    out.say(_COSTS)
    return OK


def _asked(
    app: str, app_dir: str, broker: str | None, queue: str, question: Callable[[DeadLetters], Awaitable[T]]
) -> T:
    found = load(app, app_dir)
    where = broker or found.address
    if isinstance(where, str):
        check_shared(where)
    queues = [one.queue for one in found.listeners]
    return asyncio.run(at(found, broker, lambda there: question(DeadLetters(there, found.layout, queues, queue))))


def _table(letters: Sequence[Letter]) -> str:
    head = ("ID", "DIED FOR", "ROUTING KEY", "REASON", "ATTEMPTS", "DEATHS", "FAILED", "BYTES", "ERROR")
    return table(head, [_cells(one) for one in letters])


def _cells(one: Letter) -> tuple[str, ...]:
    at_ms = one.failed_at
    failed = datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S") if at_ms else ""
    error = f"{one.error_type}: {one.error}" if one.error_type else one.error
    texts = (one.id, one.queue or "?", one.routing_key, one.reason)
    numbers = (str(one.attempts), str(one.deaths), failed, str(one.bytes))
    return (*(shown(text) for text in texts), *numbers, shown(error)[:100])
