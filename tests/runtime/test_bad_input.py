"""Bad input is a dead letter with a reason and identical bytes, or handled: never a crash, a loop or a loss."""

import asyncio
import dataclasses
from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from runtime_stage import ends, told

from carom import App, Message, Reject, Retry
from carom.core.effects import Confirmed
from carom.core.message import HEADERS_LIMIT, weight
from carom.runtime import events
from carom.testing import Harness

QUEUE = "q"


class Order(msgspec.Struct):
    id: int


def taking(annotation, **options):
    app = App("embedded://", observers=())

    async def handle(order): ...

    handle.__annotations__ = {"order": annotation}
    app.listen("k", queue=QUEUE, **{"retry": ("1s",), **options})(handle)
    return app


def put(body=b'{"id": 1}', **fields):
    return Message(body=body, exchange="events", routing_key="k", id="m-1", **fields)


DEEP = b"[" * 200_000 + b"]" * 200_000


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Order, put(b"")),
        (Order, put(b"{")),
        (Order, put(b"\x00\x01\x02")),
        (Order, put(b'{"id": "one"}')),
        (Order, put(b'{"id": NaN}')),
        (Order, put(b'{"id": Infinity}')),
        (Order, put(b'{"id": 1e400}')),
        (Order, put(b'{"id": ' + b"9" * 5_000 + b"}")),
        (Order, put(b'{"\xff": 1}')),
        (Order, put(DEEP)),
        (Order, put(b"null")),
        (dict, put(DEEP)),
        (dict, put(b'{"a": "\xff"}')),
        (dict, put(b"\xef\xbb\xbf{}")),
        (dict, put(b"{} {}")),
        (str, put(b"\xff\xfe", content_type="text/plain")),
        (Order, put(content_type="application/xml")),
        (Order, put(content_type="\x00")),
        (Order, put(content_type="text/plain")),
        (Order, put(content_encoding="gzip")),
        (Order, put(content_encoding="nonsense")),
        (Order, put(b"x" * 16 * 1024 * 1024)),
        (Order, put(b'"' + b"x" * 16 * 1024 * 1024 + b'"')),
    ],
)
async def test_what_cannot_be_decoded_is_a_dead_letter_at_once_with_its_bytes(annotation, message):
    async with Harness(taking(annotation)) as h:
        await h.put(message)
        (dead,) = h.dead(QUEUE)
        assert dead.body == message.body
        assert (dead.id, dead.content_type, dead.content_encoding) == (
            "m-1",
            message.content_type,
            dead.content_encoding,
        )
        assert dead.headers["carom-reason"] == "malformed"
        assert dead.headers["carom-error-type"] == "carom.errors.DecodeError"
        assert dead.headers["carom-attempt"] == 1
        assert 0 < len(str(dead.headers["carom-error"])) < 2_100
        assert ends(h.events) == ["DeadLettered"]
        assert h.app.busy == 0


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (bytes, put(b"")),
        (bytes, put(b"\xff\xfe\x00", content_type="application/xml", content_encoding="gzip")),
        (bytes, put(b"x" * 16 * 1024 * 1024)),
        (str, put(b"plain words", content_type="text/plain; charset=utf-8")),
        (str, put(b"plain words", content_type="TEXT/PLAIN")),
        (str, put(b'"json"')),
        (Order, put(content_type="application/json; charset=utf-8")),
        (Order, put(content_type="Application/Vnd.Shop+JSON")),
        (Order, put(content_encoding="UTF-8")),
        (Order, put(content_encoding="identity")),
        (Order, put(b'{"id": 1, "id": 2}')),
        (Order, put(b' {"id": 1, "more": [{}]} \n')),
        (int, put(b"9" * 60)),
        (None, put(b"null")),
    ],
)
async def test_what_is_unusual_and_valid_is_handled(annotation, message):
    async with Harness(taking(annotation)) as h:
        await h.put(message)
        assert h.handled(QUEUE) == (message,)


FORGED = [
    "carom-attempt",
    "carom-queue",
    "carom-exchange",
    "carom-key",
    "carom-wait",
    "carom-crashes",
    "carom-first-failed-at",
    "carom-failed-at",
    "carom-error-type",
    "carom-error",
    "carom-error-trace",
    "carom-reason",
    "carom-host",
    "carom-trail",
    "carom-replay-of",
    "carom-unheard-of",
    "x-death",
    "x-delivery-count",
    "x-acquired-count",
    "x-first-death-queue",
    "x-opt-strange",
    "traceparent",
    "CC",
    "tenant",
]
ABSURD = [
    None,
    True,
    -1,
    2**63 - 1,
    -(2**63),
    float("nan"),
    float("inf"),
    "",
    "x" * 300,
    "\x00\r\n",
    b"\xff" * 10,
    [],
    [[[]]],
    {"a": {"b": None}},
    [{"count": -1}],
    Decimal("1e10"),
    datetime(1, 1, 1, tzinfo=UTC),
]


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("queue", [{}, {"carom-queue": QUEUE}])
async def test_a_forged_header_of_any_type_is_no_more_than_a_wish(name, queue):
    """Each message is handled, or it fails and is retried, within what the policy allows."""
    app = App("embedded://", observers=())

    @app.listen("k", queue=QUEUE, retry=("1s",))
    async def handle(body: bytes, message: Message):
        assert 1 <= message.attempt <= 1_000_000
        assert all(isinstance(one, str) for one in message.trail)
        assert isinstance(message.replay_of, str)
        raise ValueError

    async with Harness(app) as h:
        taken = 0
        for value in ABSURD:
            result = await h.put(put(b"\xffx", headers={**queue, name: value}))
            taken += isinstance(result, Confirmed)
        assert taken == len(ABSURD) or name == "CC", "the broker itself reads CC"
        await h.advance("1h")
        assert len(h.dead(QUEUE)) + len(h.waiting()) == taken
        assert all(message.body == b"\xffx" for message in h.dead(QUEUE))
        for message in h.waiting():
            assert message.headers["carom-wait"] > 0, "a forged wait is waited, and it does not grow"
        assert app.busy == 0


async def test_a_forged_attempt_is_believed_only_for_this_queue_and_never_gives_more_attempts():
    app = taking(Order, retry=("1s", "1s"))
    app._middleware.append(fails)
    async with Harness(app) as h:
        for attempt in (-5, 0, 1, 2, 3, 10**9):
            await h.put(put(headers={"carom-queue": QUEUE, "carom-attempt": attempt}))
        await h.put(put(headers={"carom-queue": "another", "carom-attempt": 3}))
        await h.advance("1m")
        assert len(h.dead(QUEUE)) == 7
        assert [m.attempt for m in h.attempts(QUEUE)].count(1) == 4
        assert len(h.attempts(QUEUE)) == 3 * 4 + 2 + 1 + 1


async def fails(message, call):
    raise ValueError("always")


async def test_a_forged_crash_count_on_a_first_delivery_condemns_nobody():
    async with Harness(taking(Order)) as h:
        await h.put(put(headers={"x-delivery-count": 1_000, "x-acquired-count": 1_000}))
        assert len(h.handled(QUEUE)) == 1


async def test_a_death_written_by_somebody_else_does_not_travel_on():
    app = taking(Order, retry=())
    app._middleware.append(fails)
    async with Harness(app) as h:
        forged = {
            "x-death": [{"queue": QUEUE, "reason": "expired", "count": 5}],
            "carom-reason": "forged",
            "mine": "kept",
        }
        await h.put(put(headers=forged))
        (dead,) = h.dead(QUEUE)
        assert "x-death" not in dead.headers
        assert (dead.headers["carom-reason"], dead.headers["mine"]) == ("exhausted", "kept")


@pytest.mark.parametrize("size", [HEADERS_LIMIT - 4_000, HEADERS_LIMIT - 200, HEADERS_LIMIT + 10_000, 5_000_000])
@pytest.mark.parametrize("error", [None, ValueError("x" * 100_000), Reject("no" * 50_000), Retry("1s", "y" * 50_000)])
async def test_gigantic_headers_are_handled_or_dead_and_never_in_a_loop(size, error):
    app = taking(Order)

    @app.middleware
    async def fail(message, call):
        if error is not None:
            raise error

    async with Harness(app) as h:
        await h.put(put(headers={"mine": "h" * size}))
        await h.advance("1h")
        assert len(h.handled(QUEUE)) + len(h.dead(QUEUE)) == 1
        assert len(h.handled(QUEUE)) == (error is None)
        for message in h.dead(QUEUE):
            assert message.headers["mine"] == "h" * size
            ours = {key: value for key, value in message.headers.items() if key.startswith("carom-")}
            assert weight(ours) < 16 * 1024
        assert h.app.busy == 0


async def test_an_error_text_of_any_size_and_kind_fits():
    class Loud(Exception):
        def __str__(self):
            return "\ud800\x00\r\n" + "x" * 1_000_000

    app = taking(Order)

    @app.middleware
    async def fail(message, call):
        raise Loud

    async with Harness(app) as h:
        await h.put(put())
        await h.advance("1m")
        (dead,) = h.dead(QUEUE)
        assert len(str(dead.headers["carom-error"]).encode()) <= 2_048


# -- any message at all ------------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.sampled_from([QUEUE, "1s", "events", "k"]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
names = st.sampled_from([name for name in FORGED if name != "CC"]) | st.text(min_size=1, max_size=10)
short = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
bodies = st.one_of(
    st.binary(max_size=50),
    st.sampled_from([b"", b'{"id": 1}', b'{"id": 2}', b'{"id": 3}', b"[" * 5_000, b'{"id": NaN}', b"null"]),
)
hostile = st.builds(
    Message,
    body=bodies,
    exchange=st.just("events"),
    routing_key=st.just("k"),
    id=short,
    correlation_id=short,
    content_type=st.sampled_from(["", "application/json", "text/plain", "x/y"]) | short,
    content_encoding=st.sampled_from(["", "utf-8", "gzip"]) | short,
    type=short,
    app_id=short,
    reply_to=short,
    expiration=st.sampled_from(["", "1000"]),
    timestamp=st.none() | st.integers(0, 2**63),
    priority=st.none() | st.integers(0, 255),
    delivery_mode=st.sampled_from([1, 2]),
    headers=st.dictionaries(names, values, max_size=6),
)


def erratic(batch):
    """Return an app whose handler does what the payload says."""
    app = App("embedded://", observers=())

    def act(order):
        if order.id == 2:
            raise ValueError
        if order.id == 3:
            raise Retry(after="90s")

    if batch:

        @app.listen("k", queue=QUEUE, retry=("1s", "1m"), batch=3)
        async def handle_all(orders: list[Order]):
            for order in orders:
                act(order)

    else:

        @app.listen("k", queue=QUEUE, retry=("1s", "1m"))
        async def handle(order: Order):
            act(order)

    return app


@pytest.mark.parametrize("batch", [False, True])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(messages=st.lists(hostile, min_size=1, max_size=5))
@example(messages=[Message(exchange="events", routing_key="k", headers={"carom-queue": QUEUE, "carom-wait": 2**62})])
async def test_every_message_is_handled_or_dead_exactly_once_and_the_app_is_idle_and_healthy(batch, messages):
    app = erratic(batch)
    marked = [dataclasses.replace(m, headers={**m.headers, "number": n}) for n, m in enumerate(messages)]
    async with Harness(app) as h:
        for message in marked:
            assert isinstance(await h.put(message), Confirmed)
        await h.advance("1h")
        handled = [m.headers["number"] for m in h.handled(QUEUE)]
        dead = [m.headers["number"] for m in h.dead(QUEUE)]
        waiting = [m.headers["number"] for m in h.waiting()]
        assert sorted(handled + dead + waiting) == list(range(len(messages)))
        for number in waiting:
            assert isinstance(marked[number].headers.get("carom-wait"), int), "only a forged wait may last this long"
        for message in (*h.dead(QUEUE), *h.handled(QUEUE), *h.waiting()):
            sent = marked[message.headers["number"]]
            assert (message.body, message.id, message.correlation_id) == (sent.body, sent.id, sent.correlation_id)
        assert all(m.headers.get("carom-reason") or m.headers.get("x-death") for m in h.dead(QUEUE))
        assert h.ready(QUEUE) == h.broker.engine.contents("carom.lost") == ()
        assert app.busy == 0
        assert app.healthy
        begun = told(h.events, events.Received)
        assert len(begun) <= 3 * len(messages)


async def test_a_handler_that_blocks_on_bad_input_of_others_goes_on():
    app = taking(Order, concurrency=1)
    async with Harness(app) as h:
        for _ in range(50):
            await h.put(put(b"nonsense"))
        await h.put(put())
        await asyncio.sleep(0)
        assert len(h.dead(QUEUE)) == 50
        assert len(h.handled(QUEUE)) == 1
