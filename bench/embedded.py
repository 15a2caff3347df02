"""How fast the embedded broker is at its port: publish, deliver, acknowledge, in one process."""

from __future__ import annotations

import asyncio
import time

from carom.brokers.embedded import MemoryBroker
from carom.core.message import Message
from carom.core.topology import Binding, Exchange, Topology, quorum
from carom.ports import Delivery
from carom.runtime.clock import RealClock

BATCH = 100
PREFETCH = 500
BODY = bytes(256)
TOPOLOGY = Topology(
    exchanges=(Exchange("events"), Exchange("dead", "direct")),
    queues=(
        quorum("billing.charge", dead_letter_exchange="dead", dead_letter_routing_key="dlq", delivery_limit=20),
        quorum("dlq"),
    ),
    bindings=(Binding("events", "billing.charge", "order.*"), Binding("dead", "dlq", "dlq", "queue")),
)


async def port_in_memory(count: int) -> float:
    """Return messages per second through a topic exchange and a quorum queue, each acknowledged as it comes."""
    broker = MemoryBroker(RealClock())
    await broker.open()
    await broker.declare(TOPOLOGY)
    done = asyncio.Event()
    left = count

    def receive(delivery: Delivery) -> None:
        nonlocal left
        delivery.ack()
        left -= 1
        if not left:
            done.set()

    await broker.consume("billing.charge", receive, prefetch=PREFETCH, ended=print)
    started = time.perf_counter()
    for start in range(0, count, BATCH):
        batch = [_message(number) for number in range(start, min(start + BATCH, count))]
        await broker.publish(batch)
    await done.wait()
    seconds = time.perf_counter() - started
    await broker.close()
    return count / seconds


def _message(number: int) -> Message:
    return Message(
        body=BODY,
        exchange="events",
        routing_key="order.created",
        id=f"message-{number}",
        correlation_id="correlation",
        content_type="application/json",
        headers={"tenant": "a"},
    )


if __name__ == "__main__":
    for _ in range(3):
        print(f"{asyncio.run(port_in_memory(100_000)):,.0f} messages/s")
