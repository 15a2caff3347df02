"""Options that several commands have, and where else they may come from.

Rule: an option of the command line wins over ``CAROM_<NAME>``, and that over ``CAROM_<NAME>_FILE`` being unset: a
value and a file at once is a question, not an answer. Secrets are never shown in help or errors.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec
from urllib.parse import urlsplit

import click

from carom.cli import output
from carom.cli.output import Output, shown
from carom.core.durations import milliseconds
from carom.errors import ConfigurationError
from carom.runtime.settings import broker_in

P = ParamSpec("P")
Command = Callable[..., Any]


class FromFile(click.Option):
    """An option whose environment variable also has a form ``…_FILE`` that names a file with the value."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the variable, or what is in the file that the other one names."""
        plain = super().resolve_envvar_value(ctx)
        for variable in [self.envvar] if isinstance(self.envvar, str) else []:
            file = os.environ.get(f"{variable}_FILE")
            if file and plain:
                raise click.UsageError(f"{variable} and {variable}_FILE are both set: which is meant?", ctx)
            if file:
                return _content(file, f"{variable}_FILE", ctx)
        return plain


class BrokerOption(FromFile):
    """Where a broker is. When a file says it, the file is read again before every connection."""

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Return the URL, or what reads it."""
        plain, file = super().value_from_envvar(ctx), os.environ.get(f"{self.envvar}_FILE")
        return broker_in(file, f"{self.envvar}_FILE") if file else plain


class WhereType(click.ParamType):  # type: ignore[type-arg]  # as below
    """Where a broker is, as it was given."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002 - click's
        """Return it."""
        return value


class DurationType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4, a plain class before
    """A duration as people write it."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds."""
        if isinstance(value, int):
            return value
        try:
            return milliseconds(float(value) if _is_number(value) else value)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


DURATION = DurationType()


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Declare an option whose help names its environment variable."""
    return click.option(*names, show_envvar=True, **settings)


def broker_option(words: str) -> Callable[[Command], Command]:
    """Declare ``--broker``; ``words`` say what is used without it."""
    return option("--broker", metavar="URL", cls=FromFile, envvar="CAROM_BROKER", help=words)


def lasting_broker_option(words: str) -> Callable[[Command], Command]:
    """Declare ``--broker`` for what runs for long: the file of ``CAROM_BROKER_FILE`` may change meanwhile."""
    return option("--broker", metavar="URL", cls=BrokerOption, type=WhereType(), envvar="CAROM_BROKER", help=words)


def database_option(words: str) -> Callable[[Command], Command]:
    """Declare ``--database``; ``words`` say what is used without it."""
    return option("--database", metavar="URL", cls=FromFile, envvar="CAROM_DATABASE", help=words)


grace_option = option(
    "--grace", type=DURATION, envvar="CAROM_GRACE", help="How long what runs may go on when it stops, as in 30s."
)
log_format_option = option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    envvar="CAROM_LOG_FORMAT",
    help="Lines for people, or one JSON object a line. --json is the same as json.",
)
app_dir_option = option(
    "--app-dir",
    default=".",
    metavar="DIR",
    envvar="CAROM_APP_DIR",
    show_default="here",
    help="Where modules are looked for first.",
)


def speaking(function: Callable[..., int | None]) -> Command:
    """Give a command ``--json``, ``-v`` and ``-q``, an `Output` as its first argument, and its exit code."""

    @option("--json", "as_json", is_flag=True, envvar="CAROM_JSON", help="One JSON object instead of text.")
    @option("-v", "--verbose", count=True, envvar="CAROM_VERBOSE", help="Say more; -vv shows tracebacks too.")
    @option("-q", "--quiet", count=True, envvar="CAROM_QUIET", help="Say less.")
    @functools.wraps(function)
    def command(*, as_json: bool, verbose: int, quiet: int, **rest: Any) -> None:
        out = Output(as_json, verbose - quiet)
        output.guarded(out, lambda: function(out, **rest))

    return command


def check_shared(url: str) -> None:
    """Refuse a broker that only this process can see. Raises click.UsageError."""
    parts = urlsplit(url)
    if parts.scheme == "embedded" and not parts.path.strip("/"):
        raise click.UsageError(
            f"{shown(url)} is the memory of one process, and no other would ever see a message in it: say a file, "
            "as in embedded:///shop.db, or another broker with --broker"
        )


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def _content(file: str, variable: str, ctx: click.Context) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{variable} names {file}, which cannot be read: {error}", ctx) from error
