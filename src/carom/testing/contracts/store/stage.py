"""Stage: what a store's contract plays on: the hooks an adapter gives, and the verbs its tests are written in.

Rule: all stores of one test share their tables, and no two tests do; time passes only in `wait`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import uuid4

from carom.core.message import Message
from carom.core.relaying import Entry, Held, Mark, Row, Sent, State
from carom.ports import Lease, Store
from carom.testing.contracts.playing import Playing

TTL_MS = 60_000
FAR_MS = 3_600_000


class StoreStage(Playing):
    """The hooks and knobs of a store's contract.

    A test gets a prefix of its own, under which its tables are; `tear_down` is to drop them.
    """

    has_threads: bool = True
    """Whether there are synchronous transactions, for handlers in threads."""
    lets_others_write: bool = True
    """Whether two transactions can have written at the same time; SQLite has one writer."""
    tells_others: bool = False
    """Whether `watch` hears of rows that another store wrote, in another process too."""

    prefix: str
    lease: Lease

    # --- hooks

    def make_store(self, **settings: Any) -> Store:
        """Return a new store, not yet open, with this test's ``prefix``; settings are those of `Database`."""
        raise NotImplementedError("a store contract needs make_store(**settings): Database(url, prefix=self.prefix)")

    def session(self, store: Store) -> AbstractAsyncContextManager[Any]:
        """Return an `AsyncSession` on the database of a store, as an application has one."""
        raise NotImplementedError("a store contract needs session(store): an AsyncSession on its database")

    async def tear_down(self) -> None:
        """Clean up after a test: drop its tables. All stores are closed by then."""

    # --- running

    def _begin(self) -> None:
        self.prefix = f"c{uuid4().hex[:12]}_"

    async def _end(self) -> None:
        await self.tear_down()

    # --- acting

    async def connect(self, **settings: Any) -> Store:
        """Make and open a store; it is closed when the test ends."""
        store = self.make_store(**settings)
        await store.open("apply")
        self._open.push_async_callback(store.close)
        return store

    async def relay(self, **settings: Any) -> Store:
        """Connect, and become the leader."""
        store = await self.connect(**settings)
        lease = await store.lead("relay one", TTL_MS)
        assert lease is not None, "nobody leads: whoever wants to can"
        self.lease = lease
        return store

    async def emit(self, store: Store, *entries: Entry | str) -> None:
        """Commit entries, in one transaction; a text is the id of one."""
        async with self.session(store) as session:
            store.add(session, [entry if isinstance(entry, Entry) else promised(entry) for entry in entries])
            await session.commit()

    async def claimed(self, store: Store, without: Sequence[Row] = (), limit: int = 100) -> list[str]:
        """Return the ids of what can be published now."""
        return [row.message.id for row in await store.claim(limit, [row.seq for row in without])]

    async def mark(self, store: Store, *marks: Mark) -> None:
        """Mark rows as the leader."""
        assert await store.mark(self.lease, marks), "the leader was not let mark"

    async def rows(self, store: Store, *ids: str) -> list[Row]:
        """Return claimable rows by their ids."""
        found = {row.message.id: row for row in await store.claim(1000, [])}
        return [found[identity] for identity in ids]

    async def only(self, store: Store, state: State) -> Held:
        """Return the one row in a state."""
        found = await store.find([state], 100)
        assert len(found) == 1, f"one row is {state}, not {[held.id for held in found]}"
        return found[0]

    async def sent(self, store: Store, *ids: str) -> None:
        """Mark rows as sent."""
        await self.mark(store, *(Sent(row.seq) for row in await self.rows(store, *ids)))


def promised(identity: str, key: str = "", wait_ms: int = 0, at_ms: int | None = None, **fields: Any) -> Entry:
    """Return an entry with a small message."""
    given = {"exchange": "events", "routing_key": "order.created", "body": identity.encode(), **fields}
    return Entry(Message(id=identity, **given), key, wait_ms, at_ms)
