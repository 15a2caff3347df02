"""Emitting: a row is part of the caller's transaction: it comes with the commit and goes with the rollback.

Rule: what is claimed is what was emitted, byte for byte and type for type.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from carom.core.message import Message
from carom.core.relaying import Entry
from carom.errors import ConfigurationError
from carom.testing.contracts.store.stage import StoreStage, promised

HEADERS: dict[str, object] = {
    "none": None,
    "true": True,
    "false": False,
    "integer": 7,
    "least": -(2**63),
    "most": 2**63 - 1,
    "float": 0.1,
    "whole float": 2.0,
    "text": "zażółć 雪 🙂",
    "empty": "",
    "zero byte": "a\0b",
    "not utf-8": b"\xff\xfe".decode("utf-8", "surrogateescape"),
    "bytes": b"\x00\xff\xfe",
    "no bytes": b"",
    "moment": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
    "moment elsewhere": datetime(2024, 2, 29, 12, 30, 15, 250_000, tzinfo=timezone(timedelta(hours=2))),
    "decimal": Decimal("-12.50"),
    "list": [1, "two", None, [3.5, [b"\xff"]], {"four": Decimal(4)}],
    "map": {"a": {"b": {"c": [True, {"d": None}]}}},
    "dollars": {"$bytes": "these are none", "plain": {"$map": 1}},
    "no list": [],
    "no map": {},
}
BODIES = (b"", b"\x00\x00", bytes(range(256)), b"\xff\xfe\xc3\x28", b"x" * 1_000_000)


class Emitting(StoreStage):
    """What `add` promises."""

    async def test_what_is_committed_can_be_claimed(self) -> None:
        """One row for one entry."""
        store = await self.connect()
        await self.emit(store, "a", "b", "c")
        assert await self.claimed(store) == ["a", "b", "c"]

    async def test_adding_is_no_input_and_output(self) -> None:
        """Nothing is there before the session is flushed."""
        store = await self.connect()
        async with self.session(store) as session:
            store.add(session, [promised("a")])
            assert await self.claimed(store) == []
            await session.commit()
        assert await self.claimed(store) == ["a"]

    async def test_what_is_not_committed_is_not_seen(self) -> None:
        """Nor does it remain when the session is closed."""
        store = await self.connect()
        async with self.session(store) as session:
            store.add(session, [promised("a")])
            await session.flush()
        assert await self.claimed(store) == []

    async def test_rolling_back_a_fresh_session_leaves_nothing(self) -> None:
        """The session has run no statement yet: a row written now would be committed by itself."""
        store = await self.connect()
        async with self.session(store) as session:
            store.add(session, [promised("a")])
            await session.rollback()
            await session.commit()
        assert await self.claimed(store) == []

    async def test_rolling_back_after_the_flush_leaves_nothing(self) -> None:
        """The row was there, in the transaction."""
        store = await self.connect()
        async with self.session(store) as session:
            store.add(session, [promised("a")])
            await session.flush()
            await session.rollback()
            store.add(session, [promised("b")])
            await session.commit()
        assert await self.claimed(store) == ["b"]

    @pytest.mark.parametrize("flushed", [False, True])
    async def test_a_savepoint_takes_only_its_own_rows_along(self, flushed: bool) -> None:  # noqa: FBT001 - a parameter of a test
        """What was added before it, and after it, stays."""
        store = await self.connect()
        async with self.session(store) as session:
            store.add(session, [promised("before")])
            savepoint = await session.begin_nested()
            store.add(session, [promised("inside")])
            if flushed:
                await session.flush()
            await savepoint.rollback()
            kept = await session.begin_nested()
            store.add(session, [promised("kept")])
            await kept.commit()
            store.add(session, [promised("after")])
            await session.commit()
        assert await self.claimed(store) == ["before", "kept", "after"]

    async def test_rows_are_in_the_order_in_which_they_were_added(self) -> None:
        """One by one and many at a time."""
        store = await self.connect()
        ids = [f"{number:03}" for number in range(300)]
        async with self.session(store) as session:
            for identity in ids[:20]:
                store.add(session, [promised(identity)])
            store.add(session, [promised(identity) for identity in ids[20:]])
            store.add(session, [])
            await session.commit()
        assert await self.claimed(store, limit=1000) == ids

    async def test_the_same_message_can_be_promised_twice(self) -> None:
        """To two exchanges, say: each is a row."""
        store = await self.connect()
        await self.emit(store, "a", promised("a", exchange="others"), "a")
        assert await self.claimed(store) == ["a", "a", "a"]

    async def test_a_session_can_be_used_again(self) -> None:
        """A commit ends nothing but the transaction."""
        store = await self.connect()
        async with self.session(store) as session:
            for identity in ("a", "b"):
                store.add(session, [promised(identity)])
                await session.commit()
            await session.commit()
        assert await self.claimed(store) == ["a", "b"]

    async def test_every_property_comes_back(self) -> None:
        """All that a message has."""
        message = Message(
            body=b"body",
            exchange="events",
            routing_key="order.created",
            id="an-id",
            correlation_id="correlation",
            content_type="application/json",
            content_encoding="gzip",
            type="Order",
            app_id="shop",
            reply_to="answers",
            user_id="guest",
            expiration="60000",
            timestamp=1_700_000_000,
            priority=0,
            delivery_mode=1,
            headers=HEADERS,
        )
        store = await self.connect()
        await self.emit(store, Entry(message, "customer 7"), Entry(replace(message, headers={})))
        first, second = await store.claim(10, [])
        assert (first.message, first.ordering_key, first.failures) == (message, "customer 7", 0)
        assert (second.message, second.ordering_key) == (replace(message, headers={}), "")

    async def test_a_header_comes_back_as_it_was(self) -> None:
        """Each alone, so that it is written in the shortest way there is."""
        store = await self.connect()
        await self.emit(store, *(promised(name, headers={name: value}) for name, value in HEADERS.items()))
        for row in await store.claim(100, []):
            name = row.message.id
            assert row.message.headers == {name: HEADERS[name]}
            assert type(row.message.headers[name]) is type(HEADERS[name])

    async def test_a_body_comes_back_byte_for_byte(self) -> None:
        """Alone and among others."""
        store = await self.connect()
        for body in BODIES:
            await self.emit(store, promised("a", body=body))
        await self.emit(store, *(promised("a", body=body) for body in BODIES))
        assert [row.message.body for row in await store.claim(20, [])] == [*BODIES, *BODIES]

    @pytest.mark.parametrize(
        ("fields", "key"),
        [
            ({"headers": {"a": float("nan")}}, ""),
            ({"headers": {"a": object()}}, ""),
            ({"headers": {"a": {1: "no text"}}}, ""),
            ({"routing_key": "a\0b"}, ""),
            ({"routing_key": "x" * 256}, ""),
            ({"exchange": "\udcff"}, ""),
            ({}, "é" * 128),
        ],
    )
    async def test_what_cannot_be_kept_is_refused_at_once(self, fields: dict[str, Any], key: str) -> None:
        """And not by a flush somewhere else."""
        store = await self.connect()
        async with self.session(store) as session:
            with pytest.raises(ConfigurationError, match="cannot be kept"):
                store.add(session, [promised("a", key, **fields)])
            await session.commit()
        assert await self.claimed(store) == []

    async def test_what_is_no_session_is_refused(self) -> None:
        """With a sentence."""
        store = await self.connect()
        with pytest.raises(ConfigurationError, match="emit_on"):
            store.add(object(), [promised("a")])
