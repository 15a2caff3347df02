"""``carom doctor``: is this app safe on this broker, and if not, what to do.

Rule: every finding says what to do; the exit code is 5 when something is unsafe.
"""

from __future__ import annotations

import asyncio

import click

from carom import adapters
from carom.cli.loading import load
from carom.cli.options import app_dir_option, broker_option, speaking
from carom.cli.output import DRIFT, OK, Output, shown
from carom.core.lint import Finding, Level, worst
from carom.runtime.app import App
from carom.runtime.clock import RealClock
from carom.runtime.doctor import examine

_MARKS = {Level.FINE: "ok", Level.NOTE: "note", Level.WARNING: "warning", Level.ERROR: "ERROR"}


@click.command(short_help="Look whether an app is safe on its broker.")
@click.argument("app", metavar="APP")
@broker_option("Look at this broker instead of the app's own.")
@app_dir_option
@speaking
def doctor(out: Output, *, app: str, broker: str | None, app_dir: str) -> int:
    """Look at the broker of APP, such as shop:app, change nothing, and say what to do about each finding."""
    found = load(app, app_dir)
    findings = asyncio.run(_look(found, broker or found.address))
    level = worst(findings)
    out.data(
        "\n".join(_line(finding) for finding in findings), {"worst": level.name.lower(), "findings": _written(findings)}
    )
    return DRIFT if level >= Level.WARNING else OK


async def _look(app: App, address: object) -> tuple[Finding, ...]:
    if not adapters.is_location(address):
        raise click.UsageError("this app was given a broker object: say --broker URL")
    broker = adapters.broker(address, RealClock(), lambda _event: None)
    await broker.open()
    try:
        return await examine(app, broker)
    finally:
        await broker.close()


def _line(finding: Finding) -> str:
    said = f"{_MARKS[finding.level]:<8}{finding.subject}: {finding.says}"
    return shown(said if not finding.do else f"{said}\n        -> {finding.do}", keep="\n")


def _written(findings: tuple[Finding, ...]) -> list[dict[str, str]]:
    return [
        {"level": one.level.name.lower(), "subject": one.subject, "says": one.says, "do": one.do} for one in findings
    ]
