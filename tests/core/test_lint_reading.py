"""From definitions to what a server has."""

import pytest
from lint_cases import queue as make

from carom.core.lint import definitions
from carom.core.lint.seen import Facts
from carom.core.lint.view import View
from carom.errors import ConfigurationError


def test_definitions_of_several_vhosts():
    there = definitions(
        {
            "rabbit_version": "3.12.1",
            "vhosts": [{"name": "a"}, {"name": "empty"}],
            "queues": [{"name": "q", "vhost": "a"}, {"name": "q", "vhost": "b", "durable": False, "arguments": []}],
        }
    )
    assert there.version == (3, 12)
    assert [(one.name, len(one.queues)) for one in there.vhosts] == [("a", 1), ("empty", 0), ("b", 1)]


def test_definitions_of_one_vhost_name_none():
    there = definitions({"queues": [{"name": "q"}]}, "4.1.0", "mine")
    assert there.version == (4, 1)
    assert there.vhosts[0].name == "mine"


def test_a_queue_of_the_management_api_says_more():
    said = {
        "name": "q",
        "type": "quorum",
        "messages": 4,
        "consumers": 1,
        "without_ack": True,
        "owner_pid_details": {"name": "somebody"},
    }
    (queue,) = definitions({"queues": [said]}).vhosts[0].queues
    assert queue.kind == "quorum"
    assert queue.exclusive
    assert queue.facts == Facts(4, 1, 0)


def test_policies_are_read_from_all_three_places():
    there = definitions(
        {
            "policies": [{"name": "p", "pattern": ".*", "definition": {"expires": 5}, "priority": 1}],
            "operator_policies": [{"name": "o", "pattern": ".*", "definition": {}}],
            "parameters": [
                {"component": "operator_policy", "name": "m", "value": {"pattern": "^x", "definition": {"expires": 1}}},
                {"component": "shovel", "name": "s", "value": {}},
                {"component": "operator_policy", "name": "odd", "value": 5},
            ],
        }
    )
    assert [(one.name, one.operator) for one in there.vhosts[0].policies] == [("p", False), ("m", True), ("o", True)]


def test_feature_flags_and_bindings_to_exchanges():
    there = definitions(
        {
            "feature_flags": [
                {"name": "stream_queue", "state": "enabled"},
                {"name": "quorum_queue", "state": "disabled"},
            ],
            "exchanges": [{"name": "", "type": "direct"}, {"name": "e", "type": "topic", "internal": True}],
            "bindings": [
                {"source": "", "destination": "q", "routing_key": "q", "destination_type": "queue"},
                {"source": "e", "destination": "f", "routing_key": "#", "destination_type": "exchange"},
            ],
        }
    )
    assert there.flags == {"stream_queue": True, "quorum_queue": False}
    view = View(there, there.vhosts[0])
    assert "" not in view.exchanges
    assert [(one.target, one.to) for one in view.bound("e")] == [("f", "exchange")]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "a list"),
        (None, "nothing"),
        ({"queues": {}}, "an object"),
        ({"queues": ["q"]}, "text"),
        ({"queues": [5]}, "something else"),
        ({"queues": [{}]}, "no text as its 'name'"),
        ({"queues": [{"name": "q", "arguments": "x"}]}, "no object as its 'arguments'"),
        ({"policies": [{"name": "p", "pattern": "", "definition": {}, "priority": "1"}]}, "no number"),
        ({"policies": [{"name": "p", "pattern": "", "definition": {}, "priority": True}]}, "no number"),
    ],
)
def test_what_is_no_definitions_is_refused_with_a_sentence(value, words):
    with pytest.raises(ConfigurationError, match=words):
        definitions(value)


def test_a_queue_is_classic_unless_it_says_otherwise():
    assert make().kind == "classic"
