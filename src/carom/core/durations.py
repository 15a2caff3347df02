"""Durations: ``"1m30s"``, 90, 90.0 or ``timedelta(seconds=90)`` on the outside, integer milliseconds inside.

Rule: one way in (`milliseconds`), one way out (`text`), and ``milliseconds(text(n)) == n`` for every n.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TypeAlias

from carom.errors import ConfigurationError

Duration: TypeAlias = float | timedelta | str
"""Seconds as a number, a timedelta, or text such as ``"250ms"``, ``"1h30m"``."""

LONGEST_MS = 315_360_000_000
"""Ten years: what RabbitMQ accepts as the longest time to live."""

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_TEXT = re.compile(
    r"(?:(?P<d>[0-9]{1,12})d)?(?:(?P<h>[0-9]{1,12})h)?(?:(?P<m>[0-9]{1,12})m(?!s))?"
    r"(?:(?P<s>[0-9]{1,12})s)?(?:(?P<ms>[0-9]{1,12})ms)?"
)


def milliseconds(duration: Duration) -> int:
    """Return a duration in whole milliseconds, rounded up so that nothing comes early.

    Numbers are taken to the nanosecond: what lies below is the noise of binary fractions.
    """
    if isinstance(duration, str):
        value = _from_text(duration)
    elif isinstance(duration, timedelta):
        value = -(-duration // timedelta(milliseconds=1))
    elif isinstance(duration, bool) or not isinstance(duration, int | float):
        raise ConfigurationError(f"{duration!r} is not a duration: say seconds, a timedelta or text such as '1m30s'")
    else:
        value = _from_number(duration)
    if value < 0:
        raise ConfigurationError(f"{_shown(duration)} is not a duration: it is negative, say how long from now")
    if value > LONGEST_MS:
        raise ConfigurationError(f"{_shown(duration)} is longer than ten years, the longest a broker can wait")
    return value


def text(value: int) -> str:
    """Write milliseconds the way people and queue names do: ``"2s"``, ``"1m30s"``, ``"250ms"``, ``"0s"``."""
    if value < 0:
        raise ConfigurationError(f"{value} ms is not a duration: it is negative")
    parts = []
    for unit, size in _UNITS.items():
        count, value = divmod(value, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _from_number(seconds: float) -> int:
    if isinstance(seconds, float) and math.isnan(seconds):
        raise ConfigurationError("nan is not a duration: say seconds, a timedelta or text such as '1m30s'")
    # Out of bounds is decided before anything is multiplied: a float could overflow, an integer have no end of digits.
    bound = LONGEST_MS // 1000 + 1
    return math.ceil(round(min(max(seconds, -bound), bound) * 1000, 6))


def _from_text(duration: str) -> int:
    found = _TEXT.fullmatch(duration)
    if not found or not duration:
        shown = _shown(duration)
        raise ConfigurationError(f"{shown} is not a duration: write it as '250ms', '2s', '1m30s' or '1h'")
    return sum(int(count) * _UNITS[unit] for unit, count in found.groupdict().items() if count)


def _shown(duration: Duration) -> str:
    """Write a duration into a sentence, however long it is; Python itself refuses to write very long integers."""
    if isinstance(duration, int) and abs(duration) >= 10**40:
        return "an integer of more than 40 digits"
    return repr(duration[:40] if isinstance(duration, str) else duration)
