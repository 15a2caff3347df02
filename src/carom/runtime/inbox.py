"""The inbox: a handler works in a transaction that also records its message, and is committed before the ack.

    begin ─▶ admit ─▶ handler ─▶ commit ─▶ ack                 what it did and that it was done are one
                         └─▶ rollback ─▶ hold ─▶ copy confirmed ─▶ record ─▶ ack

Rule: nobody has to know how a commit ended. Whoever does not, asks again: what was committed is not new any more.
Rule: a database that is away costs no attempt. The message is kept, and handled when the database is back.
Rule: a copy follows once from an attempt, or, after a crash, twice, and then one of the two ends where they meet.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from carom import failpoints
from carom.core.outcome import Discard, Done, Failed, Outcome
from carom.core.wire import Arrival
from carom.errors import StoreError
from carom.ports import Delivery, Inbox, Unit
from carom.runtime.attempt import DONE, INTERRUPTED, Loan
from carom.runtime.listener import Listener
from carom.runtime.service import Backoff
from carom.runtime.settling import Settling
from carom.runtime.surroundings import Surroundings

Taken: TypeAlias = tuple[Delivery, Arrival]
Call: TypeAlias = Callable[[Loan, Sequence[int]], Awaitable[Outcome]]
"""Calls a handler with a session, for those of the messages that are new."""

PASSES = 5
"""How often a transaction that failed for being beside others is run again before that counts as a failure."""
PASSING = Backoff(first_ms=20, most_ms=500)

_log = logging.getLogger("carom.consumer")


@dataclass(slots=True)
class Ended:
    """What came of a transaction: the outcome for the messages that were new, and what is known of the others.

    None stands for a duplicate. Messages are told by their places in what was asked for.
    """

    outcome: Outcome
    new: Sequence[int]
    known: dict[int, Outcome | None]


@dataclass(slots=True, eq=False)
class _Try:
    """One try: how far it came."""

    task: asyncio.Task[Any] | None
    new: Sequence[bool] = ()
    outcome: Outcome | None = None
    error: Exception | None = None
    calling: bool = False
    committing: bool = False
    committed: bool = False
    interrupted: bool = False
    loan: Loan = field(default_factory=Loan)


class Transactions:
    """Handles what one listener takes, each call in a transaction of its own."""

    def __init__(self, listener: Listener, shared: Surroundings, settling: Settling, inbox: Inbox) -> None:
        """Begin nothing yet."""
        self._inbox = inbox
        self._queue = listener.queue
        self._remembers = listener.idempotent
        self._synchronous = not listener.handler.is_async
        self._shared = shared
        self._settling = settling
        self._trying: set[_Try] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._left = 0
        self._interrupted = False

    def interrupt(self) -> None:
        """Let go of what waits for the database; a handler that runs is its attempt's to stop."""
        self._interrupted = True
        for tried in tuple(self._trying):
            if not tried.calling and not tried.interrupted and tried.task is not None:
                tried.interrupted = True
                tried.task.cancel()

    async def run(self, taken: Sequence[Taken], call: Call) -> Ended:
        """Handle messages in one transaction, again for as long as it is not their fault that it failed."""
        passes = failures = 0
        unsure: Sequence[bool] = [False] * len(taken)
        while not self._is_over(taken):
            tried = await self._try(taken, call)
            error = tried.error
            if error is None and not (self._has_passed(tried) and passes < PASSES):
                return _ended(tried, unsure)
            if error is None or (self._inbox.is_passing(error) and passes < PASSES):
                passes += 1
                wait_ms = PASSING.wait_ms(passes, random.random())  # noqa: S311 - jitter is no secret
            elif self._is_away(error):
                failures += 1
                unsure = tried.new if tried.committing else unsure
                wait_ms = self._shared.backoff.wait_ms(failures, random.random())  # noqa: S311 - as above
                self._shared.presence.lost(error, wait_ms)
            else:  # what only came to light when it was to be committed is a failure of the handler's
                tried.outcome = Failed(error)
                return _ended(tried, unsure)
            await self._settling.pause(wait_ms)
            if self._settling.stopping:
                break
        return Ended(INTERRUPTED, range(len(taken)), {})

    async def record(self, taken: Sequence[Taken], outcome: Outcome) -> Outcome:
        """Record that messages were decided upon, without anything of what their handler did."""
        if not self._remembers or not isinstance(outcome, Discard):
            return outcome
        ended = await self.run(taken, _nothing)
        return outcome if isinstance(ended.outcome, Done) else ended.outcome

    async def _try(self, taken: Sequence[Taken], call: Call) -> _Try:
        tried = _Try(asyncio.current_task())
        self._trying.add(tried)
        try:
            async with AsyncExitStack() as stack:
                await self._within(tried, stack, taken, call)
        except asyncio.CancelledError:
            if not tried.interrupted or tried.task is None:
                raise
            tried.task.uncancel()
            tried.outcome = INTERRUPTED
        except Exception as error:  # noqa: BLE001 - whatever a database raises is decided upon by whoever asked
            if tried.committed or (tried.outcome is not None and not tried.committing):
                _log.debug("a transaction for %s did not end well, and its end changes nothing: %s", self._queue, error)
            else:
                tried.error = error
        finally:
            self._trying.discard(tried)
        return tried

    async def _within(self, tried: _Try, stack: AsyncExitStack, taken: Sequence[Taken], call: Call) -> None:
        unit = await stack.enter_async_context(self._inbox.begin(synchronous=self._synchronous))
        if self._remembers:
            arrivals = [(arrival.message.id, arrival.ordinal) for _, arrival in taken]
            tried.new = await unit.admit(self._queue, arrivals)
        else:
            await unit.admit(self._queue, ())  # so that a database that is away is met here, and not by the handler
            tried.new = [True] * len(taken)
        if failpoints.ARMED:
            failpoints.reach("inbox.admitted")
        self._shared.presence.found()
        new = [place for place, is_new in enumerate(tried.new) if is_new]
        if not new:
            tried.outcome = DONE
            return
        await self._call(tried, stack, unit, call, new)
        if isinstance(tried.outcome, Done):
            tried.committing = True
            await unit.commit()
            tried.committed = True
            if failpoints.ARMED:
                failpoints.reach("inbox.committed")

    async def _call(self, tried: _Try, stack: AsyncExitStack, unit: Unit, call: Call, new: Sequence[int]) -> None:
        loan = tried.loan
        loan.session = unit.session
        tried.calling = True
        try:
            tried.outcome = await call(loan, new)
        finally:
            tried.calling = False
            if loan.thread is not None and not loan.thread.done():
                self._leave_behind(loan.thread, stack.pop_all())
        loan.lost = unit.lost
        if failpoints.ARMED:
            failpoints.reach("inbox.handled")

    def _leave_behind(self, thread: asyncio.Future[Any], stack: AsyncExitStack) -> None:
        """Roll back when the thread has ended: until then the session is its."""

        def close(_: object) -> None:
            closing = asyncio.get_running_loop().create_task(stack.aclose())
            self._closing.add(closing)
            closing.add_done_callback(closed)

        def closed(closing: asyncio.Task[None]) -> None:
            self._closing.discard(closing)
            self._left -= 1

        self._left += 1
        thread.add_done_callback(close)

    def _has_passed(self, tried: _Try) -> bool:
        """Tell whether a handler failed for what its transaction met, and may just be called again."""
        outcome = tried.outcome
        return isinstance(outcome, Failed) and (tried.loan.lost or self._inbox.is_passing(outcome.error))

    def _is_away(self, error: Exception) -> bool:
        return isinstance(error, StoreError) or self._inbox.is_absence(error)

    def _is_over(self, taken: Sequence[Taken]) -> bool:
        return self._interrupted or all(delivery.stale for delivery, _ in taken)


def _ended(tried: _Try, unsure: Sequence[bool]) -> Ended:
    """Return what came of a try. What was not new because of a commit of ours is done, and no duplicate."""
    answers = tried.new or [True] * len(unsure)
    new = [place for place, is_new in enumerate(answers) if is_new]
    known: dict[int, Outcome | None] = {
        place: DONE if unsure[place] else None for place, is_new in enumerate(answers) if not is_new
    }
    return Ended(tried.outcome or INTERRUPTED, new, known)


async def _nothing(_loan: Loan, _new: Sequence[int]) -> Outcome:
    return DONE
