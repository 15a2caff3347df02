"""Relays that are killed, stopped, cut off from the broker or the database: what was committed arrives, in its order.

Rule: always the same is checked: committed is a part of handled, rolled back never appears, and of each ordering key
the first arrivals are in the order of their commits.
"""

import asyncio
import signal

import pytest

from brokers.rabbitmq.rabbit_stage import until
from carom.ports import StoreDown, StoreUp
from carom.runtime import events
from faults.relays import DELIVERED_S, TAKEOVER_S, shop


def told(found, *kinds):
    return [event for event in found if isinstance(event, kinds)]


PLACES = [("relay.claimed", 1), ("relay.published", 1), ("relay.published", 4), ("relay.marked", 3)]


@pytest.mark.parametrize(("place", "time"), PLACES)
async def test_a_relay_that_is_killed_at_a_step_loses_nothing(place, time, tmp_path, rabbitmq_url, postgres_url):
    async with shop(tmp_path, rabbitmq_url, postgres_url) as one:
        for number in range(20):
            await one.emit(50, key="lane" if number % 2 else None, rolled_back=5)
        first = one.relay(f"{place}=kill@{time}")
        await until(lambda: first.process.poll() == -signal.SIGKILL, "its death", TAKEOVER_S)
        assert one.committed - set(one.handled) or place != "relay.claimed", "it died before it was through"
        one.relay()
        await one.delivered()
        assert set(one.handled) == one.committed


async def test_a_leader_that_was_stopped_past_its_lease_marks_nothing_when_it_goes_on(
    tmp_path, rabbitmq_url, postgres_url
):
    async with shop(tmp_path, rabbitmq_url, postgres_url) as one:
        first = await one.leading(one.relay("relay.published=stop@3"))
        second = one.relay()
        await until(lambda: second.said("StandingBy") == 1, "somebody to take over", TAKEOVER_S)
        for _ in range(10):
            await one.emit(100, key="lane", rolled_back=5)
        await until(lambda: first.is_stopped, "the stop", TAKEOVER_S)
        await one.leading(second)
        await one.delivered()
        first.send(signal.SIGCONT)
        await until(lambda: first.said("StandingBy") == 1, "the news that another leads", TAKEOVER_S)
        await one.emit(100, key="lane")
        await one.delivered()
        assert one.in_order()
        assert first.process.poll() is None
        assert one.twice() <= 1_000


async def test_three_relays_whose_leader_is_killed_again_and_again(tmp_path, rabbitmq_url, postgres_url):
    async with shop(tmp_path, rabbitmq_url, postgres_url) as one:
        relays = [one.relay() for _ in range(3)]
        for round_ in range(3):
            await until(
                lambda: any(relay.said("Leading") for relay in relays), f"a leader in round {round_}", TAKEOVER_S
            )
            leader = next(relay for relay in relays if relay.said("Leading"))
            await one.emit(500, key="lane", rolled_back=20)
            wanted = len(one.handled) + 50
            await until(lambda wanted=wanted: len(one.handled) >= wanted, "some of it")
            leader.send(signal.SIGKILL)
            await one.emit(200, key="lane", rolled_back=20)
            relays.remove(leader)
            relays.append(one.relay())
        await one.delivered()
        assert one.in_order()


async def test_a_relay_waits_for_a_broker_that_is_killed(tmp_path, rabbitmq, postgres_url):
    broker = f"{rabbitmq.url}?confirm_timeout=2s"
    async with shop(tmp_path, broker, postgres_url, relay=True) as one:
        await one.emit(200, key="lane", rolled_back=5)
        await one.delivered()
        await asyncio.to_thread(rabbitmq.kill)
        await one.emit(500, key="lane", rolled_back=5)
        await until(lambda: bool(told(one.found, events.RelayPaused)), "that it says so")
        backlog = await one.backlog()
        assert (backlog.ready, backlog.failing, backlog.parked) == (500, 0, 0), "nothing is marked"
        await asyncio.to_thread(rabbitmq.restart)
        await one.emit(100, key="lane", rolled_back=5)
        await one.delivered()
        assert not told(one.found, events.RelayParked)


async def test_a_relay_waits_for_a_database_that_is_killed(tmp_path, rabbitmq_url, postgres):
    async with shop(tmp_path, rabbitmq_url, postgres.url, relay=True) as one:
        await one.emit(300, key="lane", rolled_back=5)
        wanted = len(one.handled) + 20
        await until(lambda: len(one.handled) >= wanted, "some of it")
        await asyncio.to_thread(postgres.kill)
        await until(lambda: bool(told(one.found, StoreDown)), "that it says so")
        assert "carom:" not in told(one.found, StoreDown)[0].database
        await asyncio.to_thread(postgres.restart)
        await until(lambda: bool(told(one.found, StoreUp)), "that it answers again", DELIVERED_S)
        await one.emit(300, key="lane", rolled_back=5)
        await one.delivered()
        assert one.in_order()


async def test_an_unroutable_row_backs_off_and_is_parked_while_others_pass(tmp_path, rabbitmq_url, postgres_url):
    async with shop(tmp_path, rabbitmq_url, postgres_url, relay=True) as one:
        (lost,) = await one.emit(1, to="nobody")
        one.committed.remove(lost)
        await one.emit(200)
        await one.delivered()
        await until(lambda: len(told(one.found, events.RelayParked)) == 1, "the end of its attempts")
        assert [event.failures for event in told(one.found, events.RelayRetried)] == [1, 2]
        (held,) = await one.app.store.find(["parked"], 10)
        assert "NO_ROUTE" in held.error


async def test_a_row_that_is_committed_late_with_a_low_number_is_not_passed_over(tmp_path, rabbitmq_url, postgres_url):
    async with shop(tmp_path, rabbitmq_url, postgres_url, relay=True) as one:
        async with one.session() as late, late.begin():
            one.app.emit(late, "job.do", 1_000_000)
            await late.flush()
            await one.emit(300)
            await one.delivered()
            assert 1_000_000 not in one.handled
        one.committed.add(1_000_000)
        await one.delivered()


async def test_sigterm_finishes_what_is_on_its_way(tmp_path, rabbitmq_url, postgres_url):
    async with shop(tmp_path, rabbitmq_url, postgres_url, concurrency=50) as one:
        for _ in range(4):
            await one.emit(1_000)
        first = one.relay()

        async def has_begun():
            return (await one.backlog()).ready < 3_900

        await until(has_begun, "some of it")
        first.send(signal.SIGTERM)
        assert await asyncio.to_thread(first.process.wait, 30) == 0
        assert (await one.backlog()).ready > 0, "it was told in the midst of it"
        one.relay()
        await one.delivered()
        assert one.twice() == 0, "what was confirmed was marked"


async def test_a_leader_that_is_stopped_is_followed_and_follows_again(tmp_path, rabbitmq_url, postgres_url):
    async with shop(tmp_path, rabbitmq_url, postgres_url) as one:
        first = await one.leading(one.relay())
        second = one.relay()
        await until(lambda: second.said("StandingBy") == 1, "somebody to take over", TAKEOVER_S)
        first.send(signal.SIGSTOP)
        await one.emit(100, key="lane")
        await one.leading(second)
        await one.delivered()
        second.send(signal.SIGTERM)
        first.send(signal.SIGCONT)
        await one.emit(100, key="lane")
        await one.delivered()
        assert one.in_order()
