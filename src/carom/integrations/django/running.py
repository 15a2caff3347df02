"""Running: what the commands of ``manage.py`` have in common.

Rule: a command ends when it is told to, with SIGINT or SIGTERM, having finished what it had begun.
"""

from __future__ import annotations

import asyncio
import logging
from argparse import ArgumentParser

from django.core.management.base import CommandError

from carom.errors import CaromError
from carom.integrations.django.connections import database
from carom.integrations.django.wiring import discover


def add_using(parser: ArgumentParser) -> None:
    """Take ``--using``."""
    said = "The alias of the database whose outbox is relayed; the app's own unless it is said."
    parser.add_argument("--using", metavar="ALIAS", help=said)


def run(*, consume: bool, relay: bool, using: str | None) -> None:
    """Run the app that the settings mean until somebody stops it. Raises CommandError."""
    log = logging.getLogger("carom")
    if not log.hasHandlers():
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    try:
        app = discover()
        if using is not None:
            app.configure(database=database(using))
        if consume and not app.listeners:
            raise CommandError(f"the app {app.name!r} has no listeners, so there is nothing to run: is it carom_relay?")
        asyncio.run(app.run(consume=consume, relay=relay))
    except CaromError as error:
        raise CommandError(str(error)) from error
