"""SQLAlchemy: Carom's tables on one's own MetaData, and sessions on the database that an app has.

    class Model(DeclarativeBase): ...

    tables = add_tables(Model.metadata)      # create_all makes them, with all that belongs to them
    sessions = session_factory(app)          # of the app's own engine: one pool, and SQLite as it has to be

Rule: what `create_all` makes is what `carom db upgrade` makes, because both run the statements of the migrations.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, MetaData, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

from carom.errors import ConfigurationError
from carom.runtime.app import App
from carom.stores import SqlStore, Tables, make_tables
from carom.stores.migrations import statements

_DRAWN = ("CREATE TABLE", "CREATE INDEX")
"""How the statements begin that make what the tables draw already."""


def add_tables(metadata: MetaData, schema: str | None = None, prefix: str = "carom_") -> Tables:
    """Draw Carom's tables on a MetaData; say the same schema and prefix in the app's `Database`.

    Then ``metadata.create_all`` makes them complete: with the trigger that wakes the relay on PostgreSQL, and the
    version that they are of. Without ``schema`` they are where the MetaData says. Raises ConfigurationError.
    """
    place = schema or metadata.schema
    tables = make_tables(metadata, place, prefix)

    def complete(_metadata: MetaData, connection: Connection, **given: Any) -> None:
        if tables.version not in given["tables"]:
            return  # they were there already
        for statement in statements(connection.dialect.name, place, prefix):
            if not statement.startswith(_DRAWN):
                connection.exec_driver_sql(statement)

    event.listen(metadata, "after_create", complete)
    return tables


def engine(app: App) -> AsyncEngine:
    """Return the engine with which an app reaches its database, for the program's own use of the same.

    It is made for the app's run: connections are pooled, and SQLite waits for other writers and keeps its promises.
    The app disconnects it when it stops; used again, it connects again.
    """
    store = app.store
    if not isinstance(store, SqlStore):
        raise ConfigurationError(f"the app {app.name!r} keeps its messages in {type(store).__name__}, not in SQL")
    return store.engines.asynchronous


def session_factory(app: App, **options: Any) -> async_sessionmaker[AsyncSession]:
    """Return a maker of sessions in which an app emits, on the app's own engine.

    ``options`` are those of `async_sessionmaker`. Objects stay readable after a commit unless it is said otherwise,
    because an `AsyncSession` cannot load them again by itself.
    """
    return async_sessionmaker(engine(app), **{"expire_on_commit": False, **options})
