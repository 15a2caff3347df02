"""Connections: where Django's databases are, for those who reach them without Django, and Django's own in threads.

Rule: credentials are quoted by SQLAlchemy and written down nowhere else.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

from django.conf import settings
from django.db import connections
from sqlalchemy import URL

from carom.errors import ConfigurationError
from carom.ports import Database

P = ParamSpec("P")
R = TypeVar("R")

VENDORS = ("postgresql", "sqlite", "mysql")
_DJANGO_S_OWN = frozenset(
    {
        "assume_role",
        "client_encoding",
        "cursor_factory",
        "isolation_level",
        "pool",
        "prepare_threshold",
        "server_side_binding",
    }
)
"""Options of Django's PostgreSQL backend that are not for the driver."""


def prefix() -> str:
    """Return how the names of Carom's tables begin: the setting ``CAROM_PREFIX``, or ``carom_``."""
    return str(getattr(settings, "CAROM_PREFIX", "carom_"))


def database(using: str = "default", **options: Any) -> Database:
    """Return one of Django's databases as an `App` takes it: ``App(…, database=database())``.

    It is verified and never created by Carom, because ``manage.py migrate`` does that. ``options`` are those of
    `Database`. Raises ConfigurationError for a database that Carom keeps no tables in.
    """
    return Database(url(using), **{"prefix": prefix(), "tables": "verify", **options})


def url(using: str = "default") -> URL:
    """Return where one of Django's databases is."""
    connection = connections[using]
    given = connection.settings_dict
    if connection.vendor not in VENDORS:
        raise ConfigurationError(
            f"Carom keeps no tables in the database {using!r}, which is {connection.vendor}: "
            f"it knows {', '.join(VENDORS)} (MariaDB is mysql)"
        )
    if connection.vendor == "sqlite":
        return URL.create("sqlite", database=str(given["NAME"]))
    host = str(given.get("HOST") or "")
    options = given.get("OPTIONS") or {}
    query = _postgresql(options, host) if connection.vendor == "postgresql" else _mysql(options, host)
    is_psycopg = connection.vendor == "postgresql" and find_spec("psycopg") is not None
    return URL.create(
        "postgresql+psycopg" if is_psycopg else connection.vendor,
        username=str(given["USER"]) if given.get("USER") else None,
        password=str(given["PASSWORD"]) if given.get("PASSWORD") else None,
        host=None if host.startswith("/") else host or None,
        port=int(given["PORT"]) if given.get("PORT") else None,
        database=str(given["NAME"]) if given.get("NAME") else None,
        query=query,
    )


def _postgresql(options: Mapping[str, Any], host: str) -> dict[str, str]:
    query = {name: str(value) for name, value in options.items() if name not in _DJANGO_S_OWN}
    if host.startswith("/"):
        query["host"] = host  # the directory of a socket
    if find_spec("psycopg") is None and "sslmode" in query:
        query["ssl"] = query.pop("sslmode")  # as asyncpg calls it
    return query


def _mysql(options: Mapping[str, Any], host: str) -> dict[str, str]:
    query = {name: str(options[name]) for name in ("charset", "unix_socket") if name in options}
    if host.startswith("/"):
        query["unix_socket"] = host
    return query


def fresh_connections(function: Callable[P, R]) -> Callable[P, R]:
    """Let a handler that is a plain function use Django's ORM in its thread: ``@app.listen(…)`` above it.

    Django closes the connections that are too old, or were lost, at the ends of requests; a worker has none. With this
    it does so before and after each message. In a test case, which is a transaction, they stay open. Raises
    ConfigurationError for a coroutine function, whose thread has other connections than it means.
    """
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"{function.__name__} is async, and Django's ORM is for plain functions: write def")

    @functools.wraps(function)
    def handled(*given: P.args, **named: P.kwargs) -> R:
        _close_old()
        try:
            return function(*given, **named)
        finally:
            _close_old()

    return handled


def _close_old() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
