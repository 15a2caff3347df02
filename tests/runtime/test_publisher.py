"""A publish returns when the broker has confirmed it, and raises in every other case."""

import asyncio
import dataclasses
import itertools
import re
import uuid

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_stage import told

from carom import App, ConfigurationError, Emit, Message, NotConfirmed, Unroutable
from carom.brokers.embedded.broker import MemoryBroker
from carom.core.effects import CONFIRMED, NACKED, Nacked, Returned, Unknown
from carom.errors import BrokerUnavailable, PublishError
from carom.runtime import events
from carom.runtime.publisher import checked, new_id, publish_error
from carom.testing import Harness, VirtualClock


class Order(msgspec.Struct):
    id: int


@dataclasses.dataclass
class Data:
    id: int


class Model(pydantic.BaseModel):
    id: int


def shop():
    app = App("embedded://", name="shop", observers=())

    @app.listen("order.#", queue="q")
    async def handle(body: bytes): ...

    return app


@pytest.mark.parametrize(
    ("payload", "body", "content_type"),
    [
        ({"id": 1}, b'{"id":1}', "application/json"),
        (Order(1), b'{"id":1}', "application/json"),
        (Data(1), b'{"id":1}', "application/json"),
        (Model(id=1), b'{"id":1}', "application/json"),
        ([Model(id=1)], b'[{"id":1}]', "application/json"),
        ("text", b'"text"', "application/json"),
        (None, b"null", "application/json"),
        (b"\xff\x00", b"\xff\x00", "application/octet-stream"),
        (bytearray(b"\xff"), b"\xff", "application/octet-stream"),
        (memoryview(b"\xff"), b"\xff", "application/octet-stream"),
    ],
)
async def test_a_payload_is_written_by_its_kind(payload, body, content_type):
    async with Harness(shop()) as h:
        message = await h.publish("order.created", payload)
        assert (message.body, message.content_type) == (body, content_type)
        (handled,) = h.handled("q")
        assert handled == message


class Stranger:
    pass


ENDLESS: list = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("payload", [Stranger(), {"a": Stranger()}, {(1, 2): 3}, ENDLESS, "\ud800", {1: {2j: 3}}])
async def test_a_payload_nobody_can_write_is_refused_and_nothing_is_sent(payload):
    async with Harness(shop()) as h:
        with pytest.raises(ConfigurationError, match="cannot be written as JSON"):
            await h.publish("order.created", payload)
        assert h.emitted("#") == ()


async def test_a_message_says_who_sent_it_when_and_in_what():
    async with Harness(shop()) as h:
        message = await h.publish("order.created", 1, headers={"tenant": "a"})
        assert (message.app_id, message.exchange, message.routing_key) == ("shop", "events", "order.created")
        assert message.timestamp == h.clock.now_ms() // 1000
        assert message.correlation_id == message.id
        assert message.headers == {"tenant": "a"}
        assert (message.delivery_mode, message.attempt, message.trail, message.replay_of) == (2, 1, (), "")
        assert h.emitted("order.*") == (message,)
        assert h.emitted("invoice.*") == ()


@given(st.integers(min_value=0, max_value=2**48 - 1))
def test_an_id_is_a_uuid_of_version_7_that_holds_its_time(now_ms):
    found = uuid.UUID(new_id(now_ms))
    assert str(found) == new_id(now_ms)[:13] + str(found)[13:]
    assert found.version == 7
    assert found.variant == uuid.RFC_4122
    assert found.int >> 80 == now_ms


def test_ids_are_unique_and_sorted_by_time():
    assert len({new_id(5) for _ in range(2_000)}) == 2_000
    ids = [new_id(now_ms) for now_ms in range(0, 2**40, 2**33 + 1)]
    assert ids == sorted(ids)


async def test_what_nobody_is_bound_for_is_unroutable():
    async with Harness(shop()) as h:
        with pytest.raises(Unroutable, match=r"'invoice.sent' was returned \(NO_ROUTE\): no queue is bound") as caught:
            await h.publish("invoice.sent", 1)
        assert re.fullmatch(r"[0-9a-f-]{36}", caught.value.message_id)
        (event,) = told(h.events, events.NotPublished)
        assert "Returned" in event.result
        assert told(h.events, events.Published) == []


@pytest.mark.parametrize(
    ("result", "kind", "says"),
    [
        (Returned(), Unroutable, "Start a listener with a matching key first"),
        (NACKED, NotConfirmed, "a queue it goes to is full or broken"),
        (Nacked("too large"), NotConfirmed, "too large"),
        (Unknown("no answer in 30s"), NotConfirmed, "no answer in 30s. Publish it again"),
    ],
)
def test_every_result_but_a_confirmation_is_an_error_that_names_the_message(result, kind, says):
    error = publish_error(Message(id="m-1", exchange="events", routing_key="k"), result)
    assert type(error) is kind
    assert isinstance(error, PublishError)
    assert error.message_id == "m-1"
    for part in ("m-1", "'events'", "'k'", says):
        assert part in str(error)


def test_a_confirmation_is_no_error():
    with pytest.raises(ConfigurationError, match="there is no error"):
        publish_error(Message(), CONFIRMED)


async def test_many_are_published_in_their_order_and_each_is_returned():
    async with Harness(shop()) as h:
        sent = await h.publish_many(
            [
                Emit("order.a", 1),
                ("order.b", 2),
                ("order.c", 3, {"x": 1}, "c-3"),
                Emit("order.d", 4, headers={"y": 2}, correlation_id="c-4"),
            ]
        )
        assert h.handled("q") == tuple(sent)
        assert [m.routing_key for m in sent] == ["order.a", "order.b", "order.c", "order.d"]
        assert [m.correlation_id for m in sent[2:]] == ["c-3", "c-4"]
        assert [dict(m.headers) for m in sent] == [{}, {}, {"x": 1}, {"y": 2}]
        assert await h.publish_many([]) == []


async def test_one_of_many_that_fails_is_its_own_error_and_several_are_a_group_and_the_others_are_there():
    async with Harness(shop()) as h:
        with pytest.raises(Unroutable):
            await h.publish_many([("order.a", 1), ("nobody", 2)])
        with pytest.raises(ExceptionGroup, match="2 of 3 messages were not published") as caught:
            await h.publish_many([("nobody", 1), ("order.b", 2), ("nobody", 3)])
        assert all(isinstance(error, Unroutable) for error in caught.value.exceptions)
        assert len({error.message_id for error in caught.value.exceptions}) == 2
        await h.settle()
        assert [m.routing_key for m in h.handled("q")] == ["order.a", "order.b"]


@pytest.mark.parametrize("name", ["carom-attempt", "carom-anything"])
async def test_headers_in_caroms_own_name_are_refused(name):
    async with Harness(shop()) as h:
        with pytest.raises(ConfigurationError, match="is Carom's own"):
            await h.publish("order.a", 1, headers={name: 5})
        with pytest.raises(ConfigurationError, match="is Carom's own"):
            await h.publish_many([Emit("order.a", 1, headers={name: 5})])


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message(routing_key="k" * 256), "the routing_key of a message"),
        (Message(routing_key="ü" * 128), "the routing_key of a message"),
        (Message(routing_key="\ud800"), "the routing_key of a message"),
        (Message(routing_key=5), "the routing_key of a message"),
        (Message(correlation_id="c" * 256), "the correlation_id of a message"),
        (Message(content_encoding="c" * 256), "the content_encoding of a message"),
        (Message(headers={"h" * 256: 1}), "the name of a header"),
        (Message(headers={"": 1}), "the name of a header"),
        (Message(headers={5: 1}), "the name of a header"),
        (Message(headers={"h": "x" * 120_000}), "would not fit a frame"),
    ],
)
async def test_what_no_broker_could_carry_is_refused_before_it_is_sent(message, says):
    with pytest.raises(ConfigurationError, match=says):
        checked(message)
    async with Harness(shop()) as h:
        with pytest.raises(ConfigurationError, match=says):
            await h.app.send([message])


@given(st.text(max_size=300))
def test_a_key_is_taken_exactly_when_it_fits_a_short_string(key):
    try:
        fits = len(key.encode()) <= 255
    except UnicodeEncodeError:
        fits = False
    if fits:
        assert checked(Message(routing_key=key)).routing_key == key
    else:
        with pytest.raises(ConfigurationError):
            checked(Message(routing_key=key))


async def test_outgoing_sees_every_message_in_the_order_of_declaration_and_may_change_it():
    app = shop()

    @app.outgoing
    def with_tenant(message):
        return dataclasses.replace(message, headers={**message.headers, "tenant": "a"})

    @app.outgoing
    def with_copy(message):
        return dataclasses.replace(message, headers={**message.headers, "copy": message.headers["tenant"]})

    async with Harness(app) as h:
        sent = await h.publish("order.a", 1)
        (many,) = await h.publish_many([("order.b", 2)])
        await app.send([Message(exchange="events", routing_key="order.c", id="m-1")])
        await h.settle()
        assert [dict(m.headers) for m in h.handled("q")] == [{"tenant": "a", "copy": "a"}] * 3
        assert h.handled("q")[:2] == (sent, many)


async def test_outgoing_that_forgets_to_return_the_message_is_told_so():
    app = shop()
    app.outgoing(lambda message: None)
    async with Harness(app) as h:
        with pytest.raises(ConfigurationError, match="returned NoneType: return the message"):
            await h.publish("order.a", 1)


async def test_outgoing_is_checked_like_everything_else():
    app = shop()
    app.outgoing(lambda message: dataclasses.replace(message, routing_key="k" * 300))
    async with Harness(app) as h:
        with pytest.raises(ConfigurationError, match="the routing_key"):
            await h.publish("order.a", 1)


async def test_a_header_that_no_broker_can_carry_is_refused_on_every_broker():
    async with Harness(shop()) as h:
        with pytest.raises(ConfigurationError, match="holds a UUID, which AMQP has no form for"):
            await h.publish("order.a", 1, headers={"tenant": uuid.uuid4()})


async def test_publishing_takes_a_started_app():
    app = shop()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="is not started"):
            await app.publish("order.a", 1)
        async with Harness(app) as h:
            await h.publish("order.a", 1)


async def test_a_broker_that_is_gone_is_told_to_the_publisher():
    app = shop()
    async with Harness(app) as h:
        await h.broker.close()
        with pytest.raises(BrokerUnavailable):
            await app.publish("order.a", 1)


async def test_an_app_may_publish_without_consuming():
    app = shop()
    broker = MemoryBroker(VirtualClock())
    await app.start(consume=False, broker=broker)
    await app.publish("order.a", 1)
    assert app.consumers == ()
    assert len(broker.engine.contents("q")) == 1
    await app.stop()


# -- what is inherited inside a handler --------------------------------------------------------------------


def relay(step):
    """Return an app of three listeners, each publishing to the next."""
    app = App("embedded://", observers=())

    for name, following in itertools.pairwise(("one", "two", "three")):

        @app.listen(name, queue=name)
        async def handle(order, message: Message, following=following):
            await step(app, following, message)

    @app.listen("three", queue="three")
    async def last(order): ...

    return app


async def test_correlation_trail_and_trace_context_are_inherited():
    async def step(app, following, message):
        await app.publish(following, 1)

    async with Harness(relay(step)) as h:
        trace = {"traceparent": "00-abc-def-01", "tracestate": "vendor=1", "mine": "stays here"}
        first = await h.publish("one", 1, headers=trace, correlation_id="c-1")
        (two,), (three,) = h.handled("two"), h.handled("three")
        assert (two.correlation_id, three.correlation_id) == ("c-1", "c-1")
        assert (two.trail, three.trail) == ((first.id,), (first.id, two.id))
        for message in (two, three):
            assert message.headers["traceparent"] == "00-abc-def-01"
            assert message.headers["tracestate"] == "vendor=1"
            assert "mine" not in message.headers


async def test_what_is_said_explicitly_wins():
    async def step(app, following, message):
        await app.publish(following, 1, headers={"traceparent": "another", "x": 1}, correlation_id="c-2")

    async with Harness(relay(step)) as h:
        await h.publish("one", 1, headers={"traceparent": "first"}, correlation_id="c-1")
        (two,) = h.handled("two")
        assert (two.correlation_id, two.headers["traceparent"], two.headers["x"]) == ("c-2", "another", 1)


async def test_publish_many_and_tasks_of_a_handler_inherit_too():
    async def step(app, following, message):
        async with asyncio.TaskGroup() as group:
            group.create_task(app.publish_many([(following, 1)]))

    async with Harness(relay(step)) as h:
        first = await h.publish("one", 1)
        assert h.handled("two")[0].trail == (first.id,)
        assert h.handled("three")[0].correlation_id == first.id


async def test_a_message_without_ids_has_no_heirs():
    async def step(app, following, message):
        await app.publish(following, 1)

    async with Harness(relay(step)) as h:
        await h.put(Message(exchange="events", routing_key="one", body=b"1", headers={"traceparent": 5}))
        (two,) = h.handled("two")
        assert two.trail == ()
        assert two.correlation_id == two.id
        assert "traceparent" not in two.headers


async def test_an_absurd_trace_context_and_a_long_trail_do_not_travel_on():
    async def step(app, following, message):
        await app.publish(following, 1)

    async with Harness(relay(step)) as h:
        headers = {"traceparent": "x" * 5_000, "carom-trail": [f"a-{n}" for n in range(100)]}
        await h.put(Message(exchange="events", routing_key="one", body=b"1", id="m-1", headers=headers))
        (two,) = h.handled("two")
        assert "traceparent" not in two.headers
        assert two.trail == (*(f"a-{n}" for n in range(69, 100)), "m-1")


async def test_in_a_batch_nothing_is_inherited_unless_it_is_of_one():
    app = App("embedded://", observers=())

    @app.listen("one", queue="one", batch=2)
    async def handle(orders: list[int]):
        await app.publish("two", orders)

    @app.listen("two", queue="two")
    async def last(orders): ...

    async with Harness(app) as h:
        await h.publish_many([("one", 1), ("one", 2)])
        single = await h.publish("one", 3)
        await h.advance("1s")
        assert [m.trail for m in h.handled("two")] == [(), (single.id,)]


async def test_outside_of_handlers_nothing_is_inherited():
    async with Harness(shop()) as h:
        first = await h.publish("order.a", 1)
        second = await h.publish("order.b", 1)
        assert second.trail == ()
        assert second.correlation_id != first.correlation_id
