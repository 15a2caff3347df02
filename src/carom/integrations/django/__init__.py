"""Django: Carom's tables as migrations, its app from the settings, messages in `transaction.atomic()`, and commands.

    INSTALLED_APPS = [..., "carom.integrations.django"]
    CAROM_APP = "shop.messaging:app"                     # an App of yours, or
    CAROM = {"BROKER": "amqp://localhost/"}              # one that is made of this

Rule: nothing is imported here that needs Django's registry of apps, because Django imports this before it has one.
"""

from carom.integrations.django.connections import database, fresh_connections
from carom.integrations.django.wiring import current_app, emit

__all__ = ["current_app", "database", "emit", "fresh_connections"]
