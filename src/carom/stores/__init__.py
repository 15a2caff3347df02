"""Stores: Carom's tables in PostgreSQL, SQLite, MySQL or MariaDB, through SQLAlchemy and the drivers below it.

Rule: a store knows the ports and the core. It writes in transactions that are others', or commits its own at once.
"""

from carom.stores.sql import SqlStore, connect
from carom.stores.tables import Tables, make_tables

__all__ = ["SqlStore", "Tables", "connect", "make_tables"]
