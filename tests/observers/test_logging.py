"""The log: one record an event, with its facts; no payload, and no line that somebody else wrote."""

import dataclasses
import logging
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom import App, Message
from carom.observers.logging import LONGEST, LoggingObserver, facts, one_line, sentence
from carom.ports import ConnectionDown, ConsumerEnded
from carom.runtime import events
from carom.testing import Harness

PAYLOAD = "the payload that nobody may read in a log"
EVIL = "evil\r\nERROR forged line\x1b[2J\x00\x85\u2028\u202e"
VALUES = {"str": EVIL, "int": 5, "float": 1.5, "Message": Message(body=PAYLOAD.encode(), id=EVIL, routing_key=EVIL)}


def made(kind):
    """Return an event of a kind, with something in each of its fields."""
    given_fields = {}
    for field in dataclasses.fields(kind):
        name = field.type if isinstance(field.type, str) else field.type.__name__
        if name.startswith("tuple"):
            given_fields[field.name] = (VALUES["Message"],) if "Message" in name else (EVIL,)
        else:
            given_fields[field.name] = VALUES[name]
    return kind(**given_fields)


KINDS = typing.get_args(events.Event)
EVENTS = [made(kind) for kind in KINDS]
LEVELS = {
    "Received": logging.DEBUG,
    "Handled": logging.DEBUG,
    "Published": logging.DEBUG,
    "Postponed": logging.DEBUG,
    "Relayed": logging.DEBUG,
    "RelayRetried": logging.WARNING,
    "RelayPaused": logging.WARNING,
    "RelayParked": logging.ERROR,
    "Retried": logging.WARNING,
    "NotSettled": logging.WARNING,
    "NotPublished": logging.WARNING,
    "Dropped": logging.WARNING,
    "ConnectionDown": logging.WARNING,
    "ConnectionBlocked": logging.WARNING,
    "ConsumerEnded": logging.WARNING,
    "StoreDown": logging.WARNING,
    "DeadLettered": logging.ERROR,
    "HandlerStuck": logging.ERROR,
}


def logged(event, level=logging.DEBUG):
    """Return what is logged of an event, by a logger of its own."""
    records = []
    logger = logging.getLogger("tests.observers")
    logger.propagate = False
    logger.setLevel(level)
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)
    LoggingObserver(logger)(event)
    logger.removeHandler(handler)
    return records


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_event_is_one_line_with_a_sentence_of_its_own_and_without_the_payload(event):
    (record,) = logged(event)
    said = record.getMessage()
    assert said.isprintable()
    assert said != type(event).__name__
    assert record.event == type(event).__name__
    assert record.levelno == LEVELS.get(record.event, logging.INFO)
    for value in vars(record).values():
        if isinstance(value, str):
            assert PAYLOAD not in value
    for value in facts(event).values():
        assert not isinstance(value, str) or value.isprintable()


@pytest.mark.parametrize(
    "event", [e for e in EVENTS if isinstance(e, events.Delivered)], ids=lambda e: type(e).__name__
)
def test_every_event_of_a_delivery_says_which_message_of_which_queue_at_which_attempt(event):
    (record,) = logged(event)
    assert record.attempt == 5
    assert record.message_id.startswith("evil")
    assert record.queue.startswith("evil")
    assert "evil" in sentence(event)


async def test_the_facts_of_a_failure_are_fields_of_its_record(caplog):
    app = App("embedded://", name="shop")

    @app.listen("k", queue="q", retry=("5s",))
    async def handle(order):
        raise ConnectionError("the database is away")

    with caplog.at_level(logging.DEBUG, "carom"):
        async with Harness(app) as h:
            sent = await h.publish("k", PAYLOAD, correlation_id="c-1")
            await h.advance("1m")
    assert PAYLOAD not in caplog.text
    records = {record.event: record for record in caplog.records if record.name == "carom"}
    retried, dead = records["Retried"], records["DeadLettered"]
    for record in (retried, dead):
        assert (record.message_id, record.correlation_id, record.queue) == (sent.id, "c-1", "q")
        assert (record.classification, record.error_type) == ("transient", "ConnectionError")
        assert record.duration_ms >= 0
    assert (retried.attempt, retried.delay_ms) == (1, 5_000)
    assert (dead.attempt, dead.reason) == (2, "exhausted")
    assert "failed at attempt 1 and comes back in 5s: ConnectionError 'the database is away'" in retried.getMessage()
    assert "is a dead letter (exhausted) after attempt 2" in dead.getMessage()
    assert records["Started"].app == "shop"


def test_an_event_nobody_has_a_sentence_for_is_named_and_its_message_is_not_shown():
    @dataclasses.dataclass
    class News:
        message: Message

    (record,) = logged(News(Message(body=PAYLOAD.encode(), id="m-1")))
    assert record.getMessage() == "News"
    assert record.message_id == "m-1"


def test_a_level_that_is_off_costs_no_record():
    assert logged(made(events.Received), logging.ERROR) == []
    assert len(logged(made(events.DeadLettered), logging.ERROR)) == 1


@given(st.text())
def test_a_line_is_one_printable_line_of_bounded_length(text):
    shown = one_line(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable() or len(text) > LONGEST


def test_long_text_is_cut():
    assert len(sentence(ConnectionDown("b", "x" * 10_000, 5))) == LONGEST + 1
    assert len(facts(ConsumerEnded("q", "x" * 10_000))["reason"]) == LONGEST + 1
