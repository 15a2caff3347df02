"""Relaying: claims hand out what is ready, in order, and marks say what became of it.

Rule: a row is handed out until it is marked; whoever claims says what he has already.
"""

from __future__ import annotations

import pytest

from carom.core.relaying import Again, Parked, Sent
from carom.testing.contracts.store.stage import FAR_MS, StoreStage, promised


class Relaying(StoreStage):
    """What `claim` and `mark` promise."""

    async def test_a_claim_takes_nothing_away(self) -> None:
        """What nobody marks is claimed again: a relay may have died with it."""
        store = await self.connect()
        await self.emit(store, "a", "b")
        assert await self.claimed(store) == ["a", "b"]
        assert await self.claimed(store) == ["a", "b"]

    async def test_a_claim_has_a_limit(self) -> None:
        """The oldest come first."""
        store = await self.connect()
        await self.emit(store, "a", "b", "c")
        assert await self.claimed(store, limit=2) == ["a", "b"]

    async def test_what_is_in_flight_is_left_out(self) -> None:
        """One, many, and far more than there are."""
        store = await self.connect()
        await self.emit(store, *(f"{number:04}" for number in range(300)))
        rows = await store.claim(200, [])
        assert len(await store.claim(1000, [row.seq for row in rows])) == 100
        assert await self.claimed(store, [rows[0]], 1) == ["0001"]
        assert len(await store.claim(1000, range(10_000_000, 10_005_000))) == 300

    async def test_what_is_committed_late_is_not_passed_over(self) -> None:
        """Its place is before what was claimed, marked and gone already."""
        if not self.lets_others_write:
            return
        store = await self.relay()
        async with self.session(store) as slow:
            store.add(slow, [promised("slow")])
            await slow.flush()
            await self.emit(store, "quick")
            await self.sent(store, "quick")
            assert await self.claimed(store) == []
            await slow.commit()
        await self.emit(store, "next")
        assert await self.claimed(store) == ["slow", "next"]

    async def test_what_was_sent_is_gone(self) -> None:
        """Nothing is kept unless it is asked for."""
        store = await self.relay()
        await self.emit(store, "a", "b", "c")
        await self.sent(store, "a", "c")
        assert await self.claimed(store) == ["b"]
        assert [held.id for held in await store.find(("sent", "ready"), 10)] == ["b"]

    async def test_what_was_sent_can_be_kept(self) -> None:
        """It is found, and not claimed."""
        store = await self.relay(keep_sent="1h")
        await self.emit(store, "a", "b")
        await self.sent(store, "a")
        assert await self.claimed(store) == ["b"]
        held = await self.only(store, "sent")
        assert held.id == "a"
        assert held.sent_ms is not None
        assert held.sent_ms >= held.created_ms

    async def test_what_failed_waits_and_is_counted(self) -> None:
        """With its reason."""
        store = await self.relay()
        await self.emit(store, "a")
        (row,) = await store.claim(1, [])
        await self.mark(store, Again(row.seq, 300, "returned: 312 NO_ROUTE"))
        assert await self.claimed(store) == []
        held = await self.only(store, "failing")
        assert (held.id, held.failures, held.error) == ("a", 1, "returned: 312 NO_ROUTE")
        wait_ms = await store.release()
        assert wait_ms is not None
        assert 0 < wait_ms <= 300
        await self.wait(wait_ms + 20)
        assert await store.release() is None
        (row,) = await store.claim(1, [])
        assert row.failures == 1
        await self.mark(store, Again(row.seq, FAR_MS, "again"))
        held = await self.only(store, "failing")
        assert (held.failures, held.error) == (2, "again")

    async def test_what_is_parked_is_not_claimed(self) -> None:
        """People find it."""
        store = await self.relay()
        await self.emit(store, "a", "b")
        (row, _) = await store.claim(2, [])
        await self.mark(store, Parked(row.seq, "no such exchange"))
        assert await self.claimed(store) == ["b"]
        held = await self.only(store, "parked")
        assert (held.id, held.failures, held.error, held.due_ms) == ("a", 1, "no such exchange", None)
        assert await store.release() is None

    async def test_marks_of_all_kinds_go_together(self) -> None:
        """In one call."""
        store = await self.relay()
        await self.emit(store, "a", "b", "c", "d", "e")
        a, b, c, d, e = await store.claim(5, [])
        marks = (Sent(a.seq), Again(b.seq, FAR_MS, "b"), Parked(c.seq, "c"), Again(d.seq, 2 * FAR_MS, "d"), Sent(e.seq))
        await self.mark(store, *marks)
        await self.mark(store)
        assert await self.claimed(store) == []
        found = await store.find(("failing", "parked"), 10)
        assert [(held.id, held.state, held.error) for held in found] == [
            ("b", "failing", "b"),
            ("c", "parked", "c"),
            ("d", "failing", "d"),
        ]
        assert found[0].due_ms is not None
        assert found[2].due_ms is not None
        assert abs(found[2].due_ms - found[0].due_ms - FAR_MS) < 1_000

    async def test_marking_what_is_gone_does_nothing(self) -> None:
        """Somebody cancelled it while it was in flight."""
        store = await self.relay()
        await self.emit(store, "a", "b")
        (row, _) = await store.claim(2, [])
        assert await store.cancel([row.seq]) == 1
        await self.mark(store, Again(row.seq, 1, "no"), Parked(row.seq, "no"), Sent(row.seq))
        assert await self.claimed(store) == ["b"]

    async def test_a_reason_may_be_any_text_that_a_broker_says(self) -> None:
        """In any language."""
        store = await self.relay()
        await self.emit(store, "a")
        (row,) = await store.claim(1, [])
        await self.mark(store, Parked(row.seq, "кролик 🐇 '; DROP TABLE"))
        assert (await self.only(store, "parked")).error == "кролик 🐇 '; DROP TABLE"

    async def test_a_key_waits_behind_its_row_that_failed(self) -> None:
        """And no other key does, nor what has none."""
        store = await self.relay()
        await self.emit(store, promised("a1", "a"), promised("a2", "a"), promised("b1", "b"), "c", promised("a3", "a"))
        (row, *_) = await store.claim(1, [])
        await self.mark(store, Again(row.seq, 200, "nacked"))
        assert await self.claimed(store) == ["b1", "c"]
        await self.wait(220)
        await store.release()
        assert (await self.claimed(store))[0] == "a1"
        await self.sent(store, "a1")
        assert await self.claimed(store) == ["a2", "b1", "c", "a3"]

    async def test_a_key_does_not_wait_behind_what_is_not_due(self) -> None:
        """What was delayed on purpose holds up nobody."""
        store = await self.relay()
        await self.emit(store, promised("later", "a", wait_ms=FAR_MS), promised("now", "a"))
        assert await self.claimed(store) == ["now"]

    @pytest.mark.parametrize("end", ["parked", "sent", "cancelled"])
    async def test_a_key_goes_on_when_what_failed_has_ended(self, end: str) -> None:
        """However it did."""
        store = await self.relay(keep_sent="1h")
        await self.emit(store, promised("a1", "a"), promised("a2", "a"))
        (row, _) = await store.claim(2, [])
        await self.mark(store, Again(row.seq, FAR_MS, "nacked"))
        assert await self.claimed(store) == []
        if end == "cancelled":
            await store.cancel([row.seq])
        else:
            await self.mark(store, Parked(row.seq, "no") if end == "parked" else Sent(row.seq))
        assert await self.claimed(store) == ["a2"]

    async def test_a_later_failure_holds_up_nothing_before_it(self) -> None:
        """A row waits only for those before it."""
        store = await self.relay()
        await self.emit(store, promised("a1", "a"), promised("a2", "a"))
        (_, row) = await store.claim(2, [])
        await self.mark(store, Again(row.seq, FAR_MS, "nacked"))
        assert await self.claimed(store) == ["a1"]
