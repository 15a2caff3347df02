"""``carom topology plan``, ``apply --remove-leftovers``, ``export`` and ``grants``, on a real RabbitMQ."""

import asyncio
import json
import shlex
import subprocess
import sys
from urllib.parse import urlsplit

import pytest
from cli_stage import DEADLINE_S, carom, environment

from carom import adapters
from carom.cli.output import DRIFT, NOT_PERMITTED, OK, PARTLY
from carom.core.message import Message
from carom.core.topology import Binding, Queue, Topology, quorum
from carom.errors import NotPermitted
from carom.runtime.clock import RealClock

SHOP = """
from carom import App

app = App("embedded://", name="shop", exchange="shop", namespace="shop", layout="{layout}", topology="ignore")

@app.listen("order.*", queue="shop.charge", retry=({retry!r},))
async def charge(order: dict) -> None:
    print("handling", order["id"], flush=True)
    if order["id"] < 2:
        raise ValueError("never")
"""


@pytest.fixture
def shops(tmp_path, monkeypatch):
    def write(name, retry="100ms", layout="shared"):
        (tmp_path / f"{name}.py").write_text(SHOP.format(retry=retry, layout=layout))
        return f"{name}:app"

    monkeypatch.chdir(tmp_path)
    return write


@pytest.fixture
def managed(empty_rabbitmq_url, rabbitmq_management_url):
    assert rabbitmq_management_url, "these tests need the management API"
    return f"{empty_rabbitmq_url}?management={rabbitmq_management_url}"


def at(url, do):
    """Do something with a broker that is open."""

    async def done():
        broker = adapters.broker(url, RealClock(), lambda _event: None)
        await broker.open()
        try:
            return await do(broker)
        finally:
            await broker.close()

    return asyncio.run(done())


def test_a_plan_says_what_is_missing_and_then_nothing(shops, managed):
    shop = shops("planned_shop")
    before = carom("topology", "plan", shop, "--broker", managed)
    assert before.exit_code == DRIFT
    assert "+ quorum queue shop.charge\n" in before.stdout
    assert "+ binding of queue shop.charge to shop with key 'order.*'\n" in before.stdout
    carom("topology", "apply", shop, "--broker", managed)
    after = carom("topology", "plan", shop, "--broker", managed)
    assert after.exit_code == OK, after.output
    assert after.stdout == "everything is there, as it is needed\n"


def test_without_the_management_api_a_plan_says_what_amqp_says(shops, empty_rabbitmq_url):
    shop = shops("unmanaged_shop")
    before = carom("topology", "plan", shop, "--broker", empty_rabbitmq_url)
    assert before.exit_code == DRIFT
    assert "! queue 'shop.charge' is missing" in before.stdout
    carom("topology", "apply", shop, "--broker", empty_rabbitmq_url)
    after = carom("topology", "plan", shop, "--broker", empty_rabbitmq_url, "--json")
    assert after.exit_code == OK
    assert json.loads(after.stdout)["everything_looked_at"] is False


def test_a_plan_says_which_layout_auto_comes_to_and_why(shops, managed):
    shop = shops("open_shop", layout="auto")
    text = carom("topology", "plan", shop, "--broker", managed).stdout.splitlines()
    told = json.loads(carom("topology", "plan", shop, "--broker", managed, "--json").stdout)["layout"]
    assert text[0] == f"layout {told['name']}: {told['why']}"
    assert "RabbitMQ" in told["why"]
    applied = carom("topology", "apply", shop, "--broker", managed)
    assert text[0] in applied.stderr
    assert carom("topology", "plan", shop, "--broker", managed).exit_code == OK
    asked = carom("topology", "plan", shops("closed_shop"), "--layout", "auto", "--broker", managed, "--json")
    assert json.loads(asked.stdout)["layout"] == told
    assert (
        json.loads(carom("topology", "plan", "closed_shop:app", "--broker", managed, "--json").stdout)["layout"] is None
    )


@pytest.mark.parametrize("layout", ["binary", "goqueue", "kbairak", "freeflow", "wait_queue"])
def test_what_a_layout_declares_is_planned_exported_and_found_again(shops, managed, rabbitmq, tmp_path, layout):
    shop = shops(f"any_{layout}", layout=layout)
    vhost = urlsplit(managed).path.removeprefix("/")
    assert carom("topology", "plan", shop, "--broker", managed).exit_code == DRIFT
    (tmp_path / "definitions.json").write_text(carom("topology", "export", shop, "--vhost", vhost).stdout)
    rabbitmq.ctl("import_definitions", str(tmp_path / "definitions.json"))
    for again in ("plan", "apply", "plan"):
        compared = carom("topology", again, shop, "--broker", managed)
        assert compared.exit_code == OK, compared.output
    findings = json.loads(carom("doctor", shop, "--broker", managed, "--json").stdout)["findings"]
    assert not {one["code"] for one in findings} & {"not-as-declared", "not-permitted"}


def test_a_plan_shows_both_values_and_policies(shops, managed, rabbitmq):
    shop = shops("different_shop")
    vhost = urlsplit(managed).path.removeprefix("/")
    old = Topology(queues=(quorum("shop.charge", delivery_limit=3), quorum("shop.charge.dlq", delivery_limit=10**6)))
    at(managed, lambda broker: broker.declare(old))
    rabbitmq.ctl("set_policy", "-p", vhost, "ttl", "dlq$", '{"message-ttl": 5}')
    found = carom("topology", "plan", shop, "--broker", managed)
    assert found.exit_code == DRIFT
    assert "! queue shop.charge: x-delivery-limit is 3, and 100 is wanted" in found.stdout
    assert "dead letters are deleted after 5 ms, by policy 'ttl'" in found.stdout
    told = json.loads(carom("topology", "plan", shop, "--broker", managed, "--json").stdout)
    assert {"thing", "name", "argument", "wanted", "actual"} == set(told["differs"][0])


def test_leftovers_go_when_they_are_empty_and_stay_when_they_are_not(shops, managed):
    carom("topology", "apply", shops("shop_before", "50s"), "--broker", managed)
    carom("topology", "apply", shops("shop_between", "40s"), "--broker", managed)
    shop = shops("shop_after", "2s")
    carom("topology", "apply", shop, "--broker", managed)
    waiting = Message(body=b"{}", exchange="shop.delay.50s", routing_key="shop.charge")
    at(managed, lambda broker: broker.publish([waiting]))
    planned = carom("topology", "plan", shop, "--broker", managed)
    assert planned.exit_code == DRIFT
    assert "- quorum queue shop.delay.40s\n" in planned.stdout
    asked = carom("topology", "apply", shop, "--broker", managed, "--remove-leftovers", stdin="n\n")
    assert asked.exit_code != OK
    done = carom("topology", "apply", shop, "--broker", managed, "--remove-leftovers", "--yes")
    assert done.exit_code == PARTLY, done.output
    assert "stays: queue 'shop.delay.50s': 1 messages are in it" in done.stderr
    depths = at(managed, lambda broker: broker.depths(["shop.delay.40s", "shop.delay.50s", "shop.delay.2s"]))
    assert depths["shop.delay.40s"] is None
    assert depths["shop.delay.50s"].ready == 1
    assert depths["shop.delay.2s"].ready == 0


def test_what_is_exported_is_imported_as_the_same(shops, managed, rabbitmq, tmp_path):
    shop = shops("exported_shop")
    vhost = urlsplit(managed).path.removeprefix("/")
    found = carom("topology", "export", shop, "--vhost", vhost)
    assert found.exit_code == OK
    (tmp_path / "definitions.json").write_text(found.stdout)
    rabbitmq.ctl("import_definitions", str(tmp_path / "definitions.json"))
    compared = carom("topology", "plan", shop, "--broker", managed)
    assert compared.exit_code == OK, compared.output
    assert carom("doctor", "--definitions", str(tmp_path / "definitions.json")).exit_code == OK


# Grants. Users are made with rabbitmqctl, with exactly what is printed.


@pytest.fixture
def as_user(rabbitmq, empty_rabbitmq_url):
    """Make a user with printed permissions; returns its URL."""
    parts = urlsplit(empty_rabbitmq_url)
    vhost, made = parts.path.removeprefix("/"), []

    def make(shop, *roles):
        options = [word for role in roles for word in ("--role", role)]
        user = f"{vhost}-{'-'.join(roles)}"
        found = carom("topology", "grants", shop, *options, "--user", user, "--vhost", vhost)
        assert found.exit_code == OK, found.output
        command = shlex.split(found.stdout.splitlines()[-1])
        assert command[:2] == ["rabbitmqctl", "set_permissions"]
        made.append(user)
        rabbitmq.ctl("add_user", user, "secret")
        rabbitmq.ctl(*command[1:])
        return f"amqp://{user}:secret@{parts.hostname}:{parts.port}/{vhost}"

    yield make
    for user in made:
        rabbitmq.ctl("delete_user", user)


@pytest.mark.parametrize("layout", ["shared", "per_queue", "kbairak", "goqueue", "binary", "freeflow", "wait_queue"])
def test_an_app_runs_under_exactly_the_printed_permissions(shops, as_user, layout, tmp_path):
    shop = shops(f"least_{layout}", layout=layout)
    admin, publisher, worker = (as_user(shop, role) for role in ("admin", "publisher", "worker"))
    console = as_user(shop, "console")
    assert carom("topology", "apply", shop, "--broker", worker).exit_code == NOT_PERMITTED
    assert carom("topology", "apply", shop, "--broker", admin).exit_code == OK
    assert carom("topology", "apply", shop, "--broker", admin).exit_code == OK
    for number in (1, 2):
        sent = carom("publish", "order.created", f'{{"id": {number}}}', "--exchange", "shop", "--broker", publisher)
        assert sent.exit_code == OK, sent.output
    command = [sys.executable, "-m", "carom", "run", shop, "--broker", worker]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        handled = sorted(running.stdout.readline() for _ in range(3))
        assert handled == ["handling 1\n", "handling 1\n", "handling 2\n"]
        running.terminate()
        assert running.wait(DEADLINE_S) == OK

    async def dead(broker):
        came = asyncio.get_running_loop().create_future()
        await broker.consume("shop.charge.dlq", came.set_result, prefetch=1, ended=came.set_exception)
        async with asyncio.timeout(DEADLINE_S):
            delivery = await came
        delivery.ack()
        return delivery.message

    assert at(console, dead).body == b'{"id": 1}'

    async def forbidden(broker):
        await broker.get("shop.charge.dlq")

    for stranger in (publisher, worker):
        with pytest.raises(NotPermitted):
            at(stranger, forbidden)


def test_a_worker_may_not_read_what_is_not_its_own(shops, as_user, empty_rabbitmq_url):
    worker = as_user(shops("least_of_all"), "worker")
    more = Topology(queues=(Queue("shop.charge.other"),))
    at(empty_rabbitmq_url, lambda broker: broker.declare(more))

    async def peek(broker):
        await broker.get("shop.charge.other")

    with pytest.raises(NotPermitted):
        at(worker, peek)


def test_removing_what_is_gone_already_is_no_error(managed):
    async def remove(broker):
        await broker.remove_queue("nobody")
        await broker.unbind(Binding("amq.topic", "nobody", "x"))
        return await broker.remove_exchange("nobody")

    assert at(managed, remove) is True
