"""Marking: what became of rows, written by the leader and by nobody else.

Rule: the lease and the rows are one transaction, and the lease is locked in it: whoever takes the lead waits for a mark
under way, and a mark that comes later finds the lease another's and does nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from carom.core.relaying import Again, Mark, Parked, Sent
from carom.ports import Lease
from carom.stores.place import Place

RELAY = "relay"
"""The name of the lease."""

Marking: TypeAlias = Callable[[Lease, Sequence[Mark]], Awaitable[bool]]
_MINE = "name = :name AND holder = :holder AND epoch = :epoch"
_UNSENT = "sent_at IS NULL AND parked_at IS NULL"


def marking(place: Place) -> Marking:
    """Return how rows are marked in a place."""
    return _InOne(place) if place.dialect.name == "postgresql" else _OneByOne(place)


def _sent(place: Place, among: str) -> str:
    """Return what becomes of rows that were sent."""
    outbox = place.names.outbox
    if place.keep_sent_ms:
        return f"UPDATE {outbox} SET sent_at = {place.dialect.now} WHERE {among}"
    return f"DELETE FROM {outbox} WHERE {among}"


def _again(place: Place, wait: str, reason: str) -> str:
    return (
        f"UPDATE {place.names.outbox} AS o SET attempts = o.attempts + 1, last_error = {reason}, ready_at = NULL, "
        f"wait_until = {place.dialect.later(wait)}"
    )


def _parked(place: Place, reason: str) -> str:
    return (
        f"UPDATE {place.names.outbox} AS o SET attempts = o.attempts + 1, last_error = {reason}, "
        f"parked_at = {place.dialect.now}"
    )


def _given(lease: Lease) -> dict[str, object]:
    return {"name": RELAY, "holder": lease.holder, "epoch": lease.epoch}


class _InOne:
    """All of it in one statement: one round trip for a batch that was sent."""

    def __init__(self, place: Place) -> None:
        self._place = place
        mine = "EXISTS (SELECT 1 FROM mine)"
        # Nobody waits for the disk: a mark that a crash of the server undoes is a message that is published again.
        unhurried = "set_config('synchronous_commit', 'off', true)"
        lease = f"mine AS (SELECT {unhurried} FROM {place.names.lease} WHERE {_MINE} FOR SHARE)"
        sent = f"sent AS ({_sent(place, place.dialect.among('seq', 'sent'))} AND {mine})"
        wanted = "FROM unnest(CAST(:{0} AS bigint[]), {1}CAST(:{0}_reasons AS text[])) AS w(seq, {2}reason) "
        which = f"WHERE o.seq = w.seq AND {_UNSENT} AND {mine}"
        waits = "CAST(:again_waits AS bigint[]), "
        again = f"again AS ({_again(place, 'w.wait', 'w.reason')} {wanted.format('again', waits, 'wait, ')}{which})"
        parked = f"parked AS ({_parked(place, 'w.reason')} {wanted.format('parked', '', '')}{which})"
        answer = "SELECT count(*) FROM mine"
        self._quick = f"WITH {lease}, {sent} {answer}"
        self._whole = f"WITH {lease}, {sent}, {again}, {parked} {answer}"

    async def __call__(self, lease: Lease, marks: Sequence[Mark]) -> bool:
        again = [mark for mark in marks if isinstance(mark, Again)]
        parked = [mark for mark in marks if isinstance(mark, Parked)]
        given = _given(lease) | {"sent": [mark.seq for mark in marks if isinstance(mark, Sent)]}
        if not again and not parked:
            return bool((await self._place.run("marking", self._quick, given)).scalar())
        given |= {
            "again": [mark.seq for mark in again],
            "again_waits": [mark.wait_ms for mark in again],
            "again_reasons": [mark.reason for mark in again],
            "parked": [mark.seq for mark in parked],
            "parked_reasons": [mark.reason for mark in parked],
        }
        return bool((await self._place.run("marking", self._whole, given)).scalar())


class _OneByOne:
    """A transaction that begins by writing to the lease, so that it has it to itself."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def __call__(self, lease: Lease, marks: Sequence[Mark]) -> bool:
        place = self._place
        async with place.transaction("marking") as connection:
            mine = f"UPDATE {place.names.lease} SET epoch = epoch WHERE {_MINE}"
            if (await place.execute(connection, mine, _given(lease))).rowcount != 1:
                return False
            sent = [mark.seq for mark in marks if isinstance(mark, Sent)]
            if sent:
                sql = _sent(place, place.dialect.among("seq", "seqs"))
                await place.execute(connection, sql, {"seqs": place.dialect.numbers(sent)})
            which = f"WHERE seq = :seq AND {_UNSENT}"
            for mark in marks:
                if isinstance(mark, Again):
                    given = {"seq": mark.seq, "reason": mark.reason, "wait": mark.wait_ms}
                    await place.execute(connection, f"{_again(place, ':wait', ':reason')} {which}", given)
                elif isinstance(mark, Parked):
                    given = {"seq": mark.seq, "reason": mark.reason}
                    await place.execute(connection, f"{_parked(place, ':reason')} {which}", given)
        return True
