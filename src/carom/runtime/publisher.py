"""The publisher: payload → message → broker, and an exception when it was not taken over.

Rule: a publish returns when the broker has confirmed it, and raises in every other case. What is unknown is
raised as NotConfirmed: publish the same message again, and who handles it twice knows it by its id.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from carom.codecs import Registry
from carom.core import wire as carom_wire
from carom.core.durations import Duration
from carom.core.effects import Confirmed, Nacked, PublishResult, Returned, Unknown
from carom.core.message import HEADERS_LIMIT, NAME_LIMIT, OURS, Headers, Message, unwritable, weight
from carom.core.wire import Wire
from carom.errors import ConfigurationError, NotConfirmed, PublishError, Unroutable
from carom.ports import Broker, Clock
from carom.runtime import events
from carom.runtime.inherited import HANDLING, inherit

Outgoing: TypeAlias = Callable[[Message], Message]
_SHORT = (
    "routing_key",
    "exchange",
    "id",
    "correlation_id",
    "content_type",
    "content_encoding",
    "type",
    "app_id",
    "reply_to",
)


@dataclass(frozen=True, slots=True)
class Emit:
    """Something to announce, for `publish_many` and `emit_many`; ``key`` and ``at`` are for the latter alone."""

    routing_key: str
    payload: Any = None
    headers: Headers | None = None
    correlation_id: str | None = None
    delay: Duration | None = None
    key: str | None = None
    at: datetime | None = None


class Publisher:
    """Makes messages and publishes them on one exchange."""

    def __init__(
        self,
        exchange: str,
        app_name: str,
        codecs: Registry,
        clock: Clock,
        notify: Callable[[object], None] | None,
        wire: Wire = carom_wire,
        outgoing: Sequence[Outgoing] = (),
    ) -> None:
        """Publish nothing yet; give it a ``broker`` first."""
        self.broker: Broker | None = None
        self.outgoing: Sequence[Outgoing] = outgoing
        self.wire = wire
        self._exchange = exchange
        self._app_name = app_name
        self._codecs = codecs
        self._clock = clock
        self._notify = notify

    def message(
        self,
        routing_key: str,
        payload: Any,
        headers: Mapping[str, object] | None = None,
        correlation_id: str | None = None,
    ) -> Message:
        """Make a message: a new id, and what it inherits from the message that is being handled."""
        now_ms = self._clock.now_ms()
        body, content_type = self._codecs.encode(payload)
        handling = HANDLING.get()
        if handling is not None:
            headers = inherit(handling, headers)
            correlation_id = correlation_id or handling.correlation_id or handling.id
        identity = new_id(now_ms)
        made = self._changed(
            Message(
                body=body,
                exchange=self._exchange,
                routing_key=routing_key,
                id=identity,
                correlation_id=correlation_id or identity,
                content_type=content_type,
                app_id=self._app_name,
                timestamp=now_ms // 1000,
                headers=headers or {},
            )
        )
        return checked(self.wire.outgoing(made))

    def ready(self, message: Message) -> Message:
        """Return a message made elsewhere as it goes out: seen by everybody who wants to see it, and checked."""
        return checked(self._changed(message))

    def _changed(self, message: Message) -> Message:
        for change in self.outgoing:
            message = change(message)
            if not isinstance(message, Message):
                raise ConfigurationError(
                    f"{change!r} sees outgoing messages and returned {type(message).__name__}: return the message"
                )
        return message

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publish; raises for what was not confirmed: the error itself, or a group of them."""
        if self.broker is None:
            raise ConfigurationError(
                "the app is not started: publish inside 'async with app:', or call app.start() first"
            )
        started = time.perf_counter()
        results = await self.broker.publish(messages)
        duration_ms = (time.perf_counter() - started) * 1000
        errors = []
        for message, result in zip(messages, results, strict=True):
            if not isinstance(result, Confirmed):
                errors.append(publish_error(message, result))
            if self._notify is not None:
                self._tell(message, result, duration_ms)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"{len(errors)} of {len(messages)} messages were not published", errors)

    def _tell(self, message: Message, result: PublishResult, duration_ms: float) -> None:
        if self._notify is None:
            return
        if isinstance(result, Confirmed):
            self._notify(events.Published(message=message, duration_ms=duration_ms))
        else:
            self._notify(events.NotPublished(message=message, result=str(result), duration_ms=duration_ms))


def publish_error(message: Message, result: PublishResult) -> PublishError:
    """Return the error that a result other than a confirmation stands for."""
    what = f"message {message.id} to exchange {message.exchange!r} with routing key {message.routing_key!r}"
    match result:
        case Returned(_, text):
            return Unroutable(
                f"{what} was returned ({text}): no queue is bound for it. Start a listener with a matching key first, "
                "or declare the topology with 'carom topology apply'",
                message.id,
            )
        case Nacked(why):
            reason = why or "a queue it goes to is full or broken"
            return NotConfirmed(f"{what} was refused by the broker: {reason}", message.id)
        case Unknown(why):
            return NotConfirmed(f"nobody knows whether the broker has {what}: {why}. Publish it again", message.id)
        case Confirmed():
            raise ConfigurationError(f"{what} was confirmed: there is no error")


def checked(message: Message) -> Message:
    """Return a message that every broker can carry; raises ConfigurationError with what is too long."""
    for name in _SHORT:
        value = getattr(message, name)
        if not _is_short(value):
            raise ConfigurationError(
                f"the {name} of a message is to be text of at most {NAME_LIMIT} bytes in UTF-8, "
                f"and this is not: {_cut(value)}"
            )
    for header in message.headers:
        if not header or not _is_short(header):
            raise ConfigurationError(
                f"the name of a header is text of 1 to {NAME_LIMIT} bytes in UTF-8, and this is not: {_cut(header)}"
            )
    if message.headers and weight(message.headers) > HEADERS_LIMIT:
        raise ConfigurationError(
            f"the headers of message {message.id} weigh more than {HEADERS_LIMIT} bytes and would not fit a frame: "
            "put large things into the payload"
        )
    if message.headers and (misfit := unwritable(message.headers)):
        raise ConfigurationError(
            f"a header of message {message.id} holds {misfit}, which AMQP has no form for: say text"
        )
    return message


def _is_short(value: object) -> bool:
    if not isinstance(value, str):
        return False
    if value.isascii():
        return len(value) <= NAME_LIMIT
    return len(value.encode(errors="replace")) <= NAME_LIMIT and not any("\ud800" <= char <= "\udfff" for char in value)


def _cut(value: object) -> str:
    return repr(value[:40] if isinstance(value, str) else value)


def emits(items: Iterable[Emit | tuple[Any, ...]]) -> list[Emit]:
    """Return what is to be announced, from Emits or (routing key, payload) pairs."""
    return [item if isinstance(item, Emit) else Emit(*item) for item in items]


def without_ours(headers: Headers | None) -> Headers | None:
    """Refuse headers in Carom's own name: they mean something, and a user who sets them would be surprised."""
    for name in headers or ():
        if isinstance(name, str) and name.startswith(OURS):
            raise ConfigurationError(f"the header {name!r} is Carom's own; choose another name")
    return headers


def new_id(now_ms: int) -> str:
    """Return a new UUIDv7: unique, and sorted by time."""
    value = now_ms << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
