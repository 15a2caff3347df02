"""``carom outbox``: what an app has emitted and no broker has yet, and what people do about it.

Rule: looking changes nothing; what changes something says first what it is about to do, and how much of it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

import click

from carom.cli.loading import load
from carom.cli.options import app_dir_option, database_option, option, speaking
from carom.cli.output import NOTHING_MATCHED, OK, PARTLY, Output, is_meant, shown, table
from carom.core.durations import text
from carom.core.relaying import STATES, Backlog, Held, State
from carom.ports import Store

T = TypeVar("T")
UNSENT: tuple[State, ...] = ("ready", "later", "failing", "parked")
LISTED = 50
CHUNK = 10_000
MOST = 1_000_000
"""Among so many of the oldest a message is looked for by its number."""
_MEANING = {
    "ready": "to be published now",
    "later": "waiting until they are due",
    "failing": "waiting after a failure",
    "parked": "given up: see carom outbox list --state parked",
    "sent": "published, and kept",
}


@dataclass(frozen=True, slots=True)
class Change:
    """Something people do with rows: to which states it can be done, how it is called, and how it is done."""

    states: tuple[State, ...]
    doing: str
    done: str
    do: Callable[[Store, Collection[int]], Awaitable[int]]


RETRY = Change(("failing", "parked"), "Retry", "are published again now", lambda store, seqs: store.retry(seqs))
EXPEDITE = Change(("later", "failing"), "Expedite", "are published now", lambda store, seqs: store.expedite(seqs))
CANCEL = Change(UNSENT, "Cancel", "were deleted", lambda store, seqs: store.cancel(seqs))

_app = click.argument("app", metavar="APP")
_database = database_option("Another database than the app's own.")
_seqs = click.argument("seqs", metavar="[SEQ]...", nargs=-1, type=int)
_all = option("--all", "everything", is_flag=True, help="All that this can be done to.")
_limit = option("--limit", type=click.IntRange(1), default=LISTED, help="How many at most, oldest first.")
_yes = option("--yes", "-y", is_flag=True, help="Do not ask.")
_dry_run = option("--dry-run", is_flag=True, help="Only show which they would be.")


def _state(states: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    words = "Only those in this state; may be said several times."
    return option("--state", "states", type=click.Choice(states), multiple=True, help=words)


@click.group(short_help="Show or change what waits in an app's outbox.")
def outbox() -> None:
    """Show or change what an app has emitted and the broker does not have yet."""


@outbox.command
@_app
@_database
@app_dir_option
@speaking
def status(out: Output, *, app: str, database: str | None, app_dir: str) -> int:
    """Count what is in the outbox of APP, such as shop:app."""
    found = _asked(app, app_dir, database, lambda store: store.backlog())
    out.data(_counts(found), {"outbox": asdict(found)})
    return OK


@outbox.command("list")
@_app
@_database
@_state(STATES)
@_limit
@app_dir_option
@speaking
def list_rows(
    out: Output, *, app: str, database: str | None, states: tuple[State, ...], limit: int, app_dir: str
) -> int:
    """List what is in the outbox of APP, oldest first; what was published only when it is asked for."""
    rows = _asked(app, app_dir, database, lambda store: store.find(states or UNSENT, limit))
    out.data(_table(rows), {"messages": [asdict(row) for row in rows]})
    return OK if rows else NOTHING_MATCHED


def _changing(change: Change) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the arguments and options of one that changes rows."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in (
            speaking,
            app_dir_option,
            _dry_run,
            _yes,
            _limit,
            _all,
            _state(change.states),
            _database,
            _seqs,
            _app,
        ):
            function = one(function)
        return function

    return decorate


@outbox.command
@_changing(RETRY)
def retry(out: Output, **options: Any) -> int:
    """Publish parked and failing messages of APP again now, as if they had never failed."""
    return _change(out, RETRY, **options)


@outbox.command
@_changing(EXPEDITE)
def expedite(out: Output, **options: Any) -> int:
    """Publish messages of APP now that wait until they are due, or after a failure."""
    return _change(out, EXPEDITE, **options)


@outbox.command
@_changing(CANCEL)
def cancel(out: Output, **options: Any) -> int:
    """Delete messages of APP that were not published. One that is on its way just now arrives all the same."""
    return _change(out, CANCEL, **options)


def _change(
    out: Output,
    change: Change,
    *,
    app: str,
    database: str | None,
    seqs: tuple[int, ...],
    states: tuple[State, ...],
    everything: bool,
    limit: int,
    yes: bool,
    dry_run: bool,
    app_dir: str,
) -> int:
    if sum((bool(seqs), bool(states), everything)) != 1:
        raise click.UsageError("say which: their numbers, as carom outbox list shows them, or --state, or --all")

    async def work(store: Store) -> int:
        rows = [
            one
            for one in await store.find(states or change.states, MOST if seqs else limit)
            if not seqs or one.seq in seqs
        ]
        count = await _count(store, change) if everything else len(rows)
        if not count:
            out.say("carom: nothing in the outbox is such that this could be done to it")
            out.data("", _said(0, rows, dry_run=dry_run))
            return NOTHING_MATCHED
        if dry_run:
            out.data(_table(rows), _said(0, rows, dry_run=True))
            out.say(f"{_messages(count)} in all")
            return OK
        if not (yes or is_meant(f"{change.doing} {_messages(count)}?")):
            out.say("carom: nothing was changed")
            return OK
        changed = await (_do_all(store, change, count) if everything else change.do(store, [one.seq for one in rows]))
        out.say(f"{_messages(changed)} {change.done}")
        out.data("", _said(changed, rows, dry_run=False))
        return OK if changed >= len(seqs or rows) else PARTLY

    return _asked(app, app_dir, database, work)


async def _count(store: Store, change: Change) -> int:
    found = await store.backlog()
    return sum(int(getattr(found, state)) for state in change.states)


async def _do_all(store: Store, change: Change, count: int) -> int:
    """Do it to everything that was there at the beginning, many at a time; what fails anew meanwhile is let be."""
    total = 0
    while total < count and (rows := await store.find(change.states, CHUNK)):
        total += await change.do(store, [one.seq for one in rows])
    return total


def _said(changed: int, rows: Sequence[Held], *, dry_run: bool) -> dict[str, Any]:
    return {"changed": changed, "dry_run": dry_run, "messages": [asdict(row) for row in rows]}


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def _asked(app: str, app_dir: str, database: str | None, question: Callable[[Store], Awaitable[T]]) -> T:
    """Ask the database of an app; its tables are verified and never changed."""
    found = load(app, app_dir)
    found.configure(database=database)

    async def ask() -> T:
        store = found.store
        try:
            await store.open("verify")
            return await question(store)
        finally:
            await store.close()

    return asyncio.run(ask())


def _counts(found: Backlog) -> str:
    lines = []
    for state in STATES:
        count = getattr(found, state)
        oldest = f", the oldest for {text(found.oldest_ms)}" if state == "ready" and count else ""
        lines.append(f"{state:<8} {count:>9,}  {_MEANING[state]}{oldest}")
    return "\n".join(lines)


def _table(rows: Sequence[Held]) -> str:
    head = ("SEQ", "STATE", "ROUTING KEY", "KEY", "WRITTEN", "DUE", "FAILED", "WHY")
    return table(head, [_cells(row) for row in rows])


def _cells(row: Held) -> tuple[str, ...]:
    return (
        str(row.seq),
        row.state,
        shown(row.routing_key),
        shown(row.ordering_key),
        _time(row.created_ms),
        _time(row.due_ms),
        str(row.failures or ""),
        shown(row.error)[:100],
    )


def _time(at_ms: int | None) -> str:
    return "" if at_ms is None else datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
