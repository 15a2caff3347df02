"""Tending: what people do with an outbox: count, find, retry, expedite, cancel; and what is forgotten in time.

Rule: what people do says how many rows it did it to, and never touches what was sent.
"""

from __future__ import annotations

import pytest

from carom.core.relaying import STATES, Again, Backlog, Parked
from carom.ports import Store
from carom.testing.contracts.store.stage import FAR_MS, StoreStage, promised


class Tending(StoreStage):
    """What `backlog`, `find`, `retry`, `expedite`, `cancel` and `forget_sent` promise."""

    async def of_all_kinds(self) -> Store:
        """Return a store with one row in each state, named for it."""
        store = await self.relay(keep_sent="1h")
        await self.emit(store, "sent", "failing", "parked", "ready", promised("later", wait_ms=FAR_MS))
        failing, parked = await self.rows(store, "failing", "parked")
        await self.mark(store, Again(failing.seq, FAR_MS, "later"), Parked(parked.seq, "never"))
        await self.sent(store, "sent")
        return store

    async def seqs(self, store: Store, *ids: str) -> list[int]:
        """Return the numbers of rows."""
        found = {held.id: held.seq for held in await store.find(STATES, 100)}
        return [found[identity] for identity in ids]

    async def test_nothing_is_counted_where_nothing_is(self) -> None:
        """All is zero."""
        store = await self.connect()
        assert await store.backlog() == Backlog()

    async def test_rows_are_counted_by_their_state(self) -> None:
        """And the oldest that is ready tells how long it has been."""
        store = await self.of_all_kinds()
        await self.wait(100)
        found = await store.backlog()
        assert (found.ready, found.later, found.failing, found.parked, found.sent) == (1, 1, 1, 1, 1)
        assert 100 <= found.oldest_ms < FAR_MS

    async def test_what_was_just_let_go_is_not_old(self) -> None:
        """It was late by nobody's fault."""
        store = await self.connect()
        await self.emit(store, promised("a", wait_ms=200))
        await self.wait(300)
        await store.release()
        assert (await store.backlog()).oldest_ms < 200

    @pytest.mark.parametrize("state", STATES)
    async def test_a_row_is_found_by_its_state(self, state: str) -> None:
        """And by no other."""
        store = await self.of_all_kinds()
        found = await store.find((state,), 10)  # type: ignore[arg-type]  # a State, which the parameter list loses
        assert [(held.id, held.state) for held in found] == [(state, state)]
        assert found[0].exchange == "events"
        assert found[0].routing_key == "order.created"
        assert (found[0].due_ms is not None) == (state in {"later", "failing"})
        assert (found[0].sent_ms is not None) == (state == "sent")

    async def test_rows_of_many_states_are_found_oldest_first(self) -> None:
        """Up to a limit."""
        store = await self.of_all_kinds()
        every = ["sent", "failing", "parked", "ready", "later"]
        assert [held.id for held in await store.find(STATES, 10)] == every
        assert [held.id for held in await store.find(STATES, 2)] == every[:2]
        assert await store.find((), 2) == []

    async def test_what_failed_can_be_tried_again(self) -> None:
        """As if it never had."""
        store = await self.of_all_kinds()
        assert await store.retry(None) == 2
        rows = await store.claim(10, [])
        assert [(row.message.id, row.failures) for row in rows] == [("failing", 0), ("parked", 0), ("ready", 0)]

    async def test_some_of_what_failed_can_be_tried_again(self) -> None:
        """And of what is named only that."""
        store = await self.of_all_kinds()
        assert await store.retry(await self.seqs(store, "parked", "sent", "later", "ready")) == 1
        assert await self.claimed(store) == ["parked", "ready"]
        assert await store.retry([]) == 0

    async def test_what_waits_can_be_let_go(self) -> None:
        """Because it was delayed, or because it failed."""
        store = await self.of_all_kinds()
        assert await store.expedite(await self.seqs(store, *STATES)) == 2
        rows = await store.claim(10, [])
        assert [(row.message.id, row.failures) for row in rows] == [("failing", 1), ("ready", 0), ("later", 0)]
        assert await store.expedite([]) == 0

    async def test_what_was_not_sent_can_be_cancelled(self) -> None:
        """Whatever it waits for."""
        store = await self.of_all_kinds()
        assert await store.cancel(await self.seqs(store, *STATES)) == 4
        assert [held.id for held in await store.find(STATES, 10)] == ["sent"]
        assert await store.cancel([]) == 0

    async def test_what_was_sent_is_forgotten_in_time(self) -> None:
        """Some at a time."""
        store = await self.relay(keep_sent=0.2)
        await self.emit(store, "a", "b", "c", "d")
        await self.sent(store, "a", "b", "c")
        assert await store.forget_sent(10) == 0
        await self.wait(250)
        assert await store.forget_sent(2) == 2
        assert await store.forget_sent(2) == 1
        assert await store.forget_sent(2) == 0
        assert [held.id for held in await store.find(STATES, 10)] == ["d"]
