"""PostgreSQL keeps the contract of every store, with each of its asynchronous drivers."""

import pytest

from carom.testing.contracts import StoreContract
from stores.store_stage import OnServer


class OnPostgres(OnServer):
    @pytest.fixture(autouse=True)
    def _on(self, postgres_url):
        self.url = postgres_url


class TestAsyncpg(OnPostgres, StoreContract):
    driver = "postgresql+asyncpg"


class TestPsycopg(OnPostgres, StoreContract):
    driver = "postgresql+psycopg"
