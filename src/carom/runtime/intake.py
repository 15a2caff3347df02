"""The intake: a queue's messages are taken while the gate is open, and again after a loss.

Rule: what rests has ended its subscription; the gate counts it as running until the broker has said so.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

from carom.ports import ConsumerEnded, Delivery, Subscription
from carom.runtime.listener import Listener
from carom.runtime.service import Service
from carom.runtime.surroundings import Surroundings


class Intake:
    """The subscription of one consumer."""

    def __init__(self, listener: Listener, shared: Surroundings, receive: Callable[[Delivery], None]) -> None:
        """Take nothing yet."""
        self._listener = listener
        self._shared = shared
        self._receive = receive
        self._subscription: Subscription | None = None
        self._is_wanted = False
        self._is_taking = False
        self._is_lost = False
        self._resting: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._context = contextvars.copy_context()
        self._service = Service(f"carom:{listener.queue}", self._take, shared.clock, failed=self._failed)

    async def start(self) -> None:
        """Subscribe; when the gate is closed, that waits for `wake`."""
        self._is_wanted = True
        await self._take()

    async def stop(self) -> None:
        """Take no more, ever."""
        self._is_wanted = False
        await self._service.stop()
        self.rest()
        if self._resting is not None:
            await self._resting

    def rest(self) -> None:
        """Take no more until `wake`."""
        if self._is_taking and self._subscription is not None:
            self._is_taking = False
            self._shared.gate.enter()
            # A context of its own: the one we were made in, not that of whoever asks.
            resting = asyncio.get_running_loop().create_task(self._subscription.cancel(), context=self._context.copy())
            resting.add_done_callback(lambda _task: self._shared.gate.leave())
            self._resting = resting

    async def rested(self) -> None:
        """Return when nothing comes any more, if it is on its way to rest."""
        if self._resting is not None:
            await asyncio.wait([self._resting])

    async def settled(self) -> None:
        """Return when the broker has everything that was settled."""
        if self._subscription is not None:
            await self._subscription.settled()

    def wake(self) -> None:
        """Take again."""
        if self._is_wanted and not self._is_taking:
            self._service.start()

    async def _take(self) -> None:
        async with self._one_at_a_time:
            await self.rested()
            if self._is_taking or self._is_closed():
                return
            if self._is_lost:
                await self._shared.restore()
            self._subscription = await self._shared.broker.consume(
                self._listener.queue, self._receive, prefetch=self._listener.prefetch, ended=self._ended
            )
            self._is_taking, self._is_lost = True, False
            if self._is_closed():  # meanwhile
                self.rest()

    def _is_closed(self) -> bool:
        return not self._shared.gate.is_open

    def _ended(self, _reason: str) -> None:
        self._is_taking, self._is_lost = False, True
        self.wake()

    def _failed(self, error: BaseException, wait_ms: int) -> None:
        if self._shared.notify is not None:
            reason = f"{error}; trying again in {wait_ms} ms"
            self._shared.notify(ConsumerEnded(self._listener.queue, reason))
