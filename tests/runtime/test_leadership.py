"""One leads: a lease of the database's, believed for no longer than our own clock allows.

Rule: the leases are real, in SQLite on virtual time; only our own clock is told what to say.
"""

import asyncio
from contextlib import asynccontextmanager

import pytest
from runtime_stage import until

from carom import adapters
from carom.ports import Database
from carom.runtime.asking import Asking
from carom.runtime.leadership import Leadership, holder_name, monotonic_ms
from carom.runtime.presence import Presence
from carom.testing.clock import VirtualClock

TTL_MS, STAND_BY_MS = 5_000, 1_000


class Contest:
    """Several who want to lead, at one database."""

    def __init__(self, url):
        self.clock = VirtualClock()
        self.store = adapters.store(Database(url), self.clock.now_ms)
        self.tasks = []
        self.askings = []

    def candidate(self, now_ms=None):
        changes = []
        asking = Asking(Presence("the database"), self.clock)
        self.askings.append(asking)
        candidate = Leadership(
            self.store,
            asking,
            self.clock,
            ttl_ms=TTL_MS,
            stand_by_ms=STAND_BY_MS,
            changed=changes.append,
            monotonic_ms=now_ms or self.clock.now_ms,
        )
        candidate.changes = changes
        return candidate

    def begin(self, candidate):
        task = asyncio.create_task(candidate.run())
        self.tasks.append(task)
        return task

    async def elapse(self, ms, step_ms=250):
        """Let time pass, and the database answer in between."""
        for _ in range(ms // step_ms):
            await self.clock.elapse(step_ms)
            await until(lambda: not any(asking.waits for asking in self.askings))


@pytest.fixture
def url(tmp_path):
    return f"sqlite+aiosqlite:///{tmp_path}/lease.db"


@asynccontextmanager
async def contest_at(url):
    contest = Contest(url)
    await contest.store.open("apply")
    try:
        yield contest
    finally:
        for task in contest.tasks:
            task.cancel()
        if contest.tasks:
            await asyncio.wait(contest.tasks)
        await contest.store.close()


async def test_one_leads_and_keeps_the_lead(url):
    async with contest_at(url) as contest:
        first, second = contest.candidate(), contest.candidate()
        contest.begin(first)
        await asyncio.wait_for(first.won(), 10)
        contest.begin(second)
        await contest.elapse(60_000)
        assert first.holds
        assert not second.holds
        assert len(first.changes) == 1
        assert second.changes == [None]


async def test_another_takes_over_when_the_lease_is_over_and_the_first_learns_of_it(url):
    async with contest_at(url) as contest:
        first, second = contest.candidate(), contest.candidate()
        stopped = contest.begin(first)
        await asyncio.wait_for(first.won(), 10)
        stopped.cancel()  # as SIGSTOP would: it renews no more
        contest.begin(second)
        await contest.elapse(TTL_MS - 500)
        assert not second.holds
        await contest.elapse(STAND_BY_MS + 500)
        await until(lambda: second.holds)
        assert second.lease.epoch > first.lease.epoch
        contest.begin(first)
        await until(lambda: first.changes[-1] is None)
        assert not first.holds


async def test_who_resigns_is_followed_at_once(url):
    async with contest_at(url) as contest:
        first, second = contest.candidate(), contest.candidate()
        contest.begin(first)
        await asyncio.wait_for(first.won(), 10)
        contest.begin(second)
        contest.tasks[0].cancel()
        await first.resign()
        await contest.elapse(STAND_BY_MS + 500)
        await until(lambda: second.holds)
        await first.resign()
        assert not first.holds


async def test_a_leader_whose_own_clock_says_that_it_may_be_over_holds_nothing_until_it_has_renewed(url):
    ours = [0]
    async with contest_at(url) as contest:
        leader = contest.candidate(lambda: ours[0])
        contest.begin(leader)
        await asyncio.wait_for(leader.won(), 10)
        ours[0] += TTL_MS
        assert leader.lease is not None
        assert not leader.holds, "it was stopped, say, and does not know for how long"
        await contest.elapse(TTL_MS)
        await asyncio.wait_for(leader.won(), 10)
        assert len(leader.changes) == 1, "nobody led in between"


def test_every_relay_has_a_name_of_its_own():
    assert len({holder_name() for _ in range(100)}) == 100
    assert monotonic_ms() <= monotonic_ms()
