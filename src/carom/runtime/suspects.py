"""Suspects: messages that may be what kills workers are taken from a queue of their own, one at a time.

When a worker dies, the broker counts a return for every message it held. Of this queue a worker holds one message,
and handles it while nothing else runs, so that what is counted here is what this message did.

Rule: at the start they come first, before anything else is in this process's hands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from carom.core import message as names
from carom.core.effects import Confirmed, PublishResult, Unknown
from carom.errors import BrokerError
from carom.ports import Delivery
from carom.runtime.consumer import Consumer
from carom.runtime.gate import ALONE_MS
from carom.runtime.intake import Intake
from carom.runtime.surroundings import Surroundings

PAUSE_MS = 1_000
"""How long a suspect that could not be sent back is kept before the next try."""

_log = logging.getLogger("carom.consumer")


class Suspects:
    """Gives each suspect to the consumer of the queue it came from."""

    def __init__(self, consumers: Mapping[str, Consumer], shared: Surroundings) -> None:
        """Take nothing yet."""
        self._consumers = consumers
        self._shared = shared
        self._queue = shared.layout.suspects
        self._intake = Intake(self._queue, 1, shared, self._receive)
        self._sending: set[asyncio.Task[None]] = set()

    async def drain(self) -> None:
        """Handle what is there, one by one. One that runs for long ends this: it is no crash on arrival."""
        while (delivery := await self._shared.broker.get(self._queue)) is not None:
            consumer = self._consumers.get(_home(delivery))
            if consumer is None:
                await self._send_back(delivery)
                continue
            consumer.receive_alone(delivery)
            if not await consumer.is_through(ALONE_MS):
                return

    async def start(self) -> None:
        """Subscribe."""
        await self._intake.start()

    async def stop(self) -> None:
        """Take no more; who waits to be alone will not be."""
        self._shared.gate.forget()
        await self._intake.stop()
        for sending in tuple(self._sending):
            sending.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _receive(self, delivery: Delivery) -> None:
        consumer = self._consumers.get(_home(delivery))
        if consumer is not None:
            consumer.receive_alone(delivery)
        else:
            sending = asyncio.get_running_loop().create_task(self._send_back(delivery))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _send_back(self, delivery: Delivery) -> None:
        """Put a message back into its queue, which another app of our name listens to, or none any more."""
        home = _home(delivery)
        arrival = self._shared.layout.wire.read(delivery.message, home, redelivered=delivery.redelivered, alone=True)
        copy = self._shared.layout.wire.recounted(arrival, self._shared.layout.queue_address(home))
        _log.warning("a suspect of queue %r, which this app does not listen to, is sent back there", home)
        if copy is None:
            delivery.refuse()
            return
        result: PublishResult
        try:
            (result,) = await self._shared.broker.publish((copy,))
        except BrokerError as error:
            result = Unknown(str(error))
        if isinstance(result, Confirmed):
            delivery.ack()
        elif isinstance(result, Unknown):
            try:
                await self._shared.clock.sleep(PAUSE_MS)
            finally:
                delivery.hand_back()
        else:
            delivery.refuse()


def _home(delivery: Delivery) -> str:
    return names.name(delivery.message.headers.get(names.QUEUE))
