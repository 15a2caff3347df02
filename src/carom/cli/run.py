"""``carom run`` and ``carom relay``: an app's consumers, its relay, or both, until somebody stops them.

Rule: whatever a handler does, the process ends when it is told to: by itself, or by the last resort.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from datetime import timedelta

import click

from carom.cli import logs
from carom.cli.loading import load
from carom.cli.options import (
    app_dir_option,
    database_option,
    grace_option,
    lasting_broker_option,
    log_format_option,
    option,
    speaking,
)
from carom.cli.output import FAILED, OK, Output
from carom.core.durations import text
from carom.errors import ConfigurationError
from carom.ports import Location
from carom.runtime.app import App
from carom.runtime.events import Stopped

MARGIN_MS = 10_000
"""How much longer than its grace a worker may take to stop."""
HURRY_MS = 5_000
"""How long it may take once it was told twice."""


@click.command(short_help="Run the consumers of an app, and its relay.")
@click.argument("app", metavar="APP")
@lasting_broker_option("Another broker than the app's own.")
@database_option("Another database than the app's own.")
@option(
    "--relay/--no-relay", default=None, show_default="if it has a database", help="Whether to relay its outbox too."
)
@grace_option
@log_format_option
@app_dir_option
@speaking
def run(
    out: Output,
    *,
    app: str,
    broker: Location | None,
    database: str | None,
    relay: bool | None,
    grace: int | None,
    log_format: logs.Format,
    app_dir: str,
) -> int:
    """Run the consumers of APP, such as shop:app, and its relay, until SIGINT or SIGTERM.

    APP is the module and, after the colon, an App or a function that makes one. Then it takes no more messages,
    finishes what runs within its grace, hands back the rest and exits with 0. A second signal does not wait.
    The log goes to stderr.
    """
    logs.set_up(out, "json" if out.json else log_format)
    found = _configured(app, app_dir, broker, database, grace)
    if not found.listeners and (found.database is None or relay is False):
        raise ConfigurationError(f"{app} has no listeners, so there is nothing to run: declare one with @app.listen(…)")
    return _run(out, found, consume=True, relay=relay)


@click.command(short_help="Relay the outbox of an app.")
@click.argument("app", metavar="APP")
@lasting_broker_option("Another broker than the app's own.")
@database_option("Another database than the app's own.")
@grace_option
@log_format_option
@app_dir_option
@speaking
def relay(
    out: Output,
    *,
    app: str,
    broker: Location | None,
    database: str | None,
    grace: int | None,
    log_format: logs.Format,
    app_dir: str,
) -> int:
    """Publish what APP, such as shop:app, has emitted, until SIGINT or SIGTERM; none of its handlers runs here.

    Any number of relays may run: one leads, and another takes over within seconds when it is gone. Told to stop, it
    finishes what is on its way, lets another lead and exits with 0. The log goes to stderr.
    """
    logs.set_up(out, "json" if out.json else log_format)
    return _run(out, _configured(app, app_dir, broker, database, grace), consume=False, relay=True)


def _configured(app: str, app_dir: str, broker: Location | None, database: str | None, grace: int | None) -> App:
    found = load(app, app_dir)
    limit = None if grace is None else timedelta(milliseconds=grace)
    found.configure(broker=broker, database=database, grace=limit)
    return found


def _run(out: Output, app: App, *, consume: bool, relay: bool | None) -> int:
    abandoned = asyncio.run(_until_stopped(app, consume=consume, relay=relay))
    if abandoned:
        out.say(f"carom: {abandoned} handlers did not end; the broker delivers their messages again")
        return FAILED
    return OK


async def _until_stopped(app: App, *, consume: bool, relay: bool | None) -> int:
    """Run an app to its end; returns how many of its handlers did not end."""
    abandoned = 0

    def note(event: object) -> None:
        nonlocal abandoned
        if isinstance(event, Stopped):
            abandoned = event.abandoned

    app.observe(note)
    running = asyncio.get_running_loop().create_task(app.run(consume=consume, relay=relay))
    await asyncio.sleep(0)  # from here on it watches the signals
    LastResort(app.grace_ms).watch()
    await running
    return abandoned


class LastResort:
    """Ends the process when it was told to stop and does not: because a handler blocks its event loop, say.

    It watches beside the app, which hears of the same signals through its event loop, if that still turns.
    """

    def __init__(self, grace_ms: int) -> None:
        """Watch nothing yet."""
        self._limits_ms = [grace_ms + MARGIN_MS, HURRY_MS]

    def watch(self) -> None:
        """Hear of the signals from now on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._told)

    def _told(self, _number: int, _frame: object) -> None:
        if self._limits_ms:
            limit_ms = self._limits_ms.pop(0)
            timer = threading.Timer(limit_ms / 1000, _end, (limit_ms,))
            timer.daemon = True
            timer.start()


def _end(limit_ms: int) -> None:
    sentence = (
        f"carom: a handler does not let go, {text(limit_ms)} after the signal to stop; the process ends without it, "
        "and the broker delivers its message again\n"
    )
    os.write(2, sentence.encode())  # not through sys.stderr, which the hung thread may hold
    os._exit(FAILED)
