"""What is found in a RabbitMQ, kind by kind, and what is not."""

import pytest
from lint_cases import bound, codes, exchange, policy, queue, quorum, safe, server, subjects

from carom.core.lint import CATALOGUE, Level, found, review

DLQ = quorum("work.dlq", delivery_limit=1_000_000)
DEAD = (exchange("dead"), bound("dead", "work.dlq", "work"), DLQ)
WORK = quorum(delivery_limit=50, **safe("dead", "work"))


def test_a_queue_with_a_terminal_dead_letter_queue_is_clean():
    assert codes(WORK, *DEAD) == set()


def test_every_kind_says_what_can_happen_and_what_to_do():
    for code, kind in CATALOGUE.items():
        assert code == "fine" or (kind.risk and kind.do), code
    assert found("kept", "queue x", "3 messages are kept here").level is Level.NOTE


# Dead letters.


def test_a_time_to_live_without_a_dead_letter_exchange():
    assert "ttl-without-dlx" in codes(queue(message_ttl=1000))
    assert "ttl-without-dlx" in codes(queue(), policy(message_ttl=1000))


def test_a_dead_letter_exchange_that_does_not_exist_or_leads_nowhere():
    assert "dlx-missing" in codes(quorum(delivery_limit=5, **safe("dead")))
    assert "dlx-unbound" in codes(exchange("dead"), quorum(delivery_limit=5, **safe("dead")))
    other_key = bound("dead", "work.dlq", "other")
    assert "dlx-unbound" in codes(WORK, exchange("dead"), other_key, DLQ)
    assert "dlx-unbound" in codes(quorum(delivery_limit=5, **safe("", "nobody")))


def test_what_an_alternate_exchange_takes_is_not_lost():
    lost = (exchange("lost", "fanout"), bound("lost", "lost"), quorum("lost", delivery_limit=1_000_000))
    assert codes(WORK, exchange("dead", alternate_exchange="lost"), *lost) == set()


def test_where_an_exchange_of_a_plugin_sends_is_not_judged():
    assert codes(quorum(delivery_limit=5, **safe("dead", "k")), exchange("dead", "x-random")) == set()
    headers = (exchange("dead", "headers"), bound("dead", "work.dlq"), DLQ)
    assert codes(quorum(delivery_limit=5, **safe("dead", "k")), *headers) == set()


def test_dead_letters_at_most_once():
    loose = quorum(delivery_limit=5, dead_letter_exchange="dead", dead_letter_routing_key="work")
    assert codes(loose, *DEAD) == {"dead-letters-at-most-once"}
    classic = queue(dead_letter_exchange="dead", dead_letter_routing_key="work")
    assert codes(classic, *DEAD) == {"dead-letters-at-most-once", "(unlimited-redelivery)"}
    stream = queue("log", queue_type="stream", dead_letter_exchange="dead", dead_letter_routing_key="work")
    assert codes(stream, *DEAD) == {"argument-refused"}


@pytest.mark.parametrize(
    ("things", "said"),
    [
        ([quorum(delivery_limit=5, dead_letter_exchange="dead", dead_letter_strategy="at-least-once")], "drop-head"),
        ([WORK, policy(overflow="drop-head")], "drop-head by a policy"),
        ([queue(**safe("dead", "work"))], "as a classic queue"),
    ],
)
def test_at_least_once_that_is_none(things, said):
    told = review(server(*things, *DEAD))
    (one,) = [each for each in told if each.code == "at-least-once-downgraded"]
    assert said in one.says


def test_at_least_once_needs_a_feature_flag_before_3_12():
    for version, flags, is_found in (
        ("3.10.8", {"stream_queue": False}, True),
        ("3.10.8", {"stream_queue": True}, False),
        ("3.10.8", {}, False),
        ("3.12.0", {"stream_queue": False}, False),
        ("", {"stream_queue": False}, False),
    ):
        assert ("at-least-once-downgraded" in codes(WORK, *DEAD, version=version, flags=flags)) is is_found


def test_one_missing_queue_must_not_stop_a_delay_for_all():
    def back(**options):
        return quorum("delay.2s", message_ttl=2000, **options)

    into = (exchange("delay.2s", "fanout"), bound("delay.2s", "delay.2s"))
    here = (exchange("back"), bound("back", "work", "work"), *into, WORK, *DEAD)
    assert codes(back(**safe("back")), *here) == {"at-least-once-pins"}
    assert codes(back(**safe("")), *here) == {"at-least-once-pins"}
    assert codes(back(**safe("", "work")), *here) == set()
    fanout = (exchange("back", "fanout"), bound("back", "work"), WORK, *DEAD)
    assert codes(back(**safe("back")), *fanout) == set()


def test_dead_letters_that_come_back_by_themselves():
    loop = (
        quorum(delivery_limit=5, **safe("", "wait")),
        quorum("wait", message_ttl=1000, **safe("", "work")),
    )
    assert subjects("dlx-cycle", *loop) == {"queue work"}
    unlimited = (quorum(**safe("", "wait")), loop[1])
    assert "dlx-cycle" not in codes(*unlimited, version="3.13.1")
    assert "dlx-cycle" in codes(*unlimited, version="4.1.0")


# Delays.


def delay(**options):
    return quorum("retry.5s", message_ttl=5000, **safe("", "work"), **options)


def test_a_delay_that_gives_each_retry_to_the_queue_that_failed_is_clean():
    assert codes(delay(), WORK, *DEAD) == set()


def test_retries_that_fan_out():
    topic = (exchange("events", "topic"), bound("events", "work", "a.*"), bound("events", "audit", "#"))
    audit = quorum("audit", delivery_limit=50, **safe("dead", "work"))
    there = (*topic, audit, WORK, *DEAD)
    keyed = quorum("retry.5s", message_ttl=5000, **safe("events", "a.retry"))
    assert subjects("retry-fans-out", keyed, *there) == {"queue retry.5s"}
    keeping = quorum("retry.5s", message_ttl=5000, **safe("events"))
    assert subjects("retry-fans-out", keeping, *there) == {"queue retry.5s"}
    alone = (exchange("events", "topic"), bound("events", "work", "a.*"), WORK, *DEAD)
    assert subjects("retry-fans-out", keeping, *alone) == set()
    fanout = (exchange("events", "fanout"), bound("events", "work"), bound("events", "audit"), audit, WORK, *DEAD)
    assert subjects("retry-fans-out", keeping, *fanout) == {"queue retry.5s"}


def test_a_fan_out_to_many_is_told_in_short():
    names = [f"service.{number}" for number in range(8)]
    many = [quorum(name, delivery_limit=50, **safe("dead", "work")) for name in names]
    ways = [bound("events", name, "#") for name in names]
    keyed = quorum("retry.5s", message_ttl=5000, **safe("events", "x"))
    told = review(server(exchange("events", "topic"), keyed, *many, *ways, *DEAD))
    (one,) = [each for each in told if each.code == "retry-fans-out"]
    assert one.says.endswith("service.4 and 3 more")


def test_a_delay_whose_messages_bring_their_own_time_blocks():
    assert subjects("per-message-ttl", quorum("orders.retry", **safe("", "work")), WORK, *DEAD) == {
        "queue orders.retry"
    }


def test_a_delay_by_policy_alone_is_one_policy_away_from_none():
    bare = quorum("wait.5s")
    given = policy("waits", "^wait", message_ttl=5000, dead_letter_exchange="", dead_letter_routing_key="work")
    assert subjects("delay-by-policy", bare, given, WORK, *DEAD) == {"queue wait.5s"}


def test_what_a_delay_must_not_have():
    assert codes(delay(expires=60_000), WORK, *DEAD) == {"delay-expires"}
    assert codes(delay(facts=(3, 1)), WORK, *DEAD) == {"delay-consumed"}
    assert codes(delay(facts=(3, 0)), WORK, *DEAD) == set()
    dropping = quorum(
        "retry.5s", message_ttl=5000, max_length=10, dead_letter_exchange="", dead_letter_routing_key="work"
    )
    assert "delay-drops" in codes(dropping, WORK, *DEAD)
    bytes_ = quorum("retry.5s", message_ttl=5000, max_length_bytes=9, **safe("", "work"))
    assert codes(bytes_, WORK, *DEAD) == set()
    by_policy = policy("full", "^retry", overflow="drop-head")
    assert "delay-drops" in codes(bytes_, by_policy, WORK, *DEAD)


def test_a_queue_whose_messages_expire_to_where_they_end_is_no_delay():
    there = (
        exchange("late", "fanout"),
        bound("late", "orders.expired"),
        quorum("orders.expired", delivery_limit=10**6),
    )
    timed = quorum("orders", message_ttl=5000, delivery_limit=9, **safe("late"))
    assert codes(timed, *there) == {"(work-expires)"}
    waiting = quorum("tier1", message_ttl=5000, expires=9, **safe("back", "orders"))
    back = (exchange("back"), bound("back", "orders", "orders"))
    assert codes(waiting, timed, *there, *back) == {"delay-expires", "(work-expires)"}


# Where messages are kept.


def test_dead_letters_that_do_not_stay():
    for name, option in (("dlq-expires", "message_ttl"), ("dlq-expires", "expires"), ("dlq-drops", "max_length")):
        kept = quorum("work.dlq", delivery_limit=1_000_000, **{option: 1000})
        assert codes(WORK, exchange("dead"), bound("dead", "work.dlq", "work"), kept) == {name}


def test_a_policy_on_a_dead_letter_queue_is_named():
    told = review(server(WORK, *DEAD, policy("ttl", r"^work\.dlq$", message_ttl=1000)))
    (one,) = told
    assert one.code == "dlq-expires"
    assert one.says == "dead letters are deleted after 1000 ms, by policy 'ttl'"


def test_a_dead_letter_queue_that_looking_empties():
    few = (exchange("dead"), bound("dead", "work.dlq", "work"), quorum("work.dlq"))
    assert codes(WORK, *few, version="4.1.0") == {"dlq-peeked-away"}
    assert codes(WORK, *few, version="3.13.1") == {"(dlq-peeked-away)"}
    assert codes(WORK, *few, version="") == set()


def test_a_limit_without_a_dead_letter_exchange_deletes():
    assert codes(quorum(delivery_limit=5)) == {"limit-without-dlx"}
    assert codes(quorum(), version="4.0.1") == {"limit-without-dlx"}
    assert codes(quorum(), version="") == set()


def test_redelivery_without_end():
    endless = quorum(**safe("dead", "work"))
    assert codes(endless, *DEAD) == {"unlimited-redelivery"}
    assert codes(endless, *DEAD, version="4.2.0") == set()
    assert codes(endless, *DEAD, version="") == set()
    assert codes(quorum(delivery_limit=-1, **safe("dead", "work")), *DEAD, version="4.2.0") == {"unlimited-redelivery"}
    assert codes(quorum(delivery_limit=10**6, **safe("dead", "work")), *DEAD) == set()


def test_a_plain_queue_of_anybody_is_no_finding():
    assert codes(queue()) == set()
    assert codes(queue(exclusive=True, durable=False)) == set()
    assert codes(queue("log", queue_type="stream")) == set()


def test_work_that_is_dropped_or_expires():
    assert codes(queue(max_length=5)) == {"work-drops"}
    assert codes(queue(max_length=5, overflow="reject-publish")) == set()
    limited = quorum(delivery_limit=5, max_length=5, dead_letter_exchange="dead", dead_letter_routing_key="work")
    assert codes(limited, *DEAD) == {"dead-letters-at-most-once", "(work-drops)"}
    timed = quorum(delivery_limit=5, message_ttl=5, **safe("dead", "work"))
    assert codes(timed, *DEAD) == {"(work-expires)"}


def test_consumers_that_do_not_acknowledge():
    assert codes(queue(facts=(0, 2, 1))) == {"consumed-without-ack"}


# Policies.


def test_a_policy_hides_another():
    high = policy("high", "^work", priority=5, max_length=9)
    low = policy("low", ".*", dead_letter_exchange="dead", message_ttl=5)
    told = review(server(queue(), high, low))
    (one,) = [each for each in told if each.code == "policy-shadowed"]
    assert one.subject == "policy low"
    assert one.says == "does not apply to work, because 'high' does: not set are dead-letter-exchange, message-ttl"
    assert "policy-shadowed" not in codes(queue(), high, policy("low", ".*", max_length=50))


def test_policies_of_equal_priority_are_a_gamble():
    one, other = policy("one", max_length=1), policy("other", max_length=2)
    assert "policy-tie" in codes(queue(), one, other)
    assert "policy-tie" not in codes(queue(), one, policy("other", max_length=1))


def test_many_hidden_queues_are_told_in_short():
    names = [queue(f"q{number}") for number in range(5)]
    told = review(server(*names, policy("high", priority=1, max_length=1), policy("low", message_ttl=1)))
    (one,) = [each for each in told if each.code == "policy-shadowed"]
    assert "q0, q1, q2 and 2 more" in one.says


def test_a_policy_with_a_foreign_key_is_none():
    mixed = policy("mixed", message_ttl=5, ha_mode="all")
    assert subjects("policy-not-applied", quorum(), mixed) == {"policy mixed"}
    assert subjects("policy-not-applied", quorum(), policy("ha", ha_mode="all")) == set()
    assert subjects("policy-not-applied", queue(), mixed) == set()


def test_what_a_policy_changes_behind_a_declaration():
    assert "policy-overrides" in codes(queue(message_ttl=500), policy(message_ttl=100))
    assert "policy-overrides" not in codes(queue(message_ttl=100), policy(message_ttl=500))
    assert "policy-overrides" not in codes(queue(message_ttl=100), policy(message_ttl=100))
    dlx = queue(dead_letter_exchange="dead", dead_letter_routing_key="work")
    assert "(policy-ignored)" in codes(dlx, *DEAD, policy(dead_letter_exchange="other"))


def test_a_pattern_nobody_can_read_and_mirrored_queues():
    assert codes(queue(), policy("p", "(")) == {"policy-unreadable"}
    assert codes(queue(), policy(ha_mode="all"), version="3.13.0") == {"mirrored"}
    (one,) = review(server(queue(), policy(operator=True, ha_mode="all"), version="4.0.0"))
    assert one.level is Level.ERROR
    assert one.subject == "operator policy p"


# What does not last.


def test_queues_that_go():
    assert codes(queue(durable=False)) == {"transient-queue"}
    assert codes(queue(auto_delete=True)) == {"auto-delete-queue"}
    (one,) = review(server(queue(durable=False), version="4.3.0"))
    assert one.level is Level.ERROR
    refused = quorum(durable=False, exclusive=True, auto_delete=True)
    (said,) = [each.says for each in review(server(refused)) if each.code == "quorum-refused"]
    assert said == "is a quorum queue and transient and exclusive and deleted automatically"


def test_arguments_a_server_refuses_or_ignores():
    assert codes(queue(delivery_limit=5)) == {"argument-refused"}
    assert codes(queue(queue_mode="lazy")) == {"(argument-refused)"}
    assert codes(queue(queue_mode="lazy"), version="4.3.0") == {"argument-refused"}
    assert codes(queue(queue_mode="lazy"), version="") == set()
    retrying = quorum(delivery_limit=5, delayed_retry_type="all", **safe("dead", "work"))
    assert codes(retrying, *DEAD, version="4.2.0") == {"argument-ignored"}
    assert codes(retrying, *DEAD, version="4.3.0") == set()


def test_the_plugin_that_delays_is_gone_with_4_3():
    assert codes(exchange("later", "x-delayed-message")) == {"delayed-exchange"}
    (one,) = review(server(exchange("later", "x-delayed-message"), version="4.3.0"))
    assert one.level is Level.ERROR


# The review itself.


def test_a_server_before_3_10_is_too_old():
    assert "server-too-old" in codes(version="3.9.1")


def test_an_upgrade_says_only_what_it_adds():
    things = (queue(durable=False),)
    (now, later) = review(server(*things), upgrade_to=(4, 3))
    assert (now.level, later.level) == (Level.ERROR, Level.WARNING)
    assert now.says == "on RabbitMQ 4.3: is not durable"
    assert [one.says for one in review(server(*things))] == ["is not durable"]
    assert codes(quorum(), version="4.3.0", upgrade_to=(4, 3)) == {"limit-without-dlx"}


def test_only_some_queues_are_looked_at():
    things = (queue("mine", message_ttl=5), queue("theirs", message_ttl=5))
    assert subjects("ttl-without-dlx", *things, only=["mine"]) == {"queue mine"}
    assert subjects("policy-unreadable", *things, policy("p", "("), only=["mine"]) == {"policy p"}


def test_the_worst_comes_first_and_the_order_is_no_chance():
    told = review(server(queue("b", message_ttl=1), queue("a", message_ttl=1), queue("c", max_length=1)))
    assert [(one.code, one.subject) for one in told] == [
        ("ttl-without-dlx", "queue a"),
        ("ttl-without-dlx", "queue b"),
        ("work-drops", "queue c"),
    ]
