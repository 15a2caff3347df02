"""Recording: the copy that follows from a failed attempt is published once, and that it was is written down.

Rule: the message is held meanwhile, so that of two that failed at the same attempt one publishes and the other knows.
Rule: the record is made after the copy is confirmed and before the original is acknowledged. Whoever dies between the
two leaves a copy and an original; they have one id, and one of them ends where they meet.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from carom import failpoints
from carom.core import message as names
from carom.core.effects import CONFIRMED, Confirmed, PublishResult, Unknown
from carom.core.message import Message
from carom.core.wire import Arrival
from carom.errors import StoreError
from carom.ports import Inbox
from carom.runtime.surroundings import Surroundings


def identity(message: Message) -> str:
    """Return the id by which a message can be known again; empty when it has none that a database can keep."""
    found = names.name(message.id)
    return "" if "\0" in found else found


class Recording:
    """One copy on its way."""

    def __init__(
        self,
        inbox: Inbox,
        shared: Surroundings,
        arrival: Arrival,
        *,
        last: bool,
        publish: Callable[[], Awaitable[PublishResult]],
    ) -> None:
        """Do nothing yet. ``last`` says that the copy is a dead letter; ``publish`` publishes it, once."""
        self._inbox = inbox
        self._shared = shared
        self._arrival = arrival
        self._last = last
        self._publish = publish
        self._published = False

    async def publish(
        self, pause: Callable[[int], Awaitable[None]], is_over: Callable[[], bool]
    ) -> PublishResult | None:
        """Publish the copy and record it, when the database is there; None when somebody else has.

        Confirmed says that both are done, or that it is over and the copy exists. Anything else says that there is no
        copy and no record.
        """
        failures = 0
        while True:
            try:
                result = await self._publish_and_record()
            except Exception as error:
                if not self._is_databases(error):
                    raise
                failures += 1
                wait_ms = self._shared.backoff.wait_ms(failures, random.random())  # noqa: S311 - jitter is no secret
                if not self._inbox.is_passing(error):
                    self._shared.presence.lost(error, wait_ms)
                if not is_over():
                    await pause(wait_ms)
                if is_over():  # the copy is as safe without a record; only what comes a second time is not known
                    return CONFIRMED if self._published else Unknown(str(error))
            else:
                self._shared.presence.found()
                return result

    async def _publish_and_record(self) -> PublishResult | None:
        arrival = self._arrival
        hold = self._inbox.failing(arrival.queue, arrival.message.id, arrival.ordinal, last=self._last)
        try:
            async with hold as is_first:
                if not self._published:
                    if not is_first:
                        return None
                    await self._publish_once()
        except _NotTaken as refused:
            return refused.result
        if failpoints.ARMED:
            failpoints.reach("inbox.recorded")
        return CONFIRMED

    async def _publish_once(self) -> None:
        result = await self._publish()
        if not isinstance(result, Confirmed):
            raise _NotTaken(result)
        self._published = True
        if failpoints.ARMED:
            failpoints.reach("consumer.published")

    def _is_databases(self, error: Exception) -> bool:
        return isinstance(error, StoreError) or self._inbox.is_absence(error) or self._inbox.is_passing(error)


class _NotTaken(Exception):
    """Leaves a hold without a record."""

    def __init__(self, result: PublishResult) -> None:
        self.result = result
        super().__init__(str(result))
