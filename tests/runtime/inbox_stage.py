"""What the tests of the inbox share: an app on the harness with a SQLite database, and a table that handlers write to.

Rule: an effect is a row that a handler wrote in the session it was given, and nothing else.
"""

from __future__ import annotations

from runtime_stage import ends
from sqlalchemy import text

from carom import App, adapters
from carom.core.message import Message
from carom.testing import Harness

MEMORY = "sqlite+aiosqlite://"
QUEUE = "q"
EFFECT = text("INSERT INTO effects (said) VALUES (:said)")


def app_of(function, *, database=MEMORY, retry=("1s",), idempotent=True, **options):
    app = App("embedded://", database=database, observers=())
    app.listen("k", queue=QUEUE, retry=retry, idempotent=idempotent, **options)(function)
    return app


class Stage(Harness):
    """An app, its database, and what handlers did to it."""

    async def __aenter__(self):
        self.app.observe(self._note)
        self.store = adapters.store(self.app.database, self.clock.now_ms)
        self.engine = self.store.engines.asynchronous
        await self.create()
        await self.app.start(broker=self.broker, clock=self.clock, store=self.store, relay=False)
        await self.settle()
        return self

    async def create(self):
        async with self.engine.begin() as connection:
            await connection.execute(text("CREATE TABLE IF NOT EXISTS effects (said TEXT)"))

    async def rows(self, sql):
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(text(sql))]

    async def effects(self):
        """Return what handlers wrote, in its order."""
        return [said for (said,) in await self.rows("SELECT said FROM effects")]

    async def seen(self):
        """Return what the inbox holds, as (message id, attempt)."""
        return sorted(await self.rows("SELECT message_id, attempt FROM carom_inbox"))

    async def redeliver(self, message, **headers):
        """Put a message into the queue again as it was, as a broker does after a crash."""
        await self.put(again(message, **headers))

    def ends(self):
        return ends(self.events)


def again(message, **headers):
    """Return a message as it was published to the queue, with other headers."""
    return Message(
        body=message.body,
        exchange="",
        routing_key=QUEUE,
        id=message.id,
        content_type=message.content_type,
        headers=headers,
    )


def file_database(path):
    return f"sqlite+aiosqlite:///{path}/effects.db"
