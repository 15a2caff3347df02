"""Contracts: public test suites. Whoever writes an adapter subclasses one, gives it a few hooks and runs pytest.

    from carom.testing.contracts import BrokerContract, StoreContract

    class TestMyBroker(BrokerContract):
        def make_broker(self) -> Broker:
            return MyBroker("my://localhost")

        async def drop_connection(self, broker: Broker) -> None:
            broker.socket.abort()

    class TestMyStore(StoreContract):
        def make_store(self, **settings: Any) -> Store:
            return MyStore(Database("my://localhost/test", prefix=self.prefix, **settings))

        def session(self, store: Store) -> AbstractAsyncContextManager[AsyncSession]:
            return AsyncSession(store.engine)

Rule: a contract knows the ports and the core, never an adapter; it needs pytest and no plugin of it.
"""

import pytest

_ROOMS = ("stage", "declaring", "publishing", "routing", "expiring", "dead_letters", "consuming", "reconnecting")
for _room in ("playing", *_ROOMS, "layouts"):
    pytest.register_assert_rewrite(f"{__name__}.{_room}")

from carom.testing.contracts.broker import BrokerContract  # noqa: E402 - its asserts explain themselves from here on
from carom.testing.contracts.layouts import LayoutContract  # noqa: E402 - as above
from carom.testing.contracts.store.contract import StoreContract  # noqa: E402 - as above

__all__ = ["BrokerContract", "LayoutContract", "StoreContract"]
