"""Outbox: the messages that were promised in committed transactions, as a relay and as people work with them.

Rule: a claim locks nothing and remembers nothing. What is ready is found by its state and not by how far somebody has
read, so that a row committed late is never passed over; who may mark is decided by the lease, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from carom.core.message import Message
from carom.core.relaying import Backlog, Held, Mark, Row, State
from carom.ports import Lease
from carom.stores.claiming import Claiming
from carom.stores.marking import RELAY, marking
from carom.stores.place import Place
from carom.stores.rows import row

RELEASE = 10_000
"""How many rows one call of `release` lets go at most."""
_LOOKED_AT = 1_000
"""Among how many of the first rows the oldest is looked for."""

READY = "sent_at IS NULL AND parked_at IS NULL AND wait_until IS NULL"
WAITING = "wait_until IS NOT NULL AND sent_at IS NULL AND parked_at IS NULL"
_UNREADABLE = (ValueError, TypeError, ArithmeticError)
_STATES: dict[State, str] = {
    "ready": READY,
    "later": f"{WAITING} AND attempts = 0",
    "failing": f"{WAITING} AND attempts > 0",
    "parked": "parked_at IS NOT NULL",
    "sent": "sent_at IS NOT NULL",
}


class SqlOutbox:
    """The outbox of one place: what a relay does with it, and what people do."""

    def __init__(self, place: Place) -> None:
        """Connect to nothing yet."""
        self._place = place
        self._outbox = place.names.outbox
        self._claiming = Claiming(place)
        self._has_lease = False
        self._marking = marking(place)

    # --- leading

    async def lead(self, holder: str, ttl_ms: int) -> Lease | None:
        """Become the leader, or stay it; None when somebody else is. The time is the database's."""
        dialect, lease = self._place.dialect, self._place.names.lease
        given = {"name": RELAY, "holder": holder, "ttl": ttl_ms}
        if dialect.name != "mysql":
            # In one statement: who is stopped within a transaction would keep the lease locked for everybody.
            sql = (
                f"INSERT INTO {lease} AS l (name, holder, epoch, expires_at) "
                f"VALUES (:name, :holder, 1, {dialect.later(':ttl')}) ON CONFLICT (name) DO UPDATE "
                "SET epoch = CASE WHEN l.holder = excluded.holder THEN l.epoch ELSE l.epoch + 1 END, "
                "holder = excluded.holder, expires_at = excluded.expires_at "
                f"WHERE l.holder = excluded.holder OR l.expires_at <= {dialect.now} RETURNING epoch"
            )
            epoch = (await self._place.run("leading", sql, given)).scalar()
            return None if epoch is None else Lease(holder, epoch)
        if not self._has_lease:
            into = f"{lease} (name, holder, epoch, expires_at)"
            made = dialect.insert(into, f"VALUES (:name, '', 0, {dialect.moment('0')})")
            await self._place.run("leading", made, {"name": RELAY})
        async with self._place.transaction("leading") as connection:
            taken = (
                f"UPDATE {lease} SET epoch = CASE WHEN holder = :holder THEN epoch ELSE epoch + 1 END, "
                f"holder = :holder, expires_at = {dialect.later(':ttl')} "
                f"WHERE name = :name AND (holder = :holder OR expires_at <= {dialect.now})"
            )
            await self._place.execute(connection, taken, given)
            held = f"SELECT epoch FROM {lease} WHERE name = :name AND holder = :holder"
            found = (await self._place.execute(connection, held, {"name": RELAY, "holder": holder})).scalar()
        self._has_lease = found is not None
        return None if found is None else Lease(holder, found)

    async def resign(self, lease: Lease) -> None:
        """Stop being the leader, so that another need not wait for the lease to end."""
        ended = (
            f"UPDATE {self._place.names.lease} SET holder = '', expires_at = {self._place.dialect.moment('0')} "
            "WHERE name = :name AND holder = :holder AND epoch = :epoch"
        )
        await self._place.run("resigning", ended, {"name": RELAY, "holder": lease.holder, "epoch": lease.epoch})
        await self._wake()

    # --- relaying

    async def release(self) -> int | None:
        """Let rows whose time has come be claimed; return how long until the next one's, None when none waits."""
        now = self._place.dialect.now
        past = f"{WAITING} AND wait_until <= {now}"
        due = f"SELECT seq FROM {self._outbox} WHERE {past} ORDER BY wait_until LIMIT {RELEASE}"
        sql = f"UPDATE {self._outbox} SET wait_until = NULL, ready_at = {now} WHERE {self._within('seq', due)}"
        released = await self._changed("releasing", sql)
        if released >= RELEASE:
            return 0
        ms = self._place.dialect.ms
        first = f"SELECT {ms('MIN(wait_until)')} - {ms(now)} FROM {self._outbox} WHERE {WAITING}"
        wait: int | None = (await self._place.run("releasing", first)).scalar()
        return None if wait is None else max(0, wait)

    async def claim(self, limit: int, without: Collection[int]) -> Sequence[Row]:
        """Return rows that can be published now, in the order they were written, except those in flight already."""
        found = await self._claiming(limit, without)
        try:
            return [row(one) for one in found]
        except _UNREADABLE:
            return [_row(one) for one in found]

    def _claimed(self) -> int:
        """Return how many rows were claimed so far."""
        return self._claiming.claimed

    async def mark(self, lease: Lease, marks: Sequence[Mark]) -> bool:
        """Write down what became of rows, all at once; False, and nothing is written, when the lease is another's."""
        return await self._marking(lease, marks)

    async def _wake(self) -> None:
        """Tell all relays to look."""

    # --- for people

    async def backlog(self) -> Backlog:
        """Count what is in it. Costs a look at every entry of the small indexes, and of those kept after being sent."""
        counts = ", ".join(f"(SELECT COUNT(*) FROM {self._outbox} WHERE {where})" for where in _STATES.values())
        ms, now = self._place.dialect.ms, self._place.dialect.now
        first = (
            f"SELECT COALESCE(ready_at, created_at) AS since FROM {self._outbox} WHERE {READY} "
            f"ORDER BY seq LIMIT {_LOOKED_AT}"
        )
        oldest = f"(SELECT {ms(now)} - {ms('MIN(since)')} FROM ({first}) AS first_ready)"
        found: Sequence[Any] = (await self._place.run("counting", f"SELECT {counts}, {oldest}")).one()
        ready, later, failing, parked, sent, age = found
        return Backlog(ready, later, failing, parked, sent, max(0, age or 0))

    async def find(self, states: Collection[State], limit: int) -> Sequence[Held]:
        """Return rows in these states, oldest first."""
        ms = self._place.dialect.ms
        found: list[Held] = []
        for state in dict.fromkeys(states):
            sql = (
                "SELECT seq, id, exchange, routing_key, ordering_key, attempts, last_error, "
                f"{ms('created_at')}, {ms('wait_until')}, {ms('sent_at')} "
                f"FROM {self._outbox} WHERE {_STATES[state]} ORDER BY seq LIMIT :limit"
            )
            rows = (await self._place.run("finding", sql, {"limit": limit})).all()
            found += [_held(state, one) for one in rows]
        return sorted(found, key=lambda held: held.seq)[:limit]

    async def retry(self, seqs: Collection[int] | None) -> int:
        """Let parked and failing rows, these or all, be published as if they had never failed; return how many."""
        failed = f"(({_STATES['parked']} AND sent_at IS NULL) OR ({_STATES['failing']}))"
        sets = f"parked_at = NULL, wait_until = NULL, attempts = 0, ready_at = {self._place.dialect.now}"
        return await self._let_go("retrying", f"UPDATE {self._outbox} SET {sets} WHERE {failed}", seqs)

    async def expedite(self, seqs: Collection[int]) -> int:
        """Let rows that wait until they are due be published now; return how many."""
        sets = f"wait_until = NULL, ready_at = {self._place.dialect.now}"
        return await self._let_go("expediting", f"UPDATE {self._outbox} SET {sets} WHERE {WAITING}", seqs)

    async def cancel(self, seqs: Collection[int]) -> int:
        """Delete rows that were not published; return how many. One in flight is published all the same."""
        return await self._changed("cancelling", f"DELETE FROM {self._outbox} WHERE sent_at IS NULL", seqs)

    async def forget_sent(self, limit: int) -> int:
        """Delete some of what was kept long enough after it was sent; return how many."""
        before = self._place.dialect.later(":keep")
        past = f"sent_at IS NOT NULL AND sent_at <= {before}"
        old = f"SELECT seq FROM {self._outbox} WHERE {past} ORDER BY sent_at LIMIT :limit"
        sql = f"DELETE FROM {self._outbox} WHERE {self._within('seq', old)}"
        given = {"keep": -self._place.keep_sent_ms, "limit": limit}
        return (await self._place.run("forgetting what was sent", sql, given)).rowcount

    async def _let_go(self, doing: str, sql: str, seqs: Collection[int] | None) -> int:
        changed = await self._changed(doing, sql, seqs)
        if changed:
            await self._wake()
        return changed

    async def _changed(self, doing: str, sql: str, seqs: Collection[int] | None = None) -> int:
        """Change rows, all or these; return how many, and remember how low the lowest was."""
        given: dict[str, object] = {}
        if seqs is not None:
            sql += f" AND {self._place.dialect.among('seq', 'seqs')}"
            given["seqs"] = self._place.dialect.numbers(seqs)
        if self._place.dialect.name != "postgresql":
            return (await self._place.run(doing, sql, given)).rowcount
        counted = f"WITH changed AS ({sql} RETURNING seq) SELECT count(*), min(seq) FROM changed"
        found: Sequence[Any] = (await self._place.run(doing, counted, given)).one()
        if found[0]:
            self._claiming.let_go(found[1])
        return int(found[0])

    def _within(self, column: str, query: str) -> str:
        # MySQL takes no LIMIT in such a query, and no query of the table that is changed, unless it is a table itself.
        return f"{column} IN (SELECT {column} FROM ({query}) AS some_rows)"


def _held(state: State, found: Sequence[Any]) -> Held:
    seq, identity, exchange, routing_key, ordering_key, attempts, error, created, due, sent = found
    due = due if state in {"later", "failing"} else None
    return Held(seq, identity, state, exchange, routing_key, ordering_key, attempts, error or "", created, due, sent)


def _row(found: Sequence[Any]) -> Row:
    """Return what a relay takes; of what somebody else wrote and nobody can read, what there is and why."""
    try:
        return row(found)
    except _UNREADABLE as error:
        seq, identity, exchange, routing_key, *_, ordering_key, attempts = found
        message = Message(id=identity, exchange=exchange, routing_key=routing_key)
        return Row(seq, message, ordering_key, attempts, f"its properties or headers cannot be read: {error}")
