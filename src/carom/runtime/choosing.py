"""Choosing: the layout that suits the server an app meets, for apps that leave it open.

Rule: a choice is a value with its reason; nothing is declared here.
"""

from __future__ import annotations

from carom.core.settlement import Plan
from carom.layouts import Choice, choose
from carom.ports import Broker, Inspectable

STAYING = Choice("shared", "its queues are there already, declared so; carom topology migrate can move them")


async def suited(broker: Broker, plans: tuple[Plan, ...]) -> Choice:
    """Return the choice for this server; one that cannot be asked for its version is any server."""
    facts = await broker.inspect(()) if isinstance(broker, Inspectable) else None
    return choose("" if facts is None else facts.version, plans)
