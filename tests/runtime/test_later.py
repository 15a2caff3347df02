"""Messages published with a delay."""

from __future__ import annotations

import pytest

from carom import App, ConfigurationError, Emit, Message, Unroutable
from carom.testing import Harness


def shop(**options: object) -> tuple[App, list[Message]]:
    app = App("embedded://", delays=("1s", "10s", "1m"), observers=[], **options)
    seen: list[Message] = []

    @app.listen("order.#", queue="billing", retry=())
    async def bill(order: dict, message: Message) -> None:
        seen.append(message)

    return app, seen


@pytest.mark.parametrize("layout", ["shared", "per_queue"])
async def test_a_delayed_message_comes_when_it_is_due_and_not_before(layout):
    app, seen = shop(layout=layout)
    async with Harness(app) as h:
        sent = await app.publish("order.created", {"id": 1}, delay="10s", headers={"tenant": "a"})
        await h.advance("9s999ms")
        assert seen == []
        await h.advance("1ms")
        (message,) = seen
        assert (message.id, message.body, message.routing_key, message.attempt) == (
            sent.id,
            sent.body,
            "order.created",
            1,
        )
        assert dict(message.headers) == {"tenant": "a"}


async def test_a_delay_is_rounded_up_and_takes_several_turns_beyond_the_longest():
    app, seen = shop()
    async with Harness(app) as h:
        await app.publish("order.created", {}, delay="3s")
        await h.advance("9s")
        assert seen == []
        await h.advance("1s")
        assert len(seen) == 1
        await app.publish("order.created", {}, delay="2m10s")
        await h.advance("2m9s")
        assert len(seen) == 1
        await h.advance("1s")
        assert len(seen) == 2


async def test_many_are_published_with_delays_of_their_own():
    app, seen = shop()
    async with Harness(app) as h:
        await app.publish_many([Emit("order.a", {}, delay="1s"), Emit("order.b", {}), Emit("order.c", {}, delay="10s")])
        await h.advance("10s")
        assert [message.routing_key for message in seen] == ["order.b", "order.a", "order.c"]


async def test_a_delayed_message_that_nobody_wants_ends_as_a_dead_letter():
    app, _ = shop()
    async with Harness(app) as h:
        with pytest.raises(Unroutable):
            await app.publish("invoice.sent", {})
        await app.publish("invoice.sent", {}, delay="1s")
        await h.advance("5m")
        (letter,) = h.broker.engine.contents("carom.later.dlq")
        assert letter.headers["carom-key"] == "invoice.sent"
        assert letter.headers["carom-error-type"] == "carom.errors.Unroutable"


async def test_an_app_without_delays_says_how_to_have_them():
    app = App("embedded://", observers=[])
    async with Harness(app):
        with pytest.raises(ConfigurationError, match="App\\(delays="):
            await app.publish("order.created", {}, delay="1s")


def test_a_delay_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="delay of nothing"):
        App("embedded://", delays=("0s",))
