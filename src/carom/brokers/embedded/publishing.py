"""What a publish is checked for before it is routed, and how its lifetime is read.

Rule: what RabbitMQ closes the channel for is answered with `Returned` and the code and text RabbitMQ would use.
Nothing holds such a message, and the messages beside it are not concerned.
"""

from __future__ import annotations

from collections.abc import Mapping

from carom.core.durations import LONGEST_MS
from carom.core.effects import Returned
from carom.core.message import NAME_LIMIT, Message
from carom.core.topology import DEFAULT_EXCHANGE, Exchange

_SURELY_SHORT = NAME_LIMIT // 4
"""Text of so many characters fits a short string of AMQP whatever the characters are."""
_SHORT_STRINGS = (
    "routing_key",
    "id",
    "correlation_id",
    "content_type",
    "content_encoding",
    "type",
    "app_id",
    "reply_to",
    "user_id",
)


def invalid(message: Message, exchanges: Mapping[str, Exchange]) -> Returned | None:
    """Return why a message cannot be published at all, or None."""
    if message.exchange != DEFAULT_EXCHANGE:
        exchange = exchanges.get(message.exchange)
        if exchange is None:
            return Returned(404, f"NOT_FOUND - no exchange {message.exchange!r}: declare it first")
        if exchange.internal:
            return Returned(403, f"ACCESS_REFUSED - cannot publish to internal exchange {message.exchange!r}")
    if message.expiration and not _is_lifetime(message.expiration):
        return Returned(
            406,
            f"PRECONDITION_FAILED - invalid expiration {message.expiration!r}: it is not milliseconds up to 10 years",
        )
    if (
        len(message.routing_key) > _SURELY_SHORT
        or len(message.id) > _SURELY_SHORT
        or len(message.correlation_id) > _SURELY_SHORT
        or len(message.content_type) > _SURELY_SHORT
        or len(message.content_encoding) > _SURELY_SHORT
        or len(message.type) > _SURELY_SHORT
        or len(message.app_id) > _SURELY_SHORT
        or len(message.reply_to) > _SURELY_SHORT
        or len(message.user_id) > _SURELY_SHORT
    ):
        return _too_long(message)
    headers = message.headers
    return _bad_copies(message) if headers and ("CC" in headers or "BCC" in headers) else None


def lifetime(expiration: str, ttl_ms: int | None) -> int:
    """Return how long a message may wait in a queue: the shorter of its own wish and the queue's rule."""
    own = int(expiration)
    return own if ttl_ms is None else min(own, ttl_ms)


def _is_lifetime(expiration: str) -> bool:
    digits = expiration.isascii() and expiration.isdigit()
    return digits and len(expiration) <= len(str(LONGEST_MS)) and int(expiration) <= LONGEST_MS


def _too_long(message: Message) -> Returned | None:
    for field in _SHORT_STRINGS:
        size = len(getattr(message, field).encode(errors="replace"))
        if size > NAME_LIMIT:
            text = f"PRECONDITION_FAILED - the {field} of a message has {size} bytes and the limit is {NAME_LIMIT}"
            return Returned(406, text)
    return None


def _bad_copies(message: Message) -> Returned | None:
    if "BCC" in message.headers:
        return Returned(540, "NOT_IMPLEMENTED - the embedded broker knows the header CC and not BCC: use CC")
    copies = message.headers["CC"]
    if not isinstance(copies, list | tuple) or not all(isinstance(key, str) for key in copies):
        return Returned(406, "PRECONDITION_FAILED - the header CC has to be a list of routing keys")
    return None
