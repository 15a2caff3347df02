"""Moving: messages are taken from queues and published to an exchange, confirmed, then acknowledged.

Rule: a message is acknowledged when its copy is confirmed, and handed back when it is not; who is killed between has
it twice, never not at all. Queues are quiet when nothing was ready in them and nobody held anything for longer than
the broker takes to count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from carom import failpoints
from carom.core import message as wire
from carom.core.effects import Confirmed
from carom.core.message import Message
from carom.core.migration import Move
from carom.errors import BrokerError, NotConfirmed
from carom.layouts.translation import Translation
from carom.ports import Broker, Changeable, Clock, Delivery, Subscription
from carom.runtime.clearing import COUNTED_MS

PREFETCH = 200
LOOK_MS = 500
"""How often to look whether it has become quiet."""
CHECK_MS = 5_000
"""How often to look whether something leads to the queues again."""
PAUSE_MS = 1_000
"""How long to wait after a message was not confirmed."""


class Mover:
    """Moves messages out of some queues, until they are quiet."""

    def __init__(
        self, broker: Broker, moves: Sequence[Move], clock: Clock, translation: Translation | None = None
    ) -> None:
        """Take nothing yet. With a translation messages are written as another layout writes them."""
        self._broker = broker
        self._clock = clock
        self._translation = translation
        self._ways: Mapping[str, Move] = {move.queue: move for move in moves}
        self._taken: asyncio.Queue[Delivery] = asyncio.Queue()
        self._subscriptions: list[Subscription] = []
        self._ended: list[str] = []
        self._last_ms = 0
        self.moved = 0

    async def until_quiet(self, patience_ms: int, check: Callable[[], Awaitable[None]] | None = None) -> None:
        """Move everything, and what still comes, until the queues are quiet; then take no more.

        ``check`` is asked from time to time whether that can come to an end at all. Raises what it raises, and
        NotConfirmed when it lasts longer than ``patience_ms``; everything is safe then, and moving can go on.
        """
        begun = checked = self._last_ms = self._clock.now_ms()
        try:
            await self._subscribe()
            while not await self._is_quiet():
                if self._clock.now_ms() - begun > patience_ms:
                    raise NotConfirmed(await self._what_is_left())
                if check is not None and self._clock.now_ms() - checked > CHECK_MS:
                    await check()
                    checked = self._clock.now_ms()
                await self._move()
        finally:
            await self._stop()

    async def _subscribe(self) -> None:
        there = await self._broker.depths(self._ways)
        for queue in self._ways:
            if there[queue] is not None:
                self._subscriptions.append(
                    await self._broker.consume(
                        queue, self._taken.put_nowait, prefetch=PREFETCH, ended=self._ended.append
                    )
                )

    async def _move(self) -> None:
        """Move what is in our hands; wait a little when nothing is."""
        if self._ended:
            raise BrokerError(f"a queue could not be read to its end: {self._ended[0]}")
        if self._taken.empty():
            await self._clock.sleep(LOOK_MS)
            return
        together = [self._taken.get_nowait() for _ in range(min(self._taken.qsize(), PREFETCH))]
        copies = [self._copies(one) for one in together]
        results = iter(await self._broker.publish([copy for each in copies for copy in each]))
        if failpoints.ARMED:
            failpoints.reach("migrate.moved")
        safe = [all([isinstance(next(results), Confirmed) for _ in each]) for each in copies]  # noqa: C419 - takes all
        for delivery, confirmed in zip(together, safe, strict=True):
            if confirmed:
                delivery.ack()
                self.moved += 1
            else:
                delivery.hand_back()
        self._last_ms = self._clock.now_ms()
        if not all(safe):
            await self._clock.sleep(PAUSE_MS)

    def _copies(self, delivery: Delivery) -> tuple[Message, ...]:
        """Return what is published in the place of a message; one that cannot be translated is moved as it is."""
        translated = self._translation and self._translation.copies(delivery.message, self._ways[delivery.queue])
        return translated or (self._copy(delivery),)

    def _copy(self, delivery: Delivery) -> Message:
        """Return the message with its key, and, where nothing says so yet, with where it was first published."""
        message, move = delivery.message, self._ways[delivery.queue]
        home = move.home
        headers = dict(message.headers)
        for name in ("x-delivery-count", "x-acquired-count"):
            headers.pop(name, None)  # the broker writes them anew
        if home and message.exchange and wire.QUEUE not in headers:
            origin = {wire.QUEUE: home, wire.EXCHANGE: message.exchange, wire.KEY: message.routing_key}
            headers.update(origin)
        return replace(message, exchange=move.exchange, headers=headers, expiration="", user_id="", delivery_mode=2)

    async def _is_quiet(self) -> bool:
        """Tell whether nothing came for longer than the broker takes to count, and it counts nothing."""
        if not self._taken.empty() or self._clock.now_ms() - self._last_ms < COUNTED_MS:
            return False
        return not await self._holding()

    async def _holding(self) -> dict[str, int]:
        """Return which queues hold something, ready or in somebody's hands."""
        there = {queue: depth for queue, depth in (await self._broker.depths(self._ways)).items() if depth is not None}
        held = await self._broker.held(there) if isinstance(self._broker, Changeable) else {}
        # What nobody has counted yet is as good as full.
        counts = {
            queue: max(depth.ready, 1 if held.get(queue) is None else held[queue] or 0)
            for queue, depth in there.items()
        }
        return {queue: count for queue, count in counts.items() if count}

    async def _what_is_left(self) -> str:
        left = ", ".join(f"{count} in {queue!r}" for queue, count in (await self._holding()).items())
        return f"messages could not be moved in time: {left}. Somebody holds them, or sends more; run it again"

    async def _stop(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(one.cancel() for one in subscriptions))
        while not self._taken.empty():
            self._taken.get_nowait().hand_back()
        await asyncio.gather(*(one.settled() for one in subscriptions))
