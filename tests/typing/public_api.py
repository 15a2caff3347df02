"""The public API as a user's program sees it. Never run: type checkers read it, see `test_typing`.

Rule: what is right passes mypy --strict and pyright, and every line marked as wrong is really refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, assert_type

from carom import (
    App,
    BatchFailure,
    BrokerUnavailable,
    CaromError,
    Discard,
    Emit,
    Message,
    NotConfirmed,
    Reject,
    Retry,
    RetryPolicy,
    Unroutable,
)
from carom.testing import Harness

app = App("embedded://", exchange="events", namespace="carom", layout="shared", name="billing", retry=("1s", 10, 2.5))
App(retry=RetryPolicy.exponential("1s", factor=2, max_delay="5m", attempts=8, jitter=0.2), grace=timedelta(seconds=5))
seen: list[object] = []
App(retry=None, delays=("10s", 5, timedelta(minutes=1)), observers=[print, seen.append])
App.from_env({"CAROM_BROKER": "embedded://"}, name="shop")


@dataclass
class Order:
    id: int


@app.listen("order.created", queue="billing.charge", retry=("2s", "5s", "15s"), timeout="30s", concurrency=4)
async def charge(order: Order, message: Message) -> str:
    if message.attempt > 3:
        raise Reject("no such customer")
    if order.id == 0:
        raise Retry(after=timedelta(seconds=37), reason="busy")
    if order.id == 1:
        raise Discard("seen")
    return message.correlation_id


@app.listen("order.#", retry=RetryPolicy.delays(2, 5, 15).permanent(KeyError).on(OSError, ("1m",)))
def count(order: dict[str, Any]) -> None: ...


@app.listen("order.*", batch=100, prefetch=500, crash_limit=3)
async def store(orders: list[Order]) -> None:
    raise BatchFailure({0: ValueError("this one")})


@app.middleware
async def timing(message: Any, call: Callable[[Any], Awaitable[Any]]) -> Any:
    return await call(message)


@app.outgoing
def with_tenant(message: Message) -> Message:
    return replace(message, headers={**message.headers, "tenant": "a"})


@app.observe
def note(event: object) -> None: ...


async def main() -> None:
    async with app as same:
        assert_type(same, App)
        sent = await app.publish("order.created", Order(1), headers={"a": 1}, correlation_id="c-1", delay="10s")
        assert_type(sent, Message)
        assert_type(sent.id, str)
        assert_type(sent.trail, tuple[str, ...])
        many = await app.publish_many([Emit("order.created", Order(1)), ("order.paid", {"id": 1})])
        assert_type(many, list[Message])
        try:
            await app.publish("nobody", None)
        except (Unroutable, NotConfirmed) as error:
            assert_type(error.message_id, str)
        except (BrokerUnavailable, CaromError):
            pass
    await app.run(consume=True)
    app.ask_to_stop()


async def test_charge() -> None:
    async with Harness(app) as h:
        assert_type(h, Harness)
        await h.publish("order.created", {"id": 1})
        await h.advance("30m")
        assert_type(h.dead("billing.charge"), tuple[Message, ...])
        assert_type(h.handled("billing.charge"), tuple[Message, ...])


# The decorated functions are what they were.
assert_type(asyncio.run(charge(Order(1), Message())), str)
count({"id": 1})

# What is wrong is refused; were one of these accepted, the comment would be an unused one.
asyncio.run(charge(Order(1), 5))  # type: ignore[arg-type]  # no message
count()  # type: ignore[call-arg]  # no payload
App(concurrency=5)  # type: ignore[call-arg]  # no option of an app
App(topology="destroy")  # type: ignore[arg-type]  # no mode
app.listen(5)  # type: ignore[arg-type]  # no binding key
app.listen("k", retry=5)  # type: ignore[arg-type]  # no policy
app.listen("k", concurrency="5")  # type: ignore[arg-type]  # no count
sent_message = Message()
sent_message.id = "another"  # type: ignore[misc]  # a message is frozen
app.outgoing(len)  # type: ignore[type-var]  # no function of a message
RetryPolicy.fixed("30s")  # type: ignore[call-arg]  # for how long?
