"""The app: what it checks, how it starts and stops, and what it leaves behind."""

import asyncio
import logging

import pytest
from runtime_stage import told, until

from carom import App, ConfigurationError, TopologyMismatch
from carom.brokers.embedded.broker import MemoryBroker
from carom.brokers.embedded.engine import Engine
from carom.core.topology import Queue, Topology
from carom.errors import BrokerError, BrokerUnavailable, Unsupported
from carom.ports import ConnectionUp
from carom.runtime import events
from carom.testing import Harness, VirtualClock


def noted(**options):
    """Return an app and what its observers are told."""
    found = []
    return App("embedded://", observers=[found.append], **options), found


async def fine(order): ...


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"broker": None}, "broker=None is no broker: say a URL"),
        ({"database": "postgres"}, "no address of a database"),
        ({"topology": "destroy"}, "is not one of apply, verify, ignore"),
        ({"exchange": ""}, "exchange=''"),
        ({"exchange": "amq.topic"}, "does not begin with 'amq.'"),
        ({"namespace": "n" * 201}, "a name of 1 to 200 bytes"),
        ({"name": None}, "name=None"),
        ({"name": "n\ud800"}, "bytes in UTF-8"),
        ({"layout": "spiral"}, "no layout is called 'spiral'"),
        ({"grace": "soon"}, "not a duration"),
    ],
)
def test_an_app_that_cannot_work_is_refused_at_once(options, says):
    with pytest.raises(ConfigurationError, match=says):
        App(**options)


async def test_an_unknown_broker_is_named():
    with pytest.raises(ConfigurationError, match="no broker answers to 'carrier-pigeon'"):
        await App("carrier-pigeon://loft").start()


async def test_an_app_runs_in_a_with_block_and_again_after_it():
    app, found = noted()
    handled = []
    done = asyncio.Event()

    @app.listen("k")
    async def handle(order: int):
        handled.append(order)
        done.set()

    for number in range(2):
        done.clear()
        async with app:
            await app.publish("k", number)
            await asyncio.wait_for(done.wait(), 10)
    assert handled == [0, 1]
    life = told(found, events.Started, events.Stopping, events.Stopped)
    assert [type(event).__name__ for event in life] == ["Started", "Stopping", "Stopped"] * 2
    assert (life[0].app, life[0].queues) == ("app", ("app.handle",))
    assert life[2].abandoned == 0
    assert told(found, ConnectionUp)


async def test_starting_twice_is_refused_and_stopping_twice_does_nothing():
    app, found = noted()
    await app.stop()
    async with app:
        with pytest.raises(ConfigurationError, match="'app' runs already"):
            await app.start()
        with pytest.raises(ConfigurationError, match="runs already"):
            await app.run()
        with pytest.raises(ConfigurationError, match="configure it before"):
            app.configure(grace="1s")
        with pytest.raises(ConfigurationError, match="cannot listen"):
            app.listen("k")(fine)
        await app.stop()
        await app.stop()
    assert len(told(found, events.Stopped)) == 1


async def test_who_stops_it_a_second_time_waits_for_the_first():
    app, found = noted(grace="10s")
    let_go, begun = asyncio.Event(), asyncio.Event()

    @app.listen("k")
    async def handle(order):
        begun.set()
        await let_go.wait()

    await app.start()
    await app.publish("k", 1)
    await begun.wait()
    stopping = [asyncio.ensure_future(app.stop()) for _ in range(2)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in stopping)
    let_go.set()
    await asyncio.wait(stopping)
    assert len(told(found, events.Handled)) == len(told(found, events.Stopped)) == 1


class Failing(MemoryBroker):
    """Fails at one step of the start."""

    def __init__(self, step, **options):
        super().__init__(VirtualClock(), **options)
        self.step = step
        self.closed = 0

    async def open(self):
        await super().open()
        self.fail("open")

    async def declare(self, topology, mode="apply"):
        self.fail("declare")
        await super().declare(topology, mode)

    async def consume(self, queue, receive, *, prefetch, ended):
        if queue == "second":
            self.fail("consume")
        return await super().consume(queue, receive, prefetch=prefetch, ended=ended)

    async def close(self):
        self.closed += 1
        await super().close()

    def fail(self, step):
        if step == self.step:
            raise BrokerUnavailable(f"nobody answers at {step}")


@pytest.mark.parametrize("step", ["open", "declare", "consume"])
async def test_a_start_that_fails_leaves_nothing_open_and_the_next_may_work(step):
    app, found = noted()
    app.listen("a", queue="first")(fine)
    app.listen("b", queue="second")(fine)
    broker = Failing(step)
    with pytest.raises(BrokerUnavailable, match=f"nobody answers at {step}"):
        await app.start(broker=broker)
    assert broker.closed == 1
    assert broker.engine.consumers == {}
    assert app.consumers == ()
    assert told(found, events.Started) == []
    with pytest.raises(ConfigurationError, match="is not started"):
        await app.publish("a", 1)
    broker.step = ""
    await app.start(broker=broker)
    await app.stop()


async def test_a_start_that_is_cancelled_leaves_nothing_open():
    app, _ = noted()
    app.listen("a", queue="first")(fine)
    hanging = asyncio.Event()

    class Hanging(Failing):
        async def consume(self, queue, receive, *, prefetch, ended):
            await hanging.wait()

    broker = Hanging("")
    starting = asyncio.ensure_future(app.start(broker=broker))
    await until(lambda: broker.engine.queues)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert broker.closed == 1


async def test_stopping_closes_the_broker_even_when_it_cannot_be_done_nicely():
    class Rude(Failing):
        async def consume(self, queue, receive, *, prefetch, ended):
            class Subscription:
                async def cancel(self):
                    raise BrokerError("no manners")

            return Subscription()

    app, _ = noted()
    app.listen("a", queue="first")(fine)
    broker = Rude("")
    await app.start(broker=broker)
    with pytest.raises(BrokerError, match="no manners"):
        await app.stop()
    assert broker.closed == 1


async def test_the_topology_is_applied_verified_or_left_alone():
    engine = Engine()
    app, _ = noted(topology="verify")
    app.listen("a", queue="q")(fine)
    with pytest.raises(TopologyMismatch, match="'q'"):
        await app.start(broker=MemoryBroker(VirtualClock(), engine=engine))
    assert engine.queues == {}
    ignoring, _ = noted(topology="ignore")
    ignoring.listen("a", queue="q")(fine)
    with pytest.raises(BrokerError, match=r"there is no queue 'carom\.suspects\.app'"):
        await ignoring.start(broker=MemoryBroker(VirtualClock(), engine=engine))
    applying, _ = noted()
    applying.listen("a", queue="q")(fine)
    await applying.start(broker=MemoryBroker(VirtualClock(), engine=engine))
    await applying.stop()
    for careful in (app, ignoring):
        await careful.start(broker=MemoryBroker(VirtualClock(), engine=engine))
        await careful.stop()


async def test_a_broker_may_be_given_ready_made_and_be_changed_before_the_start():
    broker = MemoryBroker(VirtualClock())
    app = App(broker, observers=())
    assert app.address is broker
    async with app:
        pass
    app.configure(broker="embedded://", grace="5s")
    assert (app.address, app.grace_ms) == ("embedded://", 5_000)
    async with app:
        pass
    app.configure()
    assert app.grace_ms == 5_000


async def test_what_the_broker_cannot_do_is_said_at_the_start():
    app, _ = noted()
    app.listen("a", queue="q")(fine)
    broker = MemoryBroker(VirtualClock())
    await broker.open()
    with pytest.raises(Unsupported):
        await broker.declare(Topology(queues=(Queue("s", arguments=(("x-queue-type", "stream"),)),)))
    await broker.close()


async def test_relaying_takes_a_database_and_collecting_is_not_there_yet():
    app, _ = noted()
    with pytest.raises(ConfigurationError, match="has no database whose outbox"):
        await app.run(relay=True)
    with pytest.raises(ConfigurationError, match="collect is not there yet"):
        await app.run(collect=True)


def test_an_app_is_configured_by_the_environment_and_options_win():
    environment = {
        "CAROM_BROKER": "embedded://",
        "CAROM_EXCHANGE": "facts",
        "CAROM_NAMESPACE": "mine",
        "CAROM_LAYOUT": "per_queue",
        "CAROM_NAME": "billing",
        "CAROM_RETRY": "2s, 5s",
        "CAROM_GRACE": "7s",
        "CAROM_TOPOLOGY": "verify",
    }
    app = App.from_env(environment, name="shop")
    app.listen("k", queue="q")(fine)
    assert (app.exchange, app.namespace, app.name, app.grace_ms) == ("facts", "mine", "shop", 7_000)
    assert app.layout.delays("q") == (2_000, 5_000)
    assert {queue.name for queue in app.topology.queues} == {
        *{"q", "q.delay_2s", "q.delay_5s", "q.dlq"},
        *{"mine.suspects.shop", "mine.suspects.shop.dlq"},
    }


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    monkeypatch.setenv("CAROM_NAME", "from the outside")
    assert App.from_env().name == "from the outside"


def test_a_listener_takes_the_retries_of_the_app_unless_it_has_its_own():
    app = App(retry=("3s",))
    app.listen("a", queue="a")(fine)
    app.listen("b", queue="b", retry=())(fine)
    app.listen("c", queue="c", retry=None)(fine)
    assert [one.plan.retry.attempts for one in app.listeners] == [2, 1, 1]


async def test_without_observers_of_its_own_an_app_logs(caplog):
    app = App("embedded://", name="talkative")
    with caplog.at_level(logging.INFO, "carom"):
        async with Harness(app):
            pass
    assert "talkative listens to nothing" in caplog.text


async def test_observers_hear_of_connections_and_can_leave():
    app, found = noted()
    h = Harness(app)
    async with h:
        h.broker.disconnect()
    assert [type(e).__name__ for e in found].count("ConnectionUp") == 2
    app.unobserve(app._observers[0])
    before = len(found)
    async with Harness(app):
        pass
    assert len(found) == before
