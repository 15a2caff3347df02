"""Claiming: which rows can be published now.

What is ready is found by its state, in an index of what is ready. On PostgreSQL the entries of rows that are gone stay
in it until they are vacuumed, and while somebody holds an old snapshot, a backup say, they cannot be: a claim would
pass all of them, each time. So most claims begin at a *floor* below which nothing can be ready, and now and then one
surveys all.

A floor is proven, not guessed. A row becomes visible below it only when a transaction commits that took its number
before: `top` is the highest number taken at one time, and once every transaction that had begun to write by some
seconds later has ended, whatever has a number up to `top` and is ready is seen by the next survey. Rows that wait or
are parked may be below it: who lets them go here lowers it, and what others let go is found by the next survey.

Rule: a survey comes after a few seconds at the latest, or after a few times as long as the last one took.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from carom.stores.place import Place
from carom.stores.rows import CLAIMED

SURVEY_SECONDS, SURVEY_SHARE = 2.0, 10
"""How long after a survey the next one is due, at least; and how many times the last one's time there is between."""


class Claiming:
    """How rows of one place are claimed."""

    def __init__(self, place: Place) -> None:
        """Know of no floor yet."""
        self._place = place
        self._statement = _statement(place, "AND o.seq >= :floor" if place.dialect.name == "postgresql" else "")
        self._floor = self._proven = 0
        self._top: int | None = None
        self._pending: tuple[int, int] | None = None
        self._due = 0.0
        self._lowered: list[int] = []
        self.claimed = 0
        """How many rows were claimed so far."""

    async def __call__(self, limit: int, without: Collection[int]) -> Sequence[Sequence[Any]]:
        """Return rows, in the order of `CLAIMED`."""
        found = await self._found(limit, without)
        self.claimed += len(found)
        return found

    async def _found(self, limit: int, without: Collection[int]) -> Sequence[Sequence[Any]]:
        given = {"limit": limit, "without": self._place.dialect.numbers(without)}
        if self._place.dialect.name != "postgresql":
            return (await self._place.run("claiming", self._statement, given)).all()
        if time.monotonic() < self._due:
            return await self._claim(given, self._floor)
        began = time.monotonic()
        self._lowered = []
        await self._look()
        found = await self._claim(given, 0)
        self._floor = min((self._proven + 1, *without, *(one[0] for one in found[:1]), *self._lowered))
        now = time.monotonic()
        self._due = now + max(SURVEY_SECONDS, SURVEY_SHARE * (now - began))
        return found

    def let_go(self, seq: int) -> None:
        """Hear that a row with this number, perhaps a low one, became ready."""
        self._floor = min(self._floor, seq)
        self._lowered = [seq] if not self._lowered else [min(seq, *self._lowered)]

    async def _claim(self, given: dict[str, object], floor: int) -> Sequence[Sequence[Any]]:
        return (await self._place.run("claiming", self._statement, {**given, "floor": floor})).all()

    async def _look(self) -> None:
        """Look at what is running, before a survey, and conclude up to which number that will see everything."""
        sequence = f"pg_get_serial_sequence('{self._place.names.outbox}', 'seq')"
        oldest, newest = (f"CAST(CAST(pg_snapshot_{end}(s) AS text) AS bigint)" for end in ("xmin", "xmax"))
        top = f"COALESCE(pg_sequence_last_value(CAST({sequence} AS regclass)), 0)"
        snapshot = f"SELECT {oldest}, {newest}, {top} FROM pg_current_snapshot() AS s"
        found: Sequence[Any] = (await self._place.run("claiming", snapshot)).one()
        self._conclude(found[0], found[1], found[2])

    def _conclude(self, oldest: int, newest: int, top: int) -> None:
        if self._pending is not None and oldest >= self._pending[1]:
            self._proven, self._pending = self._pending[0], None
        if self._pending is None and self._top is not None:
            # The number was read at the last survey, seconds ago: whoever had taken one has begun to write by now.
            self._pending = (self._top, newest)
        self._top = top


def _statement(place: Place, from_floor: str) -> str:
    outbox = place.names.outbox
    columns = ", ".join(f"o.{name}" for name in CLAIMED)
    failing = (
        f"SELECT 1 FROM {outbox} AS f WHERE f.ordering_key = o.ordering_key AND f.ordering_key <> '' "
        "AND f.attempts > 0 AND f.sent_at IS NULL AND f.parked_at IS NULL AND f.seq < o.seq"
    )
    return (
        f"SELECT {columns} FROM {outbox} AS o "
        f"WHERE o.sent_at IS NULL AND o.parked_at IS NULL AND o.wait_until IS NULL {from_floor} "
        f"AND {place.dialect.apart('o.seq', 'without')} AND (o.ordering_key = '' OR NOT EXISTS ({failing})) "
        "ORDER BY o.seq LIMIT :limit"
    )
