"""A shop: what an app on Carom looks like, from the payload to the middleware.

    carom topology show listeners:app                                      # what will exist on the broker
    carom run listeners:app                                                # the worker
    carom publish order.placed '{"id": 7, "customer": "ada", "total": 12.5}' --app listeners:app

Rule: an example is run by a test; what it shows is so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec

from carom import App, Discard, Message, Reject, Retry, RetryPolicy

log = logging.getLogger("shop")

# One file is the broker here, and several processes may open it. On RabbitMQ only this address is another one.
app = App("embedded:///shop.db", name="shop", exchange="shop", namespace="shop")


# A payload is a type. A message that does not fit it is a dead letter with the reason `malformed`; no handler sees it.
class Order(msgspec.Struct):
    id: int
    customer: str
    total: float


class Charged(msgspec.Struct):
    order: int
    total: float


class RateLimited(Exception):
    """The bank asks us to come back later."""


class Bank:
    """Stands for somebody else's service. A real one would be called here, with the message id as idempotency key."""

    def __init__(self) -> None:
        self.is_down = False
        self.is_busy = False
        self.stolen_from = {"mallory"}
        self.charged: dict[str, float] = {}

    async def charge(self, key: str, customer: str, amount: float) -> None:
        if self.is_down:
            raise ConnectionError("the bank does not answer")
        if self.is_busy:
            raise RateLimited
        if customer in self.stolen_from:
            raise Reject(f"the card of {customer} is stolen")  # a dead letter now: trying again will not help
        self.charged[key] = amount  # by its key: the same charge twice is one charge


bank = Bank()

# Failures wait on the broker, not in a worker. Attempts at 0, 2, 7 and 22 seconds, then the dead letter queue.
# Who was told to come back later has all evening; who multiplied by a string will do so again, so why wait.
patient = (
    RetryPolicy.delays("2s", "5s", "15s").on(RateLimited, RetryPolicy.fixed("1m", attempts=60)).permanent(TypeError)
)


# Exactly one parameter is the payload; a Message is filled by its annotation, for who wants ids, headers, the attempt.
@app.listen("order.placed", queue="shop.charge", retry=patient, timeout="10s")
async def charge(order: Order, message: Message) -> None:
    if order.total == 0:
        raise Discard("nothing to pay")  # done with it: counted, and kept nowhere
    await bank.charge(message.id, order.customer, order.total)
    # What is published while a message is handled inherits its correlation id. If this fails, all is tried again.
    await app.publish("order.charged", Charged(order.id, order.total))


# A plain function runs in a thread. `#` is any number of words, `*` exactly one.
@app.listen("order.#", queue="shop.audit")
def audit(message: Message) -> None:
    log.info("%s %s attempt %d", message.routing_key, message.correlation_id, message.attempt)


PAGE = 1_000
ledger: list[Charged] = []


# A batch takes up to so many at once. What it raises is about all of them, and each is tried again for itself;
# BatchFailure({index: error}) names those that failed, and the others are done.
@app.listen("order.charged", queue="shop.ledger", batch=100)
async def enter(charges: list[Charged]) -> None:
    if len(ledger) + len(charges) > PAGE:
        raise Retry(after="1m", reason="the ledger is full until somebody turns the page")
    ledger.extend(charges)


# Middleware is around every handler, the first declared outermost. A batch comes as a list of messages.
@app.middleware
async def timed(subject: Any, call: Callable[[Any], Awaitable[Any]]) -> Any:
    started = time.perf_counter()
    try:
        return await call(subject)
    finally:
        count = len(subject) if isinstance(subject, list | tuple) else 1
        log.debug("%d handled in %.1f ms", count, 1000 * (time.perf_counter() - started))


# Everything that leaves passes here.
@app.outgoing
def stamped(message: Message) -> Message:
    return replace(message, headers={**message.headers, "shop-version": "1"})
