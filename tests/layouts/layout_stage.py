"""What the tests of the layouts share: one of each, laid out for the same shop, and the messages to try them with.

Rule: every layout stands in `EVERY`, and so is fuzzed, recorded and stormed; none is left out by forgetting it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from carom.core.message import Message
from carom.core.retry import RetryPolicy
from carom.core.settlement import Layout, Plan
from carom.layouts import AsyncWorker, Binary, FreeFlow, GoQueue, Kbairak, Native, PerQueue, Shared, WaitQueue

LADDER = RetryPolicy.delays("2s", "5s")
STEADY = Plan("charge", ("order.created",), RetryPolicy.fixed("5s", attempts=3))
CHARGE = Plan("charge", ("order.created",), LADDER)
MAIL = Plan("mail", ("order.*",), RetryPolicy.delays("5s"))
DOUBLING = Plan("shop_instant_queue", (), RetryPolicy.delays("2s", "4s"))
ORDER = Message(
    body=b'{"id":1}',
    exchange="shop",
    routing_key="order.created",
    id="0197a2f0-0000-7000-8000-000000000001",
    correlation_id="0197a2f0-0000-7000-8000-000000000000",
    content_type="application/json",
    app_id="billing",
    timestamp=1_700_000_000,
    headers={"tenant": "acme", "shard": 7},
)
JOB = replace(ORDER, exchange="shop_exchange")


@dataclass(frozen=True)
class Laid:
    """A layout, the plan of its first queue, and a message as an app makes it, before its wire has seen it."""

    layout: Layout
    plan: Plan = CHARGE
    message: Message = ORDER


EVERY = {
    "shared": Laid(Shared("carom", "shop", (CHARGE, MAIL))),
    "per_queue": Laid(PerQueue("carom", "shop", (CHARGE, MAIL))),
    "async_worker": Laid(AsyncWorker("shop", "", (DOUBLING,)), DOUBLING, JOB),
    "binary": Laid(Binary("carom", "shop", (CHARGE, MAIL))),
    "freeflow": Laid(FreeFlow("carom", "shop", (CHARGE, MAIL))),
    "freeflow-nest-queue": Laid(FreeFlow("carom", "shop", (CHARGE, MAIL), return_to="queue", nest=True)),
    "goqueue": Laid(GoQueue("carom", "shop", (CHARGE, MAIL))),
    "goqueue-tenfold": Laid(GoQueue("carom", "shop", (CHARGE, MAIL), tenfold=True, quorum_queues=True)),
    "kbairak": Laid(Kbairak("carom", "shop", (CHARGE, MAIL))),
    "native": Laid(Native("carom", "shop", (STEADY, MAIL)), STEADY),
    "native-other-policy": Laid(Native("carom", "shop", (CHARGE,))),
    "wait_queue": Laid(WaitQueue("carom", "shop", (STEADY, MAIL)), STEADY),
    "wait_queue-copies": Laid(WaitQueue("carom", "shop", (STEADY, MAIL), copies=True), STEADY),
}
