"""Clearing away: leftovers are removed when nobody uses them and nothing is in them, looked at twice.

A quorum queue cannot be told to go only if it is empty. So what leads to it is unbound first; then it is looked at for
longer than the server takes to count, and a message that still came puts everything back.

Rule: what holds a message, has a consumer, or cannot be counted, stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from carom.core.topology import Binding, Topology
from carom.errors import ConfigurationError
from carom.ports import Broker, Changeable, Clock

COUNTED_MS = 12_000
"""How long to wait between two looks. A quorum queue counts what it holds every five seconds, and the management API
asks every five; what it says of a queue was seen ten seconds late (3.10.8)."""

UNKNOWN = "nobody knows how many messages are in it"

Notice = Callable[[str], None]


async def clear(broker: Broker, leftovers: Topology, clock: Clock, notice: Notice) -> tuple[str, ...]:
    """Remove leftovers; return those that stay, each with its reason."""
    if not isinstance(broker, Changeable):
        raise ConfigurationError("nothing can be removed from this kind of broker")
    names = [queue.name for queue in leftovers.queues]
    stays = await _in_use(broker, names)
    if UNKNOWN in stays.values():  # it is too young to have been counted
        await clock.sleep(COUNTED_MS)
        stays = await _in_use(broker, names)
    empty = [queue.name for queue in leftovers.queues if queue.name not in stays]
    inward = [one for one in leftovers.bindings if one.to == "queue" and one.target in empty]
    for way in inward:
        await broker.unbind(way)
    if empty:
        await clock.sleep(COUNTED_MS)
    late = await _in_use(broker, empty)
    for queue in empty:
        if queue in late:
            await broker.declare(_only(leftovers, tuple(way for way in inward if way.target == queue)), "apply")
            stays[queue] = late[queue]
        else:
            await broker.remove_queue(queue)
            notice(f"queue {queue!r} is removed")
    said = [f"queue {queue!r}: {why}" for queue, why in stays.items()]
    return (*said, *await _exchanges(broker, leftovers, stays, notice))


async def _exchanges(
    broker: Changeable, leftovers: Topology, stays: Collection[str], notice: Notice
) -> tuple[str, ...]:
    """Remove the exchanges through which nothing that stays comes back, and the bindings that nobody needs."""
    leads = {queue.dead_letter_exchange: queue.name for queue in leftovers.queues if queue.name in stays}
    leads |= {
        exchange.alternate: leads[exchange.name]
        for exchange in leftovers.exchanges
        if exchange.alternate is not None and exchange.name in leads
    }
    for one in leftovers.bindings:
        if one.source not in leads and not (one.to == "queue" and one.target in stays):
            await broker.unbind(one)
    said: list[str] = []
    for exchange in leftovers.exchanges:
        if exchange.name in leads:
            said.append(f"exchange {exchange.name!r}: queue {leads[exchange.name]!r} sends its dead letters there")
        elif await broker.remove_exchange(exchange.name):
            notice(f"exchange {exchange.name!r} is removed")
        else:
            said.append(f"exchange {exchange.name!r}: something is bound to it")
    return tuple(said)


def _only(leftovers: Topology, ways: tuple[Binding, ...]) -> Topology:
    """Return the part of the leftovers that these bindings tie together."""
    sources, targets = {one.source for one in ways}, {one.target for one in ways}
    return Topology(
        tuple(one for one in leftovers.exchanges if one.name in sources),
        tuple(one for one in leftovers.queues if one.name in targets),
        ways,
    )


async def _in_use(broker: Broker, queues: Collection[str]) -> dict[str, str]:
    """Return the queues that have to stay, each with the reason."""
    held = await broker.held(queues) if isinstance(broker, Changeable) else {}
    reasons: dict[str, str] = {}
    for queue, depth in (await broker.depths(queues)).items():
        messages = held.get(queue)
        if depth is None:
            continue  # gone already
        if depth.ready or messages:
            reasons[queue] = f"{max(depth.ready, messages or 0)} messages are in it"
        elif depth.consumers:
            reasons[queue] = f"{depth.consumers} consumers read it"
        elif messages is None:
            reasons[queue] = UNKNOWN
    return reasons
