"""The doctor: what is unsafe about an app and the broker it is to run on.

Rule: looking changes nothing: no message is taken, nothing is declared.
"""

from __future__ import annotations

from carom.core.lint import Finding, Level, Needs, ServerFacts, lint_server
from carom.errors import NotPermitted, TopologyMismatch
from carom.layouts import sampled
from carom.ports import Broker, Inspectable
from carom.runtime.app import App

REMEDY = "run 'carom topology apply'; what is there and different it leaves alone, and says what can be done"


async def examine(app: App, broker: Broker) -> tuple[Finding, ...]:
    """Return findings about an app and an open broker, worst first."""
    topology = app.topology
    compared = await _compared(app, broker)
    facts: ServerFacts | None = None
    if isinstance(broker, Inspectable):
        facts = await broker.inspect([queue.name for queue in topology.queues], needs(app))
    timeouts = {one.queue: one.timeout_ms for one in app.listeners}
    server = () if facts is None else lint_server(facts, topology, timeouts)
    return tuple(sorted((*compared, *server), key=lambda finding: -finding.level))


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
        told = [Finding(Level.ERROR, "topology", one) for one in mismatch.differences]
        return [*told, Finding(Level.ERROR, "topology", f"{len(told)} things are not as declared", REMEDY)]
    except NotPermitted as error:
        return [Finding(Level.ERROR, "permissions", str(error), "grant them, or let somebody else apply the topology")]
    queues = len(app.topology.queues)
    return [Finding(Level.FINE, "topology", f"{queues} queues and what leads to them are as declared")]
