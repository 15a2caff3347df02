"""``carom dead`` and ``carom topology drain``: what was dead lives again, or is gone because somebody said so."""

import asyncio
import json

import pytest
from cli_stage import SHOP, carom, real, running, taken

from carom import adapters
from carom.cli.output import CONFIGURATION, FAILED, NOTHING_MATCHED, OK, PARTLY, USAGE
from carom.core import message as names
from carom.core.message import Message
from carom.core.topology import Topology, quorum
from carom.failpoints import VARIABLE
from carom.runtime.clock import RealClock

APP = "dead_shop:app"
ALL = ("--queue", "shop.charge", "--count", "100")
FLIMSY = """
from carom import App
app = App("{broker}", name="shop", exchange="shop", namespace="shop", layout="kbairak")
@app.listen("order.*", queue="shop.charge", retry=("1s",))
async def charge(order: dict) -> None: ...
@app.listen("mail.*", queue="shop.mail", retry=("1s",))
async def mail(order: dict) -> None: ...
"""
RETRYING = """
from carom import App
app = App("{broker}", name="shop", exchange="shop", namespace="shop", layout="goqueue")
@app.listen("order.*", queue="shop.charge", retry=("1h",))
async def charge(order: dict) -> None: ...
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Go to a folder with the app, and return the file of its broker."""
    (tmp_path / "dead_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "shop.db"


@pytest.fixture(params=["embedded", "rabbitmq"])
def broker(request, tmp_path, monkeypatch):
    """The URL of a broker, of either kind, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return "embedded:///dead.db" if request.param == "embedded" else request.getfixturevalue("empty_rabbitmq_url")


def written(tmp_path, name, text, broker):
    name += "_" + broker.partition(":")[0]
    (tmp_path / f"{name}.py").write_text(text.format(broker=broker))
    assert carom("topology", "apply", f"{name}:app").exit_code == 0
    return f"{name}:app"


def at(url, do):
    async def done():
        broker = adapters.broker(url, RealClock(), lambda _event: None)
        await broker.open()
        try:
            return await do(broker)
        finally:
            await broker.close()

    return asyncio.run(done())


def put(url, *messages, queues=()):
    """Declare queues and publish to some queue by its name."""

    async def do(broker):
        await broker.declare(Topology(queues=tuple(quorum(name) for name in queues)))
        for result in await broker.publish(messages):
            assert type(result).__name__ == "Confirmed"

    at(url, do)


def everything(url, queue):
    async def do(broker):
        found = []
        while (delivery := await broker.get(queue)) is not None:
            delivery.ack()
            found.append(delivery.message)
        return found

    return at(url, do)


def letter(number, queue="shop.charge", dead="shop.charge.dlq", **headers):
    headers = {names.QUEUE: queue, names.EXCHANGE: "shop", names.KEY: "order.x", names.REASON: "exhausted", **headers}
    return Message(body=b"{}", exchange="", routing_key=dead, id=f"m-{number}", headers=headers)


def test_a_dead_letter_is_listed_replayed_and_handled_anew(shop):
    carom("topology", "apply", APP)
    put("embedded:///shop.db", *(letter(number) for number in range(3)))
    listed = carom("dead", "list", APP, "--queue", "shop.charge", "--count", "2")
    assert listed.exit_code == OK, listed.output
    assert [line.split()[:4] for line in listed.stdout.splitlines()[1:]] == [
        ["m-0", "shop.charge", "order.x", "exhausted"],
        ["m-1", "shop.charge", "order.x", "exhausted"],
    ]
    assert "counts as returned once" in listed.stderr
    replayed = carom("dead", "replay", APP, "--queue", "shop.charge.dlq", "--count", "2", "--yes", "--json")
    assert replayed.exit_code == OK, replayed.output
    assert json.loads(replayed.stdout) == {"schema": 1, "replayed": 2, "stays": []}
    assert [one.id for one in taken(shop, "shop.charge")] == ["m-0", "m-1"]
    assert [one.id for one in taken(shop, "shop.charge.dlq")] == ["m-2"]


def test_what_was_really_rejected_is_dead_again_with_its_deaths_counted(shop):
    carom("topology", "apply", APP)
    with running("run", APP, "--log-format", "json", cwd=".") as worker:
        carom("publish", "order.x", '{"reject": "no such order"}', "--app", APP, "--id", "m-1")
        taken_once = _until_dead("shop.db")
        assert carom("dead", "replay", APP, *ALL, "--yes").exit_code == OK
        taken_twice = _until_dead("shop.db", deaths=2)
        worker.process.terminate()
        worker.end()
    assert (taken_once["id"], taken_once["reason"], taken_once["deaths"]) == ("m-1", "rejected", 1)
    assert (taken_twice["id"], taken_twice["attempts"], taken_twice["deaths"]) == ("m-1", 1, 2)


def _until_dead(file, deaths=1):
    """List until there is one that died so often: a worker that runs takes what it takes."""
    for _ in range(2_000):
        found = carom("dead", "list", APP, "--queue", "shop.charge", "--json", "--broker", f"embedded:///{file}")
        for one in json.loads(found.stdout)["dead_letters"]:
            if one["deaths"] == deaths:
                return one
    raise AssertionError("it did not die")


def test_what_is_discarded_is_gone_and_only_with_a_yes(shop):
    carom("topology", "apply", APP)
    put("embedded:///shop.db", *(letter(number) for number in range(3)))
    assert carom("dead", "discard", APP, *ALL).exit_code == USAGE
    shown = carom("dead", "discard", APP, *ALL, "--dry-run", "--json")
    assert [one["id"] for one in json.loads(shown.stdout)["dead_letters"]] == ["m-0", "m-1", "m-2"]
    done = carom("dead", "discard", APP, "--queue", "shop.charge", "--count", "2", "--yes")
    assert (done.exit_code, done.stderr) == (OK, "2 dead letters discarded, 0 still there\n")
    assert [one.id for one in taken(shop, "shop.charge.dlq")] == ["m-2"]
    for command in ("list", "replay", "discard"):
        yes = () if command == "list" else ("--yes",)
        assert carom("dead", command, APP, *ALL, *yes).exit_code == NOTHING_MATCHED
    assert carom("dead", "replay", APP, *ALL, "--dry-run").exit_code == NOTHING_MATCHED


def test_a_queue_that_is_none_of_the_apps_is_a_mistake(shop):
    found = carom("dead", "list", APP, "--queue", "shop.post")
    assert found.exit_code == CONFIGURATION
    assert "'shop.post' has no dead letters in this app" in found.stderr
    assert carom("topology", "drain", APP, "a", "--to", "a", "--yes").exit_code == USAGE
    assert carom("topology", "drain", APP, "a", "--to", "b").exit_code == USAGE
    assert carom("dead", "list", APP, "--queue", "shop.charge", "--broker", "embedded://").exit_code == USAGE


def test_what_has_no_home_or_nowhere_to_go_stays(broker, tmp_path):
    app = written(tmp_path, "flimsy_shop", FLIMSY, broker)
    suspects = "shop.suspects.shop.dlq"
    heavy = {"heavy": "x" * 100_000, "weight": "x" * 16_000}
    put(broker, letter(1, "unknown", suspects), letter(2, "shop.mail", suspects), letter(3, dead=suspects, **heavy))
    part = carom("dead", "replay", app, "--queue", suspects, "--count", "9", "--yes", "--json")
    assert part.exit_code == PARTLY, part.output
    value = json.loads(part.stdout)
    assert value["replayed"] == 1
    assert {one["id"]: one["why"][:19] for one in value["stays"]} == {
        "m-1": "nothing on it says ",
        "m-3": "its headers would n",
    }
    none = carom("dead", "replay", app, "--queue", suspects, "--count", "1", "--yes")
    assert none.exit_code == FAILED
    assert [one.id for one in everything(broker, "shop.mail")] == ["m-2"]
    assert sorted(one.id for one in everything(broker, suspects)) == ["m-1", "m-3"]


def test_looking_never_uses_a_dead_letter_up(broker, tmp_path):
    app = written(tmp_path, "peeked_shop", FLIMSY, broker)
    put(broker, letter(1), letter(2))
    returns = []
    for _ in range(24):
        found = carom("dead", "list", app, "--queue", "shop.charge", "--json")
        letters = json.loads(found.stdout)["dead_letters"]
        assert sorted(one["id"] for one in letters) == ["m-1", "m-2"]
        returns.append(max(one["returns"] for one in letters))
    assert max(returns) == 15
    replayed = carom("dead", "replay", app, "--queue", "shop.charge", "--count", "9", "--yes")
    assert replayed.exit_code == OK
    assert sorted(one.id for one in everything(broker, "shop.charge")) == ["m-1", "m-2"]


def test_a_replay_takes_no_more_than_was_there_and_never_its_own(broker, tmp_path):
    app = written(tmp_path, "many_shop", FLIMSY, broker)
    put(broker, *(letter(number) for number in range(450)))
    done = carom("dead", "replay", app, "--queue", "shop.charge", "--count", "425", "--yes", "--json")
    assert json.loads(done.stdout)["replayed"] == 425, done.output
    assert [one.id for one in everything(broker, "shop.charge")] == [f"m-{number}" for number in range(425)]
    assert len(everything(broker, "shop.charge.dlq")) == 25


def test_a_retry_queue_is_drained_into_its_queue_and_purged_of_nothing(broker, tmp_path):
    app = written(tmp_path, "draining_shop", RETRYING, broker)
    retry = "shop.charge__retry.1"
    origin = {"goqueue-original-topic-name": "shop", "goqueue-original-action-name": "order.x"}
    headers = {"goqueue-retry-count": 1, **origin}
    waiting = Message(body=b'{"data":1}', exchange="", routing_key=retry, id="m", expiration="3600000", headers=headers)
    put(broker, *[waiting] * 3)
    drain = ("topology", "drain", app, retry, "--to", "shop.charge")
    assert json.loads(carom(*drain, "--dry-run", "--json").stdout)["ready"] == 3
    first = carom(*drain, "--yes", "--count", "2")
    assert (first.exit_code, first.stderr) == (OK, "2 messages moved, 0 still there\n")
    assert json.loads(carom(*drain, "--yes", "--json").stdout) == {"schema": 1, "moved": 1, "stays": []}
    found = everything(broker, "shop.charge")
    assert [(one.body, one.expiration, one.headers["goqueue-retry-count"]) for one in found] == [
        (b'{"data":1}', "", 1)
    ] * 3
    assert all(one.headers["goqueue-original-action-name"] == "order.x" for one in found)
    assert carom(*drain, "--yes").exit_code == carom(*drain, "--dry-run").exit_code == NOTHING_MATCHED


def test_what_cannot_be_moved_stays_in_its_queue(broker, tmp_path):
    app = written(tmp_path, "stuck_shop", RETRYING, broker)
    put(broker, Message(exchange="", routing_key="from", id="m-1", body=b"1"), queues=("from",))
    nowhere = carom("topology", "drain", app, "from", "--to", "nowhere", "--yes")
    assert nowhere.exit_code == FAILED
    assert "stays: m-1: returned" in nowhere.stderr
    assert carom("topology", "drain", app, "none", "--to", "from", "--yes").exit_code == NOTHING_MATCHED
    (still,) = everything(broker, "from")
    assert still.body == b"1"


def test_who_is_killed_between_the_confirm_and_the_ack_has_it_twice_and_not_never(broker, tmp_path):
    app = written(tmp_path, "killed_shop", FLIMSY, broker)
    put(broker, *(letter(number) for number in range(3)))
    replay = ("dead", "replay", app, *ALL, "--yes")
    killed = real(*replay, cwd=tmp_path, **{VARIABLE: "moved.published=kill"})
    assert killed.returncode == -9
    for _ in range(2_000):
        if carom(*replay).exit_code == OK:  # the broker has noticed by then, and given them back
            break
    found = everything(broker, "shop.charge")
    assert {one.id for one in found} == {"m-0", "m-1", "m-2"}
    assert len(found) == 6
    assert not everything(broker, "shop.charge.dlq")
