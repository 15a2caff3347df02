"""Everything a layout puts on the wire, compared with a recording: declarations, properties, headers, bodies.

``python tests/layouts/test_recordings.py`` records anew; what changed in a recording changed for other systems.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from layout_stage import EVERY, Laid

from carom.brokers.rabbitmq import content
from carom.core.message import Message
from carom.core.outcome import Failed, Reject
from carom.core.settlement import Moment, settle
from carom.core.wire import Arrival

FOLDER = Path(__file__).parent / "recordings"
MOMENT = Moment(1_700_000_000_000, 0.0, "host-1")
FAILED = Failed(TimeoutError("the bank does not answer"))


def declarations(laid: Laid) -> dict[str, object]:
    topology = laid.layout.topology
    return {
        "exchanges": [
            {key: value for key, value in asdict(one).items() if key != "public"} for one in topology.exchanges
        ],
        "queues": [
            {"name": one.name, "durable": one.durable, "arguments": typed(one.arguments)} for one in topology.queues
        ],
        "bindings": [asdict(one) for one in topology.bindings],
    }


def typed(arguments: object) -> dict[str, list[object]]:
    return {name: [type(value).__name__, value] for name, value in dict(arguments).items()}


def written(message: Message | None) -> dict[str, object] | None:
    """Return a message as it is on the wire: readable, and its property list and body to the byte."""
    if message is None:
        return None
    fields = {key: value for key, value in asdict(message).items() if value not in ("", None)}
    fields["headers"] = typed(message.headers)
    fields["body"] = message.body.decode("latin-1")
    return {**fields, "bytes": content.encode(message).hex(), "body bytes": message.body.hex()}


def recorded(laid: Laid) -> dict[str, object]:
    """Return what a layout declares and what it writes in the life of a message."""
    layout, plan = laid.layout, laid.plan
    wire = layout.wire
    first = wire.outgoing(laid.message)
    arrival = wire.read(first, plan.queue)
    life: dict[str, object] = {"published": written(first), "seen": written(wire.seen(arrival))}
    for attempt in (1, 2):
        settlement = settle(FAILED, arrival, plan, layout, MOMENT)
        life[f"after attempt {attempt}"] = [step(effect) for effect in settlement.effects]
        copy = next((effect.message for effect in settlement.effects if hasattr(effect, "message")), None)
        arrival = wire.read(copy, plan.queue) if copy is not None else later(arrival)
    last = settle(FAILED, arrival, plan, layout, MOMENT)
    rejected = settle(Reject("no such account"), wire.read(first, plan.queue), plan, layout, MOMENT)
    suspect = replace(arrival, crashes=2)
    waiting = layout.delay_address(plan.queue, layout.delays(plan.queue)[0])
    life["after the last attempt"] = [step(effect) for effect in last.effects]
    life["rejected"] = [step(effect) for effect in rejected.effects]
    life["set apart"] = written(wire.recounted(suspect, layout.suspect_address(plan.queue)))
    life["counted again"] = written(wire.recounted(suspect, layout.queue_address(plan.queue)))
    life["held"] = written(wire.held(arrival, waiting, 90_000))
    return {"declared": declarations(laid), "written": life}


def later(arrival: Arrival) -> Arrival:
    return replace(arrival, attempt=arrival.attempt + 1)


def step(effect: object) -> object:
    return written(effect.message) if hasattr(effect, "message") else type(effect).__name__


@pytest.mark.parametrize("name", EVERY)
def test_what_is_on_the_wire_is_what_was_recorded(name):
    expected = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(recorded(EVERY[name]))) == expected


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, laid in EVERY.items():
        text = json.dumps(recorded(laid), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
