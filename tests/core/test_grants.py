"""The least that each role may do."""

import re

import pytest

from carom.core.grants import ROLES, Grants, grants
from carom.core.retry import RetryPolicy
from carom.core.settlement import Plan
from carom.core.wire import Address
from carom.layouts import PerQueue, Shared

PLANS = (Plan("billing.charge", ("order.*",), RetryPolicy.delays("2s")),)
SHARED = Shared(plans=PLANS, app="billing")


def of(*roles, layout=SHARED, later=""):
    return grants(layout, ["billing.charge"], "events", roles, later)


def test_a_publisher_writes_to_the_exchange_and_to_nothing_else():
    assert of("publisher").patterns == ("^$", "^(events)$", "^$")
    assert of("publisher", later="billing.charge").patterns == ("^$", r"^(carom\.delay\.2s|events)$", "^$")


def test_a_worker_reads_its_queues_and_writes_where_failures_go():
    assert of("worker").patterns == (
        "^$",
        r"^(carom\.dead|carom\.delay\.2s|carom\.return|carom\.suspects\.billing)$",
        r"^(billing\.charge|carom\.suspects\.billing)$",
    )


def test_the_console_reads_dead_letters_and_sends_them_again():
    assert of("console").patterns == ("^$", r"^(carom\.return|events)$", r"^(billing\.charge\.dlq|carom\.lost)$")


def test_an_admin_configures_everything_of_the_app_and_nothing_else():
    granted = of("admin")
    assert "carom.delay.2s" in granted.configure
    assert "events" in granted.configure
    assert not granted.everywhere
    configure, _, _ = granted.patterns
    assert not re.search(configure, "carom.delay.2s.other")
    assert not re.search(configure, "caromxdelay.2s")


def test_roles_add_up():
    both = of("publisher", "worker")
    assert both == of("publisher") | of("worker")
    assert Grants() | both == both


def test_a_layout_by_queue_name_needs_the_default_exchange_and_says_so():
    granted = of("worker", layout=PerQueue(plans=PLANS, app="billing"))
    assert granted.patterns[1] == r"^(amq\.default)$"
    assert granted.everywhere
    assert of("admin", layout=PerQueue(plans=PLANS)).everywhere


def test_an_app_without_listeners_reads_nothing():
    for role in ROLES:
        granted = grants(Shared(), [], "events", [role])
        assert granted.read == frozenset()


class AnyDelay:
    """A layout that makes any delay out of few exchanges, one for each doubling."""

    topology, suspects = SHARED.topology, "s"

    def delays(self, queue):
        return range(1, 2**28)

    def delay_address(self, queue, delay_ms):
        return Address(f"level.{delay_ms.bit_length()}", queue)

    queue_address = dead_address = suspect_address = lambda self, queue: Address("x", queue)


def test_a_range_of_delays_is_not_gone_through_one_by_one():
    written = grants(AnyDelay(), ["q"], "events", ["worker"]).write
    assert written == {"x", *(f"level.{number}" for number in range(1, 29))}


@pytest.mark.parametrize("name", ["a|b", "a.b", "^x$", "a(b", "tier-1", "a\\b", "käse"])
def test_hostile_names_match_themselves_alone(name):
    pattern = Grants(read=frozenset({name})).patterns[2]
    assert re.fullmatch(pattern, name)
    assert not re.fullmatch(pattern, name + "x")
    assert not re.fullmatch(pattern, "a")
