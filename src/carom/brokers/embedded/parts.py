"""Publishing to a broker file: batches in pieces of a size, and no more of them at once than fit.

Rule: a message that cannot be written concerns no other message; its result says why.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from carom.brokers.embedded.commands import Batch, Publish, encode
from carom.core.effects import PublishResult, Returned, Unknown
from carom.core.message import Message
from carom.errors import BrokerError

LARGEST = 128 * 1024 * 1024
"""The largest body, in bytes, as on RabbitMQ."""
_MESSAGES = 500
_BYTES = 4 * 1024 * 1024


class Part:
    """A piece of a batch: what of it can be written, its wire form, and the results of the rest by position."""

    __slots__ = ("answer", "encoded", "messages", "refused", "size")

    def __init__(self, messages: Sequence[Message]) -> None:
        """Encode the messages as they are now."""
        self.messages: Sequence[Message] = [detached(message) for message in messages]
        self.refused: dict[int, Returned] = {}
        self.answer: asyncio.Future[Any] | None = None
        self.encoded: msgspec.Raw | None = None
        self.size = 0
        try:
            self._encode()
        except (TypeError, ValueError, OverflowError, RecursionError):
            self._refuse()
        else:
            if self.size > LARGEST:
                self._refuse()

    def _encode(self) -> None:
        self.encoded = encode(Publish(Batch(self.messages)))
        self.size = len(memoryview(self.encoded))

    def _refuse(self) -> None:
        """Keep the messages that can be written."""
        asked, self.encoded, self.size = self.messages, None, 0
        self.refused = {index: why for index, one in enumerate(asked) if (why := _refusal(one)) is not None}
        self.messages = [one for index, one in enumerate(asked) if index not in self.refused]
        if self.messages:
            self._encode()

    async def results(self) -> list[PublishResult]:
        """Wait for the commit and return a result for each message; Unknown for all when it failed."""
        answers: list[PublishResult] = []
        if self.answer is not None:
            try:
                answers = await self.answer
            except BrokerError as error:
                answers = [Unknown(str(error)) for _ in self.messages]
        if not self.refused:
            return answers
        others = iter(answers)
        count = len(self.messages) + len(self.refused)
        return [self.refused[index] if index in self.refused else next(others) for index in range(count)]


def detached(message: Message) -> Message:
    """Return a message whose headers nobody else holds.

    Replicas stay the same only if no one changes a header in one of them; and a handler, or whoever publishes many
    messages with one dictionary, might.
    """
    return replace(message, headers=dict(message.headers)) if message.headers else message


def divided(messages: Sequence[Message]) -> Iterator[Part]:
    """Divide a batch into parts, each encoded when it is asked for."""
    start = size = 0
    for index, message in enumerate(messages):
        if index - start == _MESSAGES or size > _BYTES:
            yield Part(messages[start:index])
            start, size = index, 0
        size += len(message.body)
    if start < len(messages):
        yield Part(messages[start:] if start else messages)


class Window:
    """So many bytes may be under way; whoever comes when it is full waits, first come first served.

    Something larger than the window goes alone.
    """

    def __init__(self, limit: int) -> None:
        """Start empty."""
        self._limit = limit
        self._used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait for room and take it."""
        if not self._waiting and self._fits(size):
            self._used += size
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave(size)
            raise

    def leave(self, size: int, answer: asyncio.Future[Any] | None = None) -> None:
        """Give room back; also the callback of an answer, whose error is no news to us."""
        if answer is not None and not answer.cancelled():
            answer.exception()
        self._used -= size
        while self._waiting and (self._waiting[0][1].cancelled() or self._fits(self._waiting[0][0])):
            wanted, place = self._waiting.popleft()
            if not place.cancelled():
                self._used += wanted
                place.set_result(None)

    def _fits(self, size: int) -> bool:
        return not self._used or self._used + size <= self._limit


def _refusal(message: Message) -> Returned | None:
    """Return why a message cannot be written to any log, in RabbitMQ's codes, or None."""
    if len(message.body) > LARGEST:
        text = f"CONTENT_TOO_LARGE - a body of {len(message.body)} bytes; the limit is {LARGEST}"
        return Returned(311, text)
    try:
        encode(Publish(Batch([message])))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Returned(502, f"SYNTAX_ERROR - the message cannot be encoded: {error}")
    return None
