"""Log lines for people and for programs.

Rule: one record is one line, or one line and indented ones below it: nothing that was logged can pass for a line of
its own. What does not print is escaped.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import click
import msgspec

from carom.cli.output import Output, colored, shown

Format: TypeAlias = Literal["text", "json"]

_COLORS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red", logging.DEBUG: "bright_black"}
_LEVELS = {
    -2: (logging.ERROR, logging.ERROR),
    -1: (logging.WARNING, logging.WARNING),
    0: (logging.INFO, logging.INFO),
    1: (logging.DEBUG, logging.INFO),
    2: (logging.DEBUG, logging.DEBUG),
}
"""What is logged at each verbosity: from Carom, and from everybody else."""
EVERYTHING = 2
_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class People(logging.Formatter):
    """``12:03:04 WARNING  what happened``."""

    def __init__(self, *, color: bool) -> None:
        """Colour the level, or nothing."""
        super().__init__("%(message)s")
        self._color = color

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = f"{record.levelname:<8}"
        if self._color and record.levelno in _COLORS:
            level = click.style(level, fg=_COLORS[record.levelno])
        text = shown(super().format(record), keep="\n").replace("\n", "\n    ")
        return f"{time} {level} {text}"


class Programs(logging.Formatter):
    """One JSON object a line, with the facts of the event as its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        more = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        if record.exc_info:
            more["trace"] = self.formatException(record.exc_info)
        return encoded({**more, **fields})


def set_up(out: Output, form: Format) -> None:
    """Log to stderr from now on: INFO, with ``-v`` all of Carom, with ``-vv`` all of everybody, with ``-q`` less."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Programs() if form == "json" else People(color=colored(sys.stderr)))
    ours, others = _LEVELS[min(max(out.verbosity, -2), 2)]
    logging.getLogger("carom").setLevel(ours)
    logging.getLogger().setLevel(others)
    if out.verbosity < EVERYTHING:
        logging.getLogger("pika").setLevel(logging.CRITICAL)  # what happens to a connection is told as an event
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(capture=True)


def encoded(fields: dict[str, Any]) -> str:
    """Return fields as one line of JSON, whatever their values are."""
    try:
        return msgspec.json.encode(fields, enc_hook=repr).decode()
    except (TypeError, ValueError, RecursionError, OverflowError, UnicodeError):
        return msgspec.json.encode({shown(name): shown(str(value)) for name, value in fields.items()}).decode()
