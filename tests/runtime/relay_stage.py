"""What the tests of the relay share: an app with an outbox on the harness, and a look into its table from outside.

Rule: whoever looks or interferes from outside does it through a connection of its own, as another program would.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from sqlalchemy import event

from carom import App
from carom.core.relaying import Patience
from carom.ports import Database
from carom.testing import Harness

URL = "postgresql+asyncpg://nobody.invalid/shop"
"""Never asked: the harness has a database of its own."""


IMPATIENT = Patience(attempts=3)


def shop(*, keys=("job.*",), patience=IMPATIENT, found=None, **options):
    """Return an app that handles jobs, and emits."""
    database = Database(URL, patience=patience, **options)
    app = App("embedded://", database=database, observers=() if found is None else [found.append], name="shop")

    @app.listen(*keys, queue="jobs")
    async def work(number: int) -> None: ...

    return app


def bodies(messages):
    return [int(message.body) for message in messages]


async def emit(h, *numbers, key=None, to="job.do", **options):
    """Emit numbers in a transaction of their own, and wait until everything that follows has happened."""
    async with h.transaction() as session:
        for number in numbers:
            h.app.emit(session, to, number, key=key, **options)


async def backlog(h):
    """Return what is in the outbox, without what is nothing and without times."""
    found = await h.app.store.backlog()
    states = {name: getattr(found, name) for name in ("ready", "later", "failing", "parked", "sent")}
    return {name: count for name, count in states.items() if count}


def outside(h: Harness, sql: str, *given):
    """Run a statement on the harness's database as another program would."""
    path = h.app.store.engines.url.database
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        rows = connection.execute(sql, given).fetchall()
        connection.commit()
    return rows


def counted(h: Harness, part: str) -> list[str]:
    """Return a list that statements with this in them are added to, from now on."""
    statements: list[str] = []

    def note(_connection, _cursor, statement, *_rest):
        if part in statement:
            statements.append(statement)

    event.listen(h.app.store.engines.asynchronous.sync_engine, "before_cursor_execute", note)
    return statements


CLAIM = "ORDER BY o.seq LIMIT"
