"""How fast the broker in a file is at its port, and how fast the disk under it is by itself.

Rule: the clock stops when every message is settled on disk, and the number counts only if none is left or came twice.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from carom.brokers.embedded.file import FileBroker
from carom.core.effects import CONFIRMED
from carom.core.message import Message
from carom.core.topology import Binding, Exchange, Topology, quorum
from carom.ports import Delivery
from carom.runtime.clock import RealClock

BATCH = 200
IN_FLIGHT = 5
PREFETCH = 500
BODY = bytes(256)
TOPOLOGY = Topology(
    exchanges=(Exchange("events"), Exchange("dead", "direct")),
    queues=(
        quorum("billing.charge", dead_letter_exchange="dead", dead_letter_routing_key="dlq", delivery_limit=20),
        quorum("dlq"),
    ),
    bindings=(Binding("events", "billing.charge", "order.*"), Binding("dead", "dlq", "dlq")),
)


async def port_in_file(count: int, path: Path | str) -> float:
    """Return messages per second, each confirmed on disk, delivered, and acknowledged on disk."""
    broker = FileBroker(path, RealClock())
    await broker.open()
    await broker.declare(TOPOLOGY)
    done = asyncio.Event()
    came: set[str] = set()
    deliveries = 0

    def receive(delivery: Delivery) -> None:
        nonlocal deliveries
        delivery.ack()
        came.add(delivery.message.id)
        deliveries += 1
        if deliveries == count:
            done.set()

    async def publish(first: int) -> None:
        for start in range(first * BATCH, count, IN_FLIGHT * BATCH):
            results = await broker.publish([_message(number) for number in range(start, min(start + BATCH, count))])
            assert all(result == CONFIRMED for result in results)

    await broker.consume("billing.charge", receive, prefetch=PREFETCH, ended=print)
    started = time.perf_counter()
    await asyncio.gather(*(publish(first) for first in range(IN_FLIGHT)))
    await done.wait()
    depth = (await broker.depths(["billing.charge"]))["billing.charge"]  # answered when the last ack is on disk
    seconds = time.perf_counter() - started
    await broker.close()
    assert depth is not None
    assert (len(came), deliveries, depth.ready, depth.unacked) == (count, count, 0, 0)
    return count / seconds


def syncs_of_disk(folder: Path | str, count: int = 200) -> float:
    """Return how many times a second the disk makes 64 KiB durable: what bounds every commit."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        started = time.perf_counter()
        for _ in range(count):
            os.write(file.fileno(), bytes(65536))
            os.fdatasync(file.fileno())
        return count / (time.perf_counter() - started)


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
        with tempfile.TemporaryDirectory() as place:
            rate = asyncio.run(port_in_file(100_000, Path(place) / "bench.db"))
            print(f"{rate:,.0f} messages/s; the disk does {syncs_of_disk(place):,.0f} syncs/s")
