"""Settings from the environment: ``CAROM_BROKER``, ``CAROM_EXCHANGE``, …, each also as ``…_FILE``.

Rule: a secret may come from a file, and never shows in an error. The file of a broker on the network is read again
before every connection: whoever rotates its password writes the new one there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from carom.core.message import fits
from carom.errors import ConfigurationError
from carom.ports import Broker, Database, Location

NAMES = ("broker", "database", "exchange", "namespace", "layout", "name", "retry", "grace", "topology")
"""What `App` takes as text; each is CAROM_<NAME> in the environment."""

NAME_LIMIT = 200
_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")


def from_environment(environment: Mapping[str, str]) -> dict[str, Location]:
    """Return the settings that the environment gives, by the name of their parameter; only the broker's may change."""
    found: dict[str, Location] = {}
    for name in NAMES:
        variable = f"CAROM_{name.upper()}"
        plain, file = environment.get(variable), environment.get(f"{variable}_FILE")
        if plain and file:
            raise ConfigurationError(f"{variable} and {variable}_FILE are both set: which is meant?")
        if file and name == "broker":
            found[name] = broker_in(file, f"{variable}_FILE")
        elif given := _read(file, f"{variable}_FILE") if file else plain:
            found[name] = given
    return found


def broker_in(file: str, variable: str) -> Location:
    """Return where the broker is that a file names; on the network, what reads the file whenever it is asked."""
    url = _read(file, variable)
    return partial(_read, file, variable) if url.startswith("amqp") else url


def durations(value: str) -> tuple[str, ...]:
    """Return delays written as ``"1s, 10s, 1m"``."""
    return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)


def redacted(text: str) -> str:
    """Return text with the credentials of any URL in it taken out."""
    return _CREDENTIALS.sub("***@", text)


def database(given: object, known: Database | None = None) -> Database | None:
    """Return the database that is meant by a URL, an engine or a `Database`; used as the ``known`` one, if any."""
    if given is None or isinstance(given, Database):
        return given
    if isinstance(given, str) and "://" not in given:
        raise ConfigurationError(
            f"database={given!r} is no address of a database: say one like 'postgresql+asyncpg://localhost/shop'"
        )
    return Database(given) if known is None else replace(known, url=given)


def address(broker: Location | Broker) -> Location | Broker:
    """Return what an app was given: where its broker is, or the broker itself; an unset variable is neither."""
    if not isinstance(broker, str | list | tuple) and not callable(broker) and not hasattr(broker, "publish"):
        raise ConfigurationError(
            f"broker={broker!r} is no broker: say a URL such as 'amqp://guest:guest@localhost/' or 'embedded://'"
        )
    return broker


def shown(database: Database) -> str:
    """Return how a database is named to people: its address, without any password."""
    url = database.url
    return redacted(str(url if isinstance(url, str) else getattr(url, "url", type(url).__name__)))


def check_names(**names: object) -> None:
    """Raise ConfigurationError for a name that no broker would take."""
    for what, value in names.items():
        if not isinstance(value, str) or not value or not fits(value, NAME_LIMIT) or value.startswith("amq."):
            raise ConfigurationError(
                f"{what}={value!r}: say a name of 1 to {NAME_LIMIT} bytes in UTF-8 that does not begin with 'amq.'"
            )


def _read(file: str, variable: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{variable} names {file}, which cannot be read: {error}") from error
