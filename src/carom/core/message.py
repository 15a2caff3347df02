"""Message: an envelope with its address, and Carom's own headers: their names, reading, writing and limits.

Rule: a header from outside is a wish, not a fact. Reading never raises; what is absurd is clamped or ignored.
Rule: all of Carom's headers together stay under `OURS_LIMIT`, whatever an exception says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias

Headers: TypeAlias = Mapping[str, object]

OURS = "carom-"
ATTEMPT = "carom-attempt"
QUEUE = "carom-queue"
EXCHANGE = "carom-exchange"
KEY = "carom-key"
WAIT = "carom-wait"
CRASHES = "carom-crashes"
DEATHS = "carom-deaths"
FIRST_FAILED_AT = "carom-first-failed-at"
FAILED_AT = "carom-failed-at"
ERROR_TYPE = "carom-error-type"
ERROR = "carom-error"
ERROR_TRACE = "carom-error-trace"
REASON = "carom-reason"
HOST = "carom-host"
TRAIL = "carom-trail"
REPLAY_OF = "carom-replay-of"

OURS_LIMIT = 16 * 1024
"""What all of Carom's headers may weigh together, in bytes on the wire."""
HEADERS_LIMIT = 112 * 1024
"""What all headers may weigh together: a header block must fit one AMQP frame (128 KiB by default)."""
NAME_LIMIT = 255
"""A short string of AMQP, in bytes: names, keys and ids."""
TRAIL_LIMIT = 32
TRAIL_ID_LIMIT = 96
ERROR_TYPE_LIMIT = 255
ERROR_LIMIT = 2 * 1024
TRACE_LIMIT = 6 * 1024
COUNT_LIMIT = 1_000_000
"""No attempt or crash count is believed above this."""
DEPTH_LIMIT = 64
"""How deep headers may be nested."""
_FIRST_YEAR = 1970
_DECIMAL_DIGITS, _DECIMAL_PLACES = 10, 255
_WEIGHED = 16 * 1024 * 1024
"""Nobody needs to know by how much more than this a header is too heavy: a frame holds 128 KiB."""

_STRIPPED = frozenset({"x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC"})
_STRIPPED_PREFIXES = ("x-first-death-", "x-last-death-", "x-opt-", OURS)
_COUNTED_BY_BROKER = "x-delivery-count"
_TAKEN_BY_SOMEBODY = "x-acquired-count"


class Int64(int):
    """A header that is written as a 64-bit integer even where 32 bits would do; read back it is a plain number."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message and where it is addressed. Immutable; make a changed one with `dataclasses.replace`.

    ``id`` and ``correlation_id`` are empty when the publisher set none. A handler sees the exchange and the
    routing key of the first publish, however often the message came back since.
    """

    body: bytes = b""
    exchange: str = ""
    routing_key: str = ""
    id: str = ""
    correlation_id: str = ""
    content_type: str = ""
    content_encoding: str = ""
    type: str = ""
    app_id: str = ""
    reply_to: str = ""
    user_id: str = ""
    expiration: str = ""
    timestamp: int | None = None
    priority: int | None = None
    delivery_mode: int = 2
    headers: Headers = field(default_factory=dict)

    @property
    def attempt(self) -> int:
        """Return which attempt this is; 1 is the first."""
        return count(self.headers.get(ATTEMPT), least=1)

    @property
    def trail(self) -> tuple[str, ...]:
        """Return the ids of the messages this one came from, newest last."""
        return trail(self.headers)

    @property
    def replay_of(self) -> str:
        """Return the id of the dead letter this message is a replay of, or an empty string."""
        return name(self.headers.get(REPLAY_OF))


def count(value: object, *, least: int = 0) -> int:
    """Read a count defensively: anything but a sane integer is ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        return least
    return min(max(value, least), COUNT_LIMIT)


def name(value: object) -> str:
    """Read a name, key or id defensively: anything but a short string is empty."""
    return value if isinstance(value, str) and fits(value, NAME_LIMIT) else ""


def trail(headers: Headers) -> tuple[str, ...]:
    """Read the ids of a message's ancestors; what is not an id is left out."""
    value = headers.get(TRAIL)
    if not isinstance(value, list | tuple):
        return ()
    return tuple(item for item in value[-TRAIL_LIMIT:] if isinstance(item, str) and item and fits(item, TRAIL_ID_LIMIT))


def crashes(headers: Headers, *, redelivered: bool, counts: bool = True) -> int:
    """Return how often the broker took this message back unsettled since it was last published.

    A quorum queue counts for itself; the count is believed only on a redelivery, because a publisher may
    send a header of that name and the broker leaves it alone the first time. Since RabbitMQ 4.3 it counts what
    was handed back apart from what was lost: only then is a redelivery no crash. A classic queue, which does not
    count (``counts``), only says `redelivered`: one crash, added to those that Carom wrote down earlier.
    """
    known = count(headers.get(CRASHES)) if headers else 0
    if not redelivered:
        return known
    if not counts:
        return known + 1
    if _is_count(headers.get(_TAKEN_BY_SOMEBODY)) and not _is_count(headers.get(_COUNTED_BY_BROKER)):
        return known
    return known + max(1, count(headers.get(_COUNTED_BY_BROKER)))


def counted_by_broker(headers: Headers) -> bool:
    """Tell whether the broker itself counts how often this message came back."""
    return _is_count(headers.get(_COUNTED_BY_BROKER)) or _is_count(headers.get(_TAKEN_BY_SOMEBODY))


def foreign(headers: Headers) -> dict[str, object]:
    """Return the headers that belong to the user: without the broker's history and without Carom's own."""
    return {key: value for key, value in headers.items() if not _is_stripped(key)}


def without_history(headers: Headers) -> dict[str, object]:
    """Return the headers without what the broker wrote of where a message has been."""
    return {key: value for key, value in headers.items() if not _is_stripped(key) or str(key).startswith(OURS)}


def clip(value: str, limit: int) -> str:
    """Cut text to ``limit`` bytes of UTF-8 (3 or more), showing that it was cut; lone surrogates are written out.

    Costs what is kept, not what is given.
    """
    if len(value) <= limit and value.isascii():
        return value
    data = value[: limit + 1].encode("utf-8", errors="backslashreplace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - 3].decode("utf-8", errors="ignore") + "…"


def fits(text: str, limit: int) -> bool:
    """Tell whether text can be written in UTF-8 within a limit in bytes; a lone surrogate cannot."""
    if len(text) > limit:
        return False
    try:
        return len(text.encode()) <= limit
    except UnicodeEncodeError:
        return False


def weight(value: object) -> int:
    """Return about how many bytes a header value takes on the wire, never less than it does.

    However deep it is nested, and even if it contains itself: the count stops where no broker would take it.
    """
    total = 0
    todo = [value]
    while todo and total < _WEIGHED:
        item = todo.pop()
        if isinstance(item, str):
            total += 5 + (len(item) if item.isascii() else len(item.encode("utf-8", errors="backslashreplace")))
        elif isinstance(item, bytes | bytearray):
            total += 5 + len(item)
        elif isinstance(item, Mapping):
            total += 5
            for key, held in item.items():
                total += 1 + 4 * len(str(key))
                if type(held) is str and held.isascii():
                    total += 5 + len(held)
                else:
                    todo.append(held)
        elif isinstance(item, list | tuple):
            total += 5
            todo.extend(item)
        else:
            total += 16
    return total


def unwritable(headers: Headers) -> str:
    """Return what in these headers AMQP has no form for, in a few words; nothing when every broker can carry them.

    However deep they are nested, and even if they contain themselves.
    """
    todo: list[tuple[object, int]] = [(headers, 0)]
    while todo:
        value, depth = todo.pop()
        inside: Iterable[object]
        if isinstance(value, Mapping):
            if any(not isinstance(key, str) or len(key.encode(errors="replace")) > NAME_LIMIT for key in value):
                return f"a name that is not text of at most {NAME_LIMIT} bytes"
            inside = value.values()
        elif isinstance(value, list | tuple):
            inside = value
        elif misfit := _misfit(value):
            return misfit
        else:
            continue
        if depth > DEPTH_LIMIT:
            return f"what is nested more than {DEPTH_LIMIT} deep"
        todo.extend((item, depth + 1) for item in inside)
    return ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_stripped(key: object) -> bool:
    # Some clients hand on a name that is no UTF-8 as bytes; it belongs to the user like any other.
    return key in _STRIPPED or (isinstance(key, str) and key.startswith(_STRIPPED_PREFIXES))


def _misfit(value: object) -> str:
    for kind, (has_form, misfit) in _FORMS.items():
        if isinstance(value, kind):
            return "" if has_form(value) else misfit
    return f"a {type(value).__qualname__}"


def _is_small(value: Decimal) -> bool:
    """Tell whether a decimal is a whole number of 32 bits with some places."""
    negative, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    significant = text.rstrip("0")
    if not isinstance(exponent, int) or len(significant) > _DECIMAL_DIGITS:
        return False
    places = exponent + len(text) - len(significant) if significant else 0
    if not -_DECIMAL_PLACES <= places <= _DECIMAL_DIGITS:
        return False
    whole: int = int(significant or "0") * 10 ** max(0, places)
    return whole < (1 << 31) + negative


_LONE_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]").search
"""Half a character. Those from dc80 to dcff stand for bytes that came from a broker and were no UTF-8."""
_FORMS: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda text: text.isascii() or _LONE_SURROGATE(text) is None, "half a character"),
    bool | bytes | bytearray | type(None): (lambda _value: True, ""),
    int: (lambda number: -(1 << 63) <= number < 1 << 63, "an integer beyond 64 bits"),
    float: (math.isfinite, "a float that is no number"),
    datetime: (lambda time: time.year >= _FIRST_YEAR, "a time before 1970"),
    Decimal: (_is_small, "a decimal that 32 bits do not hold"),
}
