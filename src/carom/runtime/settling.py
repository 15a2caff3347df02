"""Settling: what was decided about a delivery is done, and told.

Rule: nothing is acknowledged before what follows from it is confirmed. A publish that fails keeps the original
in our hands and is tried again, for as long as the connection that brought it stands.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from carom import failpoints
from carom.core.effects import Ack, Confirmed, Fail, HandBack, Publish, PublishResult, Returned, Unknown, lasts
from carom.core.message import Message
from carom.core.settlement import DUPLICATE, Fate, Settlement
from carom.core.topology import Topology
from carom.core.wire import Arrival
from carom.errors import BrokerError, ConfigurationError
from carom.ports import Delivery, Inbox
from carom.runtime import events
from carom.runtime.recording import Recording, identity
from carom.runtime.surroundings import Surroundings

_log = logging.getLogger("carom.consumer")


class Settling:
    """Settles what one consumer takes."""

    def __init__(self, queue: str, shared: Surroundings, inbox: Inbox | None = None) -> None:
        """Do nothing yet. Where there is an ``inbox``, each copy that follows from a failure is recorded in it."""
        self._inbox = inbox
        self.paused = 0
        self.stopping = False
        self._queue = queue
        self._shared = shared
        self._wire = shared.layout.wire
        self._topology = shared.layout.topology
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Hand back what cannot be settled now: the app stops."""
        self.stopping = True
        self._stop.set()

    async def perform(
        self, delivery: Delivery, arrival: Arrival, message: Message, settlement: Settlement, started: float
    ) -> None:
        """Do what was decided, in its order; settle only when everything before is confirmed."""
        for effect in settlement.effects:
            if isinstance(effect, Publish):
                if not await self._publish(effect.message, delivery, arrival, message, settlement.fate):
                    return
            elif delivery.stale:
                self.drop(arrival)
                return
            elif isinstance(effect, Ack):
                delivery.ack()
                if failpoints.ARMED:
                    failpoints.reach("consumer.acked")
            elif isinstance(effect, HandBack):
                delivery.hand_back()
            elif isinstance(effect, Fail):
                delivery.fail()
            else:
                let_die(delivery, self._topology)
        if self._shared.notify is not None:
            self._tell_settled(arrival, message, settlement, (time.perf_counter() - started) * 1000)

    async def conclude(
        self, delivery: Delivery, arrival: Arrival, message: Message, settlement: Settlement, started: float
    ) -> None:
        """Do what was decided as a task of its own, whose errors concern nobody else."""
        try:
            await self.perform(delivery, arrival, message, settlement, started)
        except asyncio.CancelledError:
            self.hand_back(delivery, arrival)
            raise
        except Exception:  # noqa: BLE001 - the last guard: logged, and the delivery is settled
            self.refuse(delivery, arrival)

    def refuse(self, delivery: Delivery, arrival: Arrival) -> None:
        """Let the broker make a dead letter of it, from within the handling of an error that is our own."""
        _log.exception("message %r of %s could not be settled and is refused", delivery.message.id, delivery.queue)
        let_die(delivery, self._topology)
        self.tell(events.DeadLettered, arrival, self._wire.seen(arrival), reason="unsettled")

    def hand_back(self, delivery: Delivery, arrival: Arrival) -> None:
        """Put it back into its queue."""
        if delivery.stale:
            self.drop(arrival)
            return
        delivery.hand_back()
        self.tell(events.HandedBack, arrival, self._wire.seen(arrival))

    def drop(self, arrival: Arrival) -> None:
        """Let go of a delivery whose connection is gone."""
        why = "the connection that brought it is gone; the broker delivers it again"
        self.tell(events.Dropped, arrival, self._wire.seen(arrival), why=why)

    def tell(self, kind: Callable[..., object], arrival: Arrival, message: Message, **more: object) -> None:
        """Tell whoever observes what happened to a delivery."""
        if self._shared.notify is not None:
            self._shared.notify(
                kind(queue=arrival.queue, message=message, attempt=arrival.attempt, crashes=arrival.crashes, **more)
            )

    async def pause(self, wait_ms: int) -> None:
        """Wait, but not when the app stops."""
        waits = [asyncio.ensure_future(self._shared.clock.sleep(wait_ms)), asyncio.ensure_future(self._stop.wait())]
        self.paused += 1
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.paused -= 1
            for wait in waits:
                wait.cancel()

    async def _publish(self, copy: Message, delivery: Delivery, arrival: Arrival, message: Message, fate: Fate) -> bool:
        """Publish until it is confirmed. False when the delivery was given up instead, and settled if it could be."""
        failures = 0
        recording = self._recording(copy, arrival, fate)
        while not delivery.stale:
            if recording is None:
                result = await self._publish_once(copy)
            else:
                found = await recording.publish(self.pause, lambda: self.stopping or delivery.stale)
                if found is None:
                    await self.perform(delivery, arrival, message, DUPLICATE, 0)
                    return False
                result = found
            if isinstance(result, Confirmed):
                return True
            if lasts(result) and not delivery.stale:
                let_die(delivery, self._topology)
                self.tell(events.DeadLettered, arrival, message, reason="unpublishable", error=str(result))
                return False
            if self.stopping:
                self.hand_back(delivery, arrival)
                return False
            if isinstance(result, Returned):
                await self._restore()
            failures += 1
            wait_ms = self._shared.backoff.wait_ms(failures, random.random())  # noqa: S311 - jitter is no secret
            self.tell(events.NotSettled, arrival, message, result=str(result), retry_in_ms=wait_ms)
            await self.pause(wait_ms)
        self.drop(arrival)
        return False

    def _recording(self, copy: Message, arrival: Arrival, fate: Fate) -> Recording | None:
        """Return the way of a copy that is recorded: one that is the next attempt, or a dead letter."""
        if self._inbox is None or fate not in {"retried", "dead"} or not identity(arrival.message):
            return None
        return Recording(
            self._inbox, self._shared, arrival, last=fate == "dead", publish=lambda: self._publish_once(copy)
        )

    async def _restore(self) -> None:
        """Somebody removed what the copy goes to: make it anew, where we may."""
        try:
            await self._shared.restore()
        except (BrokerError, ConfigurationError) as error:
            _log.warning("the topology of %s cannot be restored: %s", self._queue, error)

    async def _publish_once(self, copy: Message) -> PublishResult:
        try:
            (result,) = await self._shared.broker.publish((copy,))
        except BrokerError as error:
            return Unknown(str(error))
        return result

    def _tell_settled(self, arrival: Arrival, message: Message, done: Settlement, duration_ms: float) -> None:
        tell = self.tell
        failure = {"classification": done.classification, "error_type": done.error_type, "error": done.error}
        match done.fate:
            case "done":
                tell(events.Handled, arrival, message, duration_ms=duration_ms)
            case "duplicate":
                tell(events.Duplicate, arrival, message)
            case "retried":
                tell(events.Retried, arrival, message, duration_ms=duration_ms, delay_ms=done.delay_ms, **failure)
            case "dead":
                tell(events.DeadLettered, arrival, message, duration_ms=duration_ms, reason=done.reason, **failure)
            case "discarded":
                tell(events.Discarded, arrival, message, duration_ms=duration_ms, reason=done.reason)
            case "handed back":
                tell(events.HandedBack, arrival, message)
            case "waiting" | "recounted" | "set apart":
                tell(events.Postponed, arrival, message, delay_ms=done.delay_ms)


def let_die(delivery: Delivery, topology: Topology) -> None:
    """Let the broker make a dead letter of it; where its queue has no place for them, it goes back and is counted.

    Some systems' queues have no dead letter exchange: a broker throws away what is refused there.
    """
    queue = topology.queue(delivery.queue)
    if queue is not None and queue.dead_letter_exchange is None:
        delivery.hand_back()
    else:
        delivery.refuse()
