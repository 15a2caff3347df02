"""A store whose outbox is the table of kbairak/outbox, which its own relay may publish from at the same time.

Their relay takes rows that are unsent and due, ``FOR UPDATE SKIP LOCKED``, and publishes them while it has them
locked. Ours passes over what is locked, and what it takes is due only in a while: in one statement ``send_after`` moves
by the *hold*, so that theirs does not see it, and no transaction stays open while the broker is asked. What a relay
took and died with is due again when the hold is over. A failure is a wait of the same kind; what is parked is due in
the year 9000. How often a row failed, and why, is in a small table of Carom's own.

Rule: a row that somebody else has is not taken, and what was taken is let go of only while it is still held by us.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Integer, MetaData, Table

from carom.core.durations import milliseconds
from carom.core.relaying import Again, Backlog, Held, Mark, Row, Sent, State
from carom.errors import ConfigurationError, SchemaMismatch
from carom.ports import Database, KbairakTable, Lease, Mode
from carom.stores import sessions
from carom.stores.kbairak_table import CHANNEL, KbairakInsertion, quoted, row, statements, tracking
from carom.stores.marking import RELAY
from carom.stores.sql import SqlStore
from carom.stores.watching import Watching

_OURS = "unnest(CAST(:ids AS bigint[]), CAST(:untils AS timestamptz[])) AS w(id, until)"
NEVER = "timestamptz '9000-01-01 00:00:00+00'"
_LOCK = 0x6B626169
_STATES: dict[State, str] = {
    "ready": "o.sent_at IS NULL AND o.send_after <= {now}",
    "later": "o.sent_at IS NULL AND o.send_after > {now} AND k.id IS NULL",
    "failing": "o.sent_at IS NULL AND o.send_after > {now} AND k.id IS NOT NULL AND k.parked_at IS NULL",
    "parked": "o.sent_at IS NULL AND o.send_after > {now} AND k.parked_at IS NOT NULL",
    "sent": "o.sent_at IS NOT NULL",
}


@dataclass(frozen=True, slots=True)
class _Hold:
    """Until when a row is ours, as the table says, and when we took it by our own clock."""

    until: datetime
    taken: float


def _pairs(held: Mapping[int, _Hold]) -> dict[str, object]:
    return {"ids": list(held), "untils": [hold.until for hold in held.values()]}


class KbairakStore(SqlStore):
    """PostgreSQL with their outbox, and Carom's inbox, lease, and notes of failures beside it."""

    def __init__(self, database: Database, theirs: KbairakTable, now_ms: Callable[[], int] | None = None) -> None:
        """Connect to nothing yet. Raises ConfigurationError."""
        super().__init__(database, now_ms)
        place = self._place
        if place.dialect.name != "postgresql":
            raise ConfigurationError(f"the table of kbairak/outbox is one of PostgreSQL's, and this is {place.where}")
        self._theirs = theirs
        self._table = quoted(theirs.table)
        self._notes = place.names.table("kbairak")
        self._hold_ms = max(1_000, milliseconds(theirs.hold))
        self._held: dict[int, _Hold] = {}
        self._count = 0
        self._watching = Watching(place, lambda: self._count, CHANNEL)
        self._insertion = KbairakInsertion(place.dialect, place.names, theirs=theirs)
        schema, _, name = theirs.table.rpartition(".")
        table = Table(name, MetaData(), Column("id", Integer, primary_key=True), schema=schema or None)
        self._writer = sessions.Writer(self._insertion, table, None)

    async def open(self, mode: Mode) -> None:
        """Connect and see to the tables, theirs too. Raises DatabaseUnavailable or SchemaMismatch."""
        await super().open(mode)
        if mode == "ignore":
            return
        has = "SELECT to_regclass(:name) IS NOT NULL"
        if mode == "apply":
            async with self._place.transaction("upgrading") as connection:
                await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
                if not (await self._place.execute(connection, has, {"name": self._table})).scalar():
                    for statement in statements(self._theirs.table):
                        await connection.exec_driver_sql(statement)
                await connection.exec_driver_sql(
                    f"CREATE TABLE IF NOT EXISTS {self._notes} (id bigint PRIMARY KEY, attempts integer NOT NULL, "
                    "last_error text, parked_at timestamptz)"
                )
        for name in (self._table, self._notes):
            if not (await self._place.run("comparing", has, {"name": name})).scalar():
                raise SchemaMismatch(f"{self.where} has no table {name}; run carom db upgrade")

    async def resign(self, lease: Lease) -> None:
        """Stop being the leader, and let go of what is still held, so that nobody waits for the hold to end."""
        sql = (
            f"UPDATE {self._table} AS o SET send_after = {self._place.dialect.now} FROM {_OURS} "
            "WHERE o.id = w.id AND o.send_after = w.until AND o.sent_at IS NULL"
        )
        held, self._held = self._held, {}
        if held:
            await self._place.run("letting go", sql, _pairs(held))
        await super().resign(lease)

    # --- relaying

    async def release(self) -> int | None:
        """Return how long until the next row is due: a claim finds by itself what is due."""
        ms, now = self._place.dialect.ms, self._place.dialect.now
        first = (
            f"SELECT {ms('MIN(send_after)')} - {ms(now)} FROM {self._table} "
            f"WHERE sent_at IS NULL AND send_after > {now} AND send_after < {NEVER}"
        )
        wait: int | None = (await self._place.run("releasing", first)).scalar()
        return None if wait is None else max(0, wait)

    async def claim(self, limit: int, without: Collection[int]) -> Sequence[Row]:
        """Take rows that are due and nobody has locked, in the order they were written."""
        await self._hold_on(without)
        let_go = {seq: hold for seq, hold in self._held.items() if seq not in without}
        later = self._place.dialect.later(":hold")
        ours = f"(o.id, o.send_after) IN (SELECT w.id, w.until FROM {_OURS})"
        taken = (
            f"WITH due AS (SELECT o.id, k.attempts FROM {self._table} AS o LEFT JOIN {self._notes} AS k ON k.id = o.id "
            f"WHERE o.sent_at IS NULL AND (o.send_after <= {self._place.dialect.now} OR {ours}) "
            f"AND {self._place.dialect.apart('o.id', 'without')} "
            "ORDER BY o.created_at, o.id LIMIT :limit FOR UPDATE OF o SKIP LOCKED) "
            f"UPDATE {self._table} AS o SET send_after = {later} FROM due WHERE o.id = due.id "
            "RETURNING o.created_at, o.send_after, o.id, o.routing_key, o.body, CAST(o.tracking_ids AS text), "
            "CAST(EXTRACT(EPOCH FROM o.expiration) * 1000 AS bigint), due.attempts"
        )
        given = {"limit": limit, "without": list(without), "hold": self._hold_ms, **_pairs(let_go)}
        began = time.monotonic()
        found: Sequence[Any] = (await self._place.run("claiming", taken, given)).all()
        for seq in let_go:
            del self._held[seq]
        for one in found:
            self._held[one[2]] = _Hold(one[1], began)
        self._count += len(found)
        return [row(one[2:], self._theirs) for one in sorted(found, key=lambda one: (one[0], one[2]))]

    async def mark(self, lease: Lease, marks: Sequence[Mark]) -> bool:
        """Write down what became of rows, all at once; False, and nothing is written, when the lease is another's."""
        failed = [mark for mark in marks if not isinstance(mark, Sent)]
        given = {
            "name": RELAY,
            "holder": lease.holder,
            "epoch": lease.epoch,
            "sent": [mark.seq for mark in marks if isinstance(mark, Sent)],
            "failed": [mark.seq for mark in failed],
            "waits": [mark.wait_ms if isinstance(mark, Again) else None for mark in failed],
            "reasons": [mark.reason for mark in failed],
        }
        is_ours = bool((await self._place.run("marking", self._marked(), given)).scalar())
        if is_ours:
            for mark in marks:
                self._held.pop(mark.seq, None)
        return is_ours

    def _marked(self) -> str:
        now, later = self._place.dialect.now, self._place.dialect.later
        mine = "EXISTS (SELECT 1 FROM mine)"
        sent = f"UPDATE {self._table} SET sent_at = {now}" if self._place.keep_sent_ms else f"DELETE FROM {self._table}"
        wanted = (
            "unnest(CAST(:failed AS bigint[]), CAST(:waits AS bigint[]), CAST(:reasons AS text[])) "
            "AS w(seq, wait, reason)"
        )
        return (
            f"WITH mine AS (SELECT set_config('synchronous_commit', 'off', true) FROM {self._place.names.lease} "
            "WHERE name = :name AND holder = :holder AND epoch = :epoch FOR SHARE), "
            f"sent AS ({sent} WHERE {self._place.dialect.among('id', 'sent')} AND {mine}), "
            f"well AS (DELETE FROM {self._notes} WHERE {self._place.dialect.among('id', 'sent')} AND {mine}), "
            f"failed AS (UPDATE {self._table} AS o SET send_after = COALESCE({later('w.wait')}, {NEVER}) "
            f"FROM {wanted} WHERE o.id = w.seq AND o.sent_at IS NULL AND {mine} RETURNING w.seq, w.wait, w.reason), "
            f"noted AS (INSERT INTO {self._notes} AS k (id, attempts, last_error, parked_at) "
            f"SELECT seq, 1, reason, CASE WHEN wait IS NULL THEN {now} END FROM failed "
            "ON CONFLICT (id) DO UPDATE SET attempts = k.attempts + 1, last_error = excluded.last_error, "
            "parked_at = excluded.parked_at) "
            "SELECT count(*) FROM mine"
        )

    async def _hold_on(self, without: Collection[int]) -> None:
        """Hold what has been in hand for long for longer: the broker has not said yet what became of it."""
        old = time.monotonic() - self._hold_ms / 2_000
        long = {seq: hold for seq in without if (hold := self._held.get(seq)) is not None and hold.taken < old}
        if not long:
            return
        sql = (
            f"UPDATE {self._table} AS o SET send_after = {self._place.dialect.later(':hold')} "
            f"FROM {_OURS} WHERE o.id = w.id AND o.send_after = w.until AND o.sent_at IS NULL "
            "RETURNING o.id, o.send_after"
        )
        given = {"hold": self._hold_ms, **_pairs(long)}
        began = time.monotonic()
        found: Sequence[Any] = (await self._place.run("holding", sql, given)).all()
        for seq, until in found:
            self._held[seq] = _Hold(until, began)

    # --- for people

    async def backlog(self) -> Backlog:
        """Count what is in it; what a relay has in its hands counts as waiting."""
        joined = f"FROM {self._table} AS o LEFT JOIN {self._notes} AS k ON k.id = o.id"
        counts = ", ".join(f"count(*) FILTER (WHERE {self._where(state)})" for state in _STATES)
        now, ms = self._place.dialect.now, self._place.dialect.ms
        oldest = f"{ms(now)} - {ms('MIN(o.send_after) FILTER (WHERE ' + self._where('ready') + ')')}"
        found: Sequence[Any] = (await self._place.run("counting", f"SELECT {counts}, {oldest} {joined}")).one()
        ready, later, failing, parked, sent, age = found
        return Backlog(ready, later, failing, parked, sent, max(0, age or 0))

    async def find(self, states: Collection[State], limit: int) -> Sequence[Held]:
        """Return rows in these states, oldest first."""
        ms = self._place.dialect.ms
        found: list[Held] = []
        for state in dict.fromkeys(states):
            sql = (
                "SELECT o.id, CAST(o.tracking_ids AS text), o.routing_key, k.attempts, k.last_error, "
                f"{ms('o.created_at')}, {ms('o.send_after')}, {ms('o.sent_at')} "
                f"FROM {self._table} AS o LEFT JOIN {self._notes} AS k ON k.id = o.id "
                f"WHERE {self._where(state)} ORDER BY o.id LIMIT :limit"
            )
            rows = (await self._place.run("finding", sql, {"limit": limit})).all()
            found += [self._shown(state, one) for one in rows]
        return sorted(found, key=lambda held: held.seq)[:limit]

    async def retry(self, seqs: Collection[int] | None) -> int:
        """Let parked and failing rows, these or all, be published as if they had never failed; return how many."""
        chosen = "" if seqs is None else f"AND {self._place.dialect.among('k.id', 'seqs')}"
        sql = (
            f"WITH freed AS (DELETE FROM {self._notes} AS k USING {self._table} AS o "
            f"WHERE o.id = k.id AND o.sent_at IS NULL {chosen} RETURNING k.id) "
            f"UPDATE {self._table} AS o SET send_after = {self._place.dialect.now} FROM freed WHERE o.id = freed.id"
        )
        return await self._freed("retrying", sql, seqs)

    async def expedite(self, seqs: Collection[int]) -> int:
        """Let rows that wait until they are due be published now; return how many."""
        now = self._place.dialect.now
        sql = (
            f"UPDATE {self._table} SET send_after = {now} WHERE sent_at IS NULL AND send_after > {now} "
            f"AND send_after < {NEVER} AND {self._place.dialect.among('id', 'seqs')}"
        )
        return await self._freed("expediting", sql, seqs)

    async def cancel(self, seqs: Collection[int]) -> int:
        """Delete rows that were not published; return how many. One in flight is published all the same."""
        sql = f"DELETE FROM {self._table} WHERE sent_at IS NULL AND {self._place.dialect.among('id', 'seqs')}"
        return (await self._place.run("cancelling", sql, {"seqs": list(seqs)})).rowcount

    async def forget_sent(self, limit: int) -> int:
        """Delete some of what was kept long enough after it was sent, whoever sent it; return how many.

        Without a ``keep_sent`` nothing is: what their relay keeps is theirs. Notes of failures of rows that are sent,
        or gone, are deleted with it: their relay knows nothing of them.
        """
        gone = f"SELECT 1 FROM {self._table} AS o WHERE o.id = k.id AND o.sent_at IS NULL"
        await self._place.run("forgetting failures", f"DELETE FROM {self._notes} AS k WHERE NOT EXISTS ({gone})")
        if not self._place.keep_sent_ms:
            return 0
        old = (
            f"SELECT id FROM {self._table} WHERE sent_at <= {self._place.dialect.later(':keep')} "
            "ORDER BY sent_at LIMIT :limit"
        )
        given = {"keep": -self._place.keep_sent_ms, "limit": limit}
        sql = f"DELETE FROM {self._table} WHERE id IN ({old})"
        return (await self._place.run("forgetting what was sent", sql, given)).rowcount

    async def _freed(self, doing: str, sql: str, seqs: Collection[int] | None) -> int:
        given: dict[str, object] = {} if seqs is None else {"seqs": list(seqs)}
        changed = (await self._place.run(doing, sql, given)).rowcount
        if changed:
            await self._wake()
        return changed

    def _where(self, state: State) -> str:
        return _STATES[state].format(now=self._place.dialect.now)

    def _shown(self, state: State, found: Sequence[Any]) -> Held:
        seq, written, routing_key, failures, error, created_ms, due_ms, sent_ms = found
        waits = due_ms if state in {"later", "failing"} else None
        identity = (tracking(written) or [""])[-1]
        return Held(
            seq,
            identity,
            state,
            self._theirs.exchange,
            routing_key or "",
            failures=failures or 0,
            error=error or "",
            created_ms=created_ms or 0,
            due_ms=waits,
            sent_ms=sent_ms,
        )
