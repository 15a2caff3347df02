"""What a command says and how it ends: data to stdout, sentences to stderr, and the exit codes.

Rule: nothing from outside reaches a terminal as it is: what does not print is shown escaped, passwords not at all.
Rule: one error is one sentence and one exit code; a traceback is for those who ask for it with ``-vv``.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import click
import msgspec

from carom.errors import (
    BrokerUnavailable,
    CaromError,
    ConfigurationError,
    DatabaseUnavailable,
    NotPermitted,
    SchemaMismatch,
    TopologyMismatch,
)
from carom.runtime.settings import redacted

OK, FAILED, USAGE, PARTLY, NOTHING_MATCHED, DRIFT = range(6)
UNAVAILABLE, NOT_PERMITTED, CONFIGURATION = 69, 77, 78
INTERRUPTED, TERMINATED = 130, 143

SCHEMA = 1
"""The version of every JSON object that a command prints; it changes when a field changes its meaning."""

EXIT_CODES = """\b
Exit codes: 0 ok, 1 failed, 2 usage, 3 partly done, 4 nothing matched,
5 drift or unsafe, 69 broker or database unavailable, 77 not permitted, 78 configuration."""

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (ConfigurationError, CONFIGURATION),
    (BrokerUnavailable, UNAVAILABLE),
    (DatabaseUnavailable, UNAVAILABLE),
    (NotPermitted, NOT_PERMITTED),
    (TopologyMismatch, DRIFT),
    (SchemaMismatch, DRIFT),
)


@dataclass(frozen=True, slots=True)
class Output:
    """How a command was asked to speak. ``verbosity`` is 0 by default, below for ``-q``, above for ``-v``."""

    json: bool = False
    verbosity: int = 0

    def data(self, text: str, value: Mapping[str, Any]) -> None:
        """Print the result: text as it is for people, or one JSON object for programs."""
        if self.json:
            click.echo(as_json(value))
        elif text:
            click.echo(text, color=colored(sys.stdout))

    def say(self, sentence: str) -> None:
        """Tell people something, on stderr; ``-q`` keeps it to itself."""
        if self.verbosity >= 0:
            click.echo(shown(sentence, keep="\n"), err=True)

    def complain(self, error: BaseException) -> int:
        """Say what went wrong and return the exit code that stands for it."""
        code = exit_code(error)
        sentence = redacted("\n".join(_sentences(error)))
        if self.verbosity > 1:
            click.echo(shown(redacted("".join(traceback.format_exception(error))), keep="\n"), err=True)
        elif not _is_expected(error):
            sentence += " (-vv shows where)"
        click.echo(f"carom: {shown(sentence, keep=_NEWLINE)}", err=True)
        if self.json:
            self.data("", {"error": {"type": type(error).__name__, "message": sentence, "exit_code": code}})
        return code


_NEWLINE = "\n"


def guarded(out: Output, command: Callable[[], int | None]) -> None:
    """Run a command to its exit code: every error becomes a sentence."""
    try:
        code = command() or OK
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise  # click knows what to do with these
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the outermost guard: said, and turned into an exit code
        code = out.complain(error)
    if code:
        raise click.exceptions.Exit(code)


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error; of a group, the one all its errors agree on."""
    codes = {next((code for kind, code in _CODES if isinstance(one, kind)), FAILED) for one in _leaves(error)}
    return codes.pop() if len(codes) == 1 else FAILED


def as_json(value: Mapping[str, Any]) -> str:
    """Return one line of JSON with the version of its schema."""
    return msgspec.json.encode({"schema": SCHEMA, **value}, enc_hook=str).decode()


def shown(text: str, *, keep: str = "") -> str:
    """Return text with everything escaped that does not print: control characters, bidirectional marks, surrogates."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep else one.encode("unicode_escape").decode("ascii") for one in text
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows below their head, in columns; nothing when there is no row."""
    cells = [head, *rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells)
    return "\n".join(padded) if rows else ""


def is_meant(question: str) -> bool:
    """Ask somebody at a terminal whether to do it. Raises click.UsageError when nobody is there to be asked."""
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to be asked: say --yes, or --dry-run to see what would be done")
    return click.confirm(question, err=True)


def colored(stream: IO[str]) -> bool:
    """Tell whether to colour: on a terminal, and where nobody said no; FORCE_COLOR says yes anywhere."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def _sentences(error: BaseException) -> Iterator[str]:
    if isinstance(error, BaseExceptionGroup):
        yield error.message
        yield from (f"  - {headline}" for headline in dict.fromkeys(str(one) for one in _leaves(error)))
    elif _is_expected(error):
        yield str(error) or type(error).__name__
    else:
        yield f"stopped by an error nobody expected: {type(error).__name__}: {error}"


def _is_expected(error: BaseException) -> bool:
    return all(isinstance(one, CaromError) for one in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error
