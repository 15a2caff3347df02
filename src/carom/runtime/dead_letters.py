"""Dead letters by count, straight on the broker: look at some, put them back, throw them away; and drain a queue.

Rule: no more is taken than was asked for and was there at the beginning, so that nobody reads what he has just written.
Rule: a message is acknowledged when its copy is confirmed. What was not is given back once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from carom import failpoints
from carom.core.effects import Confirmed
from carom.core.letters import DeadQueue, Letter, dead_queue, drained, home, letter, renewed, replayed
from carom.core.message import Message
from carom.core.relaying import said
from carom.core.settlement import Layout
from carom.ports import Broker, Delivery

TOGETHER = 200
"""So many are taken and published at a time."""
_NO_HOME = "nothing on it says which queue it died for: name that queue"
_TOO_HEAVY = "its headers would not fit a frame"

Copying: TypeAlias = Callable[[Message], Message | str]
"""Makes the copy of a message that is to be published, or says why there is none."""


@dataclass(slots=True)
class Moved:
    """What came of moving messages: how many are gone from their queue, and what stays, each with its reason."""

    done: int = 0
    stays: list[tuple[str, str]] = field(default_factory=list)


class DeadLetters:
    """The dead letters of one queue; ``asked`` is its name, or that of the queue of dead letters itself.

    Raises ConfigurationError when the app has no such queue.
    """

    def __init__(self, broker: Broker, layout: Layout, queues: Sequence[str], asked: str) -> None:
        """Take nothing yet."""
        self._broker = broker
        self._layout = layout
        self.queue: DeadQueue = dead_queue(layout, queues, asked)

    async def list(self, most: int) -> Sequence[Letter]:
        """Return the first of them, all handed back once: it counts as a return, and they go before the others again.

        One that another return might use up is put back as a copy, behind the others.
        """
        taken = await _take(self._broker, self.queue.name, most)
        found = [self._letter(one.message) for one in taken]
        for delivery in taken:
            await self._give_back(delivery)
        return found

    async def replay(self, most: int) -> Moved:
        """Send the first of them to the queue they died for, for a new life: published, confirmed, acknowledged."""
        return await move(self._broker, self.queue.name, most, self._replayed)

    async def discard(self, most: int) -> int:
        """Throw the first of them away; return how many."""
        taken = await _take(self._broker, self.queue.name, most)
        for delivery in taken:
            delivery.ack()
        return len(taken)

    def _letter(self, message: Message) -> Letter:
        return letter(self._layout, message, home(message, self.queue.homes))

    def _replayed(self, message: Message) -> Message | str:
        queue = home(message, self.queue.homes)
        if not queue:
            return _NO_HOME
        return replayed(self._layout, message, queue) or _TOO_HEAVY

    async def _give_back(self, delivery: Delivery) -> None:
        copy = renewed(delivery.message, self.queue)
        if copy is not None and isinstance((await self._broker.publish([copy]))[0], Confirmed):
            delivery.ack()
        else:
            delivery.hand_back()


async def drain(broker: Broker, layout: Layout, queues: Sequence[str], queue: str, to: str, most: int) -> Moved:
    """Move what is ready in a queue to another one, as it is; what comes meanwhile stays."""
    return await move(broker, queue, most, lambda message: drained(layout, message, to, queues) or _TOO_HEAVY)


async def move(broker: Broker, queue: str, most: int, copying: Copying) -> Moved:
    """Publish copies of the first messages of a queue, and acknowledge each that is confirmed."""
    moved, kept = Moved(), list[Delivery]()
    left = min(most, await ready(broker, queue))
    try:
        while left > 0 and (taken := await _take(broker, queue, min(TOGETHER, left))):
            left -= len(taken)
            kept += taken
            done = await _publish(broker, taken, copying, moved)
            kept = [one for one in kept if one not in done]
            if not done:
                break  # what nobody takes now is not taken by the next either
    finally:
        for delivery in kept:
            delivery.hand_back()
    return moved


async def ready(broker: Broker, queue: str) -> int:
    """Return how many messages of a queue could be taken; none of one that does not exist."""
    depth = (await broker.depths([queue]))[queue]
    return 0 if depth is None else depth.ready


async def _publish(broker: Broker, taken: list[Delivery], copying: Copying, moved: Moved) -> list[Delivery]:
    """Publish copies; acknowledge and return what was confirmed, and note why the rest stays."""
    copies: list[tuple[Delivery, Message]] = []
    for delivery in taken:
        copy = copying(delivery.message)
        if isinstance(copy, Message):
            copies.append((delivery, copy))
        else:
            moved.stays.append((delivery.message.id, copy))
    results = await broker.publish([copy for _, copy in copies]) if copies else ()
    if failpoints.ARMED and copies:
        failpoints.reach("moved.published")
    done: list[Delivery] = []
    for (delivery, _), result in zip(copies, results, strict=True):
        if isinstance(result, Confirmed):
            delivery.ack()
            done.append(delivery)
        else:
            moved.stays.append((delivery.message.id, said(result)))
    moved.done += len(done)
    return done


async def _take(broker: Broker, queue: str, most: int) -> list[Delivery]:
    """Take messages, one after the other; what is taken is nobody else's until it is settled."""
    taken: list[Delivery] = []
    try:
        while len(taken) < most and (delivery := await broker.get(queue)) is not None:
            taken.append(delivery)
    except BaseException:
        for delivery in taken:
            delivery.hand_back()
        raise
    return taken
