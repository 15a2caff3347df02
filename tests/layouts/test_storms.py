"""Claims about storms: when everything fails at once, every message is tried as often as it may, and none is lost.

Settlements are performed on the engine of the embedded broker, on virtual time. ``python tests/layouts/test_storms.py
100000`` sends so many messages through each layout and says how many attempts were settled a second of processor time.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace

import pytest
from layout_stage import EVERY, Laid

from carom.brokers.embedded.engine import Engine
from carom.core.effects import CONFIRMED, Ack, Publish
from carom.core.outcome import Done, Failed
from carom.core.routing import route
from carom.core.settlement import Moment, admit, settle

MESSAGES = 300
FAILED = Failed(TimeoutError("the bank does not answer"))
DONE = Done()
LAID = {name: laid for name, laid in EVERY.items() if name != "native"}
"""The embedded broker refuses queues that delay by themselves; of `native` there is the layout with another policy."""


def storm(laid: Laid, messages: int) -> tuple[Counter[str], Counter[str], Engine]:
    """Send messages through a layout of which one in ten succeeds at last; return calls, ends and the broker."""
    layout, plan, engine, now = laid.layout, laid.plan, Engine(), 1_700_000_000_000
    wire, queue = layout.wire, laid.plan.queue
    quorum = layout.topology.queue(queue).kind == "quorum"
    calls: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    engine.declare(layout.topology, now)
    for number in range(messages):
        if number % 1_000 == 0 and number:  # not all at the same moment
            now += 1
        name = f"{'m' if number % 10 == 0 else 'n'}-{number}"
        assert engine.publish(wire.outgoing(replace(laid.message, id=name)), now) == CONFIRMED
    engine.consume("worker", "c", queue, 100, now)
    while True:
        handed, engine.handed[:] = list(engine.handed), []
        if not handed:
            due = engine.next_due_ms()
            if due is None:
                return calls, ends, engine
            now = max(now, due)
            engine.tick(now)
            continue
        for one in handed:
            arrival = wire.read(one.message, queue, redelivered=one.redelivered, counts=quorum)
            settlement = admit(arrival, plan, layout, Moment(now))
            if settlement is None:
                calls[arrival.message.id] += 1
                lucky = arrival.message.id.startswith("m-") and arrival.attempt == plan.retry.attempts
                settlement = settle(DONE if lucky else FAILED, arrival, plan, layout, Moment(now))
            for effect in settlement.effects:
                if isinstance(effect, Publish):
                    assert engine.publish(effect.message, now) == CONFIRMED
                else:
                    engine.settle("worker", one.tag, "ack" if isinstance(effect, Ack) else "refuse", now)
            ends[settlement.fate] += 1


def letters(laid: Laid, engine: Engine) -> list[str]:
    """Return the ids of the dead letters, from the queue where they stay."""
    to, wire = laid.layout.dead_address(laid.plan.queue), laid.layout.wire
    reached = route(laid.layout.topology, to.exchange, to.routing_key)
    (queue,) = [name for name in reached if laid.layout.topology.queue(name).ttl_ms is None]
    return [wire.read(letter, laid.plan.queue).message.id for letter in engine.contents(queue)]


@pytest.mark.parametrize("laid", LAID.values(), ids=LAID)
def test_a_storm_of_retries_loses_nothing_and_ends(laid):
    calls, ends, engine = storm(laid, MESSAGES)
    assert ends["done"] == MESSAGES // 10
    hopeless = letters(laid, engine)
    assert len(hopeless) == len(set(hopeless)) == ends["dead"] == MESSAGES - MESSAGES // 10
    assert set(calls.values()) == {laid.plan.retry.attempts}
    assert len(calls) == MESSAGES


if __name__ == "__main__":
    for name, laid in LAID.items():
        began = time.process_time()
        calls, ends, engine = storm(laid, int(sys.argv[1]))
        took = time.process_time() - began
        handled, kept = sum(calls.values()), ends["done"] + len(set(letters(laid, engine)))
        print(f"{name:22} {handled:9,} attempts {handled / took:9,.0f}/s, {kept:,} of {sys.argv[1]} done or dead")  # noqa: T201 - it is run by hand
