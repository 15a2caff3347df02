"""The examples do what they say, on virtual time."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from carom.testing import Harness

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def shop():
    """Return the example, read anew: its bank and its ledger are its own."""
    spec = importlib.util.spec_from_file_location("example_listeners", EXAMPLES / "listeners.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def order(number=7, customer="ada", total=12.5):
    return {"id": number, "customer": customer, "total": total}


async def test_an_order_is_charged_once_and_entered_into_the_ledger(shop):
    async with Harness(shop.app) as h:
        message = await h.publish("order.placed", order())
        await h.advance("1s")
        assert shop.bank.charged == {message.id: 12.5}
        assert shop.ledger == [shop.Charged(7, 12.5)]
        (charged,) = h.emitted("order.charged")
        assert charged.correlation_id == message.id
        assert charged.headers["shop-version"] == "1"
        assert len(h.handled("shop.audit")) == 2


async def test_a_bank_that_is_down_for_a_moment_costs_nothing_but_time(shop):
    async with Harness(shop.app) as h:
        shop.bank.is_down = True
        await h.publish("order.placed", order())
        await h.advance("6s")
        assert len(h.attempts("shop.charge")) == 2
        shop.bank.is_down = False
        await h.advance("1s")
        assert [message.attempt for message in h.handled("shop.charge")] == [3]


async def test_a_bank_that_stays_down_makes_a_dead_letter_after_22_seconds(shop):
    async with Harness(shop.app) as h:
        shop.bank.is_down = True
        await h.publish("order.placed", order())
        await h.advance("21s")
        assert h.dead("shop.charge") == ()
        await h.advance("1s")
        assert [message.headers["carom-reason"] for message in h.dead("shop.charge")] == ["exhausted"]


async def test_a_busy_bank_is_asked_again_for_an_hour(shop):
    async with Harness(shop.app) as h:
        shop.bank.is_busy = True
        await h.publish("order.placed", order())
        await h.advance("58m30s")
        assert h.dead("shop.charge") == ()
        assert len(h.attempts("shop.charge")) == 59
        await h.advance("2m")
        assert len(h.dead("shop.charge")) == 1


async def test_what_cannot_succeed_is_not_tried_again(shop):
    async with Harness(shop.app) as h:
        await h.publish("order.placed", order(customer="mallory"))
        await h.publish("order.placed", {"id": "seven"})
        await h.publish("order.placed", order(total=0))
        await h.advance("1h")
        assert [message.headers["carom-reason"] for message in h.dead("shop.charge")] == ["rejected", "malformed"]
        assert len(h.discarded("shop.charge")) == 1
        assert shop.bank.charged == {}


async def test_a_full_ledger_is_entered_when_its_page_was_turned(shop):
    async with Harness(shop.app) as h:
        shop.ledger.extend([shop.Charged(0, 0)] * shop.PAGE)
        await h.publish("order.placed", order())
        await h.advance("30s")
        assert h.handled("shop.ledger") == ()
        shop.ledger.clear()
        await h.advance("1m")
        assert shop.ledger == [shop.Charged(7, 12.5)]
