"""From the topology that is there to the one that is wanted: every message is kept, wherever the way is interrupted."""

from collections import Counter
from dataclasses import replace

import pytest

from carom.core.migration import (
    STAND_IN,
    Carried,
    Clear,
    Declare,
    Migration,
    Move,
    Replace,
    Return,
    Unbind,
    is_stand_in,
    migration,
)
from carom.core.retry import RetryPolicy
from carom.core.routing import NO_HEADERS, route
from carom.core.settlement import Plan
from carom.core.topology import Binding, Exchange, Queue, Topology, arguments, diff, quorum
from carom.layouts import Kbairak, PerQueue, Shared

PLANS = (Plan("charge", ("order.*",), RetryPolicy.delays("2s", "5s")), Plan("mail", ("#",), RetryPolicy.delays("2s")))
SHARED = Shared(plans=PLANS).topology
PER_QUEUE = PerQueue(plans=PLANS).topology


def classic(topology):
    """Return a topology as somebody declared it who knew no quorum queues."""
    unknown = {"x-delivery-limit", "x-dead-letter-strategy", "x-queue-type", "x-overflow"}
    bare = (arguments({k: v for k, v in queue.arguments if k not in unknown}) for queue in topology.queues)
    queues = (replace(queue, arguments=there) for queue, there in zip(topology.queues, bare, strict=True))
    return replace(topology, queues=tuple(queues))


WAYS = {
    "per_queue to shared": (PER_QUEUE, SHARED),
    "shared to per_queue": (SHARED, PER_QUEUE),
    "classic to quorum": (classic(SHARED), SHARED),
    "classic to quorum by name": (classic(PER_QUEUE), PER_QUEUE),
    "another delay": (Shared(plans=(Plan("charge", ("a",), RetryPolicy.delays("9s")), PLANS[1])).topology, SHARED),
    "nothing": (SHARED, SHARED),
    "from nothing": (Topology(), SHARED),
}


class Model:
    """A broker that only has things and messages: a Counter for each queue."""

    def __init__(self, topology):
        self.topology = topology
        self.messages = {queue.name: Counter({f"in {queue.name}": 1}) for queue in topology.queues}
        self.published = 0

    @property
    def kept(self):
        return {message for there in self.messages.values() for message, count in there.items() if count}

    def publish(self):
        """Publish one more for everybody; it must find a queue at any time."""
        self.published += 1
        reached = route(self.topology, "events", "order.created", NO_HEADERS)
        assert reached, "a publisher met no queue"
        for queue in reached:
            self.messages[queue][f"message {self.published}"] += 1

    def declare(self, wanted):
        found = diff(wanted, self.topology)
        assert not found.changed, found.changed
        for queue in found.missing_queues:
            self.messages[queue.name] = Counter()
        there = self.topology
        self.topology = Topology(
            there.exchanges + found.missing_exchanges,
            there.queues + found.missing_queues,
            there.bindings + found.missing_bindings,
        )

    def unbind(self, bindings):
        left = tuple(one for one in self.topology.bindings if one not in bindings)
        self.topology = replace(self.topology, bindings=left)

    def move(self, moves):
        for one in moves:
            way = one.exchange or (STAND_IN + "charge" if "charge" in one.standing else "carom.return")
            reached = route(self.topology, way, "charge", NO_HEADERS)
            assert len(reached) == 1, "a message that is moved comes to one queue"
            (target,) = reached
            self.messages[target] += self.messages[one.queue]
            self.messages[one.queue] = Counter()

    def remove(self, queue):
        assert not self.messages.pop(queue), f"{queue} was not empty"
        left = tuple(one for one in self.topology.queues if one.name != queue)
        ways = tuple(one for one in self.topology.bindings if one.target != queue)
        self.topology = replace(self.topology, queues=left, bindings=ways)

    def pieces(self, step):
        """Return what a step does, as it may be cut off anywhere."""
        if isinstance(step, Declare):
            yield lambda: self.declare(step.topology)
        elif isinstance(step, Unbind):
            for binding in step.bindings:
                yield lambda binding=binding: self.unbind([binding])
        elif isinstance(step, Replace):
            yield lambda: self.move(step.moves)
            for queue in step.queues:
                yield lambda queue=queue: self.remove(queue.name)
                yield lambda queue=queue: self.declare(Topology(queues=(queue,)))
        elif isinstance(step, Return):
            yield lambda: self.move(step.moves)
            for move in step.moves:
                yield lambda move=move: self.remove(move.queue)
            for name in step.exchanges:
                yield lambda name=name: self.remove_exchange(name)

    def remove_exchange(self, name):
        self.unbind([one for one in self.topology.bindings if one.source == name])
        left = tuple(one for one in self.topology.exchanges if one.name != name)
        self.topology = replace(self.topology, exchanges=left)


NOTHING = Carried()


def run(model, wanted, stop_after=None, carried=NOTHING):
    """Do steps, all or so many pieces of them; returns how many there were."""
    planned = migration(wanted, model.topology, carried)
    assert not planned.obstacles
    done = 0
    for step in planned.steps:
        for piece in model.pieces(step):
            if done == stop_after:
                return done
            piece()
            done += 1
            if model.topology.exchange("events"):
                model.publish()
    return done


def check(model, wanted, owed):
    found = diff(wanted, model.topology)
    assert not found.changed
    assert not (*found.missing_queues, *found.missing_exchanges, *found.missing_bindings)
    names = [one.name for one in (*model.topology.exchanges, *model.topology.queues)]
    assert not [name for name in names if is_stand_in(name)]
    assert owed <= model.kept


@pytest.mark.parametrize("way", WAYS)
def test_a_migration_ends_at_what_is_wanted_with_everything_that_was_there(way):
    there, wanted = WAYS[way]
    model = Model(there)
    owed = model.kept
    run(model, wanted)
    owed |= {f"message {number + 1}" for number in range(model.published)}
    check(model, wanted, owed)
    assert [type(step) for step in migration(wanted, model.topology).steps] == [Clear]


@pytest.mark.parametrize("way", WAYS)
def test_killed_anywhere_it_goes_on_when_it_is_run_again(way):
    there, wanted = WAYS[way]
    pieces = run(Model(there), wanted)
    for first in range(pieces):
        for second in {0, 1, 2, 3, 5, first // 2}:
            model = Model(there)
            owed = model.kept
            run(model, wanted, first)
            run(model, wanted, second)
            run(model, wanted)
            check(model, wanted, owed | {f"message {number + 1}" for number in range(model.published)})


def test_a_migration_can_be_turned_round_halfway():
    pieces = run(Model(PER_QUEUE), SHARED)
    for first in range(pieces):
        model = Model(PER_QUEUE)
        owed = model.kept
        run(model, SHARED, first)
        run(model, PER_QUEUE)
        check(model, PER_QUEUE, owed)


FOREIGN = Kbairak(exchange="events", plans=PLANS).topology
CARRIED = Carried(
    frozenset({"charge.dlq", "mail.dlq"}), frozenset({"events.delay_2s", "events.delay_5s", "never there"})
)


def test_what_waits_in_another_system_s_layout_comes_to_its_queue_wherever_it_is_killed():
    pieces = run(Model(FOREIGN), SHARED, carried=CARRIED)
    for first in range(pieces):
        model = Model(FOREIGN)
        owed = model.kept
        run(model, SHARED, first, CARRIED)
        run(model, SHARED, carried=CARRIED)
        check(model, SHARED, owed)
        assert not any(model.messages[name] for name in model.messages if name in CARRIED.away)


def test_what_still_comes_into_old_queues_is_taken_out_of_them_and_replaces_nothing():
    left = quorum("events.delay_2s", message_ttl=2_000, dead_letter_exchange="")
    planned = migration(SHARED, replace(SHARED, queues=(*SHARED.queues, left)), CARRIED)
    step, _ = planned.steps
    assert step == Replace((Move("events.delay_2s", "", certain=True),), ())
    assert str(step).endswith("in nobody's hands, counted twice")


def test_dead_letters_that_stay_are_written_anew_beside_queues_that_are_replaced():
    (step,) = (one for one in migration(SHARED, PER_QUEUE, CARRIED).steps if isinstance(one, Replace))
    certain = {move.queue: move.certain for move in step.moves}
    assert (certain["charge"], certain["charge.dlq"]) == (True, False)
    (plain,) = (one for one in migration(SHARED, PER_QUEUE).steps if isinstance(one, Replace))
    assert "charge.dlq" not in {move.queue for move in plain.moves}


def test_queues_that_lead_to_a_queue_by_its_name_are_drained_with_it():
    (step,) = (one for one in migration(SHARED, PER_QUEUE).steps if isinstance(one, Replace))
    moved = {move.queue: move.home for move in step.moves}
    assert moved["charge"] == "charge"
    assert moved["charge.delay_2s"] == ""
    assert {queue.name for queue in step.queues} == {"charge", "mail", "carom.suspects.app"}


def test_dead_letters_by_their_own_key_are_parked_too():
    delay = quorum("kb.delay_1s", message_ttl=1000, dead_letter_exchange="")
    there = Topology(
        queues=(Queue("charge"), delay, quorum("else", dead_letter_exchange="", dead_letter_routing_key="x"))
    )
    (step,) = (one for one in migration(Topology(queues=(quorum("charge"),)), there).steps if isinstance(one, Replace))
    assert [move.queue for move in step.moves] == ["charge", "kb.delay_1s"]


def test_what_is_already_so_needs_no_step_but_the_last():
    assert migration(SHARED, SHARED) == Migration((Clear(),))


def test_what_has_no_way_is_said():
    exchange = migration(Topology((Exchange("e", "direct"),)), Topology((Exchange("e", "topic"),)))
    assert "exchange 'e' has type 'topic' and 'direct' is wanted" in exchange.obstacles[0]
    long = "q" * 245
    assert "too long" in migration(Topology(queues=(quorum(long),)), Topology(queues=(Queue(long),))).obstacles[0]
    stream = Queue("log", arguments=(("x-queue-type", "stream"),))
    assert "a stream" in migration(Topology(queues=(quorum("log"),)), Topology(queues=(stream,))).obstacles[0]


def test_every_step_says_what_it_does():
    said = [str(step) for step in migration(SHARED, PER_QUEUE).steps]
    assert said[0].startswith("declare what is new: carom.dead, carom.return")
    assert said[1].startswith("declare stand-ins: carom.migrating.carom.suspects.app, carom.migrating.charge")
    assert said[2].startswith("unbind charge from events")
    assert "then delete and declare anew: charge, mail, carom.suspects.app" in said[3]
    assert said[-2].startswith("move back what is in carom.migrating.carom.suspects.app")
    assert said[-1].startswith("remove what is left over")
    assert str(Declare(Topology(bindings=(Binding("e", "q"),)), "ways")) == "declare ways: nothing new and 1 bindings"
    assert Move("a", "b") == Move("a", "b", "")
