"""``carom doctor --definitions``: anybody's RabbitMQ, from a file."""

import json
import re
from pathlib import Path

import pytest
from cli_stage import carom

from carom.cli.output import CONFIGURATION, DRIFT, OK, UNAVAILABLE, USAGE
from carom.core.lint import CATALOGUE, Level

ROOT = Path(__file__).parent.parent.parent
SEEN = ROOT / "tests" / "core" / "definitions"


@pytest.fixture
def file(tmp_path):
    def write(value):
        path = tmp_path / "definitions.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return str(path)

    return write


def test_what_is_unsafe_is_said_with_what_can_happen_and_what_to_do():
    found = carom("doctor", "--definitions", str(SEEN / "freeflow.json"))
    assert found.exit_code == DRIFT
    assert "retry-fans-out" in found.stdout
    assert "every one of these queues gets a copy" in found.stdout
    assert "-> return a retry to the queue that failed" in found.stdout
    assert "… and 14 more places (-v lists them)" in found.stdout
    assert "\x1b[" not in found.stdout
    at_length = carom("doctor", "--definitions", str(SEEN / "freeflow.json"), "-v").stdout
    assert at_length.count("gives back what waited") == 18


def test_programs_get_everything():
    found = carom("doctor", "--definitions", str(SEEN / "goqueue.json"), "--json")
    assert found.exit_code == DRIFT
    told = json.loads(found.stdout)
    assert told["worst"] == "warning"
    assert {"code", "level", "subject", "says", "risk", "do"} == set(told["findings"][0])


def test_what_is_safe_is_0(file):
    found = carom("doctor", "--definitions", file({"queues": [{"name": "q"}]}))
    assert found.exit_code == OK
    assert found.stdout == "nothing unsafe was found\n"


def test_an_upgrade_makes_unsafe_what_is_not_yet(file):
    here = file({"rabbit_version": "3.13.1", "queues": [{"name": "q", "arguments": {"x-queue-mode": "lazy"}}]})
    assert carom("doctor", "--definitions", here).exit_code == OK
    later = carom("doctor", "--definitions", here, "--upgrade-to", "4.3")
    assert later.exit_code == DRIFT
    assert "queue q: on RabbitMQ 4.3: has x-queue-mode" in later.stdout
    assert carom("doctor", "--definitions", here, "--upgrade-to", "soon").exit_code == USAGE


def test_hostile_names_reach_no_terminal(file):
    name = "q\x1b[2J\u202e\n"
    found = carom("doctor", "--definitions", file({"queues": [{"name": name, "arguments": {"x-message-ttl": 1}}]}))
    assert found.exit_code == DRIFT
    assert "\x1b[2J" not in found.stdout
    assert "\\x1b[2J\\u202e\\n" in found.stdout


@pytest.mark.parametrize("text", ["", "{", "[]", '{"queues": 5}', "[" * 100_000])
def test_what_is_no_definitions_is_78(file, text):
    found = carom("doctor", "--definitions", file(text))
    assert found.exit_code == CONFIGURATION, found.output


def test_one_thing_has_to_be_looked_at():
    assert carom("doctor").exit_code == USAGE
    assert carom("doctor", "shop:app", "--upgrade-to", "4.3").exit_code == USAGE


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:y", "http://user:top-secret@", "nonsense"])
def test_a_management_address_that_is_none_is_78_and_shows_no_password(url):
    found = carom("doctor", "--management", url)
    assert found.exit_code == CONFIGURATION
    assert "top-secret" not in found.output


def test_a_server_that_is_not_there_is_69_and_shows_no_password(tmp_path):
    (tmp_path / "url").write_text("http://somebody:top-secret@127.0.0.1:1")
    found = carom("doctor", CAROM_MANAGEMENT_FILE=str(tmp_path / "url"))
    assert found.exit_code == UNAVAILABLE
    assert "top-secret" not in found.output


def test_the_document_has_every_finding():
    document = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `([a-z-]+)` \| (\w+) \|", document, re.MULTILINE))
    assert told == {code: kind.level.name.lower() for code, kind in CATALOGUE.items() if kind.level > Level.FINE}
