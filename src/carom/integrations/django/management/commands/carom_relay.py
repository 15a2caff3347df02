"""``manage.py carom_relay``: publish what was promised.

Rule: any number may run; one leads and the others stand by.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from carom.integrations.django.running import add_using, run


class Command(BaseCommand):
    """The relay alone."""

    help = "Publish what was announced in committed transactions, until SIGINT or SIGTERM."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take ``--using``."""
        add_using(parser)

    def handle(self, *_words: Any, **options: Any) -> None:
        """Run it."""
        run(consume=False, relay=True, using=options["using"])
