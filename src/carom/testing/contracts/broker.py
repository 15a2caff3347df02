"""BrokerContract: what every implementation of `carom.ports.Broker` does, in one class.

Rule: this only gathers; each claim stands in the module of its subject.
"""

from __future__ import annotations

from carom.testing.contracts.consuming import Consuming
from carom.testing.contracts.dead_letters import DeadLettering
from carom.testing.contracts.declaring import Declaring
from carom.testing.contracts.expiring import Expiring
from carom.testing.contracts.publishing import Publishing
from carom.testing.contracts.reconnecting import Reconnecting
from carom.testing.contracts.routing import Routing


class BrokerContract(Declaring, Publishing, Routing, Expiring, DeadLettering, Consuming, Reconnecting):
    """Subclass it as ``class TestMyBroker(BrokerContract)``; `stage.Stage` lists the hooks and the knobs.

    Every test is one promise, its name a sentence. A broker that cannot keep one is not a broker for Carom: it may
    lose messages, repeat them without end or deliver them too early.
    """
