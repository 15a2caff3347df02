"""MySQL and MariaDB keep the contract of every store, where ``CAROM_TEST_MYSQL`` names one: a URL with a database.

No such server is started for a run: without the variable there is no class here.
"""

import os

from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import make_url

from carom.testing.contracts import StoreContract
from stores.store_stage import OnServer

URL = os.environ.get("CAROM_TEST_MYSQL", "")

if URL:

    class TestAiomysql(OnServer, StoreContract):
        url = URL
        driver = "mysql+aiomysql"
        tells_others = False

        async def tear_down(self):
            engine = create_engine(make_url(URL).set(drivername="mysql+pymysql"))
            with engine.begin() as connection:
                for table in inspect(connection).get_table_names():
                    if table.startswith(self.prefix):
                        connection.execute(text(f"DROP TABLE `{table}`"))
            engine.dispose()


def test_the_url_is_of_a_database():
    assert not URL or make_url(URL).database, (
        "CAROM_TEST_MYSQL needs a database that may be written to: mysql://u@host/db"
    )
