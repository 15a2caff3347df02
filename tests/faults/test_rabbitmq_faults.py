"""What happens to real brokers: killed, alarmed, closed from their side, reconfigured. Nothing confirmed is lost.

Rule: every test waits for what it claims, with a deadline, and leaves the node as it found it.
"""

import asyncio
import gc
import os
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from brokers.rabbitmq.certificates import Authority, refused, tls_url
from brokers.rabbitmq.rabbit_stage import at, declared, drained, fresh, opened, queue, ready, to, until
from carom import App
from carom.brokers.rabbitmq import RabbitBroker
from carom.core.effects import Confirmed, Nacked, Unknown
from carom.core.message import Message
from carom.errors import BrokerUnavailable, NotConfirmed
from carom.ports import ConnectionBlocked, ConnectionDown, ConnectionUnblocked, ConnectionUp, ConsumerEnded
from carom.runtime import events
from carom.runtime.clock import RealClock
from servers.server import free_port

RESTART_S = 60
WAVES = 100
"""Of 2,000 messages each."""


def told(found, *kinds_of_events):
    return [event for event in found if isinstance(event, kinds_of_events)]


def new_app(url, found, **options):
    return App(url, namespace=fresh("ns"), exchange=fresh("events"), name="faults", observers=[found.append], **options)


async def all_types(publishing):
    return {type(result) for result in await publishing}


async def test_a_killed_broker_loses_nothing_confirmed_and_everything_resumes(rabbitmq):
    found, handled, confirmed = [], set(), set()
    app = new_app(rabbitmq.url, found, retry=("100ms",))

    @app.listen("job", queue=fresh("jobs"), concurrency=50)
    async def work(number: int) -> None:
        if number % 10 == 0 and number not in handled:
            handled.add(number)
            raise ValueError("the first attempt of every tenth fails")
        handled.add(number)
        handled.add((number, "done"))

    async def publish(number):
        while number not in confirmed:
            with suppress(NotConfirmed, BrokerUnavailable):
                await app.publish("job", number)
                confirmed.add(number)

    async with app:
        load = [asyncio.create_task(publish(number)) for number in range(1_500)]
        await until(lambda: len(confirmed) > 200, "the first confirms")
        await asyncio.to_thread(rabbitmq.kill)
        await asyncio.to_thread(rabbitmq.restart)
        await asyncio.wait_for(asyncio.gather(*load), RESTART_S)
        done = {(number, "done") for number in range(1_500)}
        await until(lambda: done <= handled, "every message handled", RESTART_S)
        assert len(told(found, ConnectionUp)) >= 4
        assert {event.broker for event in told(found, ConnectionDown)} == {app._broker._in.name, app._broker._out.name}
        assert not told(found, events.DeadLettered)
        await until(lambda: app.busy == 0, "nothing left to do")
    assert rabbitmq.url.rpartition(":")[0] not in str(found), "an event shows the password"


async def test_connections_closed_by_the_server_come_back(rabbitmq):
    found = []
    async with opened(rabbitmq.url, found) as broker:
        jobs = queue()
        await broker.declare(declared(jobs))
        seen = set()

        def receive(delivery):
            seen.add(delivery.message.id)
            delivery.ack()

        await broker.consume(jobs.name, receive, prefetch=10, ended=print)
        # The management API lists a connection some seconds after it was made; rabbitmqctl closes it at once.
        publishing = asyncio.create_task(broker.publish([to(jobs, id=str(number)) for number in range(3_000)]))
        await asyncio.to_thread(rabbitmq.close_connections, "maintenance")
        assert await all_types(publishing) == {Confirmed}
        await until(lambda: len(told(found, ConnectionUp)) >= 4, "both connections again")
        assert {event.reason for event in told(found, ConnectionDown)} == {"320 CONNECTION_FORCED - maintenance"}
        assert await all_types(broker.publish([to(jobs, id="last")])) == {Confirmed}
        await until(lambda: len(seen) == 3_001, "every message")


async def test_a_stopped_broker_is_waited_for_when_an_app_opens(rabbitmq):
    await asyncio.to_thread(rabbitmq.stop_app)
    broker = RabbitBroker(f"{rabbitmq.url}?timeout=60s", RealClock())
    opening = asyncio.create_task(broker.open())
    await asyncio.to_thread(rabbitmq.start_app)
    await opening
    assert broker.server_version
    await broker.close()


async def test_a_memory_alarm_pauses_publishing_and_nothing_else(rabbitmq):
    found = []
    async with opened(rabbitmq.url, found, confirm_timeout="1s") as broker:
        jobs = queue()
        await broker.declare(declared(jobs))
        await broker.publish([to(jobs, b"%d" % number) for number in range(100)])
        held = []
        await broker.consume(jobs.name, held.append, prefetch=100, ended=print)
        await until(lambda: len(held) == 100, "deliveries")
        await asyncio.to_thread(rabbitmq.raise_memory_alarm)
        results = await broker.publish([to(jobs, b"late", id="7")])
        assert {type(result) for result in results} == {Unknown}
        await until(lambda: bool(told(found, ConnectionBlocked)), "the event")
        assert "memory" in told(found, ConnectionBlocked)[0].reason
        assert told(found, ConnectionBlocked)[0].broker.endswith("(publisher)")
        with pytest.raises(BrokerUnavailable, match=r"takes no messages.*memory"):
            await broker.publish([to(jobs)])
        for delivery in held:
            delivery.ack()
        # The acks went on the other connection: the queue is empty for everybody, in spite of the alarm.
        async with opened(rabbitmq.url) as other:
            broker._in.drop("cut by the test: what was not acknowledged would come back now")
            await until(lambda: len(told(found, ConnectionUp)) == 3, "the connection")
            assert [delivery for delivery in held[100:] if delivery.message.body != b"late"] == []
            waiting = asyncio.create_task(other.publish([to(jobs, b"waits")]))
            await asyncio.to_thread(rabbitmq.clear_memory_alarm)
            assert await all_types(waiting) == {Confirmed}
        await until(lambda: bool(told(found, ConnectionUnblocked)), "the event")
        assert await all_types(broker.publish([to(jobs)])) == {Confirmed}


async def test_closing_under_a_memory_alarm_does_not_hang(rabbitmq):
    broker = RabbitBroker(f"{rabbitmq.url}?confirm_timeout=300ms", RealClock())
    await broker.open()
    await asyncio.to_thread(rabbitmq.raise_memory_alarm)
    with suppress(BrokerUnavailable):
        await broker.publish([to("nobody")])
    async with asyncio.timeout(4):
        await broker.close()


async def test_a_rotated_password_is_read_again(rabbitmq):
    user, vhost, found = fresh("user"), rabbitmq.vhost, []
    everything = {"configure": ".*", "write": ".*", "read": ".*"}

    def set_password(password):
        rabbitmq.management.ask("PUT", "users", user, body={"password": password, "tags": ""})

    await asyncio.to_thread(set_password, "first")
    await asyncio.to_thread(rabbitmq.management.ask, "PUT", "permissions", vhost, user, body=everything)
    password = ["first"]
    broker = RabbitBroker(lambda: at(rabbitmq.url, user=user, password=password[-1]), RealClock(), found.append)
    await broker.open()
    await asyncio.to_thread(set_password, "second")
    broker.drop_connections()
    await until(lambda: any("check the credentials" in event.reason for event in told(found, ConnectionDown)), "a no")
    password.append("second")
    await until(lambda: len(told(found, ConnectionUp)) == 4, "both connections")
    assert "second" not in str(found)
    await broker.close()
    await asyncio.to_thread(rabbitmq.management.ask, "DELETE", "users", user)


@pytest.fixture
def settings(rabbitmq):
    """Change settings of the node that new channels read, until the test is over."""
    usual = {"consumer_timeout": 1_800_000, "channel_tick_interval": 60_000, "max_message_size": 134_217_728}

    def change(**values):
        calls = [f"application:set_env(rabbit, {name}, {value})" for name, value in values.items()]
        calls += [f"catch persistent_term:put({name}, {value})" for name, value in values.items()]
        rabbitmq.ctl("eval", f"{', '.join(calls)}.")

    yield change
    change(**usual)


async def test_a_handler_beyond_the_consumer_timeout_gets_its_message_again(rabbitmq, settings):
    await asyncio.to_thread(settings, consumer_timeout=300, channel_tick_interval=200)
    found, seen, hang = [], [], asyncio.Event()
    app = new_app(rabbitmq.url, found)

    @app.listen("job", queue=fresh("jobs"))
    async def work(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            await hang.wait()

    async with app:
        await app.publish("job", 1)
        await until(lambda: len(seen) == 2, "the message again")
        assert "delivery acknowledgement" in told(found, ConsumerEnded)[0].reason
        hang.set()
        await until(lambda: bool(told(found, events.Dropped)), "the late settlement to be dropped")
        await app.publish("job", 2)
        await until(lambda: seen == [1, 1, 2], "later messages")
    assert not told(found, ConnectionDown)


async def test_a_message_too_large_for_the_server_is_refused_alone(rabbitmq, settings):
    await asyncio.to_thread(settings, max_message_size=100_000)
    async with opened(rabbitmq.url) as broker:
        jobs = queue()
        await broker.declare(declared(jobs))
        batch = [to(jobs, bytes(200_000 if number in {2, 5} else 10), id=str(number)) for number in range(8)]
        results = await broker.publish(batch)
        assert [type(result) for result in results] == [
            Nacked if number in {2, 5} else Confirmed for number in range(8)
        ]
        assert results[2].lasting
        assert "larger than configured max size" in results[2].why
        assert {message.id for message in await drained(broker, jobs.name)} == set("013467")


async def test_a_deleted_queue_is_declared_again_and_its_retries_are_kept(rabbitmq):
    found, seen = [], []
    app = new_app(rabbitmq.url, found, retry=("700ms",))
    jobs = fresh("jobs")

    @app.listen("job", queue=jobs)
    async def work(number: int) -> None:
        seen.append(number)
        if number == 1:
            raise ValueError("later")

    async with app:
        await app.publish("job", 1)
        await until(lambda: bool(told(found, events.Retried)), "the retry")
        await asyncio.to_thread(rabbitmq.delete_queue, jobs)
        await until(lambda: bool(told(found, ConsumerEnded)), "the event")

        async def works_again():
            with suppress(NotConfirmed, Exception):
                await app.publish("job", 2)
            return 2 in seen

        await until(works_again, "the queue to be declared again")
        await until(lambda: seen.count(1) == 2, "the retry in the new queue")


async def test_a_retry_whose_queue_is_gone_for_good_is_kept_in_lost(rabbitmq):
    found = []
    app = new_app(rabbitmq.url, found, retry=("300ms",))
    jobs, failed = fresh("jobs"), asyncio.Event()

    @app.listen("job", queue=jobs)
    async def work(number: int) -> None:
        failed.set()
        raise ValueError("later")

    async with app:
        await app.publish("job", 1)
        await until(lambda: bool(told(found, events.Retried)), "the retry")
    await asyncio.to_thread(rabbitmq.delete_queue, jobs)
    async with opened(rabbitmq.url) as broker:
        lost = f"{app.namespace}.lost"
        await until(lambda: _has(broker, lost, 1), "the message in lost")
        [message] = await drained(broker, lost)
        assert message.headers["carom-queue"] == jobs


async def test_a_full_delay_queue_is_waited_for_and_recovers(rabbitmq):
    found, attempts = [], []
    app = new_app(rabbitmq.url, found, retry=("200ms",))

    @app.listen("job", queue=fresh("jobs"))
    async def work(number: int) -> None:
        attempts.append(number)
        if attempts.count(number) == 1:
            raise ValueError("later")

    definition = {"max-length": 2, "overflow": "reject-publish"}
    body = {"pattern": f"^{app.namespace}[.]delay[.]", "definition": definition, "apply-to": "queues"}
    policy = ("policies", rabbitmq.vhost, f"{app.namespace}.full")
    async with app:
        await asyncio.to_thread(rabbitmq.management.ask, "PUT", *policy, body=body)
        await app.publish_many([("job", number) for number in range(20)])
        await until(lambda: all(attempts.count(number) == 2 for number in range(20)), "every retry", RESTART_S)
        await until(lambda: app.busy == 0, "an end")
        assert told(found, events.NotSettled), "nothing was refused: the test proves nothing"
        assert len(told(found, events.NotSettled)) < 400, "it does not back off"
        assert not told(found, events.DeadLettered)
    await asyncio.to_thread(rabbitmq.management.ask, "DELETE", *policy)


async def test_a_queue_whose_limit_was_lifted_takes_messages_again(rabbitmq, monkeypatch):
    monkeypatch.setattr("carom.brokers.rabbitmq.publishing.STUBBORN_MS", 300)
    jobs = queue()
    body = {"pattern": f"^{jobs.name}$", "definition": {"max-length": 0, "overflow": "reject-publish"}}
    policy = ("policies", rabbitmq.vhost, jobs.name)
    async with opened(rabbitmq.url) as broker:
        await broker.declare(declared(jobs))

        async def is_taken():
            return await all_types(broker.publish([to(jobs)])) == {Confirmed}

        async def is_refused():
            return not await is_taken()

        await asyncio.to_thread(rabbitmq.management.ask, "PUT", *policy, body={**body, "apply-to": "queues"})
        await until(is_refused, "the limit to hold")
        await asyncio.to_thread(rabbitmq.management.ask, "DELETE", *policy)
        await until(is_taken, "messages to be taken again")


async def test_a_real_listener_for_tls_wants_a_certificate_and_takes_ours(rabbitmq, tmp_path_factory):
    ours, theirs = (Authority(tmp_path_factory.mktemp(name), "ca") for name in ("ours", "theirs"))
    certificate, key = ours.sign("server")
    client, client_key = theirs.sign("client")
    wrong, wrong_key = ours.sign("wrong")
    port = free_port()
    files = f'{{cacertfile,"{theirs.file("ca")}"}},{{certfile,"{certificate}"}},{{keyfile,"{key}"}}'
    options = f"[{files},{{verify,verify_peer}},{{fail_if_no_peer_cert,true}}]"
    rabbitmq.ctl("eval", f'rabbit_networking:start_ssl_listener({{"127.0.0.1",{port}}},{options},1).')
    trusted = {"cafile": ours.file("ca")}
    async with opened(tls_url(rabbitmq.url, port, **trusted, certfile=client, keyfile=client_key)) as broker:
        jobs = queue()
        await broker.declare(declared(jobs))
        await broker.publish([to(jobs, bytes(300_000)) for _ in range(20)])
        assert len(await drained(broker, jobs.name)) == 20
    assert "client certificate" in await refused(tls_url(rabbitmq.url, port, **trusted))
    other = tls_url(rabbitmq.url, port, **trusted, certfile=wrong, keyfile=wrong_key)
    assert "client certificate" in await refused(other)
    assert "not trusted" in await refused(tls_url(rabbitmq.url, port, cafile=theirs.file("ca")))


CRASHER = """
import asyncio
import os
from pathlib import Path

from carom import App

app = App(os.environ["URL"], namespace=os.environ["NS"], exchange=os.environ["NS"] + ".events", name="crasher")


@app.listen("job", queue=os.environ["NS"] + ".jobs", crash_limit=3, concurrency=4)
async def work(word: str) -> None:
    if word == "poison":
        os._exit(42)
    await asyncio.sleep(0.05)
    with Path(os.environ["DIARY"]).open("a") as diary:
        diary.write(word + "\\n")
"""


@pytest.mark.parametrize("workers", [1, 3])
async def test_a_message_that_kills_workers_is_a_dead_letter_and_its_neighbours_are_handled(
    rabbitmq, tmp_path, workers
):
    (tmp_path / "crasher.py").write_text(CRASHER)
    namespace, diary = fresh("ns"), tmp_path / "diary"
    diary.touch()
    environment = {**os.environ, "URL": rabbitmq.url, "NS": namespace, "DIARY": str(diary)}
    words = {f"neighbour-{number}" for number in range(40)}
    ends = []

    async def work_for_ever():
        while True:
            command = [sys.executable, "-m", "carom", "run", "crasher:app", "--app-dir", str(tmp_path)]
            worker = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
            try:
                ends.append(await worker.wait())
            finally:
                if worker.returncode is None:
                    worker.terminate()
                    ends.append(await worker.wait())

    app = App(rabbitmq.url, namespace=namespace, exchange=f"{namespace}.events", name="crasher", observers=[])
    app.listen("job", queue=f"{namespace}.jobs", crash_limit=3)(lambda word: None)
    await app.start(consume=False)
    await app.publish_many([("job", word) for word in ["neighbour-0", "poison", *sorted(words - {"neighbour-0"})]])
    await app.stop()
    working = [asyncio.create_task(work_for_ever()) for _ in range(workers)]
    async with opened(rabbitmq.url) as broker:
        dead = f"{namespace}.jobs.dlq"
        await until(lambda: _has(broker, dead, 1), "the dead letter", RESTART_S)
        await until(lambda: words <= set(diary.read_text().split()), "the neighbours", RESTART_S)
        for worker in working:
            worker.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        [letter] = await drained(broker, dead)
        assert (letter.headers["carom-reason"], letter.body) == ("crash-loop", b'"poison"')
        assert await ready(broker, f"{namespace}.jobs") == 0
    assert sorted(ends) == [*[0] * workers, 42, 42, 42]


async def test_a_ladder_of_retries_takes_its_time_and_ends_in_the_dead_letters(rabbitmq):
    found, at_ms = [], []
    app = new_app(rabbitmq.url, found, retry=("100ms", "200ms"))

    @app.listen("job", queue=fresh("jobs"))
    async def work(number: int, message: Message) -> None:
        at_ms.append((message.attempt, time.monotonic() * 1000))
        raise ValueError("never")

    async with app:
        await app.publish("job", 1)
        await until(lambda: bool(told(found, events.DeadLettered)), "the dead letter")
        assert [attempt for attempt, _ in at_ms] == [1, 2, 3]
        gaps = [later - earlier for (_, earlier), (_, later) in pairwise(at_ms)]
        assert gaps[0] >= 99
        assert gaps[1] >= 199
        [letter] = await drained(app._broker, f"{app.listeners[0].queue}.dlq")
        assert letter.headers["carom-reason"] == "exhausted"
        assert letter.headers["carom-error-type"].endswith("ValueError")


async def test_memory_stays_flat_while_many_messages_pass(rabbitmq):
    app = App(rabbitmq.url, namespace=fresh("ns"), exchange=fresh("events"), name="faults", observers=[])
    jobs, counted = fresh("jobs"), 0

    @app.listen("job", queue=jobs, concurrency=200, prefetch=400)
    async def work(number: int) -> None:
        nonlocal counted
        counted += 1

    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async with app:
        batch = [
            Message(routing_key=jobs, body=b"1", content_type="application/json", id=str(one)) for one in range(2_000)
        ]
        warm = 0
        for wave in range(1, WAVES + 1):
            results = await app._broker.publish(batch)
            assert {type(result) for result in results} == {Confirmed}
            await until(lambda wave=wave: counted >= 2_000 * wave, "a wave to be handled")
            if wave == WAVES // 4:
                warm = resident()
        assert resident() - warm < 6 * 1024 * 1024


async def _has(broker, name, count):
    return await ready(broker, name) == count
