"""The harness runs the app as it is; thirty minutes take no time, and whatever is due happens in its order."""

import asyncio
import time

import pytest

from carom import App, ConfigurationError, Discard, Emit, Message, Unroutable
from carom.core.effects import Returned
from carom.errors import BrokerUnavailable
from carom.testing import Harness


def shop(**options):
    app = App("embedded://", observers=(), **options)

    @app.listen("order.created", queue="billing.charge", retry=("1m", "10m", "30m"))
    async def charge(order: dict):
        if order.get("fails", 0):
            raise ConnectionError("the bank does not answer")
        if order.get("old"):
            raise Discard("too old")
        await app.publish("invoice.sent", order)

    @app.listen("invoice.*", queue="mail")
    def mail(invoice: dict): ...

    return app


@pytest.mark.parametrize("layout", ["shared", "per_queue"])
async def test_a_ladder_of_half_an_hour_is_climbed_in_virtual_time(layout):
    async with Harness(shop(layout=layout)) as h:
        start = h.clock.now_ms()
        message = await h.publish("order.created", {"id": 1, "fails": 9})
        assert [m.attempt for m in h.attempts("billing.charge")] == [1]
        (waiting,) = h.waiting()
        assert (waiting.id, waiting.routing_key[:14]) == (message.id, "billing.charge")
        await h.advance("59s999ms")
        assert len(h.attempts("billing.charge")) == 1
        await h.advance("1ms")
        assert len(h.attempts("billing.charge")) == 2
        await h.advance("10m")
        assert h.dead("billing.charge") == ()
        await h.advance("30m")
        assert [m.attempt for m in h.attempts("billing.charge")] == [1, 2, 3, 4]
        (dead,) = h.dead("billing.charge")
        assert (dead.id, dead.headers["carom-reason"]) == (message.id, "exhausted")
        assert h.waiting() == h.handled("billing.charge") == h.ready("billing.charge") == ()
        assert h.clock.now_ms() - start == 41 * 60_000


async def test_what_follows_a_publish_has_happened_when_it_returns():
    async with Harness(shop()) as h:
        order = await h.publish("order.created", {"id": 1})
        assert h.handled("billing.charge") == (order,)
        (invoice,) = h.emitted("invoice.*")
        assert h.handled("mail") == (invoice,)
        assert h.emitted("invoice.sent") == (invoice,)
        assert len(h.emitted("#")) == 2
        await h.publish_many([("order.created", {"old": True}), Emit("order.created", {"id": 2})])
        assert len(h.discarded("billing.charge")) == 1
        assert len(h.handled("mail")) == 2


async def test_a_message_may_be_put_as_somebody_else_would():
    async with Harness(shop()) as h:
        message = Message(body=b"{}", exchange="events", routing_key="order.created", app_id="old monolith")
        await h.put(message)
        assert h.handled("billing.charge") == (message,)
        assert isinstance(await h.put(Message(routing_key="nowhere")), Returned)


async def test_nothing_is_taken_from_the_app_but_its_broker_and_clock():
    app = shop()
    seen = []
    app.observe(seen.append)
    async with Harness(app) as h:
        with pytest.raises(Unroutable):
            await h.publish("nobody", 1)
        await h.publish("order.created", {"id": 1})
        assert seen[0] == h.events[0], "the connection is told to the observers of the app too"
        assert seen == h.events
    before = len(h.events)
    async with Harness(app):
        pass
    assert len(h.events) == before, "a harness hears of its own run"


async def test_a_question_about_a_queue_nobody_listens_to_is_an_error():
    async with Harness(shop()) as h:
        for ask in (h.handled, h.attempts, h.discarded, h.dead):
            with pytest.raises(ConfigurationError, match="no listener on queue 'misspelt'"):
                ask("misspelt")


async def test_with_queues_of_its_own_a_question_about_another_is_an_error_too():
    async with Harness(shop(layout="per_queue")) as h:
        with pytest.raises(ConfigurationError, match="misspelt"):
            h.dead("misspelt")


async def test_a_delay_is_virtual_too():
    app = App("embedded://", observers=(), delays=("30m",))
    app.listen("k", queue="q")(lambda order: None)
    async with Harness(app) as h:
        await h.publish("k", 1, delay="30m")
        await h.advance("29m")
        assert h.handled("q") == ()
        await h.advance("1m")
        assert len(h.handled("q")) == 1


async def test_timers_of_the_app_fire_in_their_order_while_time_passes():
    app = App("embedded://", observers=())
    order = []

    @app.listen("k", queue="q", retry=("1s", "2s"))
    async def handle(name: str, message: Message):
        order.append((name, message.attempt, h.clock.now_ms() - start))
        raise ValueError

    async with Harness(app) as h:
        start = h.clock.now_ms()
        await h.publish("k", "a")
        await h.advance("500ms")
        await h.publish("k", "b")
        await h.advance("1h")
        assert order == [("a", 1, 0), ("b", 1, 500), ("a", 2, 1_000), ("b", 2, 1_500), ("a", 3, 3_000), ("b", 3, 3_500)]


async def test_a_handler_that_hangs_costs_patience_once_and_others_go_on():
    app = App("embedded://", observers=())
    hang = asyncio.Event()

    @app.listen("hangs", queue="hangs")
    async def hangs(order):
        await hang.wait()

    app.listen("fine", queue="fine")(lambda order: None)
    async with Harness(app, patience="30ms") as h:
        began = time.monotonic()
        await h.publish("hangs", 1)
        assert time.monotonic() - began >= 0.03
        for _ in range(3):
            await h.publish("fine", 1)
        assert len(h.handled("fine")) == 3
        hang.set()
        await h.settle()
        assert len(h.handled("hangs")) == 1


async def test_an_engine_changed_behind_the_brokers_back_does_not_hang_the_harness():
    app = App("embedded://", observers=())
    app.listen("k", queue="q")(lambda order: None)
    async with Harness(app, patience="10ms") as h:
        h.broker.engine.delete_queue("q", h.clock.now_ms())
        await h.settle()
        assert "q" not in h.broker.engine.queues


async def test_an_app_that_does_not_start_is_not_observed_and_not_left_open():
    app = App("embedded://", observers=())
    app.listen("k", queue="q")(lambda order: None)
    h = Harness(app)

    async def nowhere():
        raise BrokerUnavailable("nobody there")

    h.broker.open = nowhere
    with pytest.raises(BrokerUnavailable):
        await h.__aenter__()
    assert app._observers == []
    async with Harness(app):
        pass


async def test_two_harnesses_are_two_worlds():
    async with Harness(shop()) as one, Harness(shop()) as other:
        await one.publish("order.created", {"id": 1})
        await one.advance("1h")
        assert len(one.handled("mail")) == 1
        assert other.handled("mail") == ()
        assert other.clock.now_ms() < one.clock.now_ms()


def test_the_package_shows_what_it_has():
    import carom.testing

    assert carom.testing.Harness is Harness
    assert carom.testing.VirtualClock().now_ms() > 0
    with pytest.raises(AttributeError, match="'nothing'"):
        carom.testing.nothing  # noqa: B018 - that it is not there is the point


@pytest.mark.parametrize("layout", ["binary", "goqueue", "kbairak", "freeflow"])
async def test_what_waits_is_seen_in_every_layout_and_dead_letters_do_not_wait(layout):
    app = App("embedded://", observers=(), layout=layout)

    @app.listen("order.created", queue="charge", retry=("30s",))
    async def charge(order: dict[str, int]) -> None:
        raise ValueError

    async with Harness(app) as h:
        await h.publish("order.created", {"id": 1})
        assert len(h.waiting()) == 1
        await h.advance("1m")
        assert (len(h.waiting()), len(h.dead("charge"))) == (0, 1)
