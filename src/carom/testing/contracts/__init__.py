"""Contracts: public test suites. Whoever writes an adapter subclasses one, gives it a few hooks and runs pytest.

    from carom.testing.contracts import BrokerContract

    class TestMyBroker(BrokerContract):
        def make_broker(self) -> Broker:
            return MyBroker("my://localhost")

        async def drop_connection(self, broker: Broker) -> None:
            broker.socket.abort()

Rule: a contract knows the ports and the core, never an adapter; it needs pytest and no plugin of it.
"""

import pytest

for _room in (
    "stage",
    "declaring",
    "publishing",
    "routing",
    "expiring",
    "dead_letters",
    "consuming",
    "reconnecting",
    "layouts",
):
    pytest.register_assert_rewrite(f"{__name__}.{_room}")

from carom.testing.contracts.broker import BrokerContract  # noqa: E402 - its asserts explain themselves from here on
from carom.testing.contracts.layouts import LayoutContract  # noqa: E402 - as above

__all__ = ["BrokerContract", "LayoutContract"]
