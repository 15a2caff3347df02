"""The relay on a real database and the embedded broker, in virtual time: what was committed goes out, once or again.

Rule: what another program would do to the table is done from outside; nothing of the relay is replaced.
"""

import asyncio

import pytest
from relay_stage import CLAIM, backlog, bodies, counted, emit, outside, shop
from runtime_stage import told, until

from carom import Emit, adapters
from carom.brokers.embedded.broker import MemoryBroker
from carom.core.relaying import Patience
from carom.errors import ConfigurationError
from carom.ports import Database, StoreDown, StoreUp
from carom.runtime import events
from carom.runtime.relay import Pace
from carom.testing import Harness
from carom.testing.harness import VIRTUAL


async def test_what_is_committed_is_delivered_and_what_is_rolled_back_never_was():
    async with Harness(shop()) as h:
        await emit(h, 1, 2)
        async with h.session() as session:
            h.app.emit(session, "job.do", 3)
            await session.flush()
            await session.rollback()
        async with h.transaction() as session:
            h.app.emit(session, "job.do", 4)
            savepoint = await session.begin_nested()
            h.app.emit(session, "job.do", 5)
            await savepoint.rollback()
        await h.advance("1m")
        assert bodies(h.handled("jobs")) == bodies(h.emitted("job.#")) == [1, 2, 4]
        assert await backlog(h) == {}


async def test_thousands_leave_in_a_few_batches():
    async with Harness(shop()) as h:
        claims = counted(h, CLAIM)
        async with h.transaction() as session:
            h.app.emit_many(session, [("job.do", number) for number in range(5_000)])
        assert sorted(bodies(h.handled("jobs"))) == list(range(5_000))
        assert len(claims) < 30
        assert await backlog(h) == {}


async def test_what_is_emitted_with_a_delay_leaves_when_it_is_due():
    async with Harness(shop()) as h:
        await emit(h, 1, delay="10m")
        await emit(h, 2, delay="5m")
        assert await backlog(h) == {"later": 2}
        await h.advance("4m59s999ms")
        assert h.emitted("#") == ()
        await h.advance("1ms")
        assert bodies(h.handled("jobs")) == [2]
        await h.advance("5m")
        assert bodies(h.handled("jobs")) == [2, 1]


# --- what cannot be published


async def test_what_no_queue_takes_backs_off_and_is_parked_while_others_pass():
    found = []
    async with Harness(shop(found=found)) as h:
        await emit(h, 0, to="nobody")
        await emit(h, 1, 2)
        assert bodies(h.handled("jobs")) == [1, 2]
        assert await backlog(h) == {"failing": 1}
        await h.advance("1m")
        assert await backlog(h) == {"parked": 1}
        assert [event.failures for event in told(found, events.RelayRetried)] == [1, 2]
        (parked,) = told(found, events.RelayParked)
        (held,) = await h.app.store.find(["parked"], 10)
        assert (held.seq, held.error, held.failures) == (parked.seq, parked.reason, 3)
        assert "NO_ROUTE" in held.error


async def test_what_is_parked_goes_out_when_people_say_so():
    async with Harness(shop(patience=Patience(attempts=1))) as h:
        await emit(h, 7, to="late.do")
        assert await backlog(h) == {"parked": 1}
        outside(h, "UPDATE carom_outbox SET routing_key = 'job.do'")
        assert await h.app.store.retry(None) == 1
        await h.settle()
        assert bodies(h.handled("jobs")) == [7]


async def test_a_row_that_cannot_be_read_is_parked_with_its_reason():
    found = []
    async with Harness(shop(found=found)) as h:
        await h.broker.close()
        await emit(h, 1, 2, 3)
        outside(h, "UPDATE carom_outbox SET headers = '{broken' WHERE seq = 2")
        await h.broker.open()
        await h.advance("1m")
        assert bodies(h.emitted("#")) == [1, 3]
        (held,) = await h.app.store.find(["parked"], 10)
        (parked,) = told(found, events.RelayParked)
        assert held.seq == parked.seq == 2
        assert held.error == parked.reason
        assert "headers cannot be read" in held.error


async def test_a_row_that_cannot_be_read_holds_back_those_of_its_key_until_it_is_parked():
    async with Harness(shop()) as h:
        await h.broker.close()
        await emit(h, 1, 2, 3, key="a")
        outside(h, "UPDATE carom_outbox SET properties = '[]' WHERE seq = 2")
        await h.broker.open()
        await h.advance("1m")
        assert bodies(h.emitted("#")) == [1, 3]
        assert await backlog(h) == {"parked": 1}


async def test_a_topology_that_somebody_removed_is_made_anew():
    app = shop()
    async with Harness(app) as h:
        await app.stop()
        await app.start(broker=h.broker, clock=h.clock, store=h.store, pace=VIRTUAL, consume=False)
        await h.broker.delete_queue("jobs")
        await emit(h, 1)
        assert await backlog(h) == {"failing": 1}
        await h.advance("5s")
        assert bodies(h.emitted("#")) == bodies(h.ready("jobs")) == [1]


# --- order


async def test_rows_of_a_key_arrive_in_their_order_even_when_one_fails():
    async with Harness(shop(patience=Patience(attempts=9), keys=("job.*", "late"))) as h:
        await h.broker.close()
        for number in range(10):
            await emit(h, number, key="a" if number % 2 else "b")
        outside(h, "UPDATE carom_outbox SET exchange = 'nowhere' WHERE seq = 4")
        await h.broker.open()
        await h.advance("10s")
        arrived = bodies(h.emitted("#"))
        assert [number for number in arrived if number % 2] == [1], "3 fails, and those of its key wait for it"
        assert [number for number in arrived if not number % 2] == [0, 2, 4, 6, 8]
        outside(h, "UPDATE carom_outbox SET exchange = 'events' WHERE seq = 4")
        await h.advance("10m")
        assert [number for number in bodies(h.emitted("#")) if number % 2] == [1, 3, 5, 7, 9]


async def test_a_parked_row_lets_those_of_its_key_go():
    async with Harness(shop()) as h:
        await emit(h, 0, to="nobody", key="a")
        await emit(h, 1, key="a")
        assert h.emitted("#") == ()
        await h.advance("1m")
        assert bodies(h.emitted("#")) == [1]
        assert await backlog(h) == {"parked": 1}


async def test_a_hot_key_is_read_in_batches_and_published_one_by_one():
    async with Harness(shop()) as h:
        claims = counted(h, CLAIM)
        async with h.transaction() as session:
            h.app.emit_many(session, [Emit("job.do", number, key="hot") for number in range(3_000)])
            h.app.emit_many(session, [("job.do", number) for number in range(10_000, 10_010)])
        relayed = [event.count for event in told(h.events, events.Relayed)]
        assert relayed.count(1) >= 2_999
        hot = [number for number in bodies(h.emitted("#")) if number < 10_000]
        assert hot == list(range(3_000))
        assert len(claims) < 30


# --- who leads


async def test_a_second_relay_stands_by_and_takes_over_when_the_first_resigns():
    found = []
    async with Harness(shop()) as h:
        other = shop(found=found)
        broker = MemoryBroker(h.clock, other.tell, engine=h.broker.engine)
        store = adapters.store(Database(str(h.app.store.engines.url)), h.clock.now_ms)
        await other.start(broker=broker, clock=h.clock, store=store, consume=False)
        try:
            await until(lambda: told(found, events.StandingBy))
            await emit(h, 1)
            assert bodies(h.emitted("#")) == [1]
            assert not told(found, events.Relayed)
            await h.app.relay.stop(1_000, asyncio.Event())
            await h.clock.elapse(1_000)
            await until(lambda: told(found, events.Leading))
            await emit(h, 2)
            await until(lambda: told(found, events.Relayed))
        finally:
            await other.stop()


async def test_who_lost_the_lead_marks_nothing_and_begins_anew_when_it_leads_again():
    found = []
    async with Harness(shop(found=found)) as h:

        def take_over(event):
            if isinstance(event, events.Relayed) and len(told(found, events.Relayed)) == 1:
                outside(h, "UPDATE carom_lease SET holder = 'another', epoch = epoch + 1")

        h.app.observe(take_over)
        await emit(h, 1)
        assert await backlog(h) == {"ready": 1}, "it was published, and the mark of the one that does not lead is void"
        assert [type(event) for event in told(found, events.Leading, events.StandingBy)][-1] is events.StandingBy
        await h.advance("1h")
        assert await backlog(h) == {"ready": 1}, "another leads"
        outside(h, "UPDATE carom_lease SET expires_at = 0")
        await h.advance("24h")
        assert await backlog(h) == {}
        assert bodies(h.emitted("#")) == [1, 1], "at least once"


# --- what is away


async def test_without_a_broker_everything_stays_as_it_is_and_the_relay_says_so():
    found = []
    async with Harness(shop(found=found)) as h:
        await h.broker.close()
        await emit(h, 1, 2)
        await h.advance("50s")
        assert await backlog(h) == {"ready": 2}
        pauses = [event.retry_in_ms for event in told(found, events.RelayPaused)]
        assert pauses[0] <= 250
        assert 2_500 <= pauses[-1] <= 5_000
        assert 10 <= len(pauses) <= 40
        assert "not open" in told(found, events.RelayPaused)[0].reason
        assert not told(found, events.RelayRetried)
        await h.broker.open()
        await h.advance("10s")
        assert sorted(bodies(h.emitted("#"))) == [1, 2]
        assert await backlog(h) == {}


async def test_a_leader_that_does_not_reach_its_broker_lets_another_try():
    found = []
    async with Harness(shop()) as h:
        other = shop(found=found)
        broker = MemoryBroker(h.clock, other.tell, engine=h.broker.engine)
        store = adapters.store(Database(str(h.app.store.engines.url)), h.clock.now_ms)
        await other.start(broker=broker, clock=h.clock, store=store, consume=False, pace=Pace(ttl_ms=10**9))
        try:
            await until(lambda: told(found, events.StandingBy))
            await h.broker.close()
            await emit(h, 1)
            for _ in range(80):
                await h.advance("1s")
            await until(lambda: told(found, events.Relayed) and other.relay.idle)
            assert await backlog(h) == {}
        finally:
            await other.stop()


async def test_without_a_database_it_waits_says_so_and_resumes():
    found = []
    async with Harness(shop(found=found)) as h:
        outside(h, "ALTER TABLE carom_outbox RENAME TO away")
        h.app.relay._wake()
        await h.advance("1m")
        (down,) = told(found, StoreDown)
        assert "sqlite" in down.database or "postgresql" in down.database
        assert "carom_outbox" in down.reason
        outside(h, "ALTER TABLE away RENAME TO carom_outbox")
        await h.advance("10s")
        assert len(told(found, StoreUp)) == 1
        await emit(h, 1)
        assert bodies(h.emitted("#")) == [1]


async def test_a_result_is_kept_until_the_database_takes_its_mark():
    found = []
    async with Harness(shop(found=found)) as h:

        def goes_away(event):
            if isinstance(event, events.Relayed):
                outside(h, "ALTER TABLE carom_outbox RENAME TO away")

        h.app.observe(goes_away)
        await emit(h, 1)
        h.app.unobserve(goes_away)
        await h.advance("20s")
        assert len(told(found, StoreDown)) == 1
        outside(h, "ALTER TABLE away RENAME TO carom_outbox")
        await h.advance("20s")
        assert await backlog(h) == {}
        assert bodies(h.emitted("#")) == [1], "once: its mark was only late"


# --- manners


async def test_being_woken_for_nothing_costs_one_look():
    async with Harness(shop()) as h:
        claims = counted(h, CLAIM)
        for _ in range(3):
            h.app.relay._wake()
            await h.settle()
        assert len(claims) == 3
        assert h.app.relay.idle


async def test_large_rows_are_claimed_few_at_a_time():
    async with Harness(shop()) as h:
        async with h.transaction() as session:
            for _ in range(40):
                h.app.emit(session, "job.do", "x" * 1_000_000)
        assert len(h.emitted("#")) == 40
        assert h.app.relay._limit() <= 16


async def test_a_stopping_relay_marks_what_is_on_its_way():
    app = shop()
    async with Harness(app) as h:
        store = h.app.store
        async with h.session() as session, session.begin():
            app.emit_many(session, [("job.do", number) for number in range(200)])
        await until(lambda: app.relay.in_flight)
        await app.relay.stop(10_000, asyncio.Event())
        left = (await store.backlog()).ready
        assert left + len(h.emitted("#")) == 200, "what was confirmed is marked, and nothing else"


async def test_sent_rows_are_kept_as_long_as_is_said_and_then_deleted():
    async with Harness(shop(keep_sent="1h")) as h:
        await emit(h, *range(5))
        assert await backlog(h) == {"sent": 5}
        await h.advance("59m")
        assert await backlog(h) == {"sent": 5}
        await h.advance("2h")
        assert await backlog(h) == {}


async def test_an_app_may_leave_the_outbox_to_others():
    app = shop()
    h = Harness(app)
    async with h:
        await app.stop()
        await app.start(broker=h.broker, clock=h.clock, store=h.store, relay=False)
        assert app.relay is None


async def test_relaying_takes_a_database():
    app = shop()
    app._database = None
    with pytest.raises(ConfigurationError, match="has no database"):
        await app.start(relay=True)
