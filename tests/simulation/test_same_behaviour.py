"""The embedded broker and a real RabbitMQ, given the same operations, are the same after every one of them.

Rule: only what can be waited for is compared. After each step both have to come to the same depths and the same
deliveries within a deadline; until then RabbitMQ is still about it.
"""

import asyncio
import time
from collections.abc import Mapping
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from carom.brokers.embedded.broker import MemoryBroker
from carom.brokers.rabbitmq import RabbitBroker
from carom.core.lint import version_of
from carom.core.message import Message
from carom.core.topology import Binding, Exchange, Queue, Topology, arguments
from carom.runtime.clock import RealClock

DEADLINE_S = 10.0
POLL_MS = 5
CLOCK = RealClock()
NEVER_COMPARED = {"time", "x-last-death-queue", "x-last-death-reason", "x-last-death-exchange"}
"""Times differ, and the last death is told by RabbitMQ from 3.13 on."""
COUNTS = {"x-delivery-count", "x-acquired-count"}
QUEUES = ("jobs", "classic", "safe", "instant", "capped", "dead")
KEYS = ("a", "a.b", "b", "x.y.z")
USUAL = 4
"""The priority that messages without one have since RabbitMQ 4.3, which orders quorum queues by it; others do not."""
LIMITED = "jobs"
"""The queue whose messages die of a few returns. Since RabbitMQ 4.3 being handed back is no return there."""


def topology(prefix):
    """Return a queue of every kind of behaviour; everything that dies ends in ``dead``."""

    def queue(name, kind, **options):
        named = {"x-" + option.replace("_", "-"): value for option, value in options.items()}
        return Queue(f"{prefix}.{name}", arguments=arguments({"x-queue-type": kind, **named}))

    to_dead = {"dead_letter_exchange": f"{prefix}.dead", "dead_letter_routing_key": "it"}
    safely = {"dead_letter_strategy": "at-least-once", "overflow": "reject-publish"}
    queues = (
        queue("jobs", "quorum", delivery_limit=1, **to_dead),
        queue("classic", "classic", **to_dead),
        queue("safe", "quorum", delivery_limit=50, message_ttl=600_000, **to_dead, **safely),
        queue("instant", "quorum", message_ttl=0, dead_letter_exchange=f"{prefix}.dead"),
        queue("capped", "classic", max_length=2, **to_dead),
        queue("dead", "quorum", delivery_limit=1_000),
    )
    events, dead = (
        Exchange(f"{prefix}.events", "topic", alternate=f"{prefix}.dead"),
        Exchange(f"{prefix}.dead", "fanout"),
    )
    bindings = (
        Binding(events.name, f"{prefix}.jobs", "a.#"),
        Binding(events.name, f"{prefix}.classic", "*"),
        Binding(events.name, f"{prefix}.capped", "b"),
        Binding(dead.name, f"{prefix}.dead"),
    )
    return Topology((events, dead), queues, bindings)


class Side:
    """One of the two brokers, and what it delivered."""

    def __init__(self, broker):
        self.broker = broker
        self.came = {}
        self.subscriptions = {}
        self.held = []

    async def subscribe(self, queue, prefetch):
        came = self.came[queue] = []
        subscribe = self.broker.consume(queue, came.append, prefetch=prefetch, ended=came.append)
        self.subscriptions[queue] = await subscribe


class Comparison(RuleBasedStateMachine):
    """Does to both what Hypothesis says, and compares."""

    def __init__(self, url):
        super().__init__()
        self.url = url
        self.runner = asyncio.Runner()
        self.numbers = 0
        self.subscribed = set()
        self.counts_like_embedded = True
        self.counts_hand_backs = True

    def run(self, awaitable):
        return self.runner.run(awaitable)

    @initialize()
    def begin(self):
        self.run(self._begin())

    async def _begin(self):
        self.prefix = f"same.{uuid4().hex[:10]}"
        self.topology = topology(self.prefix)
        self.memory, self.rabbit = Side(MemoryBroker(CLOCK)), Side(RabbitBroker(self.url, CLOCK))
        self.sides = (self.memory, self.rabbit)
        for side in self.sides:
            await side.broker.open()
            await side.broker.declare(self.topology)
        version = version_of(self.rabbit.broker.server_version)
        self.counts_like_embedded = version < (4, 0)
        self.counts_hand_backs = version < (4, 3)

    # -- what can be done

    @rule(place=st.sampled_from([*QUEUES, *KEYS]), count=st.integers(1, 3))
    def publish(self, place, count):
        messages = []
        for _ in range(count):
            self.numbers += 1
            is_queue = place in QUEUES
            exchange, key = ("", f"{self.prefix}.{place}") if is_queue else (f"{self.prefix}.events", place)
            headers = {"number": self.numbers, "nested": [{"f": 0.5}]}
            message = Message(exchange=exchange, routing_key=key, id=str(self.numbers), headers=headers, priority=USUAL)
            messages.append(message)
        self.run(self._publish(messages))

    @rule()
    def publish_to_nobody(self):
        self.run(self._publish([Message(routing_key=f"{self.prefix}.nobody"), Message(exchange=f"{self.prefix}.dead")]))

    async def _publish(self, messages):
        results = [[type(one) for one in await side.broker.publish(messages)] for side in self.sides]
        assert results[0] == results[1]
        await self._compare()

    @rule(name=st.sampled_from(QUEUES))
    def take(self, name):
        if name not in self.subscribed:
            self.run(self._take(f"{self.prefix}.{name}"))

    async def _take(self, queue):
        taken = [await side.broker.get(queue) for side in self.sides]
        assert [self._seen(one) for one in taken[:1]] == [self._seen(one) for one in taken[1:]]
        if taken[0] is not None:
            for side, delivery in zip(self.sides, taken, strict=True):
                side.held.append(delivery)
        await self._compare()

    @rule(name=st.sampled_from(QUEUES), times=st.integers(2, 4))
    def hand_back_again_and_again(self, name, times):
        if name not in self.subscribed and (self.counts_hand_backs or name != LIMITED):
            self.run(self._hand_back(f"{self.prefix}.{name}", times))

    async def _hand_back(self, queue, times):
        for _ in range(times):
            held = [len(side.held) for side in self.sides]
            await self._take(queue)
            for side, before in zip(self.sides, held, strict=True):
                for delivery in side.held[before:]:
                    delivery.hand_back()
                del side.held[before:]
            await self._compare()

    @rule(name=st.sampled_from(QUEUES), prefetch=st.integers(1, 3))
    def subscribe(self, name, prefetch):
        if name not in self.subscribed:
            self.subscribed.add(name)
            self.run(self._subscribe(f"{self.prefix}.{name}", prefetch))

    async def _subscribe(self, queue, prefetch):
        for side in self.sides:
            await side.subscribe(queue, prefetch)
        await self._compare()

    @precondition(lambda self: self.subscribed)
    @rule(data=st.data())
    def cancel(self, data):
        name = data.draw(st.sampled_from(sorted(self.subscribed)))
        self.subscribed.discard(name)
        self.run(self._cancel(f"{self.prefix}.{name}"))

    async def _cancel(self, queue):
        for side in self.sides:
            await side.subscriptions.pop(queue).cancel()
            side.held += side.came.pop(queue)
        await self._compare()

    @precondition(lambda self: self.run(self._hold_any()))
    @rule(data=st.data(), verb=st.sampled_from(["ack", "hand_back", "refuse"]))
    def settle(self, data, verb):
        self.run(self._settle(data, verb))

    async def _hold_any(self):
        return bool(self._in_hands(self.memory))

    async def _settle(self, data, verb):
        index = data.draw(st.integers(0, len(self._in_hands(self.memory)) - 1))
        pair = [self._in_hands(side)[index] for side in self.sides]
        assert pair[0].message.id == pair[1].message.id
        if verb == "hand_back" and not self.counts_hand_backs and pair[0].queue == f"{self.prefix}.{LIMITED}":
            verb = "refuse"
        for side, delivery in zip(self.sides, pair, strict=True):
            getattr(delivery, verb)()
            self._let_go(side, delivery)
        await self._compare()

    @rule()
    def lose_the_connection(self):
        self.run(self._lose())

    async def _lose(self):
        # The server answers in the order it was told: after this it has all that was settled.
        await self.rabbit.broker.depths([self.topology.queues[0].name])
        for side in self.sides:
            side.held.clear()
            for came in side.came.values():
                came.clear()
        self.memory.broker.disconnect()
        self.rabbit.broker.drop_connections()
        await self._compare()

    # -- what is the same

    def _in_hands(self, side):
        return [*side.held, *(delivery for queue in sorted(side.came) for delivery in side.came[queue])]

    def _let_go(self, side, delivery):
        for place in (side.held, *side.came.values()):
            if delivery in place:
                place.remove(delivery)

    async def _state(self, side):
        depths = await side.broker.depths([queue.name for queue in self.topology.queues])
        came = {queue: [self._seen(one) for one in deliveries] for queue, deliveries in side.came.items()}
        return {name: depth.ready for name, depth in depths.items()}, came

    async def _compare(self):
        deadline = time.monotonic() + DEADLINE_S
        while True:
            await CLOCK.sleep(POLL_MS)
            ours, theirs = await self._state(self.memory), await self._state(self.rabbit)
            if ours == theirs:
                return
            assert time.monotonic() < deadline, f"embedded and RabbitMQ differ:\n{ours}\n{theirs}"

    def _seen(self, delivery):
        """Return what a handler can see of a delivery."""
        if delivery is None:
            return None
        message = delivery.message
        is_dead = "x-death" in message.headers
        redelivered = None if is_dead and not self.counts_like_embedded else delivery.redelivered
        headers = self._normal(message.headers)
        address = message.exchange, message.routing_key, message.expiration
        return message.id, address, redelivered, message.priority, message.delivery_mode, headers

    def _normal(self, value):
        if isinstance(value, Mapping):
            left_out = NEVER_COMPARED if self.counts_like_embedded else NEVER_COMPARED | COUNTS
            kept = {key: self._normal(item) for key, item in value.items() if key not in left_out}
            # RabbitMQ 3.x says a count of 0 with basic.get and says none to a consumer.
            return {key: item for key, item in kept.items() if not (key == "x-delivery-count" and item == 0)}
        return [self._normal(item) for item in value] if isinstance(value, list) else value

    def teardown(self):
        if hasattr(self, "sides"):
            self.run(self._end())
        self.runner.close()

    async def _end(self):
        for side in self.sides:
            await side.broker.close()


@pytest.mark.parametrize("examples", [15])
def test_the_embedded_broker_and_rabbitmq_are_the_same_after_every_step(empty_rabbitmq_url, examples):
    run_state_machine_as_test(
        lambda: Comparison(empty_rabbitmq_url),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Not shrunk: every example that fails costs the deadline, and its steps are few enough to be read.
            phases=[Phase.reuse, Phase.generate],
        ),
    )
