"""Dead letters in every layout: found, read, and put back to the queue they died for, for a new life."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_stage import CHARGE, DOUBLING, EVERY, JOB, MAIL, ORDER

from carom.core import letters
from carom.core import message as names
from carom.core.letters import SAFE_RETURNS, DeadQueue, dead_queue, drained, home, letter, renewed, replayed
from carom.core.message import Int64, Message
from carom.core.wire import Note
from carom.errors import ConfigurationError
from carom.layouts import AsyncWorker, FreeFlow, GoQueue, Kbairak, PerQueue, Shared

NOTE = Note(2_000, "host", "exhausted", "TimeoutError", "no answer")


def died(laid, attempts=3):
    """Return the message on its wire and the dead letter that its last attempt makes."""
    layout, queue = laid.layout, laid.plan.queue
    message = layout.wire.outgoing(laid.message)
    for _ in range(attempts - 1):
        arrival = layout.wire.read(message, queue)
        message = layout.wire.retried(arrival, layout.queue_address(queue), NOTE)
    arrival = layout.wire.read(message, queue)
    return layout.wire.dead(arrival, layout.dead_address(queue), NOTE)


@pytest.mark.parametrize("name", EVERY)
def test_a_dead_letter_is_found_read_and_begins_anew(name):
    laid = EVERY[name]
    layout, queue = laid.layout, laid.plan.queue
    dead = died(laid)
    there = dead_queue(layout, [plan.queue for plan in layout.plans], queue)
    assert there.homes == (queue,)
    assert home(dead, there.homes) == queue
    found = letter(layout, dead, queue)
    assert (found.id, found.queue, found.reason, found.attempts) == (laid.message.id, queue, "exhausted", 3)
    assert (found.routing_key, found.error_type, found.error) == ("order.created", "TimeoutError", "no answer")
    assert (found.failed_at, found.host, found.deaths) == (2_000, "host", 1)
    copy = replayed(layout, dead, queue)
    to = layout.queue_address(queue)
    assert (copy.exchange, copy.routing_key) == (to.exchange, to.routing_key)
    assert names.REASON not in copy.headers
    arrival = layout.wire.read(copy, queue)
    assert (arrival.attempt, arrival.crashes, arrival.deaths, arrival.wait_ms) == (1, 0, 1, 0)
    seen = layout.wire.seen(arrival)
    assert (seen.id, seen.replay_of, seen.routing_key) == (laid.message.id, laid.message.id, "order.created")
    assert seen.body == layout.wire.seen(layout.wire.read(layout.wire.outgoing(laid.message), queue)).body


@pytest.mark.parametrize("name", EVERY)
def test_what_the_broker_let_die_begins_anew_from_where_it_was_published(name):
    laid = EVERY[name]
    layout, queue = laid.layout, laid.plan.queue
    message = layout.wire.outgoing(laid.message)
    death = {
        "queue": queue,
        "reason": "rejected",
        "exchange": message.exchange,
        "routing-keys": [message.routing_key],
        "count": 1,
    }
    dead = replace(
        message,
        exchange="its.dlx",
        routing_key=queue,
        headers={
            **message.headers,
            "x-death": [{"queue": "elsewhere", "reason": "expired"}, death],
            "x-delivery-count": 7,
        },
    )
    found = letter(layout, dead, queue)
    assert (found.reason, found.routing_key, found.deaths) == ("expired", "order.created", 1)
    copy = replayed(layout, replace(dead, headers={**dead.headers, "x-death": [death]}), queue)
    assert "x-death" not in copy.headers
    arrival = layout.wire.read(copy, queue)
    assert (arrival.attempt, arrival.crashes) == (1, 0)
    assert layout.wire.seen(arrival).routing_key == "order.created"


def test_what_other_systems_count_is_counted_anew():
    kbairak = Kbairak("carom", "shop", (CHARGE,))
    theirs = replace(ORDER, headers={"x-delivery-count": "4", "x-original-routing-key": "order.created"})
    assert replayed(kbairak, theirs, "charge").headers["x-delivery-count"] == "1"
    goqueue = GoQueue("carom", "shop", (CHARGE,))
    theirs = replace(ORDER, headers={"goqueue-retry-count": Int64(3)})
    assert replayed(goqueue, theirs, "charge").headers["goqueue-retry-count"] == 0
    freeflow = FreeFlow("carom", "shop", (CHARGE,))
    assert replayed(freeflow, replace(ORDER, headers={"x-retry-count": 3}), "charge").headers["x-retry-count"] == 0


@pytest.mark.parametrize(("keeps", "attempt"), [(False, 1), (True, 3)])
def test_async_worker_keeps_or_resets_the_iteration_be_the_letter_theirs_or_ours(keeps, attempt):
    layout = AsyncWorker("shop", "", (DOUBLING,), replay_keeps_iteration=keeps)
    queue = DOUBLING.queue
    retried = layout.wire.outgoing(JOB)
    for _ in range(2):
        retried = layout.wire.retried(layout.wire.read(retried, queue), layout.queue_address(queue), NOTE)
    theirs = replace(retried, exchange="shop_exchange", routing_key="shop_dead_letter_queue", headers={})
    ours = layout.wire.dead(layout.wire.read(retried, queue), layout.dead_address(queue), NOTE)
    for dead in (theirs, ours):
        copy = replayed(layout, dead, queue)
        assert copy.routing_key == queue
        original = AsyncWorker("shop", "", (DOUBLING,)).wire
        assert original.attempt(copy) == attempt


def test_a_queue_of_dead_letters_is_asked_for_by_either_name():
    queues = ("charge", "mail")
    shared = Shared("carom", "shop", (CHARGE, MAIL))
    assert dead_queue(shared, queues, "charge") == DeadQueue("charge.dlq", ("charge",), says_limit=True)
    assert dead_queue(shared, queues, "mail.dlq") == DeadQueue("mail.dlq", ("mail",), says_limit=True)
    kbairak = Kbairak("carom", "shop", (CHARGE, MAIL))
    assert not dead_queue(kbairak, queues, "charge").says_limit
    assert dead_queue(kbairak, queues, "carom.suspects.app.dlq").homes == queues
    freeflow = FreeFlow("carom", "shop", (CHARGE, MAIL))
    assert dead_queue(freeflow, queues, "charge").name == "charge.dlq"
    assert dead_queue(freeflow, queues, "shop.dlq").homes == queues
    job = AsyncWorker("shop", "", (DOUBLING,))
    assert dead_queue(job, [DOUBLING.queue], DOUBLING.queue).name == "shop_dead_letter_queue"
    with pytest.raises(ConfigurationError, match=r"'post' has no dead letters in this app; it knows those of 'charge'"):
        dead_queue(shared, queues, "post")
    with pytest.raises(ConfigurationError, match="no queue at all"):
        dead_queue(PerQueue("carom", "shop", ()), (), "post")


@pytest.mark.parametrize(
    ("headers", "homes", "expected"),
    [
        ({names.QUEUE: "mail"}, ("charge", "mail"), "mail"),
        ({names.QUEUE: "post"}, ("charge", "mail"), ""),
        ({names.QUEUE: "post"}, ("charge",), "charge"),
        ({names.QUEUE: ["mail"], "x-death": [7, {"queue": "x"}, {"queue": "mail"}]}, ("charge", "mail"), "mail"),
        ({"x-death": "mail"}, ("charge", "mail"), ""),
    ],
)
def test_a_letter_goes_home_or_stays(headers, homes, expected):
    assert home(replace(ORDER, headers=headers), homes) == expected


def test_one_without_an_id_is_a_replay_of_nothing():
    shared = Shared("carom", "shop", (CHARGE,))
    copy = replayed(shared, replace(ORDER, id=""), "charge")
    assert names.REPLAY_OF not in copy.headers


def test_one_that_could_not_travel_has_no_copy():
    shared = Shared("carom", "shop", (CHARGE,))
    heavy = replace(ORDER, headers={"heavy": "x" * (names.HEADERS_LIMIT + 1)})
    assert replayed(shared, heavy, "charge") is None
    assert drained(shared, heavy, "charge", ("charge",)) is None


@pytest.mark.parametrize(
    ("returns", "says_limit", "is_renewed"),
    [(SAFE_RETURNS - 1, False, False), (SAFE_RETURNS, False, True), (SAFE_RETURNS, True, False), ("9", False, False)],
)
def test_one_that_would_be_used_up_is_put_back_as_a_copy(returns, says_limit, is_renewed):
    dead = replace(ORDER, headers={"x-delivery-count": returns, "x-death": [{"queue": "charge"}], names.REASON: "x"})
    copy = renewed(dead, DeadQueue("charge.dlq", ("charge",), says_limit))
    assert (copy is not None) is is_renewed
    if copy is not None:
        assert (copy.exchange, copy.routing_key) == ("", "charge.dlq")
        assert copy.headers == {"x-death": [{"queue": "charge"}], names.REASON: "x"}


def test_a_drained_retry_keeps_its_attempt_and_waits_no_more():
    layout = GoQueue("carom", "shop", (CHARGE,))
    arrival = layout.wire.read(layout.wire.outgoing(ORDER), "charge")
    waiting = layout.wire.retried(arrival, layout.delay_address("charge", 60_000), NOTE, wait_ms=5_000)
    assert waiting.expiration == "60000"
    copy = drained(layout, waiting, "charge", ("charge",))
    assert (copy.exchange, copy.routing_key, copy.expiration) == ("", "charge", "")
    found = layout.wire.read(copy, "charge")
    assert (found.attempt, found.wait_ms, found.exchange, found.routing_key) == (2, 0, "shop", "order.created")


def test_what_is_drained_to_a_queue_of_nobodys_says_where_it_was_from():
    shared = Shared("carom", "shop", (CHARGE,))
    history = {"x-death": [], "x-first-death-queue": "q", "CC": ["a"], "x-delivery-count": 3}
    waiting = replace(
        ORDER, expiration="60000", user_id="guest", delivery_mode=1, headers={"tenant": "acme", **history}
    )
    copy = drained(shared, waiting, "parked", ("charge",))
    assert (copy.exchange, copy.routing_key, copy.expiration, copy.user_id) == ("", "parked", "", "")
    assert copy.delivery_mode == 2
    origin = {names.QUEUE: "parked", names.EXCHANGE: "shop", names.KEY: "order.created"}
    assert copy.headers == {"tenant": "acme", **origin}
    again = drained(shared, replace(copy, exchange="x"), "other", ("charge",))
    assert again.headers == copy.headers
    unknown = drained(shared, replace(waiting, exchange=""), "other", ("charge",))
    assert unknown.headers == {"tenant": "acme"}


hostile = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.lists(st.text()), st.binary())
deaths = st.one_of(
    hostile,
    st.lists(st.dictionaries(st.sampled_from(["queue", "exchange", "routing-keys", "reason"]), hostile), max_size=3),
)
OURS = [value for name, value in vars(names).items() if isinstance(value, str) and value.startswith(names.OURS)]
HEADERS = st.dictionaries(st.sampled_from([*OURS, "x-delivery-count", letters.RETURNS]), hostile)


@pytest.mark.parametrize("name", EVERY)
@given(HEADERS, deaths, st.binary(max_size=20))
def test_no_letter_makes_reading_or_replaying_raise(name, headers, died_of, body):
    laid = EVERY[name]
    dead = Message(body=body, headers={**headers, "x-death": died_of})
    queue = home(dead, (laid.plan.queue,))
    letter(laid.layout, dead, queue)
    copy = replayed(laid.layout, dead, queue)
    assert copy is None or laid.layout.wire.read(copy, queue).attempt == 1
