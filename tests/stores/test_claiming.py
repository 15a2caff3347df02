"""Claims on PostgreSQL begin where nothing can be below, and find what is there all the same."""

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from carom.core.relaying import Again, Parked, Sent
from carom.ports import Database
from carom.stores import claiming, connect
from carom.testing.contracts.store.stage import promised
from stores.store_stage import drop

PREFIX = "floor_"


@pytest.fixture
def store_url(postgres_url):
    yield postgres_url
    drop(postgres_url, PREFIX)


class Relay:
    """A store whose next claim surveys when it is told to."""

    def __init__(self, url):
        self.store = connect(Database(url, prefix=PREFIX))
        self.claims = self.store._claiming

    async def __aenter__(self):
        await self.store.open("apply")
        self.lease = await self.store.lead("one", 60_000)
        return self

    async def __aexit__(self, *_):
        await self.store.close()

    async def emit(self, *ids):
        async with AsyncSession(self.store.engines.asynchronous) as session:
            self.store.add(session, [promised(identity) for identity in ids])
            await session.commit()

    async def claim(self, without=()):
        return [row.message.id for row in await self.store.claim(100, without)]

    async def survey(self, without=()):
        self.claims._due = 0.0
        return await self.claim(without)

    async def send(self):
        rows = await self.store.claim(100, [])
        await self.store.mark(self.lease, [Sent(row.seq) for row in rows])


@pytest.fixture(autouse=True)
def _surveys_come_when_they_are_told(monkeypatch):
    monkeypatch.setattr(claiming, "SURVEY_SECONDS", 3600.0)


async def raised(relay):
    """Let the floor rise as far as it can."""
    for _ in range(3):
        await relay.survey()
    return relay.claims._floor


async def test_the_floor_rises_above_what_is_gone_and_claims_begin_there(store_url):
    async with Relay(store_url) as relay:
        assert relay.claims._floor == 0
        await relay.emit("a", "b", "c")
        await relay.send()
        assert await raised(relay) == 4
        await relay.emit("d", "e")
        assert await relay.claim() == ["d", "e"]
        assert await raised(relay) == 4, "d is ready"


async def test_the_floor_stays_below_what_is_in_flight(store_url):
    async with Relay(store_url) as relay:
        await relay.emit("a", "b", "c")
        a, b, c = await relay.store.claim(100, [])
        await relay.store.mark(relay.lease, [Sent(a.seq)])
        for _ in range(3):
            assert await relay.survey([b.seq, c.seq]) == []
        assert relay.claims._floor == b.seq
        assert await relay.claim() == ["b", "c"], "nobody marked them: they are claimed again"


async def test_the_floor_does_not_pass_a_number_that_is_still_to_come(store_url):
    """A transaction took a low number, and others that took later ones are committed, sent and gone."""
    async with Relay(store_url) as relay:
        async with AsyncSession(relay.store.engines.asynchronous) as slow:
            relay.store.add(slow, [promised("slow")])
            await slow.flush()
            await relay.emit("a", "b")
            await relay.send()
            assert await raised(relay) <= 1
            await slow.commit()
        assert await relay.claim() == ["slow"]
        await relay.send()
        assert await raised(relay) == 4


async def test_who_only_reads_for_long_does_not_keep_the_floor_down(store_url):
    """A backup, or a report: it keeps dead rows from being vacuumed, and this is what a floor is for."""
    async with Relay(store_url) as relay, relay.store.engines.asynchronous.connect() as backup:
        await backup.execution_options(isolation_level="REPEATABLE READ")
        await backup.execute(text("SELECT 1"))
        await relay.emit("a", "b")
        await relay.send()
        assert await raised(relay) == 3


async def test_what_is_let_go_below_the_floor_lowers_it(store_url):
    async with Relay(store_url) as relay:
        await relay.emit("later", "parked", "failing", "sent")
        later, parked, failing, sent = await relay.store.claim(100, [])
        far = 3_600_000
        marks = [Again(later.seq, far, ""), Parked(parked.seq, ""), Again(failing.seq, 0, ""), Sent(sent.seq)]
        await relay.store.mark(relay.lease, marks)
        assert await raised(relay) == 5
        await relay.store.release()
        assert await relay.claim() == ["failing"]
        await relay.store.retry([parked.seq])
        assert await relay.claim() == ["parked", "failing"]
        await relay.store.expedite([later.seq])
        assert await relay.claim() == ["later", "parked", "failing"]


async def test_what_another_lets_go_is_found_by_the_next_survey(store_url):
    async with Relay(store_url) as relay:
        await relay.emit("parked")
        (row,) = await relay.store.claim(100, [])
        await relay.store.mark(relay.lease, [Parked(row.seq, "")])
        assert await raised(relay) == 2
        other = connect(Database(store_url, prefix=PREFIX))
        assert await other.retry(None) == 1
        await other.close()
        assert await relay.claim() == []
        assert await relay.survey() == ["parked"]


async def test_surveys_come_by_themselves(store_url, monkeypatch):
    async with Relay(store_url) as relay:
        await relay.claim()
        assert relay.claims._due > 0
        monkeypatch.setattr(claiming, "SURVEY_SECONDS", 0.0)
        monkeypatch.setattr(claiming, "SURVEY_SHARE", 0)
        await relay.survey()
        await relay.emit("a")
        await relay.send()
        for _ in range(3):
            await relay.claim()
        assert relay.claims._floor == 2
