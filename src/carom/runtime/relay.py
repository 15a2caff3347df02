"""The relay: claim → publish → mark, for as long as it leads.

Rule: a row is marked as sent because its message was confirmed, under the lease it was claimed under, and is in nobody
else's hands meanwhile. Whatever happens in between, the same message goes out again, and none stays behind.
Rule: what does not answer is waited for, longer each time; nothing is ever asked in a circle without a wait in it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from carom import failpoints
from carom.core.effects import CONFIRMED, Confirmed, PublishResult, Returned, Unknown
from carom.core.relaying import Again, Lanes, Mark, Parked, Patience, Row, Sent, flawed, resolve, said
from carom.errors import BrokerError, ConfigurationError
from carom.ports import Broker, Clock, Lease, Outbox
from carom.runtime import events
from carom.runtime.asking import Asking
from carom.runtime.leadership import Leadership
from carom.runtime.service import Backoff

BYTES_IN_HAND = 16 * 1024 * 1024
"""A claim brings about so many bytes at most, judging by the rows before."""
FIRST_CLAIM = 16
"""So many rows are claimed first, when nobody knows yet how large they are."""
HELD_MOST = 20_000
"""While so many rows wait behind others of their keys, nothing more is claimed."""
RESTORE_MS = 5_000
"""The topology is made anew at most so often because messages were returned."""
PAUSES = Backoff(250, 5_000)
"""A broker that is back is known to be by the publish that waits for it; longer waits would only be lost time."""
SILENCE_MS = 60_000
"""A leader whose broker has said nothing for so long lets another try, which may reach it."""
RESIGN_S = 2.0

_log = logging.getLogger("carom.relay")


@dataclass(frozen=True, slots=True)
class Pace:
    """How a relay goes about it, and housekeeping.

    ``batch`` rows are claimed at a time, ``window`` of them are on their way at most.
    A ``chunk`` of them is published at a time. What became due is looked for every ``release_ms`` while rows come, and
    ``poll_ms`` is when it looks though nothing has woken it. A lease lasts ``ttl_ms``; who stands by asks for one every
    ``stand_by_ms``, by this ``clock`` where the lease is not kept by the app's own. Old rows are
    deleted every ``prune_ms``.
    """

    batch: int = 1_000
    window: int = 2_000
    chunk: int = 500
    release_ms: int = 250
    poll_ms: int = 1_000
    ttl_ms: int = 5_000
    stand_by_ms: int = 1_000
    prune_ms: int = 300_000
    clock: Clock | None = None


PACE = Pace()


class Relay:
    """Publishes what an outbox holds. Any number of them may run at one outbox: one leads."""

    def __init__(
        self,
        outbox: Outbox,
        broker: Broker,
        clock: Clock,
        asking: Asking,
        notify: Callable[[object], None] | None,
        *,
        name: str,
        restore: Callable[[], Awaitable[None]],
        patience: Patience,
        pace: Pace = PACE,
    ) -> None:
        """Do nothing yet. ``restore`` makes the topology anew; it is asked to when messages were returned."""
        self._outbox = outbox
        self._broker = broker
        self._clock = clock
        self._asking = asking
        self._notify = notify
        self._name = name
        self._restore = restore
        self._patience = patience
        self._pace = pace
        self._leadership = Leadership(
            outbox,
            asking,
            pace.clock or clock,
            ttl_ms=pace.ttl_ms,
            stand_by_ms=pace.stand_by_ms,
            changed=self._lead_changed,
        )
        self._lanes = Lanes()
        self._marks: list[Mark] = []
        self._failed: list[Row] = []
        self._let_go: list[int] = []
        self._is_freed = False  # a row that others of its key waited for in the table is through
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._stopping = False
        self._woken = asyncio.Event()  # rows may have come
        self._changed = asyncio.Event()  # what kept us from claiming may be over
        self._finished = asyncio.Event()  # there is something to mark
        self._resting = False
        self._row_bytes = BYTES_IN_HAND // FIRST_CLAIM
        self._due_ms = self._released_ms = 0
        self._pauses = 0
        self._paused_until_ms = 0
        self._silent_since_ms: int | None = None
        self._confirms = 0
        self._restored_ms: int | None = None

    # -- for the app ---------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Tell whether this one leads."""
        return self._leadership.lease is not None

    @property
    def in_flight(self) -> int:
        """Return how many messages are on their way."""
        return self._lanes.flying

    @property
    def idle(self) -> bool:
        """Tell whether nothing is on its way and it waits for rows or for time, and for no answer of anybody's."""
        at_rest = self._resting or not self._leadership.holds or self._is_paused or self._asking.is_down
        is_woken = self._resting and self._woken.is_set()
        return at_rest and not is_woken and not self._tasks and not self._marks and not self._asking.waits

    def start(self) -> None:
        """Begin: ask for the lead, and relay once it is ours."""
        work = {
            "lead": self._leadership.run(),
            "claim": self._asking.keep(self._claim),
            "mark": self._mark(),
        }
        self._loops = [self._task(one, name) for name, one in work.items()]

    async def stop(self, grace_ms: int, hurry: asyncio.Event) -> None:
        """Claim no more, let what is on its way be confirmed and marked within the grace, and let another lead."""
        self._stopping = True
        self._wake()
        self._changed.set()
        try:
            await self._drain(grace_ms, hurry)
        finally:
            loops, self._loops = self._loops, []
            for task in (*loops, *self._tasks):
                task.cancel()
            if loops:
                await asyncio.wait({*loops, *self._tasks})
        try:
            async with asyncio.timeout(RESIGN_S):
                await self._leadership.resign()
        except Exception as error:  # noqa: BLE001 - its lease ends by itself; said, and no reason not to stop
            _log.warning(
                "the relay of %s could not resign, and the next one waits for its lease: %s", self._name, error
            )

    # -- claiming ------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        """Claim while we lead. Who stands by does not ask to be woken: whoever commits pays for each who does."""
        while await self._can_claim():
            lanes = self._lanes
            async with self._outbox.watch(self._wake):
                while await self._can_claim(lanes):
                    await self._claim_once(lanes)

    async def _claim_once(self, lanes: Lanes) -> None:
        self._woken.clear()
        has_released = await self._release()
        limit, without = self._limit(), lanes.claiming()
        rows = await self._asking.ask(lambda: self._outbox.claim(limit, without))
        if failpoints.ARMED and rows:
            failpoints.reach("relay.claimed")
        if lanes is self._lanes and self._leadership.holds:
            self._launch(rows)
            if len(rows) < limit:
                await self._rest(knows_due=has_released)

    async def _can_claim(self, lanes: Lanes | None = None) -> bool:
        """Wait until it makes sense to claim; False when the relay stops, or leads no more as it did."""
        while not self._stopping and lanes in (None, self._lanes):
            self._changed.clear()
            if not self._leadership.holds:
                await self._either(self._leadership.won())
            elif self._is_paused:
                await self._either(self._clock.sleep(self._paused_until_ms - self._clock.now_ms()))
            elif self._lanes.flying >= self._pace.window or self._lanes.held >= HELD_MOST:
                await self._changed.wait()
            else:
                return True
        return False

    async def _either(self, other: Coroutine[Any, Any, None]) -> None:
        """Wait for something, or for a change."""
        waits = {asyncio.ensure_future(other), asyncio.ensure_future(self._changed.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def _release(self) -> bool:
        """Let what is due be claimed, when something may be; tell whether the database was asked."""
        now_ms = self._clock.now_ms()
        if self._due_ms > now_ms and now_ms - self._released_ms < self._pace.release_ms:
            return False
        wait_ms = await self._asking.ask(self._outbox.release)
        self._released_ms = self._clock.now_ms()
        self._due_ms = self._released_ms + (self._pace.poll_ms if wait_ms is None else max(1, wait_ms))
        return True

    async def _rest(self, *, knows_due: bool) -> None:
        """Wait for rows: until we are woken, or something is due, or it is time to look all the same.

        What came since the last look for what is due may itself be due soon: then the next look is soon.
        """
        if self._woken.is_set():
            return
        next_look_ms = self._due_ms if knows_due else min(self._due_ms, self._released_ms + self._pace.release_ms)
        wait_ms = min(self._pace.poll_ms, max(1, next_look_ms - self._clock.now_ms()))
        cancel = self._clock.call_later(wait_ms, self._wake)
        self._resting = True
        try:
            await self._woken.wait()
        finally:
            self._resting = False
            cancel()

    def _wake(self) -> None:
        self._woken.set()

    def _limit(self) -> int:
        return max(1, min(self._pace.batch, BYTES_IN_HAND // self._row_bytes))

    @property
    def _is_paused(self) -> bool:
        return self._clock.now_ms() < self._paused_until_ms

    # -- publishing ----------------------------------------------------------------------------------------

    def _launch(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        weight = sum(len(row.message.body) for row in rows) // len(rows) + 1_000
        self._row_bytes = max(weight, (self._row_bytes + weight) // 2)
        lanes = self._lanes
        now, ahead = lanes.take(rows)
        for batch in (now, ahead):  # those that others wait for are not kept waiting by the rest
            flaws = [row for row in batch if row.flaw]
            for row in flaws:
                self._note_failure(row, flawed(row))
            whole = [row for row in batch if not row.flaw] if flaws else batch
            for start in range(0, len(whole), self._pace.chunk):
                self._send(whole[start : start + self._pace.chunk])

    def _send(self, rows: list[Row]) -> None:
        task = self._task(self._publish(rows, self._lanes), "publish")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, rows: list[Row], lanes: Lanes) -> None:
        confirms = self._confirms
        started = time.perf_counter()
        try:
            results = await self._broker.publish([row.message for row in rows])
        except BrokerError as error:
            results = [Unknown(str(error))] * len(rows)
        except Exception as error:  # noqa: BLE001 - logged, and nobody knows what became of the messages
            _log.exception("the broker was given %d messages, and this came of it", len(rows))
            results = [Unknown(str(error))] * len(rows)
        duration_ms = (time.perf_counter() - started) * 1000
        if failpoints.ARMED:
            failpoints.reach("relay.published")
        if lanes is not self._lanes:
            return  # another has led since, and has these rows
        if confirms == self._confirms and all(isinstance(one, Unknown) for one in results):
            self._pause(said(results[0]))
            self._give_back(rows)
        else:
            self._settle(rows, results, duration_ms)
        self._changed.set()

    def _settle(self, rows: list[Row], results: Sequence[PublishResult], duration_ms: float) -> None:
        passed = rows
        if all(one is CONFIRMED for one in results):
            self._marks += [Sent(row.seq) for row in rows]
        else:
            passed = []
            for row, result in zip(rows, results, strict=True):
                if isinstance(result, Confirmed):
                    passed.append(row)
                    self._marks.append(Sent(row.seq))
                else:
                    fraction = random.random()  # noqa: S311 - jitter is no secret
                    self._note_failure(row, resolve(row, result, self._patience, fraction))
            if any(isinstance(result, Returned) for result in results):
                self._restore_topology()
        self._confirms += len(passed)
        self._is_freed |= any(row.failures for row in passed)
        self._pauses, self._silent_since_ms = 0, None
        following = self._lanes.passed(passed)
        if following and not self._stopping and self._leadership.holds:
            self._launch_again(following)
        elif following:
            self._give_back(following)
        self._finished.set()
        if passed and self._notify is not None:
            self._notify(events.Relayed(messages=tuple([row.message for row in passed]), duration_ms=duration_ms))

    def _give_back(self, rows: list[Row]) -> None:
        """Let go of rows of which nothing can be said; they are claimed again as soon as that makes sense."""
        self._lanes.give_back(rows)
        self._wake()

    def _launch_again(self, rows: list[Row]) -> None:
        whole = [row for row in rows if not row.flaw]
        for row in rows:
            if row.flaw:
                self._note_failure(row, flawed(row))
        if whole:
            self._send(whole)

    def _note_failure(self, row: Row, mark: Mark) -> None:
        self._let_go += self._lanes.failed(row)
        self._failed.append(row)
        self._marks.append(mark)
        self._finished.set()
        if isinstance(mark, Again):
            self._due_ms = min(self._due_ms, self._clock.now_ms() + mark.wait_ms)
        if self._notify is None:
            return
        if isinstance(mark, Again):
            self._notify(
                events.RelayRetried(
                    message=row.message,
                    seq=row.seq,
                    failures=row.failures + 1,
                    reason=mark.reason,
                    delay_ms=mark.wait_ms,
                )
            )
        elif isinstance(mark, Parked):
            self._notify(
                events.RelayParked(message=row.message, seq=row.seq, failures=row.failures + 1, reason=mark.reason)
            )

    def _pause(self, reason: str) -> None:
        """The broker is not there: nothing is marked, everything stays as it is, and we wait."""
        if self._is_paused:
            return
        self._pauses += 1
        wait_ms = PAUSES.wait_ms(self._pauses, random.random())  # noqa: S311 - jitter is no secret
        now_ms = self._clock.now_ms()
        self._paused_until_ms = now_ms + wait_ms
        if self._silent_since_ms is None:
            self._silent_since_ms = now_ms
        elif now_ms - self._silent_since_ms >= SILENCE_MS:
            self._silent_since_ms = None
            self._leadership.step_back()
        if self._notify is not None:
            self._notify(events.RelayPaused(app=self._name, reason=reason, retry_in_ms=wait_ms))

    def _restore_topology(self) -> None:
        now_ms = self._clock.now_ms()
        if self._restored_ms is None or now_ms - self._restored_ms >= RESTORE_MS:
            self._restored_ms = now_ms
            task = self._task(self._restore_once(), "restore")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _restore_once(self) -> None:
        try:
            await self._restore()
        except (BrokerError, ConfigurationError) as error:
            _log.warning("the topology of %s cannot be restored: %s", self._name, error)

    # -- marking -------------------------------------------------------------------------------------------

    async def _mark(self) -> None:
        """Write down what has finished, all of it at once; what finishes meanwhile goes into the next."""
        while True:
            await self._finished.wait()
            self._finished.clear()
            while self._marks:
                await self._mark_once()

    async def _mark_once(self) -> None:
        lanes, lease = self._lanes, self._leadership.lease
        marks, self._marks = self._marks, []
        failed, self._failed = self._failed, []
        let_go, self._let_go = self._let_go, []
        is_freed, self._is_freed = self._is_freed, False
        is_ours = lease is not None and await self._asking.ask(lambda: self._outbox.mark(lease, marks))
        if failpoints.ARMED:
            failpoints.reach("relay.marked")
        if lanes is not self._lanes:
            return
        if not is_ours:
            self._leadership.lost()
            return
        lanes.marked([mark.seq for mark in marks])
        lanes.marked(let_go, failed)
        if failed or is_freed:
            self._wake()
        self._changed.set()

    # -- the rest ------------------------------------------------------------------------------------------

    def _lead_changed(self, lease: Lease | None) -> None:
        """Begin with nothing in hand: what was, belongs to whoever has led since."""
        self._lanes = Lanes()
        self._marks, self._failed, self._let_go = [], [], []
        self._due_ms = self._pauses = self._paused_until_ms = 0
        self._changed.set()
        self._wake()
        if self._notify is not None:
            self._notify(events.StandingBy(app=self._name) if lease is None else events.Leading(app=self._name))

    async def _drain(self, grace_ms: int, hurry: asyncio.Event) -> None:
        """Wait until nothing is on its way: in real time, because a process that is asked to stop has no other."""
        hurried = asyncio.ensure_future(hurry.wait())
        deadline = time.monotonic() + grace_ms / 1000
        try:
            while self.leads and self._is_busy and not hurried.done() and (left := deadline - time.monotonic()) > 0:
                changed = asyncio.ensure_future(self._changed.wait())
                waits = {changed, hurried, *self._tasks, *(one for one in self._loops if not one.done())}
                await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                self._changed.clear()
        finally:
            hurried.cancel()

    @property
    def _is_busy(self) -> bool:
        return bool(self._tasks or self._lanes.flying or not self._loops[1].done())

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=f"carom:{self._name}:relay:{name}")
