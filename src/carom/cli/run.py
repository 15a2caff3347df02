"""``carom run``: an app's consumers until somebody stops them.

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
from carom.cli.options import DURATION, app_dir_option, lasting_broker_option, option, speaking
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


@click.command(short_help="Run the consumers of an app.")
@click.argument("app", metavar="APP")
@lasting_broker_option("Another broker than the app's own.")
@option("--grace", type=DURATION, envvar="CAROM_GRACE", help="How long handlers may go on when it stops, as in 30s.")
@option(
    "--log-format",
    type=click.Choice(("text", "json")),
    default="text",
    envvar="CAROM_LOG_FORMAT",
    help="Lines for people, or one JSON object a line. --json is the same as json.",
)
@app_dir_option
@speaking
def run(
    out: Output, *, app: str, broker: Location | None, grace: int | None, log_format: logs.Format, app_dir: str
) -> int:
    """Run the consumers of APP, such as shop:app, until SIGINT or SIGTERM.

    APP is the module and, after the colon, an App or a function that makes one. Then it takes no more messages,
    finishes what runs within its grace, hands back the rest and exits with 0. A second signal does not wait.
    The log goes to stderr.
    """
    logs.set_up(out, "json" if out.json else log_format)
    found = load(app, app_dir)
    if not found.listeners:
        raise ConfigurationError(f"{app} has no listeners, so there is nothing to run: declare one with @app.listen(…)")
    found.configure(broker=broker, grace=None if grace is None else timedelta(milliseconds=grace))
    abandoned = asyncio.run(_until_stopped(found))
    if abandoned:
        out.say(f"carom: {abandoned} handlers did not end; the broker delivers their messages again")
        return FAILED
    return OK


async def _until_stopped(app: App) -> int:
    """Run an app to its end; returns how many of its handlers did not end."""
    abandoned = 0

    def note(event: object) -> None:
        nonlocal abandoned
        if isinstance(event, Stopped):
            abandoned = event.abandoned

    app.observe(note)
    running = asyncio.get_running_loop().create_task(app.run())
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
