"""Which adapter answers to which name: the one place that knows them all, and imports each only when asked.

Rule: nothing imports an adapter by its module but this; everybody else has a port in hand.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, TypeGuard, cast
from urllib.parse import urlsplit

from carom.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from carom.ports import Broker, Clock, Database, Location, Observable, Observer, Report, Store

_BROKERS = {
    "embedded": "carom.brokers.embedded",
    "amqp": "carom.brokers.rabbitmq",
    "amqps": "carom.brokers.rabbitmq",
}


def broker(url: Location, clock: Clock, report: Report) -> Broker:
    """Return the broker of a URL, not yet open. Several URLs, or what gives them, are those of a RabbitMQ."""
    scheme = urlsplit(url).scheme if isinstance(url, str) else "amqp"
    module = _BROKERS.get(scheme)
    if module is None:
        known = ", ".join(f"{name}://" for name in _BROKERS)
        raise ConfigurationError(f"no broker answers to {scheme or url!r}; this version knows {known}")
    return cast("Broker", import_module(module).connect(url, clock, report))


def management(url: str) -> Observable:
    """Return the server behind the management API of this URL, to be looked at."""
    return cast("Observable", import_module("carom.brokers.rabbitmq").management_api(url))


def store(database: Database, now_ms: Callable[[], int] | None = None) -> Store:
    """Return the store on a database, not yet open. ``now_ms`` is a test's clock, for SQLite alone."""
    return cast("Store", import_module("carom.stores").connect(database, now_ms))


def is_location(given: object) -> TypeGuard[Location]:
    """Tell whether somebody gave where a broker is, and not the broker itself."""
    return isinstance(given, str | list | tuple) or callable(given)


def logging_observer() -> Observer:
    """Return the observer every app has unless it is given others."""
    return cast("Observer", import_module("carom.observers.logging").LoggingObserver())
