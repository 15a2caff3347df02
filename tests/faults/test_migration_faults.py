"""A running system moves from one layout to another, and its migration is killed on the way, again and again."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from carom import adapters
from carom.core import wire as own
from carom.core.effects import Confirmed
from carom.core.message import Message
from carom.core.retry import RetryPolicy
from carom.core.settlement import Plan
from carom.core.topology import Binding, Exchange, Queue, Topology, arguments
from carom.core.wire import Note
from carom.layouts import layout as laid_out
from carom.runtime.clock import RealClock

DEADLINE_S = 150.0
PERIOD_MS = 30
KILLED = -9

SHOP = """
import sys
from carom import App, Message

app = App("embedded://", name="shop", exchange="shop", namespace="shop", layout="{layout}", grace="5s")

@app.listen("order.*", queue="shop.charge", retry=("700ms", "1s"))
async def charge(order: dict, message: Message) -> None:
    if order["id"] % 3 == 0 and message.attempt < 3:
        raise ValueError("not yet")
    print(order["id"], message.attempt, message.exchange, message.routing_key, flush=True)
"""


SLOW_SHOP = """
from carom import App, Message, Reject

app = App("embedded://", name="shop", exchange="shop", namespace="shop", layout="{layout}", grace="5s")

@app.listen("order.*", queue="shop.charge", retry=("1s", "20s"))
async def charge(order: dict, message: Message) -> None:
    if order["id"] % 7 == 0:
        raise Reject("never")
    if order["id"] % 3 == 0 and message.attempt < 3:
        raise ValueError("not yet")
    print(order["id"], message.attempt, message.id, message.exchange, message.routing_key, flush=True)
"""
FOREIGN = ("goqueue", "kbairak")


@pytest.fixture
def shops(tmp_path):
    for layout in ("per_queue", "shared"):
        (tmp_path / f"shop_{layout}.py").write_text(SHOP.format(layout=layout))
    for layout in (*FOREIGN, "shared"):
        (tmp_path / f"slow_{layout}.py").write_text(SLOW_SHOP.format(layout=layout))
    return tmp_path


@pytest.fixture
def managed(empty_rabbitmq_url, rabbitmq_management_url):
    assert rabbitmq_management_url, "these tests need the management API"
    return f"{empty_rabbitmq_url}?management={rabbitmq_management_url}"


def environment(**more):
    return {**{k: v for k, v in os.environ.items() if not k.startswith("CAROM_")}, **more}


def carom(shops, *arguments, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "carom", *arguments],
        cwd=shops,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def at(url, do):
    async def done():
        broker = adapters.broker(url, RealClock(), lambda _event: None)
        await broker.open()
        try:
            return await do(broker)
        finally:
            await broker.close()

    return asyncio.run(done())


class Traffic(threading.Thread):
    """Publishes, mandatory and confirmed, until it is told to stop; knows what was confirmed."""

    def __init__(self, url, before=None, wire=own):
        super().__init__(daemon=True)
        self.wire = wire
        self.url, self.confirmed, self.refused = url, before.confirmed if before else set(), []
        self.enough = threading.Event()

    def run(self):
        at(self.url, self._publish)

    async def _publish(self, broker):
        number, clock = max(self.confirmed, default=0), RealClock()
        while not self.enough.is_set():
            number += 1
            body = json.dumps({"id": number}).encode()
            message = Message(
                id=f"m{number}",
                body=body,
                exchange="shop",
                routing_key="order.created",
                content_type="application/json",
            )
            (result,) = await broker.publish([self.wire.outgoing(message)])
            if isinstance(result, Confirmed):
                self.confirmed.add(number)
            else:
                self.refused.append((number, result))
            await clock.sleep(PERIOD_MS)

    def stop(self):
        self.enough.set()
        self.join(30)


@contextmanager
def published(url, before=None, wire=own):
    """Publish meanwhile, as that wire writes; what was confirmed before is remembered."""
    traffic = Traffic(url, before, wire)
    traffic.start()
    try:
        yield traffic
    finally:
        traffic.stop()


@contextmanager
def worker(shops, app, url, lines):
    """Run a worker; what it handles is put into ``lines``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "carom", "run", app, "--broker", url, "-q"],
        cwd=shops,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
    reader.start()
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            reader.join(10)
            process.stdout.close()


def handled(lines):
    return {int(line.split()[0]) for line in list(lines)}


PLACES = (
    "migrate.declare=kill",
    "migrate.declare=kill",
    "migrate.unbind=kill",
    "migrate.deleted=kill",
    "migrate.replace=kill",
    "migrate.moved=kill",
    "migrate.return=kill",
)


def test_a_running_system_changes_its_layout_and_nothing_is_lost(shops, managed):
    old, new = "shop_per_queue:app", "shop_shared:app"
    assert carom(shops, "topology", "apply", old, "--broker", managed)[0] == 0
    lines = []
    steps = ("topology", "migrate", new, "--from", "per_queue", "--broker", managed)
    pause = threading.Event()
    with published(managed) as before, worker(shops, old, managed, lines) as running:
        while not lines:
            assert running.poll() is None, "the old worker does not start"
            pause.wait(0.1)
        for place in PLACES:
            code, said = carom(shops, *steps, "--yes", CAROM_FAILPOINTS=place)
            assert code == KILLED, f"{place}: {code}\n{said}"
        code, said = carom(shops, *steps, "--yes")
        assert code in {0, 3}, said
    with published(managed, before) as traffic, worker(shops, new, managed, lines):
        code, said = carom(shops, *steps, "--yes")
        assert code == 0, said
        traffic.stop()
        deadline = time.monotonic() + DEADLINE_S
        while not traffic.confirmed <= handled(lines):
            missing = sorted(traffic.confirmed - handled(lines))
            assert time.monotonic() < deadline, f"{len(missing)} of {len(traffic.confirmed)} lost, {missing[:20]}"
            pause.wait(0.2)
    assert traffic.refused == before.refused == [], "a publisher was refused"
    assert {tuple(line.split()[2:]) for line in lines} == {("shop", "order.created")}, "an address was lost"
    assert {int(line.split()[1]) for line in lines if int(line.split()[0]) % 3 == 0} == {3}, "an attempt was forgotten"
    depths = at(managed, lambda broker: broker.depths(["shop.charge.dlq", "shop.lost", "shop.charge"]))
    assert {queue: depth.ready for queue, depth in depths.items()} == dict.fromkeys(depths, 0)
    assert carom(shops, "topology", "plan", new, "--broker", managed)[0] == 0


def test_a_classic_queue_of_somebody_s_becomes_a_quorum_queue_with_what_is_in_it(shops, managed):
    there = Topology(
        (Exchange("shop"),),
        (Queue("shop.charge", arguments=arguments({"x-max-length": 5_000})),),
        (Binding("shop", "shop.charge", "order.*"), Binding("shop", "shop.charge", "extra")),
    )
    messages = [
        Message(
            id=f"m{number}", body=b"%d" % number, exchange="shop", routing_key="order.made", headers={"mine": number}
        )
        for number in range(500)
    ]

    async def fill(broker):
        await broker.declare(there)
        await broker.publish(messages)

    at(managed, fill)
    steps = ("topology", "migrate", "shop_shared:app", "--broker", managed)
    code, said = carom(shops, *steps, "--dry-run")
    assert code == 0
    assert "then delete and declare anew: shop.charge" in said
    assert at(managed, lambda broker: broker.depths(["shop.charge"]))["shop.charge"].ready == 500
    code, said = carom(shops, *steps, "--yes", "--json")
    assert code == 0, said
    assert carom(shops, "topology", "plan", "shop_shared:app", "--broker", managed)[0] == 5, "a foreign binding is kept"

    async def taken(broker):
        return [(await broker.get("shop.charge")).message for _ in range(500)]

    found = at(managed, taken)
    assert [one.body for one in found] == [one.body for one in messages]
    assert all(one.routing_key == "order.made" and one.headers["mine"] == int(one.body) for one in found)
    assert {one.headers["carom-exchange"] for one in found} == {"shop"}


def test_a_worker_that_starts_meanwhile_and_binds_its_queue_again_is_noticed(shops, managed):
    assert carom(shops, "topology", "apply", "shop_per_queue:app", "--broker", managed)[0] == 0
    messages = [Message(id=f"m{number}", body=b"{}", exchange="shop", routing_key="order.made") for number in range(20)]
    at(managed, lambda broker: broker.publish(messages[:10]))
    steps = ("topology", "migrate", "shop_shared:app", "--from", "per_queue", "--broker", managed, "--yes")
    with subprocess.Popen(
        [sys.executable, "-m", "carom", *steps], cwd=shops, env=environment(), stderr=subprocess.PIPE, text=True
    ) as migrating:
        said = []
        for line in migrating.stderr:
            said.append(line)
            if line.startswith("drain "):
                break
        assert carom(shops, "topology", "apply", "shop_per_queue:app", "--broker", managed)[0] == 0
        at(managed, lambda broker: broker.publish(messages[10:]))
        said += migrating.stderr
    assert migrating.returncode == 0, said
    assert any("once more" in line for line in said), said

    async def taken(broker):
        depth = (await broker.depths(["shop.charge"]))["shop.charge"].ready
        return {(await broker.get("shop.charge")).message.id for _ in range(depth)}

    assert at(managed, taken) == {message.id for message in messages}


def test_a_message_that_somebody_holds_keeps_its_queue(shops, managed):
    async def hold(broker):
        await broker.declare(Topology((Exchange("shop"),), (Queue("shop.charge"),)))
        await broker.publish([Message(id="m", exchange="", routing_key="shop.charge")])
        delivery = await broker.get("shop.charge")
        steps = ("topology", "migrate", "shop_shared:app", "--broker", managed, "--yes", "--patience", "20s")
        code, said = await asyncio.to_thread(carom, shops, *steps)
        assert code == 1, said
        assert "1 in 'shop.charge'" in said
        assert not delivery.stale
        delivery.ack()

    at(managed, hold)


@pytest.mark.parametrize("layout", FOREIGN)
def test_what_waits_and_what_is_dead_in_another_system_s_layout_goes_on_in_carom_s(shops, managed, layout):
    old, new = f"slow_{layout}:app", "slow_shared:app"
    assert carom(shops, "topology", "apply", old, "--broker", managed)[0] == 0
    lines, pause = [], threading.Event()
    steps = ("topology", "migrate", new, "--from", layout, "--broker", managed, "--yes")
    wire = laid_out(layout, "shop", "shop", ()).wire
    with published(managed, wire=wire) as before, worker(shops, old, managed, lines) as running:
        while max(before.confirmed, default=0) < 100:
            assert running.poll() is None, "the old worker does not start"
            pause.wait(0.1)
        before.wire = own  # where there are envelopes, publishers leave them before the queues do
        code, said = carom(shops, *steps, CAROM_FAILPOINTS="migrate.moved=kill")
        assert code == KILLED, said
        code, said = carom(shops, *steps)
        assert code in {0, 3}, said
    with published(managed, before) as traffic, worker(shops, new, managed, lines):
        code, said = carom(shops, *steps)
        assert code == 0, said
        traffic.stop()
        wanted = {number for number in traffic.confirmed if number % 7}
        deadline = time.monotonic() + DEADLINE_S
        while not wanted <= handled(lines):
            missing = sorted(wanted - handled(lines))
            assert time.monotonic() < deadline, f"{len(missing)} of {len(wanted)} lost, {missing[:20]}"
            pause.wait(0.2)
    assert traffic.refused == before.refused == [], "a publisher was refused"
    assert {tuple(line.split()[3:]) for line in lines} == {("shop", "order.created")}, "an address was lost"
    told = [line.split()[:3] for line in lines]
    assert {int(attempt) for number, attempt, _ in told if int(number) % 3 == 0} == {3}, "an attempt was forgotten"
    assert {int(attempt) for number, attempt, _ in told if int(number) % 3} == {1}
    assert all(identity == f"m{number}" for number, _, identity in told)
    assert buried(managed) == {number: "rejected" for number in traffic.confirmed if number % 7 == 0}
    assert carom(shops, "topology", "plan", new, "--once", layout, "--broker", managed)[0] == 0


OTHER_SHOP = """
from carom import App, RetryPolicy

app = App("embedded://", name="shop", exchange="shop", namespace="shop", layout="{layout}")

@app.listen({keys}queue="{queue}", retry={retry})
async def charge(order: dict) -> None: ...
"""
OTHERS = {
    "freeflow": ("shop.charge", '"order.*", ', '("30s", "5m")'),
    "async_worker": ("shop_instant_queue", "", 'RetryPolicy.exponential("30s", attempts=3)'),
    "wait_queue": ("shop.charge", '"order.*", ', 'RetryPolicy.fixed("1h", attempts=3)'),
}
POLICIES = {
    "freeflow": RetryPolicy.delays("30s", "5m"),
    "async_worker": RetryPolicy.exponential("30s", attempts=3),
    "wait_queue": RetryPolicy.fixed("1h", attempts=3),
}


@pytest.mark.parametrize("layout", OTHERS)
def test_what_lies_in_other_layouts_is_moved_as_carom_s(shops, managed, layout):
    queue, keys, retry = OTHERS[layout]
    for name in (layout, "shared"):
        program = OTHER_SHOP.format(layout=name, queue=queue, keys=keys, retry=retry)
        (shops / f"other_{name}.py").write_text(program)
    plan = Plan(queue, ("order.*",) if keys else (), POLICIES[layout])
    old = laid_out(layout, "shop", "shop", (plan,), "shop")
    ready = old.wire.outgoing(
        Message(id="m", body=b'{"id":1}', exchange="shop", routing_key="order.created", content_type="application/json")
    )
    arrival = old.wire.read(ready, queue)
    waits = old.wire.retried(arrival, old.delay_address(queue, old.delays(queue)[0]), Note(1, "", "", "E", "why"))
    dead = old.wire.dead(arrival, old.dead_address(queue), Note(1, "", "rejected", "E", "why"))

    async def fill(broker):
        await broker.declare(old.topology)
        return await broker.publish([ready, waits, dead])

    assert {type(one) for one in at(managed, fill)} == {Confirmed}
    steps = ("topology", "migrate", "other_shared:app", "--from", layout, "--broker", managed, "--yes")
    code, said = carom(shops, *steps)
    assert code == (3 if layout == "freeflow" else 0), said
    assert layout != "freeflow" or "stays: queue 'shop.dlq': 1 messages are in it" in said

    async def found(broker):
        work = [(await broker.get(queue)).message for _ in range(2)]
        return work, (await broker.get(f"{queue}.dlq")).message

    work, letter = at(managed, found)
    arrivals = [own.read(one, queue) for one in work]
    assert sorted((one.attempt, one.wait_ms) for one in arrivals) == [(1, 0), (2, old.delays(queue)[0])]
    assert {one.routing_key for one in arrivals} == {"order.created"}
    assert {one.message.id for one in arrivals} == {letter.id} == {"m"}
    assert (letter.headers["carom-reason"], letter.headers["carom-error"]) == ("rejected", "why")


def test_what_the_server_would_not_do_is_refused_before_anything_is_done(shops, managed):
    for name in ("shared", "native"):
        program = OTHER_SHOP.format(layout=name, queue="shop.charge", keys="", retry=OTHERS["wait_queue"][2])
        (shops / f"even_{name}.py").write_text(program)
    assert carom(shops, "topology", "apply", "even_shared:app", "--broker", managed)[0] == 0
    version = at(managed, lambda broker: broker.observe()).version
    steps = ("topology", "migrate", "even_native:app", "--from", "shared", "--broker", managed)
    code, said = carom(shops, *steps, "--yes")
    assert (code == 0) == (version >= (4, 3)), said
    assert version >= (4, 3) or "x-delayed-retry" in said
    assert carom(shops, "topology", "plan", "even_shared:app", "--broker", managed)[0] == (5 if code == 0 else 0)


def buried(url):
    """Return whose dead letters there are, and why; each is as it was published."""

    async def taken(broker):
        depths = await broker.depths(["shop.charge", "shop.charge.dlq", "shop.lost"])
        assert depths["shop.charge"].ready == depths["shop.lost"].ready == 0
        return [(await broker.get("shop.charge.dlq")).message for _ in range(depths["shop.charge.dlq"].ready)]

    letters = at(url, taken)
    assert {(one.headers["carom-exchange"], one.headers["carom-key"]) for one in letters} == {("shop", "order.created")}
    assert all(one.headers["carom-attempt"] == one.headers["carom-deaths"] == 1 for one in letters)
    return {json.loads(one.body)["id"]: one.headers["carom-reason"] for one in letters}
