"""``carom doctor``: is this RabbitMQ safe, an app's or anybody's, and if not, what to do.

Rule: every finding says what can happen and how to mend it; the exit code is 5 when something is unsafe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import click
import msgspec

from carom import adapters
from carom.cli.connecting import at
from carom.cli.loading import load
from carom.cli.options import FromFile, app_dir_option, broker_option, option, speaking
from carom.cli.output import DRIFT, OK, Output, shown
from carom.core.lint import Finding, Inventory, Level, definitions, review, version_of, worst
from carom.errors import ConfigurationError
from carom.runtime.doctor import examine

_MARKS = {Level.FINE: "ok", Level.NOTE: "note", Level.WARNING: "warning", Level.ERROR: "ERROR"}
_COLOURS = {Level.FINE: "green", Level.NOTE: "blue", Level.WARNING: "yellow", Level.ERROR: "red"}
PLACES = 4
"""How many places of the same finding are told; ``-v`` tells all."""


@click.command(short_help="Look whether an app, or any RabbitMQ, is safe.")
@click.argument("app", metavar="[APP]", required=False)
@option("--definitions", "file", type=click.File("rb"), metavar="FILE", help="Look at an exported definitions.json.")
@option(
    "--management",
    metavar="URL",
    cls=FromFile,
    envvar="CAROM_MANAGEMENT",
    help="Look at a running server by its management API, http://user:password@host:15672.",
)
@option("--upgrade-to", metavar="VERSION", help="Also what is unsafe after an upgrade, such as 4.3.")
@broker_option("Look at this broker instead of the app's own.")
@app_dir_option
@speaking
def doctor(
    out: Output,
    *,
    app: str | None,
    file: BinaryIO | None,
    management: str | None,
    upgrade_to: str | None,
    broker: str | None,
    app_dir: str,
) -> int:
    """Look at APP, such as shop:app, and its broker, or at any RabbitMQ, and say what to do about each finding.

    Nothing is changed. One of APP, --definitions and --management says what to look at.
    """
    if file is not None:
        findings = _reviewed(_read(file), upgrade_to)
    elif app is not None:
        if upgrade_to:
            raise click.UsageError("--upgrade-to goes with --definitions or --management")
        app_ = load(app, app_dir)
        findings = asyncio.run(at(app_, broker, lambda there: examine(app_, there)))
    elif management is not None:
        findings = _reviewed(asyncio.run(adapters.management(management).observe()), upgrade_to)
    else:
        raise click.UsageError("say what to look at: an APP such as shop:app, --definitions FILE or --management URL")
    level = worst(findings)
    every = out.verbosity > 0
    text = "\n".join(_lines(findings, every=every)) or "nothing unsafe was found"
    out.data(text, {"worst": level.name.lower(), "findings": _written(findings)})
    return DRIFT if level >= Level.WARNING else OK


def _reviewed(there: Inventory, upgrade_to: str | None) -> tuple[Finding, ...]:
    target = None if upgrade_to is None else version_of(upgrade_to)
    if target is not None and not any(target):
        raise click.UsageError(f"--upgrade-to {upgrade_to!r} is no version: say one such as 4.3")
    return review(there, target)


def _read(file: BinaryIO) -> Inventory:
    try:
        return definitions(msgspec.json.decode(file.read()))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigurationError(f"{file.name} is no JSON: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{file.name} cannot be read: {error}") from error


def _lines(findings: Iterable[Finding], *, every: bool) -> Iterator[str]:
    """Yield each finding with what can happen and what to do; what many places have in common is told once."""
    groups: dict[tuple[str, Level], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.code, one.level), []).append(one)
    for (code, level), together in groups.items():
        mark = click.style(f"{_MARKS[level]:<8}", fg=_COLOURS[level], bold=level >= Level.WARNING)
        told = together if every or level is Level.FINE or code == "not-as-declared" else together[:PLACES]
        yield from (f"{mark}{shown(f'{one.subject}: {one.says}')}" for one in told)
        if len(told) < len(together):
            yield f"        … and {len(together) - len(told)} more places (-v lists them)"
        if together[0].risk:
            yield f"        {together[0].risk}"
        if together[0].do:
            yield f"        -> {together[0].do} [{code}]"


def _written(findings: tuple[Finding, ...]) -> list[dict[str, Any]]:
    return [
        {
            "code": one.code,
            "level": one.level.name.lower(),
            "subject": one.subject,
            "says": one.says,
            "risk": one.risk,
            "do": one.do,
        }
        for one in findings
    ]
