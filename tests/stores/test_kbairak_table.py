"""The outbox table of kbairak/outbox: Carom relays theirs, their relay publishes Carom's, and both at once are safe.

Their relay is a stand-in written from its SQL: take what is due and unlocked, publish it all, mark it, in one
transaction.
"""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import asyncpg
import psycopg
import pytest
from sqlalchemy.orm import Session

from brokers.rabbitmq.rabbit_stage import until
from carom import App, ConfigurationError, Database, SchemaMismatch
from carom.brokers.embedded.broker import MemoryBroker
from carom.brokers.embedded.engine import Engine
from carom.core.message import Message
from carom.core.relaying import Again, Entry, Parked, Sent
from carom.ports import KbairakTable
from carom.runtime.clock import RealClock
from carom.stores import connect
from carom.stores.kbairak import _Hold
from databases import database_of_its_own, spoken_by

TRACKING = "x-outbox-tracking-ids"


@pytest.fixture(params=["asyncpg", "psycopg"])
def url(request, postgres_url):
    with database_of_its_own(postgres_url) as found:
        yield spoken_by(request.param, found)


def plain(url):
    return url.replace("+asyncpg", "").replace("+psycopg", "")


@asynccontextmanager
async def opened(url, **settings):
    """A store on their table, and a connection as their programs have one."""
    store = connect(Database(url, outbox=KbairakTable(**settings), keep_sent=settings.pop("keep", 0)))
    await store.open("apply")
    connection = await asyncpg.connect(plain(url))
    try:
        yield SimpleNamespace(store=store, connection=connection, theirs=TheirRelay(connection))
    finally:
        await connection.close()
        await store.close()


class TheirRelay:
    """One round of it: what it publishes is kept."""

    def __init__(self, connection):
        self.connection = connection
        self.published = []

    async def round(self, publish=None, limit=50):
        async with self.connection.transaction():
            rows = await self.connection.fetch(
                "SELECT id, routing_key, body, tracking_ids, expiration FROM outbox_table "
                "WHERE sent_at IS NULL AND send_after <= $1 ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED",
                datetime.now(UTC),
                limit,
            )
            self.published += rows
            if publish is not None:
                await publish(rows)
            ids = [row["id"] for row in rows]
            await self.connection.execute("UPDATE outbox_table SET sent_at = now() WHERE id = ANY($1)", ids)
        return rows


async def insert(connection, number, send_after=None, expiration=None):
    """Insert a row as their publisher does; return its tracking ids."""
    tracked = [f"parent-{number}", f"id-{number}"]
    await connection.execute(
        "INSERT INTO outbox_table (routing_key, body, tracking_ids, expiration, send_after) "
        "VALUES ($1, $2, $3, $4, $5)",
        "order.created",
        json.dumps({"id": number}).encode(),
        json.dumps(tracked),
        expiration,
        send_after or datetime.now(UTC),
    )
    return tracked


def entry(number, **changes):
    settings = {"exchange": "outbox", "routing_key": "order.created", "content_type": "application/json"} | changes
    return Entry(Message(body=b"%d" % number, id=f"m-{number}", **settings))


async def led(store):
    return await store.lead("us", 60_000)


async def add(store, *entries):
    async with store.engines.asynchronous.begin() as connection:
        await store.write(connection, entries)


async def test_what_they_insert_is_claimed_and_written_as_their_relay_writes_it(url):
    async with opened(url) as at:
        tracked = await insert(at.connection, 1, expiration=timedelta(seconds=1.5))
        await insert(at.connection, 2, send_after=datetime.now(UTC) + timedelta(hours=1))
        assert await at.store.release() > 3_000_000
        (row,) = await at.store.claim(10, ())
        message = row.message
        assert (message.exchange, message.routing_key, message.body) == ("outbox", "order.created", b'{"id": 1}')
        assert message.headers == {TRACKING: json.dumps(tracked)}
        assert (message.id, message.content_type, message.expiration) == ("id-1", "application/json", "1500")
        assert await at.store.mark(await led(at.store), [Sent(row.seq)])
        assert await at.connection.fetchval("SELECT count(*) FROM outbox_table") == 1


async def test_a_row_they_have_locked_is_passed_over_and_one_of_ours_is_out_of_their_sight(url):
    async with opened(url) as at:
        await insert(at.connection, 1)

        async def publish(rows):
            assert len(rows) == 1
            await insert_beside(url, 2)
            (ours,) = await at.store.claim(10, ())
            assert ours.message.id == "id-2"

        await at.theirs.round(publish)
        assert await at.theirs.round() == []
        assert await at.store.claim(10, ()) != [], "what was let go of can be had again at once"


async def insert_beside(url, number):
    connection = await asyncpg.connect(plain(url))
    await insert(connection, number)
    await connection.close()


async def test_what_a_dead_relay_had_in_hand_is_everybodys_again_after_the_hold(url):
    async with opened(url) as at:
        await insert(at.connection, 1)
        await at.store.claim(10, ())
        other = connect(Database(url, outbox=KbairakTable()))
        assert await other.claim(10, ()) == []
        await at.connection.execute("UPDATE outbox_table SET send_after = send_after - interval '60 s'")
        (row,) = await other.claim(10, ())
        assert await at.store.claim(10, ()) == [], "the first one lets go of what it no longer holds, and gets nothing"
        assert await at.store.claim(10, ()) == []
        assert row.message.id == "id-1"
        await other.close()


async def test_what_is_in_hand_for_long_is_held_for_longer(url):
    async with opened(url) as at:
        await insert(at.connection, 1)
        (row,) = await at.store.claim(10, ())
        held = at.store._held[row.seq]
        at.store._held[row.seq] = _Hold(held.until, held.taken - 31)
        assert await at.store.claim(10, [row.seq]) == []
        later = await at.connection.fetchval("SELECT send_after FROM outbox_table")
        assert later == at.store._held[row.seq].until > held.until


async def test_rows_come_in_the_order_they_were_written_and_no_more_than_asked_for(url):
    async with opened(url) as at:
        await add(at.store, *(entry(number) for number in range(30)))
        first = await at.store.claim(20, ())
        rest = await at.store.claim(20, [row.seq for row in first])
        assert [row.message.id for row in (*first, *rest)] == [f"m-{number}" for number in range(30)]


async def test_failures_and_what_is_parked_are_kept_beside_and_out_of_their_relays_way(url):
    async with opened(url) as at:
        for number in range(3):
            await insert(at.connection, number)
        rows = {row.message.id: row.seq for row in await at.store.claim(10, ())}
        lease = await led(at.store)
        await at.store.mark(
            lease, [Again(rows["id-0"], 3_600_000, "no"), Parked(rows["id-1"], "never"), Sent(rows["id-2"])]
        )
        assert await at.theirs.round() == []
        found = {held.id: held for held in await at.store.find(("failing", "parked", "ready", "later"), 10)}
        assert {identity: (held.state, held.failures, held.error) for identity, held in found.items()} == {
            "id-0": ("failing", 1, "no"),
            "id-1": ("parked", 1, "never"),
        }
        backlog = await at.store.backlog()
        assert (backlog.ready, backlog.later, backlog.failing, backlog.parked, backlog.sent) == (0, 0, 1, 1, 0)
        assert 3_500_000 < await at.store.release() <= 3_600_000
        assert await at.store.expedite([rows["id-0"]]) == 1
        (again,) = await at.store.claim(10, ())
        assert (again.message.id, again.failures) == ("id-0", 1)
        assert await at.store.retry(None) == 2
        assert sorted(row.failures for row in await at.store.claim(10, ())) == [0, 0]
        assert await at.store.cancel([rows["id-0"], rows["id-1"]]) == 2


async def test_what_theirs_has_published_after_a_failure_is_forgotten_with_the_rest(url):
    async with opened(url) as at:
        await insert(at.connection, 1)
        (row,) = await at.store.claim(10, ())
        await at.store.mark(await led(at.store), [Again(row.seq, 0, "no")])
        assert len(await at.theirs.round()) == 1
        assert await at.store.forget_sent(100) == 0, "what theirs keeps is theirs"
        assert await at.connection.fetchval("SELECT count(*) FROM carom_kbairak") == 0
        assert await at.connection.fetchval("SELECT count(*) FROM outbox_table") == 1


async def test_what_is_kept_is_marked_as_theirs_marks_it(url):
    store = connect(Database(url, outbox=KbairakTable(), keep_sent="1h"))
    await store.open("apply")
    await add(store, entry(1))
    (row,) = await store.claim(10, ())
    await store.mark(await led(store), [Sent(row.seq)])
    (sent,) = await store.find(("sent",), 10)
    assert sent.sent_ms
    assert await store.forget_sent(10) == 0
    await store.close()


async def test_who_resigns_lets_go_of_what_is_in_hand(url):
    async with opened(url) as at:
        for number in range(2):
            await insert(at.connection, number)
        lease = await led(at.store)
        first, _ = await at.store.claim(10, ())
        assert await at.theirs.round() == []
        await at.store.mark(lease, [Again(first.seq, 3_600_000, "no")])
        await at.store.resign(lease)
        assert [json.loads(row["body"]) for row in await at.theirs.round()] == [{"id": 1}]
        await at.store.resign(lease)


async def test_their_trigger_wakes_us_and_what_we_emit_wakes_their_relay(url):
    async with opened(url) as at:
        woken, told = asyncio.Event(), asyncio.Event()
        await at.connection.add_listener("outbox_channel", lambda *_: told.set())
        async with at.store.watch(woken.set):
            await until(woken.is_set, "the first look, once it listens")
            woken.clear()
            await insert_beside(url, 1)
            await until(woken.is_set, "word of theirs")
        told.clear()
        await add(at.store, Entry(entry(1).message, wait_ms=60_000))
        await add(at.store, entry(2))
        await until(told.is_set, "word of ours")
        (due,) = [row for row in await at.theirs.round() if json.loads(row["tracking_ids"]) == ["m-2"]]
        assert due["routing_key"] == "order.created"


async def test_a_mark_under_anothers_lease_is_void(url):
    async with opened(url) as at:
        await insert(at.connection, 1)
        (row,) = await at.store.claim(10, ())
        lease = await led(at.store)
        await at.store.resign(lease)
        await at.store.lead("another", 60_000)
        assert not await at.store.mark(lease, [Sent(row.seq), Parked(row.seq, "x")])
        assert await at.connection.fetchval("SELECT count(*) FROM outbox_table") == 1
        assert await at.connection.fetchval("SELECT count(*) FROM carom_kbairak") == 0


async def test_their_relay_publishes_what_was_emitted_in_every_way(url):
    async with opened(url) as at:
        app = App(exchange="outbox", layout="kbairak", database=Database(url, outbox=KbairakTable()))
        said = []
        async with at.connection.transaction():
            said.append(await app.emit_on(at.connection, "order.created", {"id": 1}))
        with psycopg.connect(plain(url)) as connection:
            said.append(app.emit_on_sync(connection, "order.created", {"id": 2}))
        async with app.store.engines.asynchronous.begin() as connection:
            said += await app.emit_many_on(connection, [("order.created", {"id": n}) for n in (3, 4)])
        with Session(app.store.engines.synchronous) as session:
            said.append(app.emit(session, "order.created", {"id": 5}))
            said += app.emit_many(session, [("order.created", {"id": n}) for n in (6, 7)])
            later = app.emit(session, "order.created", {"id": 8}, delay="1h")
            session.commit()
        rows = await at.theirs.round()
        assert [(row["routing_key"], json.loads(row["body"])) for row in rows] == [
            ("order.created", {"id": number}) for number in range(1, 8)
        ]
        assert [json.loads(row["tracking_ids"]) for row in rows] == [[message.id] for message in said]
        assert [held.id for held in await at.store.find(("later",), 10)] == [later.id]
        await app.store.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"headers": {"tenant": "acme"}}, "no place for headers, and these would be lost: tenant"),
        ({"exchange": "shop"}, "its rows go to exchange 'outbox', and this is for 'shop'"),
        ({"content_type": "text/plain"}, "sent as application/json"),
        ({"routing_key": "x" * 256}, "routing key"),
    ],
)
def test_what_their_table_has_no_place_for_is_refused(changes, said, postgres_url):
    store = connect(Database(spoken_by("asyncpg", postgres_url), outbox=KbairakTable()))
    with pytest.raises(ConfigurationError, match=said):
        store.add(Session(), [entry(1, **changes)])
    with pytest.raises(ConfigurationError, match="no place for an ordering key"):
        store.add(Session(), [Entry(entry(1).message, "key")])


def test_it_is_a_table_of_postgresqls_with_a_name():
    with pytest.raises(ConfigurationError, match="one of PostgreSQL's"):
        connect(Database("sqlite+aiosqlite://", outbox=KbairakTable()))
    with pytest.raises(ConfigurationError, match="is no name of a table"):
        connect(Database("postgresql+asyncpg://localhost/x", outbox=KbairakTable(table="a;b")))


async def test_a_row_of_which_no_message_can_be_made_says_why(url):
    async with opened(url) as at:
        await at.connection.execute("ALTER TABLE outbox_table ALTER routing_key DROP NOT NULL")
        new = "INSERT INTO outbox_table (routing_key, body, tracking_ids, send_after) VALUES"
        await at.connection.execute(f"{new} (NULL, '', '[]', now()), ('k', '', '{{}}', now()), ('k', '', '[7]', now())")
        flawed, *others = await at.store.claim(10, ())
        assert flawed.flaw == "it has no key, or no body"
        assert [row.message.id for row in others] == ["outbox_table-2", "outbox_table-3"]


async def test_a_table_that_is_not_there_is_said(url):
    store = connect(Database(url, outbox=KbairakTable(table="public.other_table")))
    carom = connect(Database(url))
    await carom.open("apply")
    await carom.close()
    with pytest.raises(SchemaMismatch, match="other_table"):
        await store.open("verify")
    await store.open("ignore")
    await store.open("apply")
    await store.open("verify")
    await store.close()


@asynccontextmanager
async def running(url, **settings):
    app = App(
        exchange="outbox",
        layout="kbairak",
        database=Database(url, outbox=KbairakTable(**settings)),
        observers=(),
    )
    app.handled = []

    @app.listen("order.*", queue="orders", retry=())
    async def handle(order: dict, message: Message) -> None:
        app.handled.append((order["id"], message.id))

    engine = Engine()
    app.begin = lambda: app.start(broker=MemoryBroker(RealClock(), engine=engine))
    app.beside = MemoryBroker(RealClock(), engine=engine)
    await app.beside.open()
    await app.beside.declare(app.topology)
    try:
        yield app
    finally:
        await app.stop()
        await app.beside.close()


async def test_an_app_relays_what_they_insert_and_what_it_emits_itself(url):
    async with running(url) as app:
        await app.begin()
        connection = await asyncpg.connect(plain(url))
        await insert(connection, 1)
        await until(lambda: app.handled == [(1, "id-1")], "theirs")
        async with connection.transaction():
            ours = await app.emit_on(connection, "order.created", {"id": 2}, delay="50ms")
        await until(lambda: app.handled[1:] == [(2, ours.id)], "ours")
        await until(lambda: not app.relay.in_flight, "the marks")
        await connection.close()


async def test_both_relays_at_once_publish_everything_once(url):
    async with opened(url) as at:
        for number in range(400):
            await insert(at.connection, number)
        async with running(url) as app:
            by_theirs = await asyncio.gather(asyncio.create_task(beside(app, at.theirs)), app.begin())
            await until(lambda: len(app.handled) >= 400, "everything")
            await until(lambda: not app.relay.in_flight, "the marks")
            assert await at.theirs.round() == []
        assert sorted(number for number, _ in app.handled) == list(range(400))
        assert 0 < by_theirs[0] <= 200


async def beside(app, theirs):
    """Let their relay publish some, a few at a time; return how many it was."""

    async def publish(rows):
        messages = [
            Message(
                body=row["body"],
                exchange="outbox",
                routing_key=row["routing_key"],
                headers={TRACKING: row["tracking_ids"]},
            )
            for row in rows
        ]
        await app.beside.publish(messages)

    for _ in range(100):
        await theirs.round(publish, limit=2)
    return len(theirs.published)
