"""``carom db``: the tables that an outbox and an inbox need, and what has been in them long enough.

Rule: upgrading only adds; pruning deletes only what is older than the retention says, in small batches.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import click

from carom import adapters
from carom.cli.loading import load
from carom.cli.options import FromFile, app_dir_option, option, speaking
from carom.cli.output import Output
from carom.ports import Database, Mode, Store

app_argument = click.argument("app", metavar="[APP]", required=False)
database_option = option(
    "--database", metavar="URL", cls=FromFile, envvar="CAROM_DATABASE", help="This database instead of the app's own."
)
schema_option = option("--schema", metavar="NAME", help="The schema of the tables, instead of the app's own.")
prefix_option = option("--prefix", metavar="TEXT", help="How the tables' names begin, instead of the app's own.")


@click.group(short_help="Make, compare and prune the tables in an app's database.")
def db() -> None:
    """Make, compare and prune the tables that an app needs in its database.

    The database is that of APP, such as shop:app, or the one of --database.
    """


@db.command
@app_argument
@database_option
@schema_option
@prefix_option
@option("--dry-run", is_flag=True, help="Only compare: exit with 5 when something is missing.")
@app_dir_option
@speaking
def upgrade(
    out: Output,
    *,
    app: str | None,
    database: str | None,
    schema: str | None,
    prefix: str | None,
    dry_run: bool,
    app_dir: str,
) -> None:
    """Create what is missing, and nothing else: no table is changed but by adding to it."""
    chosen = _database(app, database, schema, prefix, app_dir)
    where = asyncio.run(_opened(chosen, "verify" if dry_run else "apply", _nothing))
    out.say(f"the tables in {where} are as this version of Carom needs them")
    out.data("", {"database": where, "upgraded": not dry_run})


@db.command
@app_argument
@database_option
@schema_option
@prefix_option
@app_dir_option
@speaking
def check(
    out: Output, *, app: str | None, database: str | None, schema: str | None, prefix: str | None, app_dir: str
) -> None:
    """Compare the tables with what this version of Carom needs; exit with 5 when something is missing."""
    where = asyncio.run(_opened(_database(app, database, schema, prefix, app_dir), "verify", _nothing))
    out.say(f"the tables in {where} are as this version of Carom needs them")
    out.data("", {"database": where, "fine": True})


@db.command
@app_argument
@database_option
@schema_option
@prefix_option
@option("--batch", type=click.IntRange(1, 100_000), default=1_000, help="How many rows one transaction deletes.")
@app_dir_option
@speaking
def prune(
    out: Output,
    *,
    app: str | None,
    database: str | None,
    schema: str | None,
    prefix: str | None,
    batch: int,
    app_dir: str,
) -> None:
    """Delete what was sent, or seen, longer ago than it is to be kept; until nothing of it is left."""
    counts = {"sent": 0, "seen": 0}

    async def forget(store: Store) -> None:
        for name, some in (("sent", store.forget_sent), ("seen", store.forget_seen)):
            while forgotten := await some(batch):
                counts[name] += forgotten

    where = asyncio.run(_opened(_database(app, database, schema, prefix, app_dir), "ignore", forget))
    out.say(f"{counts['sent']} rows of the outbox and {counts['seen']} of the inbox were deleted from {where}")
    out.data("", {"database": where, **counts})


def _database(app: str | None, database: str | None, schema: str | None, prefix: str | None, app_dir: str) -> Database:
    """Return the database that is meant. Raises click.UsageError when none is."""
    own = None if app is None else getattr(load(app, app_dir), "database", None)
    found = own if isinstance(own, Database) or own is None else Database(own)
    if database is not None:
        found = Database(database) if found is None else dataclasses.replace(found, url=database)
    if found is None:
        said = (
            "say which database: APP, such as shop:app, or --database URL" if app is None else f"{app} has no database"
        )
        raise click.UsageError(said if app is None else f"{said}: say one with --database URL")
    changes = {name: value for name, value in (("schema", schema), ("prefix", prefix)) if value is not None}
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]  # both are texts


async def _opened(database: Database, mode: Mode, work: Callable[[Store], Awaitable[None]]) -> str:
    """Open a store, work with it, close it; return where it is, for people."""
    store = adapters.store(database)
    try:
        await store.open(mode)
        await work(store)
        return store.where
    finally:
        await store.close()


async def _nothing(_store: Store) -> None:
    pass
