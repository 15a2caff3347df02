"""What the doctor says, decided from facts."""

import pytest

from carom.core.lint import Level, Needs, QueueFacts, ServerFacts, lint_server, version_of, worst
from carom.core.settlement import Plan
from carom.layouts import Shared

TOPOLOGY = Shared(plans=(Plan("billing", ("order.*",)),)).topology


def findings(version="4.2.1", timeout_ms=None, **facts):
    return lint_server(ServerFacts(version, **facts), TOPOLOGY, {"billing": timeout_ms})


def said(found, level):
    return [f"{finding.subject}: {finding.says}" for finding in found if finding.level is level]


def test_a_healthy_server_is_fine_and_a_missing_management_api_only_a_note():
    found = findings()
    assert worst(found) is Level.NOTE
    assert worst(findings(management=True)) is Level.FINE


def test_nothing_found_is_fine():
    assert worst(()) is Level.FINE


@pytest.mark.parametrize("version", ["3.9.29", "", "nonsense", "2"])
def test_a_server_before_3_10_is_an_error(version):
    (line,) = said(findings(version), Level.ERROR)
    assert "older than 3.10" in line


@pytest.mark.parametrize(("text", "version"), [("3.10.8", (3, 10)), ("4.3.6-rc1", (4, 3)), ("x", (0, 0)), ("", (0, 0))])
def test_a_version_is_its_first_two_numbers(text, version):
    assert version_of(text) == version


def test_an_alarm_is_an_error_that_comes_first():
    found = findings(alarm="low on memory")
    assert found[0].level is Level.ERROR
    assert "low on memory" in found[0].says


def test_a_timeout_beyond_the_brokers_own_is_a_warning():
    assert said(findings(timeout_ms=1_799_999, management=True), Level.WARNING) == []
    (line,) = said(findings(timeout_ms=2_700_000), Level.WARNING)
    assert "may run for 45m" in line


def test_messages_that_nobody_consumes_are_a_warning():
    idle = {"billing": QueueFacts(ready=3, consumers=0)}
    assert said(findings(queues=idle), Level.WARNING) == ["queue billing: 3 messages are ready and nobody consumes"]
    busy = {"billing": QueueFacts(ready=3, consumers=1)}
    assert said(findings(queues=busy), Level.WARNING) == []


def test_what_is_kept_is_a_note_and_what_waits_is_not():
    queues = {"billing.dlq": QueueFacts(2, 0), "carom.lost": QueueFacts(0, 0), "billing": None}
    assert "queue billing.dlq: 2 messages are kept here" in said(findings(queues=queues), Level.NOTE)
    assert len(said(findings(queues=queues), Level.NOTE)) == 2


def test_a_policy_that_shortens_what_waits_is_a_warning():
    queues = {"billing": QueueFacts(0, 1, {"message-ttl": 1000, "ha-mode": "all"})}
    (line,) = said(findings(queues=queues, management=True), Level.WARNING)
    assert "a policy sets message-ttl to 1000" in line


def test_nodes_of_different_versions_are_a_warning_that_names_them():
    (said,) = [one for one in findings(versions=("4.2.1", "3.13.7", "4.2.1")) if one.subject == "cluster"]
    assert (said.level, said.says) == (Level.WARNING, "its nodes run different versions: 3.13.7, 4.2.1")
    assert not [one for one in findings(versions=("4.2.1", "4.2.1")) if one.subject == "cluster"]


def test_what_this_user_may_not_do_is_an_error_and_what_only_publishers_need_a_note():
    found = findings(denied=Needs(writes=("events", "carom.delay.1s", ""), reads=("billing",)))
    denied = {one.subject: one.level for one in found if "may not" in one.says}
    assert denied == {
        "exchange events": Level.NOTE,
        "exchange carom.delay.1s": Level.ERROR,
        "exchange (the default one)": Level.ERROR,
        "queue billing": Level.ERROR,
    }
    assert all("set_permissions" in one.do for one in found if one.subject in denied)


def test_permissions_are_fine_only_where_somebody_looked():
    assert "permissions" in [one.subject for one in findings(denied=Needs())]
    assert "permissions" not in [one.subject for one in findings(denied=None)]
