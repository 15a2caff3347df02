"""Handling: what was taken is admitted, given to its handler, and what follows from the outcome is settled.

Rule: whatever comes of a handler, its delivery is settled once, or let go of because its connection is gone.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from carom.core.message import Message
from carom.core.outcome import Outcome, Reject
from carom.core.settlement import DONE, DUPLICATE, Moment, Settlement, admit, settle
from carom.core.wire import Arrival
from carom.ports import Delivery
from carom.runtime import events
from carom.runtime.attempt import INTERRUPTED, Attempt, Loan
from carom.runtime.batches import handle_batch, handle_in_transactions
from carom.runtime.inbox import Ended, Taken, Transactions
from carom.runtime.inherited import HANDLING
from carom.runtime.listener import Listener
from carom.runtime.middleware import chain
from carom.runtime.recording import identity
from carom.runtime.settling import Settling
from carom.runtime.surroundings import Surroundings
from carom.runtime.threads import Threads

NO_ID = Reject(
    "the listener is idempotent, and this message has no id to be known by: publish it with a message id", "malformed"
)


class Handling:
    """Handles what one consumer takes."""

    def __init__(self, listener: Listener, shared: Surroundings, settling: Settling) -> None:
        """Handle nothing yet."""
        self.stuck = 0
        self._listener = listener
        self._plan = listener.plan
        self._shared = shared
        self._wire = shared.layout.wire
        self._settling = settling
        self._attempts: set[Attempt] = set()
        self._interrupted = False
        self._threads = None if listener.handler.is_async else Threads(listener.concurrency, listener.queue)
        self._call = chain(self._innermost, shared.middleware)
        self._transactions: Transactions | None = None
        if listener.transactional and shared.inbox is not None:
            self._transactions = Transactions(listener, shared, settling, shared.inbox)

    @property
    def in_threads(self) -> int:
        """Return how many calls occupy a thread, whether or not anybody still waits for them."""
        return 0 if self._threads is None else self._threads.busy

    def interrupt(self) -> None:
        """Stop every handler that runs; those that start from now on end at once."""
        self._interrupted = True
        for attempt in tuple(self._attempts):
            attempt.interrupt()
        if self._transactions is not None:
            self._transactions.interrupt()

    def close(self) -> None:
        """Let go of the threads."""
        if self._threads is not None:
            self._threads.close()

    async def one(self, delivery: Delivery, arrival: Arrival) -> None:
        """Handle a message and settle it."""
        started = time.perf_counter()
        try:
            if arrival.alone:  # were it to kill us at once, nothing that was settled must come back
                await self._shared.settled()
            settlement = self._admit(arrival)
            message = self._wire.seen(arrival)
            if settlement is None and self._transactions is not None:
                settlement = await self._in_transaction((delivery, arrival), message, self._transactions)
            elif settlement is None:
                outcome = await self._attempt(arrival, message)
                settlement = self._settle(outcome, arrival)
            await self._settling.perform(delivery, arrival, message, settlement, started)
        except asyncio.CancelledError:  # by the handler itself, or because the loop ends
            self._settling.hand_back(delivery, arrival)
            raise
        except Exception:  # noqa: BLE001 - the last guard: logged, and the delivery is settled
            self._settling.refuse(delivery, arrival)

    async def batch(self, batch: list[Taken]) -> None:
        """Handle messages in one call and settle each."""
        started = time.perf_counter()
        decided = [self._admit(arrival) for _, arrival in batch]
        messages = [self._wire.seen(arrival) for _, arrival in batch]
        todo = [index for index, settlement in enumerate(decided) if settlement is None]
        try:
            given, wanted = [batch[index] for index in todo], [messages[index] for index in todo]
            outcomes = await self._outcomes(given, wanted)
        except asyncio.CancelledError:
            for taken in batch:
                self._settling.hand_back(*taken)
            raise
        except Exception:  # noqa: BLE001 - the last guard: logged, and the deliveries are settled
            for taken in batch:
                self._settling.refuse(*taken)
            return
        for index, outcome in zip(todo, outcomes, strict=True):
            decided[index] = DUPLICATE if outcome is None else self._settle(outcome, batch[index][1])
        waiting = []
        for taken, message, settlement in zip(batch, messages, decided, strict=True):
            if settlement is DONE or settlement is DUPLICATE:
                await self._settling.perform(*taken, message, settlement, started)
            elif settlement is not None:
                waiting.append(self._settling.conclude(*taken, message, settlement, started))
        # Side by side: a copy that the broker does not take keeps its own original waiting, and no other.
        await asyncio.gather(*waiting)

    async def _outcomes(self, batch: Sequence[Taken], messages: Sequence[Message]) -> Sequence[Outcome | None]:
        """Return an outcome for each message; None for a duplicate."""
        if self._transactions is not None:
            return await self._batch_in_transactions(batch, messages, self._transactions)
        for (_, arrival), message in zip(batch, messages, strict=True):
            self._settling.tell(events.Received, arrival, message)
        return await handle_batch(messages, self._attempt_batch, self._is_readable)

    async def _in_transaction(self, taken: Taken, message: Message, transactions: Transactions) -> Settlement:
        arrival = taken[1]
        tell = self._received()

        async def call(loan: Loan, _new: Sequence[int]) -> Outcome:
            tell(arrival, message)
            HANDLING.set(message)
            return await self._run(message, arrival, message, loan)

        ended = await transactions.run((taken,), call)
        outcome = await transactions.record((taken,), ended.outcome) if ended.new else ended.known[0]
        return DUPLICATE if outcome is None else self._settle(outcome, arrival)

    async def _batch_in_transactions(
        self, batch: Sequence[Taken], messages: Sequence[Message], transactions: Transactions
    ) -> Sequence[Outcome | None]:
        tell = self._received()

        async def attempt(places: Sequence[int]) -> Ended:
            async def call(loan: Loan, new: Sequence[int]) -> Outcome:
                given = [messages[places[index]] for index in new]
                for index in new:
                    tell(batch[places[index]][1], messages[places[index]])
                return await self._attempt_batch(given, loan)

            return await transactions.run([batch[place] for place in places], call)

        outcomes = await handle_in_transactions(len(batch), attempt, lambda place: self._is_readable(messages[place]))
        return [
            None if outcome is None else await transactions.record((taken,), outcome)
            for taken, outcome in zip(batch, outcomes, strict=True)
        ]

    def _received(self) -> Callable[[Arrival, Message], None]:
        """Return what tells that a message is handled, once however often its transaction is run again."""
        told: set[int] = set()

        def tell(arrival: Arrival, message: Message) -> None:
            if id(message) not in told:
                told.add(id(message))
                self._settling.tell(events.Received, arrival, message)

        return tell

    async def _attempt(self, arrival: Arrival, message: Message) -> Outcome:
        self._settling.tell(events.Received, arrival, message)
        HANDLING.set(message)
        return await self._run(message, arrival, message)

    async def _attempt_batch(self, messages: Sequence[Message], loan: Loan | None = None) -> Outcome:
        HANDLING.set(messages[0] if len(messages) == 1 else None)
        return await self._run(messages, self._wire.read(messages[0], self._listener.queue), messages[0], loan)

    async def _run(self, subject: Any, arrival: Arrival, message: Message, loan: Loan | None = None) -> Outcome:
        if self._interrupted:
            return INTERRUPTED
        attempt = Attempt(self._shared.clock, self._listener.timeout_ms, self._stuck(arrival, message), loan)
        self._attempts.add(attempt)
        try:
            return await attempt.run(lambda: self._call(subject, attempt))
        finally:
            self._attempts.discard(attempt)

    def _is_readable(self, message: Message) -> bool:
        try:
            self._listener.handler.prepare(message)
        except Exception:  # noqa: BLE001 - it is raised again when the message is handled alone, and settled there
            return False
        return True

    async def _innermost(self, subject: Any, attempt: Attempt) -> Any:
        handler = self._listener.handler
        prepare = handler.prepare if self._listener.batch is None else handler.prepare_batch
        call = prepare(subject) if attempt.loan is None else prepare(subject, attempt.loan.session)
        if self._threads is not None:
            return await attempt.in_threads(self._threads, call)
        return await call()

    def _stuck(self, arrival: Arrival, message: Message) -> Callable[[bool], None]:
        def tell(is_stuck: bool) -> None:  # noqa: FBT001 - one of two things happened, and it is said which
            self.stuck += 1 if is_stuck else -1
            if is_stuck:
                timeout_ms = self._listener.timeout_ms or 0
                self._settling.tell(events.HandlerStuck, arrival, message, timeout_ms=timeout_ms)
            else:
                self._settling.tell(events.HandlerFreed, arrival, message)

        return tell

    def _admit(self, arrival: Arrival) -> Settlement | None:
        if self._listener.idempotent and not identity(arrival.message):
            return self._settle(NO_ID, arrival)
        if not (arrival.crashes or arrival.wait_ms or arrival.uncounted):
            return None
        return admit(arrival, self._plan, self._shared.layout, self._moment())

    def _settle(self, outcome: Outcome, arrival: Arrival) -> Settlement:
        return settle(outcome, arrival, self._plan, self._shared.layout, self._moment())

    def _moment(self) -> Moment:
        return Moment(self._shared.clock.now_ms(), random.random(), self._shared.host)  # noqa: S311 - jitter is no secret
