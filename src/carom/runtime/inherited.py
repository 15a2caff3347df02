"""What a message published inside a handler inherits: correlation id, ancestors and trace context.

Rule: what is said explicitly wins; everything else comes from the message that is being handled.
"""

from __future__ import annotations

import contextvars

from carom.core.message import TRAIL, TRAIL_LIMIT, Headers, Message

HANDLING: contextvars.ContextVar[Message | None] = contextvars.ContextVar("carom-handling", default=None)
"""The message that the current task or thread handles."""

TRACE_HEADERS = ("traceparent", "tracestate")
TRACE_LIMIT = 512


def inherit(message: Message, headers: Headers | None) -> dict[str, object]:
    """Return the headers of a message that is published while another is handled."""
    inherited: dict[str, object] = {TRAIL: [*message.trail, message.id][-TRAIL_LIMIT:]} if message.id else {}
    for name in TRACE_HEADERS:
        value = message.headers.get(name)
        if isinstance(value, str) and len(value) <= TRACE_LIMIT:
            inherited[name] = value
    return {**inherited, **headers} if headers else inherited
