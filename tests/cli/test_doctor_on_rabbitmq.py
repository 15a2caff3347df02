"""The doctor at a real RabbitMQ: what it reads, and that it resolves policies as the server itself does."""

import asyncio
import base64
import json
import random
import re
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import pytest
from cli_stage import carom

from carom import adapters
from carom.cli.output import DRIFT, NOT_PERMITTED, OK
from carom.core.lint.policies import applied

SEED = 20_260_719


class Server:
    """A vhost, through its management API."""

    def __init__(self, rabbitmq_url, management_url):
        parts = urlsplit(rabbitmq_url)
        self.vhost = parts.path.removeprefix("/")
        self.place = management_url.partition("://")[2]
        self.user = f"{parts.username}:{parts.password}"
        self.url = f"http://{self.user}@{self.place}"

    def call(self, method, path, value=None):
        secret = base64.b64encode(self.user.encode()).decode()
        body = None if value is None else json.dumps(value).encode()
        headers = {"Authorization": f"Basic {secret}", "Content-Type": "application/json"}
        request = Request(f"http://{self.place}/api/{path}", body, headers, method=method)
        with urlopen(request, timeout=30) as answer:  # noqa: S310 - the test's own server
            said = answer.read()
        return json.loads(said) if said else None

    def put(self, kind, name, value):
        self.call("PUT", f"{kind}/{self.vhost}/{quote(name, safe='')}", value)

    def observe(self):
        return asyncio.run(adapters.management(self.url).observe(self.vhost))


@pytest.fixture
def server(empty_rabbitmq_url, rabbitmq_management_url):
    assert rabbitmq_management_url, "these tests need the management API"
    return Server(empty_rabbitmq_url, rabbitmq_management_url)


def test_a_running_server_is_looked_at(server):
    server.put("queues", "orders", {"durable": True, "arguments": {"x-message-ttl": 1000}})
    server.put("policies", "limit", {"pattern": "^orders", "definition": {"max-length": 5}, "apply-to": "queues"})
    found = carom("doctor", "--management", server.url, "--json")
    assert found.exit_code == DRIFT, found.output
    here = [one for one in json.loads(found.stdout)["findings"] if server.vhost in one["subject"]]
    assert {(one["code"], one["subject"]) for one in here} == {
        ("ttl-without-dlx", f"queue orders in vhost {server.vhost}"),
        ("work-drops", f"queue orders in vhost {server.vhost}"),
    }


def test_wrong_credentials_are_77(server):
    found = carom("doctor", "--management", f"http://nobody:top-secret@{server.place}")
    assert found.exit_code == NOT_PERMITTED
    assert "top-secret" not in found.output


DEFINITIONS = (
    {"message-ttl": 5000},
    {"max-length": 7, "overflow": "reject-publish"},
    {"ha-mode": "all"},
    {"ha-mode": "all", "expires": 60_000},
    {"delivery-limit": 3},
    {"dead-letter-exchange": "x", "message-ttl": 100},
    {"max-length": 3, "expires": 90_000, "delivery-limit": 9},
)
OPERATORS = ({"message-ttl": 900}, {"max-length": 5, "expires": 70_000}, {"delivery-limit": 2})
PATTERNS = ("", ".*", "^a", "b$", "^a.*b$", "[ab]{2}", "a|c", r"^a\.b")


WHAT_APPLIES = """
Said = fun(Q) -> #{
  name => element(4, amqqueue:get_name(Q)), policy => rabbit_policy:name(Q), operator => rabbit_policy:name_op(Q),
  defines => case rabbit_policy:effective_definition(Q) of undefined -> #{}; D -> maps:from_list(D) end} end,
binary_to_list(base64:encode(rabbit_json:encode([Said(Q) || Q <- rabbit_amqqueue:list(<<"VHOST">>)]))).
"""


def test_policies_are_resolved_as_the_server_does(server, rabbitmq):
    draw = random.Random(SEED)
    for number, name in enumerate(("a", "ab", "a.b", "cb", "bc", "aab")):
        kind = "quorum" if number % 2 else "classic"
        server.put("queues", name, {"durable": True, "arguments": {"x-queue-type": kind}})
    for number in range(12):
        apply_to = draw.choice(("all", "queues", "exchanges"))
        there = {"pattern": draw.choice(PATTERNS), "priority": number, "apply-to": apply_to}
        server.put("policies", f"p{number}", {**there, "definition": draw.choice(DEFINITIONS)})
    for number in range(4):
        there = {"pattern": draw.choice(PATTERNS), "priority": number, "apply-to": "queues"}
        server.put("operator-policies", f"o{number}", {**there, "definition": draw.choice(OPERATORS)})
    seen = server.observe()
    (vhost,) = seen.vhosts
    printed = rabbitmq.ctl("eval", WHAT_APPLIES.replace("VHOST", server.vhost))
    said = json.loads(base64.b64decode("".join(re.findall(r'"([^"]*)"', printed))))
    theirs = {one["name"]: (one["policy"], one["operator"], one["defines"] or None) for one in said}
    ours = {}
    for queue in vhost.queues:
        found = applied(queue, vhost.policies, seen.version)
        names = (there[0].name if there else "none" for there in (found.matching, found.operators))
        ours[queue.name] = (*names, found.defines or None)
    assert ours == theirs


def test_an_app_s_queue_under_a_policy_is_found(server, empty_rabbitmq_url, tmp_path, monkeypatch):
    (tmp_path / "policed_shop.py").write_text(
        "from carom import App\n"
        'app = App("embedded://", name="shop")\n\n'
        '@app.listen("order.*", queue="shop.charge", retry=("5s",))\n'
        "async def charge(order: dict) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    at = ("policed_shop:app", "--broker", f"{empty_rabbitmq_url}?management=http://{server.place}")
    assert carom("topology", "apply", *at).exit_code == OK
    assert carom("doctor", *at).exit_code == OK
    server.put("policies", "short", {"pattern": "dlq$", "definition": {"message-ttl": 1000}, "apply-to": "queues"})
    found = carom("doctor", *at)
    assert found.exit_code == DRIFT
    assert "dlq-expires" in found.stdout
