"""What a broker has otherwise than an app needs, and what of it is left over."""

from dataclasses import replace

from carom.core.drift import Drift, drift, there
from carom.core.lint import of_topology
from carom.core.lint.seen import Binding as SeenBinding
from carom.core.lint.seen import Exchange as SeenExchange
from carom.core.lint.seen import Queue as SeenQueue
from carom.core.lint.seen import Vhost
from carom.core.retry import RetryPolicy
from carom.core.settlement import Plan
from carom.core.topology import Binding, Change, Exchange, Queue, Topology, quorum, union
from carom.layouts import PerQueue, Shared


def plan(*delays, queue="charge", keys=("order.*",)):
    return Plan(queue, keys, RetryPolicy.delays(*delays))


def vhost(topology):
    return of_topology(topology).vhosts[0]


def names(topology):
    return [one.name for one in (*topology.exchanges, *topology.queues)]


WANTED = Shared(plans=(plan("2s", "5s"),)).topology
BEFORE = Shared(plans=(plan("2s", "1m30s"),)).topology


def test_what_is_as_it_should_be_is_no_drift():
    assert not drift(WANTED, vhost(WANTED))
    assert there(vhost(WANTED)) == WANTED
    assert not Drift(stays=("something others use",))


def test_an_empty_broker_misses_everything():
    found = drift(WANTED, Vhost())
    assert found.missing == WANTED
    assert found.leftovers == Topology()


def test_what_differs_is_told_with_both_values():
    other = replace(WANTED, queues=tuple(quorum(one.name) if one.name == "charge" else one for one in WANTED.queues))
    found = drift(WANTED, vhost(other))
    assert Change("queue", "charge", "x-delivery-limit", 100, None) in found.changed


def test_a_queue_that_deletes_itself_differs():
    there_ = vhost(WANTED)
    going = replace(there_, queues=tuple(replace(one, auto_delete=True) for one in there_.queues))
    assert Change("queue", "charge", "auto-delete", wanted=False, actual=True) in drift(WANTED, going).changed


def test_a_delay_that_no_listener_asks_for_any_more_is_left_over():
    found = drift(WANTED, vhost(union(WANTED, BEFORE)))
    assert names(found.leftovers) == ["carom.delay.1m30s", "carom.delay.1m30s"]
    assert found.leftovers.bindings == (Binding("carom.delay.1m30s", "carom.delay.1m30s"),)
    assert found.stays == ()
    assert found


def test_a_delay_that_others_may_use_stays():
    others = Shared(plans=(plan("1m30s", queue="mail"),), app="other").topology
    found = drift(WANTED, vhost(union(WANTED, others)))
    assert found.leftovers == Topology()
    assert "queue 'carom.delay.1m30s': retries of 'mail' may come back from it" in found.stays
    assert not found


def test_what_the_app_had_in_another_layout_is_left_over():
    before = PerQueue(plans=(plan("2s"),)).topology
    wanted = Shared(plans=(plan("2s"),), exchange="events").topology
    mixed = union(wanted, replace(before, queues=tuple(one for one in before.queues if wanted.queue(one.name) is None)))
    found = drift(wanted, vhost(mixed), [before])
    assert names(found.leftovers) == ["charge.delay_2s", "carom.suspects.app.dlq"]
    assert drift(wanted, vhost(mixed)).leftovers == Topology()


def test_an_old_exchange_stays_while_others_are_bound_to_it_or_lead_to_it():
    before = Shared(plans=(plan("2s"),)).topology
    wanted = PerQueue(plans=(plan("2s"),)).topology
    mixed = Topology(
        (*before.exchanges, Exchange("theirs", alternate="carom.lost")),
        (*(one for one in before.queues if wanted.queue(one.name) is None), *wanted.queues),
        (*before.bindings, Binding("carom.return", "mail", "mail")),
    )
    mixed = replace(mixed, queues=(*mixed.queues, Queue("mail"), quorum("odd", dead_letter_exchange="carom.dead")))
    found = drift(wanted, vhost(mixed), [before])
    said = "\n".join(found.stays)
    assert "exchange 'carom.return': queue 'mail' is bound to it" in said
    assert "exchange 'carom.lost': it is the alternate exchange of 'theirs'" in said
    assert "exchange 'carom.dead': queue 'odd' sends its dead letters there" in said
    assert "queue 'carom.lost': it is bound to exchange 'carom.lost', which stays" in said
    assert "carom.delay.2s" not in names(found.leftovers)


def test_a_delay_that_goes_back_by_any_key_stays_while_others_are_bound_to_the_exchange():
    old = quorum("events.delay_1s", message_ttl=1000, dead_letter_exchange="")
    before = Topology(
        (Exchange("events.delay_1s", "fanout"),), (old,), (Binding("events.delay_1s", "events.delay_1s"),)
    )
    alone = union(WANTED, before)
    assert names(drift(WANTED, vhost(alone), [before]).leftovers) == ["events.delay_1s", "events.delay_1s"]
    beside = replace(
        alone, queues=(*alone.queues, Queue("theirs")), bindings=(*alone.bindings, Binding("events", "theirs"))
    )
    found = drift(WANTED, vhost(beside), [before])
    assert found.leftovers == Topology()
    assert "queue 'events.delay_1s': retries of 'theirs' may come back from it" in found.stays


def test_a_key_that_is_not_listened_for_any_more_is_left_over():
    before = Shared(plans=(plan("2s", keys=("order.*", "old.key")),)).topology
    wanted = Shared(plans=(plan("2s"),)).topology
    found = drift(wanted, vhost(before))
    assert found.leftovers == Topology(bindings=(Binding("events", "charge", "old.key"),))


def test_queues_and_bindings_of_others_are_nobody_s_leftover():
    theirs = Vhost(
        "/",
        (SeenExchange("", "direct"), SeenExchange("elsewhere", "x-random", arguments={"alternate-exchange": "x"})),
        (SeenQueue("reply", exclusive=True), SeenQueue("charge.archive.2s", arguments={"x-odd": [1]})),
        (SeenBinding("", "q", "q"), SeenBinding("elsewhere", "fan", to="exchange"), SeenBinding("elsewhere", "charge")),
    )
    found = drift(Topology(queues=(quorum("charge"),)), theirs)
    assert found.leftovers == Topology()
    assert there(theirs).queues == (
        Queue("charge.archive.2s", arguments=(("x-odd", "[1]"), ("x-queue-type", "classic"))),
    )
    assert there(theirs).bindings == (Binding("elsewhere", "fan", to="exchange"), Binding("elsewhere", "charge"))
