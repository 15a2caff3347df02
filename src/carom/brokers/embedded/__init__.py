"""The embedded broker: RabbitMQ's behaviour without a server, in memory or in one file, in real or virtual time.

Rule: same behaviour as RabbitMQ or a refusal by name, never a pretence.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from carom.brokers.embedded.broker import MemoryBroker
from carom.errors import ConfigurationError
from carom.ports import Broker, Clock, Report

__all__ = ["MemoryBroker", "connect"]


def connect(url: str, clock: Clock, report: Report | None = None) -> Broker:
    """Return the unopened broker that a URL names.

    ``embedded://`` is memory; ``embedded:///shop.db`` is the file ``shop.db`` in the working directory and
    ``embedded:////var/lib/shop.db`` an absolute path, as in the SQLite URLs of SQLAlchemy.
    """
    parts = urlsplit(url)
    if parts.scheme != "embedded" or parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(
            f"{url!r} names no embedded broker: say 'embedded://' for memory or 'embedded:///shop.db' for a file"
        )
    path = unquote(parts.path.removeprefix("/"))
    if not path:
        return MemoryBroker(clock, report)
    from carom.brokers.embedded.file import FileBroker  # noqa: PLC0415 - SQLite is loaded only where a file is used

    return FileBroker(path, clock, report)
