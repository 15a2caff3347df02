"""``manage.py carom_run``: handle messages, and publish what was promised.

Rule: it does what ``carom run`` does, with Django set up around it.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from carom.integrations.django.running import add_using, run


class Command(BaseCommand):
    """The listeners, and the relay unless it is said otherwise."""

    help = "Run the listeners and the relay, until SIGINT or SIGTERM."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take ``--using`` and ``--no-relay``."""
        add_using(parser)
        parser.add_argument("--no-relay", action="store_true", help="Leave the relay to manage.py carom_relay.")

    def handle(self, *_words: Any, **options: Any) -> None:
        """Run it."""
        run(consume=True, relay=not options["no_relay"], using=options["using"])
