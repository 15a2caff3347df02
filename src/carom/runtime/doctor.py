"""The doctor: what is unsafe about an app and the broker it is to run on.

Rule: looking changes nothing: no message is taken, nothing is declared.
"""

from __future__ import annotations

from carom.core.lint import Finding, Inventory, Level, Needs, ServerFacts, found, lint_server, of_topology, review
from carom.errors import BrokerError, ConfigurationError, NotPermitted, TopologyMismatch
from carom.layouts import sampled
from carom.ports import Broker, Inspectable, Observable
from carom.runtime.app import App


async def examine(app: App, broker: Broker) -> tuple[Finding, ...]:
    """Return findings about an app and an open broker, worst first."""
    topology = app.topology
    compared = await _compared(app, broker)
    facts: ServerFacts | None = None
    if isinstance(broker, Inspectable):
        facts = await broker.inspect([queue.name for queue in topology.queues], needs(app))
    timeouts = {one.queue: one.timeout_ms for one in app.listeners}
    server = () if facts is None else lint_server(facts, topology, timeouts)
    there = await _there(broker) or of_topology(topology, "" if facts is None else facts.version)
    reviewed = review(there, only=[queue.name for queue in topology.queues])
    known = {(finding.code, finding.subject.partition(" in vhost ")[0]) for finding in reviewed}
    server = tuple(finding for finding in server if (finding.code, finding.subject) not in known)
    return tuple(sorted((*compared, *reviewed, *server), key=lambda finding: -finding.level))


async def _there(broker: Broker) -> Inventory | None:
    """Return what the broker has, where there is somebody to ask; that nobody was asked is said elsewhere."""
    if not isinstance(broker, Observable):
        return None
    try:
        return await broker.observe()
    except (ConfigurationError, BrokerError):
        return None


def needs(app: App) -> Needs:
    """Return where an app publishes and consumes."""
    layout, queues = app.layout, [one.queue for one in app.listeners]
    places = [layout.suspect_address, layout.dead_address, layout.queue_address]
    addresses = [place(queue) for queue in queues for place in places]
    addresses += [layout.delay_address(queue, delay) for queue in queues for delay in sampled(layout, queue)]
    exchanges = dict.fromkeys([app.exchange, *(address.exchange for address in addresses)])
    return Needs(tuple(exchanges), (*queues, layout.suspects) if queues else ())


async def _compared(app: App, broker: Broker) -> list[Finding]:
    try:
        await broker.declare(app.topology, "verify")
    except TopologyMismatch as mismatch:
        told = [found("not-as-declared", "topology", one) for one in mismatch.differences]
        return [*told, found("not-as-declared", "topology", f"{len(told)} things are not as declared")]
    except NotPermitted as error:
        return [found("not-permitted", "permissions", str(error))]
    queues = len(app.topology.queues)
    return [Finding("fine", Level.FINE, "topology", f"{queues} queues and what leads to them are as declared")]
