"""The intake: a queue's messages are taken, and again after the broker has ended that.

Rule: whoever wants messages has them until it stops; a subscription that was lost is asked for again, for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from carom.ports import ConsumerEnded, Delivery, Subscription
from carom.runtime.service import Service
from carom.runtime.surroundings import Surroundings


class Intake:
    """A subscription to one queue that is kept."""

    def __init__(self, queue: str, prefetch: int, shared: Surroundings, receive: Callable[[Delivery], None]) -> None:
        """Take nothing yet."""
        self._queue = queue
        self._prefetch = prefetch
        self._shared = shared
        self._receive = receive
        self._subscription: Subscription | None = None
        self._is_wanted = False
        self._service = Service(f"carom:{queue}", self._take_again, shared.clock, failed=self._failed)

    async def start(self) -> None:
        """Subscribe."""
        self._is_wanted = True
        await self._take()

    async def stop(self) -> None:
        """Take no more, ever."""
        self._is_wanted = False
        await self._service.stop()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.cancel()

    async def settled(self) -> None:
        """Return when the broker has everything that was settled."""
        if self._subscription is not None:
            await self._subscription.settled()

    async def _take(self) -> None:
        self._subscription = await self._shared.broker.consume(
            self._queue, self._receive, prefetch=self._prefetch, ended=self._ended
        )

    async def _take_again(self) -> None:
        await self._shared.restore()
        await self._take()

    def _ended(self, _reason: str) -> None:
        self._subscription = None
        if self._is_wanted:
            self._service.start()

    def _failed(self, error: BaseException, wait_ms: int) -> None:
        if self._shared.notify is not None:
            reason = f"{error}; trying again in {wait_ms} ms"
            self._shared.notify(ConsumerEnded(self._queue, reason))
