"""Wiring: the app that the settings mean, and announcing with it.

Rule: the settings are read when somebody asks, not when this is imported; what is wrong with them is said by a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils.module_loading import autodiscover_modules
from sqlalchemy import URL, make_url

from carom.core.durations import Duration
from carom.core.message import Headers, Message
from carom.errors import ConfigurationError
from carom.integrations.django.connections import database
from carom.runtime.app import App

LISTENERS = "listeners"
"""The module of each installed app that is imported for its listeners, where the app is made of ``CAROM``."""
_OF_THE_APP = ("BROKER", "EXCHANGE", "NAMESPACE", "LAYOUT", "NAME", "RETRY", "GRACE", "DELAYS", "TOPOLOGY")
_OF_THE_DATABASE = ("KEEP_SENT", "KEEP_SEEN", "REPLAY_WINDOW")
_ALIAS = "DATABASE"


@cache
def current_app() -> App:
    """Return the app that ``CAROM_APP`` names, or the one that is made of ``CAROM``. Raises ConfigurationError."""
    named, given = getattr(settings, "CAROM_APP", None), getattr(settings, "CAROM", None)
    if named is not None and given is not None:
        raise ConfigurationError(
            "the settings have CAROM_APP and CAROM: one names an app, the other makes one; keep one"
        )
    if named is not None:
        return _named(named)
    if given is not None:
        return _made(given)
    raise ConfigurationError(
        "the settings name no app: say CAROM_APP = 'shop.messaging:app', or CAROM = {'BROKER': 'amqp://localhost/'}"
    )


def alias() -> str:
    """Return which of Django's databases the messages are in, as far as the settings say so."""
    given = getattr(settings, "CAROM", None)
    return str(given.get(_ALIAS, "default")) if isinstance(given, Mapping) else "default"


def discover() -> App:
    """Return the app with all its listeners; those of an app made of ``CAROM`` are in modules named ``listeners``."""
    app = current_app()
    if getattr(settings, "CAROM_APP", None) is None:
        autodiscover_modules(LISTENERS)
    return app


def emit(
    routing_key: str,
    payload: Any = None,
    *,
    using: str | None = None,
    key: str | None = None,
    delay: Duration | None = None,
    at: datetime | None = None,
    headers: Headers | None = None,
    correlation_id: str | None = None,
) -> Message:
    """Announce a message in the open ``transaction.atomic()`` of one of Django's databases: see `App.emit_on_sync`.

    Each database has an outbox of its own, and needs a relay: ``manage.py carom_relay --using other``. Raises
    ConfigurationError outside of a transaction: the message would be sent whatever becomes of the rest.
    """
    app, connection = current_app(), connections[using or alias()]
    _check_vendor(app, connection)
    return app.emit_on_sync(
        connection,
        routing_key,
        payload,
        key=key,
        delay=delay,
        at=at,
        headers=headers,
        correlation_id=correlation_id,
    )


def _check_vendor(app: App, connection: Any) -> None:
    if app.database is None:
        return  # the app says so itself
    place: Any = app.database.url
    spoken = make_url(place).get_backend_name() if isinstance(place, str | URL) else place.dialect.name
    if connection.vendor != spoken.replace("mariadb", "mysql"):
        raise ConfigurationError(
            f"the app {app.name!r} writes for {spoken}, and the database {connection.alias!r} is {connection.vendor}"
        )


def _named(reference: object) -> App:
    module, colon, attribute = str(reference).partition(":")
    if not isinstance(reference, str) or not colon or not module or not attribute:
        raise ConfigurationError(f"CAROM_APP = {reference!r} names no app: say 'shop.messaging:app'")
    try:
        found = import_module(module)
    except ImportError as error:
        raise ConfigurationError(f"CAROM_APP = {reference!r}: {module} cannot be imported: {error}") from error
    app = getattr(found, attribute, None)
    if not isinstance(app, App):
        raise ConfigurationError(
            f"CAROM_APP = {reference!r}: {attribute} of {module} is a {type(app).__name__}, no App"
        )
    return app


def _made(given: object) -> App:
    known = {*_OF_THE_APP, *_OF_THE_DATABASE, _ALIAS}
    if not isinstance(given, Mapping) or not given.keys() <= known:
        unknown = sorted(map(str, given.keys() - known)) if isinstance(given, Mapping) else type(given).__name__
        raise ConfigurationError(f"CAROM is a dict with the keys {', '.join(sorted(known))}, and not {unknown}")
    kept = database(alias(), **{name.lower(): given[name] for name in _OF_THE_DATABASE if name in given})
    return App(**{name.lower(): given[name] for name in _OF_THE_APP if name in given}, database=kept)
