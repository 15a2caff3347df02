"""The shop of the demo: an app like any other. Its worker is ``carom run carom.cli.demo.shop:app``.

Rule: an order carries its own trouble, so that what happens is the same on every machine and every broker.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import msgspec

from carom.core.message import Message
from carom.core.topology import Binding, Exchange, Topology, quorum
from carom.errors import Reject
from carom.runtime.app import App

NAME = "carom-demo"
QUEUE = f"{NAME}.charge"
RECEIPTS = f"{NAME}.receipts"
PLACED, CHARGED = "order.placed", "order.charged"
CRASH_LIMIT = 3


class Order(msgspec.Struct):
    """What a customer ordered, and what will go wrong with it."""

    number: int
    trouble: str = ""


class Receipt(msgspec.Struct):
    """What the shop announces when an order was charged."""

    number: int
    attempt: int


class BankIsDown(Exception):
    """The bank does not answer; it will."""


def shop(retry: Sequence[str], pace: float) -> App:
    """Return the shop, as fast as it is wanted: a payment takes ``pace`` seconds."""
    app = App(exchange=NAME, namespace=NAME, name=NAME)

    @app.listen(PLACED, queue=QUEUE, retry=retry, crash_limit=CRASH_LIMIT)
    async def charge(order: Order, message: Message) -> None:
        await asyncio.sleep(pace)
        if order.trouble == "bank is down" and message.attempt < len(retry) + 1:
            raise BankIsDown(f"no answer at attempt {message.attempt}")
        if order.trouble == "stolen card":
            raise Reject("the card is stolen")
        if order.trouble == "deadly":
            os._exit(1)  # no exception, no clean-up: gone, as when memory runs out
        if order.trouble == "slow":
            await asyncio.sleep(pace)
        await app.publish(CHARGED, Receipt(order.number, message.attempt))

    return app


def receipts() -> Topology:
    """Return the queue in which the demo finds what the shop announced."""
    return Topology(
        exchanges=(Exchange(NAME, "topic", public=True),),
        queues=(quorum(RECEIPTS),),
        bindings=(Binding(NAME, RECEIPTS, CHARGED),),
    )


app = shop(("1s", "2s"), pace=0.6)
fast = shop(("100ms", "200ms"), pace=0.1)
