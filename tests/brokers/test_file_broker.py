"""The broker in a file: durable, shared between processes and sessions, and honest about what went wrong."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from carom.brokers.embedded import file as file_module
from carom.brokers.embedded import parts
from carom.brokers.embedded.file import FileBroker
from carom.core.effects import CONFIRMED, Returned, Unknown
from carom.core.message import Message
from carom.core.topology import Topology, at_least_once, quorum
from carom.errors import BrokerError, BrokerUnavailable, ConfigurationError, TopologyMismatch
from carom.ports import ConnectionBlocked, ConnectionDown, ConnectionUnblocked, ConnectionUp, ConsumerEnded
from carom.runtime.clock import RealClock

TOPOLOGY = Topology(
    queues=(
        quorum("jobs"),
        quorum("wait", message_ttl=100, **at_least_once("", "jobs")),
        quorum("dead"),
    )
)


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(prefix="carom-file-") as folder:
        yield Path(folder) / "broker.db"


class Opened:
    """Brokers that are closed at the end, and what they reported."""

    def __init__(self, path):
        self.path = path
        self.events = []
        self._stack = AsyncExitStack()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self._stack.aclose()

    async def broker(self, **options):
        broker = FileBroker(self.path, RealClock(), self.events.append, **options)
        await broker.open()
        self._stack.push_async_callback(broker.close)
        if not options:
            await broker.declare(TOPOLOGY)
        return broker

    def reported(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


class Inbox:
    """What a consumer was given."""

    def __init__(self, *, ack=False):
        self.deliveries = []
        self.ended = []
        self._ack = ack

    def __call__(self, delivery):
        self.deliveries.append(delivery)
        if self._ack:
            delivery.ack()

    @property
    def bodies(self):
        return [delivery.message.body for delivery in self.deliveries]

    async def listen(self, broker, queue="jobs", prefetch=10):
        return await broker.consume(queue, self, prefetch=prefetch, ended=self.ended.append)


async def until(came, what, seconds=5):
    deadline = time.monotonic() + seconds
    while not came():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0)


def job(body=b"", queue="jobs", **fields):
    return Message(body=body, routing_key=queue, **fields)


def present(path):
    """Return the sessions whose pipes are there."""
    return [entry for entry in path.with_name("broker.db-sessions").iterdir() if not entry.name.startswith(".")]


async def ready(broker, queue="jobs"):
    return (await broker.depths([queue]))[queue].ready


# --- durable


async def test_what_was_confirmed_is_there_when_the_file_is_opened_again(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        assert await broker.publish([job(b"1"), job(b"2")]) == [CONFIRMED, CONFIRMED]
        await broker.close()
        again = await opened.broker()
        assert [message.body for message in await again.contents("jobs")] == [b"1", b"2"]


async def test_what_was_acknowledged_does_not_come_back_and_the_rest_does(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        await broker.publish([job(b"1"), job(b"2")])
        inbox = Inbox()
        await inbox.listen(broker)
        await until(lambda: len(inbox.deliveries) == 2, "both")
        inbox.deliveries[0].ack()
        await broker.close()
        assert inbox.deliveries[1].stale
        inbox.deliveries[1].ack()
        again = await opened.broker()
        delivery = await again.get("jobs")
        assert (delivery.message.body, delivery.redelivered) == (b"2", True)
        assert delivery.message.headers["x-delivery-count"] == 1
        assert await again.get("jobs") is None


async def test_closing_leaves_nothing_of_the_session_behind(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        assert len(present(path)) == 1
        await broker.close()
        await broker.close()
        assert present(path) == []


async def test_a_closed_broker_says_that_it_is_closed_and_opens_again(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        await broker.close()
        for call in (broker.publish([job()]), broker.get("jobs"), broker.depths(["jobs"]), broker.declare(TOPOLOGY)):
            with pytest.raises(BrokerUnavailable, match="not open: call open"):
                await call
        await broker.open()
        await broker.open()
        assert await broker.publish([job()]) == [CONFIRMED]


async def test_a_message_waits_out_its_time_although_nobody_has_the_file_open(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        await broker.publish([job(b"late", "wait")])
        await broker.close()
        again = await opened.broker()
        inbox = Inbox()
        await inbox.listen(again)
        await until(lambda: inbox.bodies == [b"late"], "the message whose time had come")


# --- several sessions


async def test_what_one_publishes_another_is_woken_for(path):
    async with Opened(path) as opened:
        one, other = await opened.broker(), await opened.broker()
        inbox = Inbox(ack=True)
        await inbox.listen(other)
        one._poll.cancel()
        other._poll.cancel()  # without it only a wake-up can bring the message
        await one.publish([job(b"%d" % number) for number in range(100)])
        await until(lambda: len(inbox.deliveries) == 100, "all from the other session")


async def test_a_lost_wake_up_only_costs_time(path, monkeypatch):
    monkeypatch.setattr(file_module, "POLL_S", 0.01)
    async with Opened(path) as opened:
        one, other = await opened.broker(), await opened.broker()
        inbox = Inbox()
        await inbox.listen(other)
        asyncio.get_running_loop().remove_reader(other._reader)
        await one.publish([job(b"1")])
        await until(lambda: inbox.bodies == [b"1"], "the message without a wake-up")


async def test_many_sessions_settle_every_message_once(path):
    async with Opened(path) as opened:
        brokers = [await opened.broker() for _ in range(4)]
        inbox = Inbox(ack=True)
        for broker in brokers:
            await inbox.listen(broker, prefetch=7)
        batches = [[job(b"%d.%d" % (who, number)) for number in range(200)] for who in range(4)]
        await asyncio.gather(*(broker.publish(batch) for broker, batch in zip(brokers, batches, strict=True)))
        await until(lambda: len(inbox.deliveries) >= 800, "all messages")
        assert sorted(inbox.bodies) == sorted(message.body for batch in batches for message in batch)
        assert await ready(brokers[0]) == 0


async def test_a_session_taken_for_dead_enters_again_and_its_consumers_go_on(path, monkeypatch):
    monkeypatch.setattr(file_module, "POLL_S", 0.01)
    async with Opened(path) as opened:
        one, other = await opened.broker(), await opened.broker()
        inbox = Inbox()
        await inbox.listen(one)
        await one.publish([job(b"1")])
        await until(lambda: inbox.bodies == [b"1"], "the first delivery")
        (path.with_name("broker.db-sessions") / one._link.session).unlink()
        await until(lambda: inbox.bodies == [b"1", b"1"], "the message again, for the new session")
        assert [delivery.stale for delivery in inbox.deliveries] == [True, False]
        assert [event.reason for event in opened.reported(ConnectionDown)] == [
            "another process took this one for dead and ended its session"
        ]
        assert len(opened.reported(ConnectionUp)) == 3
        inbox.deliveries[0].ack()
        inbox.deliveries[1].ack()
        assert await ready(other) == 0
        assert inbox.ended == []


async def test_a_consumer_whose_queue_went_while_its_session_was_lost_ends(path):
    async with Opened(path) as opened:
        one, other = await opened.broker(), await opened.broker()
        inbox = Inbox()
        await inbox.listen(one)
        down = asyncio.ensure_future(one.disconnect())
        deleted = asyncio.ensure_future(other.delete_queue("jobs"))
        await asyncio.gather(down, deleted)
        await until(lambda: inbox.ended, "the end of the consumer")
        assert "jobs" in inbox.ended[0]
        assert [event.queue for event in opened.reported(ConsumerEnded)] == ["jobs"]


# --- failures


def fill_disk(broker):
    """Let the commits of this broker find the disk full, until `free_disk`."""
    journal = broker._commits.journal
    connect = journal._connect

    def cramped():
        connect()
        (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
        journal._db.execute(f"PRAGMA max_page_count = {pages}")

    journal._connect, journal._broken = cramped, True
    return lambda: setattr(journal, "_connect", connect)


async def test_when_the_disk_is_full_a_publish_is_unknown_and_an_ack_is_made_good_later(path, monkeypatch):
    monkeypatch.setattr("carom.brokers.embedded.commits.RETRY_S", 0.01)
    async with Opened(path) as opened:
        broker = await opened.broker()
        inbox = Inbox()
        await inbox.listen(broker)
        await broker.publish([job(b"1")])
        await until(lambda: inbox.deliveries, "the delivery")
        free_disk = fill_disk(broker)
        inbox.deliveries[0].ack()
        [result] = await broker.publish([job(b"x" * 100_000)])
        assert isinstance(result, Unknown)
        assert "free some space" in result.why
        await until(lambda: opened.reported(ConnectionBlocked), "the report that it is blocked")
        assert await ready(broker) == 0
        free_disk()
        await until(lambda: opened.reported(ConnectionUnblocked), "the report that it goes on")
        assert (await broker.depths(["jobs"]))["jobs"].unacked == 0, "the ack was made good"
        assert inbox.bodies == [b"1"]
        assert await broker.publish([job(b"2")]) == [CONFIRMED]


async def test_when_nothing_can_be_written_asking_says_why(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        path.rename(path.with_suffix(".moved"))
        with pytest.raises(BrokerUnavailable, match="removed or replaced"):
            await broker.get("jobs")
        assert [type(result) for result in await broker.publish([job(), job()])] == [Unknown, Unknown]
        path.with_suffix(".moved").rename(path)
        assert await broker.publish([job()]) == [CONFIRMED]


async def test_a_snapshot_that_fails_is_tried_later_and_costs_nothing_else(path, monkeypatch):
    monkeypatch.setattr("carom.brokers.embedded.journal.SNAPSHOT_AFTER", 1)
    async with Opened(path) as opened:
        broker = await opened.broker()

        def fail():
            raise BrokerUnavailable("no")

        monkeypatch.setattr(broker._commits.journal, "snapshot", fail)
        for _ in range(3):
            assert await broker.publish([job(b"1" * 100)]) == [CONFIRMED]
        monkeypatch.undo()
        assert await ready(broker) == 3
        assert opened.reported(ConnectionBlocked) == []


async def test_snapshots_go_on_beside_the_work(path, monkeypatch):
    monkeypatch.setattr("carom.brokers.embedded.journal.SNAPSHOT_AFTER", 2_000)
    async with Opened(path) as opened:
        one, other = await opened.broker(), await opened.broker()
        inbox = Inbox(ack=True)
        await inbox.listen(other, prefetch=5)
        for number in range(100):
            await one.publish([job(b"%d" % number + b"." * 300)])
        await until(lambda: len(inbox.deliveries) == 100, "all")
        assert await ready(one) == 0
        assert (
            await one._commits.look(
                lambda _engine: one._commits.journal._db.execute("SELECT MAX(seq) FROM snapshot").fetchone()[0]
            )
            > 50
        )


async def test_a_defect_is_told_to_whoever_asked_and_the_broker_goes_on(path, monkeypatch):
    async with Opened(path) as opened:
        broker = await opened.broker()

        def turn(_requests, _now_ms):
            raise ZeroDivisionError

        monkeypatch.setattr(broker._commits.journal, "turn", turn)
        [result] = await broker.publish([job()])
        assert "failed unexpectedly: ZeroDivisionError" in result.why
        monkeypatch.undo()
        assert await broker.publish([job()]) == [CONFIRMED]


async def test_what_is_asked_for_a_session_that_is_over_says_so(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        down = asyncio.ensure_future(broker.disconnect())
        await until(lambda: broker._commits._running, "the end of the session on its way to the disk")
        with pytest.raises(BrokerUnavailable, match="lost while waiting"):
            await broker.get("jobs")
        await down
        assert await broker.get("jobs") is None


async def test_a_broker_may_be_closed_and_opened_again_at_once_and_often(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        for number in range(30):
            assert await broker.publish([job(b"%d" % number)]) == [CONFIRMED]
            await broker.close()
            await broker.open()
        assert await ready(broker) == 30


# --- single messages


async def test_a_message_that_cannot_be_written_is_returned_and_its_neighbours_are_confirmed(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        bad = [job(b"a", headers={"x": object()}), job(b"b", id="\ud800"), job(b"c", headers={"x": [{1, 2}]})]
        results = await broker.publish([job(b"1"), bad[0], job(b"2"), *bad[1:], job(b"3")])
        assert [type(result) for result in results] == [type(CONFIRMED), Returned] * 2 + [Returned, type(CONFIRMED)]
        assert "a header cannot hold object" in results[1].text
        assert [message.body for message in await broker.contents("jobs")] == [b"1", b"2", b"3"]
        assert [result.code for result in await broker.publish(bad[:1])] == [502]


async def test_a_body_beyond_the_limit_is_returned(path, monkeypatch):
    monkeypatch.setattr(parts, "LARGEST", 1000)
    async with Opened(path) as opened:
        broker = await opened.broker()
        results = await broker.publish([job(b"x" * 1000), job(b"x" * 1001), job()])
        assert [getattr(result, "code", 0) for result in results] == [0, 311, 0]


async def test_changing_a_header_outside_changes_no_message_inside(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        headers = {"who": "ann"}
        publishing = asyncio.ensure_future(broker.publish([job(headers=headers)]))
        await asyncio.sleep(0)
        headers["who"] = "bob"
        await publishing
        delivery = await broker.get("jobs")
        delivery.message.headers["who"] = "eve"
        delivery.hand_back()
        other = await opened.broker()
        for replica in (broker, other):
            assert [message.headers["who"] for message in await replica.contents("jobs")] == ["ann"]


async def test_large_batches_go_in_parts_and_in_order(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        bodies = [b"%d" % number for number in range(1201)]
        assert set(await broker.publish([job(body) for body in bodies])) == {CONFIRMED}
        assert [message.body for message in await broker.contents("jobs")] == bodies
        big = [job(b"x" * 1_000_000) for _ in range(10)]
        assert set(await broker.publish(big)) == {CONFIRMED}


# --- back pressure and cancelling


async def test_who_comes_when_too_much_is_unconfirmed_waits_first_come_first_served():
    window = parts.Window(100)
    await window.enter(60)
    large = asyncio.ensure_future(window.enter(500))
    small = asyncio.ensure_future(window.enter(10))
    await asyncio.sleep(0)
    assert not large.done(), "it does not fit"
    assert not small.done(), "it came later"
    window.leave(60)
    await large
    assert not small.done()
    window.leave(500)
    await small


async def test_who_gives_up_waiting_leaves_room_to_the_others():
    window = parts.Window(100)
    await window.enter(100)
    first, second = asyncio.ensure_future(window.enter(100)), asyncio.ensure_future(window.enter(100))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    window.leave(100)
    await second
    third = asyncio.ensure_future(window.enter(100))
    await asyncio.sleep(0)
    window.leave(100)
    third.cancel()  # it has its room already, and gives it back
    await asyncio.wait([third])
    await window.enter(100)


async def test_a_message_that_nobody_waits_for_any_more_goes_back(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        await broker.publish([job(b"1")])
        getting = asyncio.ensure_future(broker.get("jobs"))
        await asyncio.sleep(0)
        getting.cancel()
        await asyncio.wait([getting])
        taken = []

        async def take():
            taken.append(await broker.get("jobs"))

        while not any(taken):
            await take()
        assert taken[-1].message.body == b"1"


async def test_a_consumer_that_nobody_waits_for_any_more_takes_nothing(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        inbox = Inbox()
        listening = asyncio.ensure_future(inbox.listen(broker))
        await asyncio.sleep(0)
        listening.cancel()
        await asyncio.wait([listening])
        await broker.publish([job(b"1")])
        delivery = None
        while delivery is None or (await broker.depths(["jobs"]))["jobs"].consumers:
            delivery = delivery or await broker.get("jobs")
        assert (delivery.message.body, inbox.deliveries) == (b"1", [])


async def test_a_consumer_that_raises_does_not_stop_the_others(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        seen = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: seen.append(context["exception"]))

        def receive(delivery):
            raise RuntimeError(delivery.message.body)

        await broker.consume("jobs", receive, prefetch=10, ended=seen.append)
        await broker.publish([job(b"1"), job(b"2")])
        await until(lambda: len(seen) == 2, "both")


# --- refusing


async def test_an_observer_looks_and_does_nothing_else(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        observer = await opened.broker(observe=True)
        await broker.publish([job(b"1")])
        assert await ready(observer) == 1
        assert [message.body for message in await observer.contents("jobs")] == [b"1"]
        await observer.declare(TOPOLOGY, "verify")
        for call in (
            observer.publish([job()]),
            observer.get("jobs"),
            observer.declare(TOPOLOGY),
            observer.purge("jobs"),
        ):
            with pytest.raises(BrokerError, match="for looking only"):
                await call


async def test_a_topology_is_verified_and_ignored(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        more = Topology(queues=(quorum("more"),))
        await broker.declare(more, "ignore")
        with pytest.raises(TopologyMismatch):
            await broker.declare(more, "verify")


async def test_purging_forgets_what_is_ready(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        await broker.publish([job(), job()])
        assert await broker.purge("jobs") == 2
        assert await ready(broker) == 0


async def test_a_file_that_is_none_fails_to_open_with_a_sentence_and_leaves_no_thread(path):
    path.write_text("notes " * 1000)
    broker = FileBroker(path, RealClock())
    with pytest.raises(ConfigurationError, match="not a broker file"):
        await broker.open()
    await broker.close()


async def test_a_forked_child_is_refused(path):
    async with Opened(path) as opened:
        broker = await opened.broker()
        assert in_a_child(broker._looking) == "after forking"
        assert await broker.publish([job()]) == [CONFIRMED]


def in_a_child(call):
    """Call it in a forked process and return the end of the sentence that it fails with."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of threads; this child only speaks and goes
        child = os.fork()
    if child == 0:
        try:
            call()
        except BrokerError as error:
            os.write(write, str(error).encode()[-len("after forking") :])
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as answer:
        return answer.read().decode()


async def test_what_a_dead_process_held_is_back_when_open_returns(tmp_path):
    path = tmp_path / "shop.db"
    script = f"""
import asyncio, os
from carom.brokers.embedded.file import FileBroker
from carom.core.message import Message
from carom.core.topology import Topology, quorum
from carom.runtime.clock import RealClock

async def main():
    broker = FileBroker({str(path)!r}, RealClock())
    await broker.open()
    await broker.declare(Topology(queues=(quorum("jobs"),)))
    await broker.publish([Message(routing_key="jobs", body=b"1")])
    await broker.get("jobs")
    os._exit(9)

asyncio.run(main())
"""
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], check=False, timeout=60)
    assert died.returncode == 9
    broker = FileBroker(path, RealClock())
    await broker.open()
    try:
        delivery = await broker.get("jobs")
        assert delivery is not None
        assert delivery.redelivered
    finally:
        await broker.close()
