"""Admitting: a message is handled once, in the transaction of what its handler does.

Rule: new is what no committed transaction has recorded; who comes while another works waits for its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from carom.ports import Store, Unit
from carom.testing.contracts.store.stage import StoreStage, promised

ONE = [("m", 1)]


class Admitting(StoreStage):
    """What `begin`, `admit` and `commit` promise."""

    async def admitted(
        self, store: Store, listener: str, *arrivals: tuple[str, int], commit: bool = True, synchronous: bool = False
    ) -> Sequence[bool]:
        """Admit arrivals in a transaction of their own."""
        async with store.begin(synchronous=synchronous) as unit:
            new = await unit.admit(listener, arrivals)
            if commit:
                await unit.commit()
        return list(new)

    async def test_a_message_is_new_once(self) -> None:
        """Whatever attempt comes then."""
        store = await self.connect()
        assert await self.admitted(store, "billing", ("m", 1)) == [True]
        assert await self.admitted(store, "billing", ("m", 1)) == [False]
        assert await self.admitted(store, "billing", ("m", 2)) == [False]

    async def test_each_listener_handles_a_message(self) -> None:
        """They do not know each other."""
        store = await self.connect()
        assert await self.admitted(store, "billing", ("m", 1)) == [True]
        assert await self.admitted(store, "shipping", ("m", 1)) == [True]

    async def test_what_was_rolled_back_is_new(self) -> None:
        """Its handler failed, or the process died."""
        store = await self.connect()
        assert await self.admitted(store, "billing", ("m", 1), commit=False) == [True]
        assert await self.admitted(store, "billing", ("m", 1)) == [True]

    async def test_an_exception_rolls_back(self) -> None:
        """And goes on its way."""
        store = await self.connect()

        async def fail() -> None:
            async with store.begin(synchronous=False) as unit:
                await unit.admit("billing", ONE)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await self.admitted(store, "billing", ("m", 1)) == [True]

    async def test_of_a_batch_each_is_told_apart(self) -> None:
        """What was handled, what is new, and the second of two that are the same."""
        store = await self.connect()
        await self.admitted(store, "billing", ("b", 1), ("d", 1))
        arrivals = [("d", 1), ("a", 1), ("b", 2), ("c", 1), ("a", 1), ("c", 2)]
        assert await self.admitted(store, "billing", *arrivals) == [False, True, False, True, False, False]
        assert await self.admitted(store, "billing", *arrivals) == [False] * 6
        assert await self.admitted(store, "billing") == []

    async def test_a_large_batch_is_admitted_at_once(self) -> None:
        """In any order."""
        store = await self.connect()
        arrivals = [(f"{number * 7919 % 500:03}", 1) for number in range(500)]
        assert await self.admitted(store, "billing", *arrivals) == [True] * 500
        assert await self.admitted(store, "billing", *reversed(arrivals), ("new", 1)) == [False] * 500 + [True]

    async def test_two_at_once_are_handled_once(self) -> None:
        """The second waits for the first to end, and then it is a duplicate."""
        store = await self.connect()
        admitted = asyncio.Event()
        go_on = asyncio.Event()

        async def first() -> None:
            async with store.begin(synchronous=False) as unit:
                assert list(await unit.admit("billing", ONE)) == [True]
                admitted.set()
                await go_on.wait()
                await unit.commit()

        running = asyncio.create_task(first())
        await admitted.wait()
        second = asyncio.create_task(self.admitted(store, "billing", ("m", 1)))
        await self.wait(100)
        assert not second.done(), "the first has not ended"
        go_on.set()
        assert await second == [False]
        await running

    async def test_the_second_of_two_at_once_is_new_when_the_first_fails(self) -> None:
        """Nobody handled it."""
        store = await self.connect()
        async with store.begin(synchronous=False) as unit:
            await unit.admit("billing", ONE)
            second = asyncio.create_task(self.admitted(store, "billing", ("m", 1)))
            await self.wait(50)
            assert not second.done(), "the first has not ended"
        assert await second == [True]

    async def test_batches_that_overlap_do_not_wait_for_each_other(self) -> None:
        """Whatever order their messages are in: every message is new for one of them."""
        store = await self.connect()
        ids = [f"{number:02}" for number in range(40)]

        async def handle(arrivals: Sequence[tuple[str, int]]) -> int:
            return sum(await self.admitted(store, "billing", *arrivals))

        ways = [ids, ids[::-1], ids[20:] + ids[:20], ids[::2] + ids[1::2]]
        counts = await asyncio.gather(*(handle([(identity, 1) for identity in way]) for way in ways))
        assert sum(counts) == 40

    async def test_what_a_handler_emits_joins_its_transaction(self) -> None:
        """It comes and goes with it."""
        store = await self.connect()
        for commits in (False, True):
            async with store.begin(synchronous=False) as unit:
                await unit.admit("billing", ONE)
                store.add(unit.session, [promised(f"commits {commits}")])
                if commits:
                    await unit.commit()
        assert await self.claimed(store) == ["commits True"]

    async def test_a_commit_of_a_handler_wakes(self) -> None:
        """As any other does."""
        store = await self.connect()
        woken: list[int] = []
        async with store.watch(lambda: woken.append(1)):
            await self.until(lambda: bool(woken) or not self.tells_others, "the first wake: listening has begun")
            before = len(woken)
            async with store.begin(synchronous=False) as unit:
                store.add(unit.session, [promised("a")])
                await unit.commit()
            await self.until(lambda: len(woken) > before, "a wake after the commit")

    async def test_a_thread_has_a_session_of_its_own_kind(self) -> None:
        """Synchronous, in the same database, with the same promises."""
        if not self.has_threads:
            return
        store = await self.connect()

        async def handle(unit: Unit, identity: str) -> None:
            await asyncio.to_thread(store.add, unit.session, [promised(identity)])

        async with store.begin(synchronous=True) as unit:
            assert list(await unit.admit("billing", ONE)) == [True]
            await handle(unit, "rolled back")
        async with store.begin(synchronous=True) as unit:
            assert list(await unit.admit("billing", [*ONE, ("n", 1)])) == [True, True]
            await handle(unit, "committed")
            await unit.commit()
        assert await self.admitted(store, "billing", ("m", 1), ("n", 1), synchronous=True) == [False, False]
        assert await self.admitted(store, "billing", ("m", 1)) == [False]
        assert await self.claimed(store) == ["committed"]

    async def test_what_was_seen_is_forgotten_in_time(self) -> None:
        """Some at a time; then it would be handled again."""
        store = await self.connect(keep_seen=0.2)
        await self.admitted(store, "billing", ("a", 1), ("b", 1), ("c", 1))
        assert await store.forget_seen(10) == 0
        await self.wait(250)
        assert await store.forget_seen(2) == 2
        assert await store.forget_seen(2) == 1
        assert await store.forget_seen(2) == 0
        assert await self.admitted(store, "billing", ("a", 1)) == [True]

    async def test_an_error_of_somebody_elses_is_neither_passing_nor_absence(self) -> None:
        """It is the handler's."""
        store = await self.connect()
        for error in (ValueError("deadlock detected"), KeyError("40001"), FileNotFoundError("no such file")):
            assert not store.is_passing(error)
            assert not store.is_absence(error)
