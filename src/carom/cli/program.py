"""The program ``carom``: its commands by name, each loaded when it is used.

Rule: ``carom run`` starts without loading what only the other commands need.
"""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from io import TextIOWrapper
from typing import cast

import click

from carom.cli.output import EXIT_CODES

_COMMANDS = {
    "completion": "carom.cli.completion:completion",
    "db": "carom.cli.db:db",
    "dead": "carom.cli.dead:dead",
    "doctor": "carom.cli.doctor:doctor",
    "demo": "carom.cli.demo.command:demo",
    "outbox": "carom.cli.outbox:outbox",
    "publish": "carom.cli.publish:publish",
    "relay": "carom.cli.run:relay",
    "run": "carom.cli.run:run",
    "topology": "carom.cli.topology:topology",
}


class Commands(click.Group):
    """A group that imports a command when somebody asks for it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Return a command by its name."""
        if cmd_name not in _COMMANDS:
            return None
        module, _, name = _COMMANDS[cmd_name].partition(":")
        return cast("click.Command", getattr(import_module(module), name))


@click.group(
    cls=Commands,
    context_settings={"auto_envvar_prefix": "CAROM", "help_option_names": ["-h", "--help"], "show_default": True},
    epilog=EXIT_CODES,
)
@click.version_option(
    metadata.version("carom"), "--version", prog_name="carom", message="%(prog)s %(version)s", allow_from_autoenv=False
)
def program() -> None:
    """Reliable messaging for Python on RabbitMQ: retries that wait on the broker, dead letters that can be seen."""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an arrow must not end a program whose terminal has none
    program(prog_name="carom")
