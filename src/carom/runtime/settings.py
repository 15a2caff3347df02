"""Settings from the environment: ``CAROM_BROKER``, ``CAROM_EXCHANGE``, …, each also as ``…_FILE``.

Rule: a secret may come from a file, and never shows in an error. The file of a broker on the network is read again
before every connection: whoever rotates its password writes the new one there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from carom.errors import ConfigurationError
from carom.ports import Location

NAMES = ("broker", "database", "exchange", "namespace", "layout", "name", "retry", "grace", "topology")
"""What `App` takes as text; each is CAROM_<NAME> in the environment."""

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


def _read(file: str, variable: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{variable} names {file}, which cannot be read: {error}") from error
