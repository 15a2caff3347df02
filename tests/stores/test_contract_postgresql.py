"""PostgreSQL keeps the contract of every store, with each of its asynchronous drivers."""

import pytest

from carom.stores import attention
from carom.testing.contracts import StoreContract
from stores.store_stage import OnServer


class OnPostgres(OnServer):
    @pytest.fixture(autouse=True)
    def _on(self, postgres_url, monkeypatch):
        self.url = postgres_url
        # One look when it listens, and none that could be taken for being told.
        monkeypatch.setattr(attention, "LOOKS", (0.0,))


class TestAsyncpg(OnPostgres, StoreContract):
    driver = "postgresql+asyncpg"


class TestPsycopg(OnPostgres, StoreContract):
    driver = "postgresql+psycopg"
