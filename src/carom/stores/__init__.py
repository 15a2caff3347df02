"""Stores: Carom's tables in PostgreSQL, SQLite, MySQL or MariaDB, through SQLAlchemy and the drivers below it.

Rule: a store knows the ports and the core. It writes in transactions that are others', or commits its own at once.
"""

from collections.abc import Callable

from carom.ports import Database
from carom.stores.kbairak import KbairakStore
from carom.stores.sql import SqlStore
from carom.stores.tables import Tables, make_tables

__all__ = ["SqlStore", "Tables", "connect", "make_tables"]


def connect(database: Database, now_ms: Callable[[], int] | None = None) -> SqlStore:
    """Return the store of a database, not yet open. ``now_ms`` is a test's clock, and only SQLite takes one."""
    if database.outbox is not None:
        return KbairakStore(database, database.outbox, now_ms)
    return SqlStore(database, now_ms)
