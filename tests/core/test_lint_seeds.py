"""Five systems as they are on a broker, and the flaws they are known for, each by its code."""

import json
from pathlib import Path

import pytest

from carom.core.lint import Level, definitions, of_topology, review
from carom.core.retry import RetryPolicy
from carom.core.settlement import Plan
from carom.layouts import PerQueue, Shared

HERE = Path(__file__).parent / "definitions"

KNOWN = {
    "kbairak": {
        "dead-letters-at-most-once": "queue outbox.delay_1s",  # also: its retries of a deleted queue vanish
        "unlimited-redelivery": "queue users.created",
    },
    "kbairak_before": {
        "retry-fans-out": "queue outbox_exchange.delay_1s",
        "dead-letters-at-most-once": "queue outbox_exchange.delay_1s",
        "unlimited-redelivery": "queue mail",
    },
    "goqueue": {
        "per-message-ttl": "queue orders__retry.2",
        "work-without-dlx": "queue orders",
        "dead-letters-at-most-once": "queue orders__retry.3",
    },
    "wait_queue": {
        "dlx-cycle": "queue payments.authorized.billing.queue",
        "dead-letters-at-most-once": "queue payments.authorized.billing.retry",
        "unlimited-redelivery": "queue payments.authorized.billing.queue",
    },
    "async_worker": {
        "work-without-dlx": "queue my_app_instant_queue",
        "dead-letters-at-most-once": "queue my_app_delay_queue_2000_ms",
        "mirrored": "policy my_app_ha_policy",
    },
    "freeflow": {
        "retry-fans-out": "queue freeflow.user.retry.30s in vhost /freeflow",
        "delay-drops": "queue freeflow.user.retry.5m in vhost /freeflow",
        "dlq-expires": "queue freeflow.events.dlq in vhost /freeflow",
        "dlq-drops": "queue freeflow.events.dlq in vhost /freeflow",
        "dead-letters-at-most-once": "queue freeflow.users.queue in vhost /freeflow",
        "policy-shadowed": "policy ha-all in vhost /freeflow",
        "mirrored": "policy ha-all in vhost /freeflow",
    },
}
LATER = {
    "kbairak": {"dlq-peeked-away": "queue users.created.dlq"},
    "kbairak_before": {"limit-without-dlx": "queue mail"},
    "goqueue": {},
    "wait_queue": {"dlq-peeked-away": "queue payments.authorized.billing.dlq"},
    "async_worker": {"mirrored": "policy my_app_ha_policy"},
    "freeflow": {"mirrored": "policy ha-all in vhost /freeflow"},
}
PLANS = (
    Plan("charge", ("order.created",), RetryPolicy.delays("2s", "5s"), crash_limit=3),
    Plan("mail", ("order.*", "user.#"), RetryPolicy.exponential("1s", attempts=5, jitter=0.2)),
    Plan("audit", ("#",)),
)


def read(system):
    return definitions(json.loads((HERE / f"{system}.json").read_text()))


@pytest.mark.parametrize("system", KNOWN)
def test_the_known_flaws_of_a_system_are_found_and_no_others(system):
    found = [one for one in review(read(system)) if one.level >= Level.WARNING]
    assert {one.code for one in found} == set(KNOWN[system])
    for code, subject in KNOWN[system].items():
        assert subject in {one.subject for one in found if one.code == code}


@pytest.mark.parametrize("system", LATER)
def test_what_an_upgrade_would_break_is_told_as_such(system):
    found = review(read(system), upgrade_to=(4, 3))
    later = [one for one in found if one.says.startswith("on RabbitMQ 4.3: ")]
    assert {one.code for one in later} == set(LATER[system])
    for code, subject in LATER[system].items():
        assert subject in {one.subject for one in later if one.code == code}
    assert all(one.level >= Level.WARNING for one in later)


def test_without_being_asked_for_an_upgrade_is_a_note():
    (note,) = (one for one in review(read("kbairak")) if one.code == "dlq-peeked-away")
    assert note.level is Level.NOTE
    assert note.says == "on RabbitMQ 4.3: deletes a dead letter that was looked at 21 times"


def test_the_fan_out_of_retries_names_the_queues_that_get_copies():
    found = [one.says for one in review(read("freeflow")) if one.code == "retry-fans-out"]
    assert any("freeflow.audit.queue, freeflow.users.queue" in says for says in found)
    assert len(found) == 18, "all but those of the audit queue itself"


@pytest.mark.parametrize("version", ["", "3.10.8", "3.13.7", "4.0.2", "4.3.5"])
@pytest.mark.parametrize("layout", [Shared, PerQueue])
def test_our_own_layouts_are_clean_on_every_version(layout, version):
    assert review(of_topology(layout(plans=PLANS).topology, version)) == ()


def test_an_upgrade_of_our_own_layouts_breaks_nothing():
    assert review(of_topology(Shared(plans=PLANS).topology, "3.10.8"), upgrade_to=(4, 3)) == ()
