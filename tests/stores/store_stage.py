"""What the tests of stores have in common: a session as an application has one, and dropping what was made.

Rule: what a test made in a database that others use is dropped when it is over.
"""

from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession

from carom.ports import Database
from carom.stores import connect


class OnServer:
    """The hooks of the contract on a server: ``url`` without a driver, and the drivers' names."""

    url: str
    driver: str
    tells_others = True

    def make_store(self, **settings):
        url = make_url(self.url).set(drivername=self.driver)
        return connect(Database(url, prefix=self.prefix, **settings))

    def session(self, store):
        return AsyncSession(store.engines.asynchronous)

    async def tear_down(self):
        drop(self.url, self.prefix)


def drop(url, prefix):
    """Drop every table, and every function, with a prefix."""
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        for table in inspect(connection).get_table_names():
            if table.startswith(prefix):
                connection.execute(text(f'DROP TABLE "{table}" CASCADE'))
        connection.execute(text(f'DROP FUNCTION IF EXISTS "{prefix}outbox_wake"()'))
    engine.dispose()
