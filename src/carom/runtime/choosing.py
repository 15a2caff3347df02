"""Choosing: the layout that suits the server an app meets, for apps that leave it open.

Rule: a choice is a value with its reason, and what is there already has the last word.
"""

from __future__ import annotations

from collections.abc import Callable

from carom.core.lint import Needs
from carom.core.settlement import Layout, Plan
from carom.core.topology import Topology
from carom.errors import TopologyMismatch
from carom.layouts import Choice, choose
from carom.ports import Broker, Inspectable, Mode

STAYING = Choice("shared", "its queues are there already, declared so; carom topology migrate can move them")


async def suited(broker: Broker, plans: tuple[Plan, ...], laid_out: Callable[[str], Layout], mode: Mode) -> Choice:
    """Return the choice for this server; one that cannot be asked for its version is any server.

    It is declared already when this returns, if anything is to be declared.
    """
    facts = await broker.inspect((), Needs()) if isinstance(broker, Inspectable) else None
    choice = choose("" if facts is None else facts.version, plans)
    try:
        await broker.declare(laid_out(choice.name).topology, mode)
    except TopologyMismatch:
        if choice.name == STAYING.name:
            raise
        return STAYING
    return choice


async def foreseen(broker: Broker, plans: tuple[Plan, ...], laid_out: Callable[[str], Layout]) -> Choice:
    """Return what `suited` would choose at an open broker; nothing is declared."""
    facts = await broker.inspect((), Needs()) if isinstance(broker, Inspectable) else None
    choice = choose("" if facts is None else facts.version, plans)
    if choice.name == STAYING.name:
        return choice
    queues = laid_out(choice.name).topology.queues
    depths = await broker.depths([queue.name for queue in queues])
    try:
        await broker.declare(Topology(queues=tuple(one for one in queues if depths[one.name] is not None)), "verify")
    except TopologyMismatch:
        return STAYING
    return choice
