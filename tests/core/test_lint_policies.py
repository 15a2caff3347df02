"""Which policy applies, and what is effective then."""

import pytest
from lint_cases import policy, queue, quorum

from carom.core.lint.policies import applied, effective, matches
from carom.core.lint.seen import Policy

KIND = {"classic": queue, "quorum": quorum}


def defines(there, *policies, version=(3, 13)):
    return dict(applied(there, policies, version).defines)


def counts(there, *policies):
    return effective(there, applied(there, policies, (3, 13)).defines)


def test_the_highest_priority_wins_and_nothing_is_merged():
    low, high = policy("low", max_length=1, expires=9), policy("high", priority=3, max_length=2)
    assert defines(queue(), low, high) == {"max-length": 2}


def test_a_pattern_is_searched_for_anywhere_in_the_name():
    assert defines(queue("my.work"), policy(pattern="wor", max_length=1)) == {"max-length": 1}
    assert defines(queue("my.work"), policy(pattern="^wor", max_length=1)) == {}
    assert matches("(", "x") is None
    assert matches("^.{5}$", "käse")
    assert matches("[[:alpha:]]", "x") is None, "a set inside a set means something else to RabbitMQ"


@pytest.mark.parametrize(
    ("apply_to", "version", "applies"),
    [
        ("all", (3, 10), True),
        ("queues", (3, 10), True),
        ("exchanges", (3, 10), False),
        ("quorum_queues", (3, 13), True),
        ("quorum_queues", (0, 0), True),
        ("quorum_queues", (3, 11), False),
        ("classic_queues", (3, 13), False),
    ],
)
def test_what_a_policy_is_for(apply_to, version, applies):
    there = policy(apply_to=apply_to, max_length=1)
    assert defines(quorum(), there, version=version) == ({"max-length": 1} if applies else {})


def test_a_key_that_is_not_for_this_kind_makes_the_next_policy_apply():
    odd, even = policy("odd", priority=9, ha_mode="all", max_length=1), policy("even", max_length=2)
    assert defines(quorum(), odd, even) == {"max-length": 2}
    assert defines(queue(), odd, even) == {"ha-mode": "all", "max-length": 1}
    limit = policy("limit", delivery_limit=5)
    assert defines(queue(), limit) == {}
    assert defines(queue(queue_type="stream"), policy(expires=5)) == {}
    assert defines(queue(queue_type="odd"), policy(expires=5)) == {"expires": 5}


def test_the_operator_is_merged_the_smaller_number_winning():
    mine = policy("mine", message_ttl=100, max_length=5, overflow="reject-publish")
    operator = policy("op", operator=True, message_ttl=500, max_length=2, overflow="drop-head", expires=7)
    assert defines(queue(), mine, operator) == {
        "message-ttl": 100,
        "max-length": 2,
        "overflow": "drop-head",
        "expires": 7,
    }


@pytest.mark.parametrize("kind", KIND)
def test_the_smaller_number_counts_whoever_said_it(kind):
    make = KIND[kind]
    assert counts(make(message_ttl=5), policy(message_ttl=9))["message-ttl"] == 5
    assert counts(make(message_ttl=9), policy(message_ttl=5))["message-ttl"] == 5
    assert counts(make(message_ttl=9))["message-ttl"] == 9
    assert counts(make(), policy(message_ttl=9))["message-ttl"] == 9


@pytest.mark.parametrize("kind", KIND)
def test_a_dead_letter_argument_beats_its_policy(kind):
    both = KIND[kind](dead_letter_exchange="mine")
    assert counts(both, policy(dead_letter_exchange="theirs"))["dead-letter-exchange"] == "mine"


def test_overflow_and_expires_depend_on_the_kind_of_queue():
    there = policy(overflow="drop-head", expires=9)
    assert counts(quorum(overflow="reject-publish", expires=5), there)["overflow"] == "drop-head"
    assert counts(quorum(overflow="reject-publish", expires=5), there)["expires"] == 9
    assert counts(queue(overflow="reject-publish", expires=5), there)["overflow"] == "reject-publish"
    assert counts(queue(overflow="reject-publish", expires=5), there)["expires"] == 5


def test_no_limit_gives_way_to_one():
    assert counts(quorum(delivery_limit=-1), policy(delivery_limit=7))["delivery-limit"] == 7
    assert counts(quorum(delivery_limit=3), policy(delivery_limit=7))["delivery-limit"] == 3


def test_values_that_are_no_numbers_are_not_compared():
    assert counts(queue(message_ttl="soon"), Policy("p", "", {"message-ttl": 5}))["message-ttl"] == "soon"
