"""Claims about settlement: what becomes of a message, however its handler ends and whatever its headers say.

Both layouts, because a settlement is only as good as the place it publishes to: every address is followed through
the layout's own topology to the one queue it leads to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.core import message as names
from carom.core import wire
from carom.core.durations import LONGEST_MS
from carom.core.effects import Ack, HandBack, Publish, Refuse
from carom.core.message import Message
from carom.core.outcome import Discard, Done, Failed, Interrupted, Outcome, Reject, Retry
from carom.core.retry import RetryPolicy
from carom.core.routing import route
from carom.core.settlement import (
    DONE,
    HANDED_BACK,
    SUSPECT_CRASHES,
    Layout,
    Moment,
    Plan,
    Settlement,
    admit,
    is_suspect,
    postponed,
    put_back,
    settle,
)
from carom.core.wire import Arrival
from carom.errors import DecodeError
from carom.layouts import PerQueue, Shared

NOW = 1_700_000_000_000
MOMENT = Moment(NOW, 0.0, "host-1")
QUEUE = "billing.charge"
LADDER = RetryPolicy.delays(2, 5, 15)
ORDER = Message(
    body=b"{}",
    exchange="events",
    routing_key="order.created",
    id="id-1",
    correlation_id="flow-1",
    headers={"x-tenant": "a"},
)
FAILED = Failed(ValueError("no such account"))
LAYOUTS = {"shared": Shared, "per_queue": PerQueue}
in_both = pytest.mark.parametrize("laid_out", LAYOUTS.values(), ids=LAYOUTS)
LaidOut = Callable[[str, str, tuple[Plan, ...]], Layout]


@dataclass(frozen=True)
class Scene:
    """A queue's plan and the layout it lives in, beside a queue with delays of its own."""

    plan: Plan
    layout: Layout

    def settled(self, outcome: Outcome, message: Message = ORDER, *, redelivered: bool = False) -> Settlement:
        arrival = wire.read(message, QUEUE, redelivered=redelivered)
        return settle(outcome, arrival, self.plan, self.layout, MOMENT)

    def admitted(
        self, message: Message, *, redelivered: bool = True, counts: bool = True, alone: bool = False
    ) -> Settlement | None:
        arrival = wire.read(message, QUEUE, redelivered=redelivered, counts=counts, alone=alone)
        return admit(arrival, self.plan, self.layout, MOMENT)


def scene(laid_out: LaidOut, retry: RetryPolicy = LADDER, crash_limit: int = 5) -> Scene:
    plan = Plan(QUEUE, ("order.created",), retry, crash_limit)
    neighbour = Plan("mail.send", ("order.*",), RetryPolicy.delays("1s", "5s"))
    return Scene(plan, laid_out("carom", "events", (plan, neighbour)))


def sent(settlement: Settlement) -> Message:
    """Return what a settlement publishes, having checked that it publishes once and acknowledges after that."""
    publish, ack = settlement.effects
    assert isinstance(publish, Publish)
    assert isinstance(ack, Ack)
    return publish.message


def arrives(layout: Layout, message: Message) -> tuple[str, int]:
    """Follow what is published to the queue where it stays; return that queue and how long the way takes."""
    exchange, key, waited = message.exchange, message.routing_key, 0
    while True:
        (name,) = route(layout.topology, exchange, key, message.headers)  # one queue and no other
        queue = layout.topology.queue(name)
        assert queue is not None
        if queue.ttl_ms is None:
            return name, waited
        waited += queue.ttl_ms
        assert queue.dead_letter_exchange is not None
        exchange = queue.dead_letter_exchange
        key = key if queue.dead_letter_key is None else queue.dead_letter_key


def delivered(message: Message, waited: int) -> Message:
    """Return a message as the broker delivers it after a delay, with its history written on it."""
    if not waited:
        return message
    death = {"count": 1, "reason": "expired", "queue": "delay", "exchange": message.exchange}
    history = {"x-death": [death], "x-first-death-queue": "delay", "x-last-death-reason": "expired"}
    return replace(message, exchange="carom.return", headers={**message.headers, **history})


@dataclass(frozen=True)
class Life:
    """What became of a message: when its handler was called, in which turns it waited, and how it ended."""

    attempts: list[tuple[int, int]]
    waits: list[int]
    end: Settlement


def live(scene: Scene, outcomes: Iterable[Outcome], first: Message = ORDER) -> Life:
    """Let a message live until it is neither retried nor waiting any more."""
    message, now, attempts, waits, alone = first, 0, [], [], False
    remaining: Iterator[Outcome] = iter(outcomes)
    while True:
        arrival = wire.read(message, QUEUE, alone=alone)
        settlement = admit(arrival, scene.plan, scene.layout, MOMENT)
        if settlement is None:
            attempts.append((arrival.attempt, now))
            settlement = settle(next(remaining), arrival, scene.plan, scene.layout, MOMENT)
        if settlement.fate not in {"retried", "waiting", "set apart"}:
            return Life(attempts, waits, settlement)
        copy = sent(settlement)
        name, waited = arrives(scene.layout, copy)
        alone = settlement.fate == "set apart"
        assert name == (scene.layout.suspects if alone else QUEUE)
        if names.WAIT in copy.headers:
            waits.append(copy.headers[names.WAIT])
        message, now = delivered(copy, waited), now + waited


# Success and its kin


@in_both
def test_done_is_acknowledged_and_nothing_else(laid_out):
    assert scene(laid_out).settled(Done()) is DONE
    assert DONE.effects == (Ack(),)


@in_both
def test_a_discarded_message_is_acknowledged_and_kept_nowhere(laid_out):
    settlement = scene(laid_out).settled(Discard("a test order"))
    assert settlement == Settlement((Ack(),), "discarded", reason="a test order")


@in_both
def test_an_interrupted_message_goes_back_and_costs_no_attempt(laid_out):
    stage = scene(laid_out)
    third = sent(stage.settled(FAILED, sent(stage.settled(FAILED))))
    assert stage.settled(Interrupted(), third) is HANDED_BACK
    assert HANDED_BACK.effects == (HandBack(),)
    again = replace(third, headers={**third.headers, "x-delivery-count": 1})
    assert stage.admitted(again) is None
    assert wire.read(again, QUEUE, redelivered=True).attempt == 3


# Failures


@in_both
def test_delays_of_2_5_and_15_seconds_attempt_at_0_2_7_and_22_seconds_then_dead_letter(laid_out):
    stage = scene(laid_out)
    life = live(stage, repeat(FAILED))
    assert life.attempts == [(1, 0), (2, 2_000), (3, 7_000), (4, 22_000)]
    assert life.waits == []
    assert (life.end.fate, life.end.reason) == ("dead", "exhausted")
    assert arrives(stage.layout, sent(life.end)) == (f"{QUEUE}.dlq", 0)


@in_both
def test_the_last_failure_dead_letters_the_message_as_it_was_with_its_reason_and_error(laid_out):
    dead = sent(live(scene(laid_out), repeat(FAILED)).end)
    assert (dead.body, dead.id, dead.correlation_id) == (ORDER.body, ORDER.id, ORDER.correlation_id)
    assert names.foreign(dead.headers) == ORDER.headers
    expected = {
        names.QUEUE: QUEUE, names.ATTEMPT: 4, names.EXCHANGE: "events", names.KEY: "order.created",
        names.REASON: "exhausted", names.ERROR_TYPE: "ValueError", names.ERROR: "no such account",
        names.HOST: "host-1", names.FIRST_FAILED_AT: NOW, names.FAILED_AT: NOW,
    }  # fmt: skip
    assert {key: dead.headers[key] for key in expected} == expected
    assert "ValueError: no such account" in dead.headers[names.ERROR_TRACE]


@in_both
def test_a_retry_tells_observers_what_failed_and_how_long_it_waits(laid_out):
    settlement = scene(laid_out).settled(Failed(ConnectionError("lost")))
    told = (settlement.fate, settlement.delay_ms, settlement.classification, settlement.error_type, settlement.error)
    assert told == ("retried", 2_000, "transient", "ConnectionError", "lost")


@in_both
def test_a_permanent_error_is_a_dead_letter_at_once(laid_out):
    settlement = scene(laid_out).settled(Failed(DecodeError("not JSON")))
    assert (settlement.fate, settlement.reason, settlement.classification) == ("dead", "permanent", "permanent")


@in_both
def test_without_retries_the_first_failure_is_the_last(laid_out):
    assert live(scene(laid_out, RetryPolicy.delays()), repeat(FAILED)).attempts == [(1, 0)]


@in_both
def test_an_instant_retry_goes_straight_back(laid_out):
    stage = scene(laid_out, RetryPolicy.delays(0, 0, "5s"))
    assert live(stage, repeat(FAILED)).attempts == [(1, 0), (2, 0), (3, 0), (4, 5_000)]


@in_both
def test_a_success_ends_the_ladder(laid_out):
    life = live(scene(laid_out), [FAILED, FAILED, Done()])
    assert life.attempts == [(1, 0), (2, 2_000), (3, 7_000)]
    assert life.end is DONE


@in_both
def test_a_custom_policy_is_rounded_up_to_delays_that_exist_and_its_note_reaches_the_dead_letter(laid_out):
    stage = scene(laid_out, RetryPolicy.custom(lambda attempt, error: (3, "10m", None)[attempt - 1], attempts=9))
    life = live(stage, repeat(FAILED))
    assert life.attempts == [(1, 0), (2, 5_000), (3, 905_000)]
    assert sent(life.end).headers[names.ERROR] == "the function of the retry policy gave up: no such account"


# What handlers ask for


@pytest.mark.parametrize(
    ("outcome", "reason", "error"),
    [
        (Reject("no such order"), "rejected", "no such order"),
        (Reject("late", "expired"), "expired", "late"),
        (Reject(why="malformed", error=DecodeError("not JSON")), "malformed", "not JSON"),
        (Reject("no", error=ValueError("because")), "rejected", "no: because"),
    ],
)
@in_both
def test_a_rejected_message_is_a_dead_letter_with_its_reason(laid_out, outcome, reason, error):
    settlement = scene(laid_out).settled(outcome)
    assert (settlement.fate, settlement.reason, settlement.classification) == ("dead", reason, "permanent")
    assert sent(settlement).headers[names.REASON] == reason
    assert sent(settlement).headers[names.ERROR] == error


@pytest.mark.parametrize(
    ("asked_ms", "waited_ms"),
    [(-5, 0), (0, 0), (1, 2_000), (2_000, 2_000), (2_001, 5_000), (5_001, 15_000), (15_000, 15_000)],
)
@in_both
def test_a_delay_that_is_asked_for_is_rounded_up_to_the_next_that_exists(laid_out, asked_ms, waited_ms):
    stage = Scene(plan := Plan(QUEUE, (), LADDER), laid_out("carom", "events", (plan,)))
    settlement = stage.settled(Retry(asked_ms))
    assert arrives(stage.layout, sent(settlement)) == (QUEUE, waited_ms)
    assert names.WAIT not in sent(settlement).headers


@in_both
def test_a_delay_beyond_the_longest_takes_several_turns_and_counts_once(laid_out):
    life = live(scene(laid_out), [Retry(37_000), Done()])
    assert life.attempts == [(1, 0), (2, 45_000)]
    assert life.waits == [22_000, 7_000]


@in_both
def test_a_message_that_waits_again_says_so(laid_out):
    stage = scene(laid_out)
    first = stage.settled(Retry(37_000))
    assert (first.fate, first.delay_ms) == ("retried", 37_000)
    second = stage.admitted(sent(first), redelivered=False)
    assert (second.fate, second.delay_ms) == ("waiting", 15_000)


@in_both
def test_without_a_wish_the_policy_chooses_the_delay(laid_out):
    assert live(scene(laid_out), repeat(Retry())).attempts == [(1, 0), (2, 2_000), (3, 7_000), (4, 22_000)]


@in_both
def test_whatever_a_handler_asks_for_the_attempts_are_bounded(laid_out):
    life = live(scene(laid_out), repeat(Retry(0, "not yet", ConnectionError("lost"))))
    assert [attempt for attempt, _ in life.attempts] == [1, 2, 3, 4]
    assert (life.end.reason, life.end.error_type, life.end.error) == ("exhausted", "ConnectionError", "not yet: lost")
    assert live(scene(laid_out, RetryPolicy.delays()), repeat(Retry(1_000))).attempts == [(1, 0)]


@in_both
def test_a_wish_is_no_error_that_an_override_of_the_policy_speaks_of(laid_out):
    stage = scene(laid_out, LADDER.on(Exception, RetryPolicy.fixed("1m", attempts=30)).permanent(ValueError))
    assert stage.settled(Retry(error=ValueError())).delay_ms == 2_000


@in_both
def test_what_stops_a_policy_from_choosing_is_told_in_the_dead_letter(laid_out):
    stage = scene(laid_out, RetryPolicy.custom(lambda attempt, error: 1 / 0, attempts=3))
    error = sent(stage.settled(Retry(reason="not yet"))).headers[names.ERROR]
    assert error == "the function of the retry policy failed: ZeroDivisionError: division by zero: not yet"


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("not yours")

    def __bool__(self) -> bool:
        raise RuntimeError("not yours")


class Sly(str):
    __slots__ = ()

    def __getitem__(self, index: object) -> str:
        raise RuntimeError("not yours")


@pytest.mark.parametrize("odd", [None, 5, ValueError("x"), b"\0", Hostile(), Sly("x"), "\0\udc80" * 10_000, [1]])
@in_both
def test_a_reason_may_be_anything(laid_out, odd):
    stage = scene(laid_out)
    outcomes = (Reject(odd), Reject(odd, odd, FAILED.error), Retry(1, odd), Retry(None, odd, FAILED.error))
    for outcome in outcomes:
        copy = sent(stage.settled(outcome))
        assert arrives(stage.layout, copy)[0] in {QUEUE, f"{QUEUE}.dlq"}
        assert names.weight(copy.headers) < names.OURS_LIMIT
        assert "\0" not in copy.headers.get(names.ERROR, "")
    assert isinstance(stage.settled(Discard(odd)).reason, str)


@in_both
def test_a_wish_of_any_length_is_a_wait_that_a_broker_can_carry(laid_out):
    stage = scene(laid_out)
    assert sent(stage.settled(Retry(10**30))).headers[names.WAIT] == LONGEST_MS - 15_000


# Postponed before the first delivery


@in_both
def test_a_postponed_message_comes_to_its_handler_after_its_delay_as_if_it_had_just_been_published(laid_out):
    stage = scene(laid_out)
    first = postponed(ORDER, stage.plan, stage.layout, 37_000)
    assert first is not None
    assert arrives(stage.layout, first) == (QUEUE, 15_000)
    life = live(stage, repeat(FAILED), delivered(first, 15_000))
    assert life.attempts == [(1, 30_000), (2, 32_000), (3, 37_000), (4, 52_000)]
    assert life.waits == [7_000]
    dead = sent(life.end)
    assert (dead.headers[names.EXCHANGE], dead.headers[names.KEY]) == (ORDER.exchange, ORDER.routing_key)
    assert (dead.body, dead.id, names.foreign(dead.headers)) == (ORDER.body, ORDER.id, ORDER.headers)


@in_both
def test_a_message_too_heavy_to_wait_is_not_postponed(laid_out):
    stage = scene(laid_out)
    heavy = replace(ORDER, headers={"blob": "x" * names.HEADERS_LIMIT})
    assert postponed(heavy, stage.plan, stage.layout, 1_000) is None


# Crashes


def counted(message: Message, crashes: int) -> Message:
    return replace(message, headers={**message.headers, "x-delivery-count": crashes})


@in_both
def test_in_company_a_message_is_blamed_for_no_more_than_makes_it_a_suspect(laid_out):
    stage = scene(laid_out, crash_limit=3)
    assert stage.admitted(counted(ORDER, 1)) is None
    for returns in (2, 3, 50):
        settlement = stage.admitted(counted(ORDER, returns))
        assert settlement.fate == "set apart"
        assert sent(settlement).headers[names.CRASHES] == SUSPECT_CRASHES
        assert arrives(stage.layout, sent(settlement)) == (stage.layout.suspects, 0)


@in_both
def test_a_suspect_that_kills_workers_alone_is_a_dead_letter_at_its_crash_limit(laid_out):
    stage = scene(laid_out, crash_limit=4)
    suspect = sent(stage.admitted(counted(ORDER, 2)))
    assert stage.admitted(suspect, redelivered=False, alone=True) is None
    assert stage.admitted(counted(suspect, 1), alone=True) is None
    settlement = stage.admitted(counted(suspect, 2), alone=True)
    assert (settlement.fate, settlement.reason) == ("dead", "crash-loop")
    dead = sent(settlement)
    assert arrives(stage.layout, dead) == (f"{QUEUE}.dlq", 0)
    assert (dead.headers[names.REASON], dead.headers[names.CRASHES]) == ("crash-loop", 4)
    assert dead.headers[names.ERROR] == "4 times a worker was lost while it held this message"
    assert dead.headers[names.ATTEMPT] == 1


@in_both
def test_a_limit_that_leaves_no_room_to_look_at_a_suspect_alone_condemns_it_in_company(laid_out):
    for limit in (1, 2):
        settlement = scene(laid_out, crash_limit=limit).admitted(counted(ORDER, limit))
        assert (settlement.fate, settlement.reason) == ("dead", "crash-loop")


@in_both
def test_a_forged_crash_count_condemns_nothing(laid_out):
    stage = scene(laid_out, crash_limit=3)
    forged = replace(ORDER, headers={names.QUEUE: QUEUE, names.CRASHES: 10**9})
    for redelivered in (True, False):
        settlement = stage.admitted(forged, redelivered=redelivered)
        assert settlement.fate == "set apart"
        assert stage.admitted(sent(settlement), redelivered=False, alone=True) is None


@in_both
def test_an_interrupted_suspect_goes_back_without_a_return_being_blamed_on_it(laid_out):
    stage = scene(laid_out)
    suspect = counted(sent(stage.admitted(counted(ORDER, 2))), 1)
    arrival = wire.read(suspect, QUEUE, redelivered=True, alone=True)
    settlement = settle(Interrupted(), arrival, stage.plan, stage.layout, MOMENT)
    assert settlement.fate == "handed back"
    assert sent(settlement).headers[names.CRASHES] == 3
    assert arrives(stage.layout, sent(settlement)) == (stage.layout.suspects, 0)
    assert settlement.effects[-1] == Ack()


@in_both
def test_a_suspect_whose_headers_cannot_travel_is_handed_back(laid_out):
    stage = scene(laid_out)
    heavy = replace(ORDER, headers={"x-tenant": "a" * names.HEADERS_LIMIT})
    assert put_back(wire.read(heavy, QUEUE, alone=True), stage.layout).effects == (HandBack(),)


def test_twice_is_a_suspect_and_once_is_not():
    assert [is_suspect(Arrival(ORDER, QUEUE, crashes=crashes)) for crashes in (0, 1, 2, 3)] == [
        *[False, False],
        *[True, True],
    ]


@pytest.mark.parametrize("forged", [{}, {"x-delivery-count": 0}, {"x-delivery-count": 99}, {"x-acquired-count": 9}])
@in_both
def test_where_the_broker_does_not_count_carom_does_and_the_crashes_are_bounded_all_the_same(laid_out, forged):
    stage = scene(laid_out, crash_limit=4)
    message = replace(ORDER, headers={**ORDER.headers, **forged})
    alone = False
    for crashes, fate, queue in [
        (1, "recounted", QUEUE),
        (2, "set apart", stage.layout.suspects),
        (3, "set apart", stage.layout.suspects),
    ]:
        settlement = stage.admitted(message, counts=False, alone=alone)
        message, alone = sent(settlement), fate == "set apart"
        assert settlement.fate == fate
        assert arrives(stage.layout, message) == (queue, 0)
        assert message.headers[names.CRASHES] == crashes
        assert stage.admitted(message, redelivered=False, counts=False, alone=alone) is None
    assert stage.admitted(message, counts=False, alone=True).reason == "crash-loop"


@in_both
def test_a_crash_costs_no_attempt_and_a_failure_forgets_the_crashes(laid_out):
    stage = scene(laid_out)
    recounted = sent(stage.admitted(sent(stage.settled(FAILED)), counts=False))
    assert recounted.headers[names.ATTEMPT] == 2
    assert names.CRASHES not in sent(stage.settled(FAILED, recounted)).headers


@in_both
def test_what_came_back_while_it_waited_goes_on_waiting(laid_out):
    stage = scene(laid_out)
    waiting = sent(stage.settled(Retry(37_000)))
    settlement = stage.admitted(waiting, counts=False)
    assert settlement.fate == "waiting"
    assert sent(settlement).headers[names.WAIT] == 7_000


@in_both
def test_a_message_with_nothing_to_say_of_itself_is_let_through(laid_out):
    assert scene(laid_out).admitted(ORDER, redelivered=False) is None


@in_both
def test_a_forged_wait_where_there_is_no_delay_goes_straight_back_and_is_over(laid_out):
    stage = Scene(plan := Plan(QUEUE), laid_out("carom", "events", (plan,)))
    forged = Message(headers={names.QUEUE: QUEUE, names.WAIT: 10**30})
    copy = sent(stage.admitted(forged, redelivered=False))
    assert arrives(stage.layout, copy) == (QUEUE, 0)
    assert stage.admitted(copy, redelivered=False) is None


# What cannot travel


@in_both
def test_what_is_too_heavy_to_be_published_again_is_refused_and_the_broker_makes_the_dead_letter(laid_out):
    stage = scene(laid_out)
    heavy = {"blob": "x" * names.HEADERS_LIMIT}
    own = {names.QUEUE: QUEUE, names.WAIT: 5}
    settlements = [
        stage.settled(FAILED, Message(headers=heavy)),
        stage.settled(Reject("no"), Message(headers=heavy)),
        stage.admitted(Message(headers={**heavy, **own}), redelivered=False),
        stage.admitted(Message(headers=heavy), counts=False),
    ]
    for settlement in settlements:
        assert settlement.effects == (Refuse(),)
        assert (settlement.fate, settlement.reason, settlement.delay_ms) == ("dead", "oversized", 0)
    assert settlements[0].error == "no such account"
    queue = stage.layout.topology.queue(QUEUE)
    assert route(stage.layout.topology, queue.dead_letter_exchange, queue.dead_letter_key) == {f"{QUEUE}.dlq"}


# Everything at once

durations = st.just(0) | st.integers(1_000, 40_000).map(lambda ms: ms / 1000)
finite = st.one_of(
    st.lists(durations, max_size=6).map(lambda delays: RetryPolicy.delays(*delays)),
    st.builds(RetryPolicy.fixed, durations, attempts=st.integers(1, 7), jitter=st.sampled_from([0, 0.2, 1])),
    st.builds(RetryPolicy.exponential, durations, attempts=st.integers(1, 7), max_delay=st.just("1h")),
    st.builds(
        lambda delay, attempts: RetryPolicy.custom(lambda attempt, error: delay, attempts=attempts),
        st.sampled_from([0, 0.001, 7, "20s", "3h", None, "nonsense", -1]),
        st.integers(1, 7),
    ),
)
policies = finite | st.builds(lambda policy, other: policy.on(KeyError, other).permanent(ValueError), finite, finite)
errors = st.sampled_from(
    [KeyError("k"), ValueError("v"), ConnectionError(), ExceptionGroup("g", [KeyError(), OSError()])]
)
wishes = st.none() | st.integers(-1, 90_000)
failures = st.builds(Failed, errors) | st.builds(Retry, wishes, st.text(), st.none() | errors)
rejections = st.builds(Reject, st.text(), st.text(), st.none() | errors)
outcomes = failures | rejections | st.builds(Discard, st.text()) | st.just(Done()) | st.just(Interrupted())
moments = st.builds(Moment, st.integers(0, 2**42), st.floats(0, 1, exclude_max=True), st.text())
ours = [value for key, value in vars(names).items() if isinstance(value, str) and value.startswith(names.OURS)]
absurd = st.sampled_from(
    [0, -1, 1, 3, 99_999, 2.5, math.nan, True, "4", b"4", [4], {"a": [None]}, None, QUEUE, "x" * 9000]
)
hostile = st.dictionaries(
    st.sampled_from([*ours, "x-delivery-count", "x-acquired-count", "x-death", "CC", "BCC"]), absurd
)
messages = st.builds(
    lambda headers, own: replace(ORDER, headers={**headers, **({names.QUEUE: QUEUE} if own else {})}),
    hostile,
    st.booleans(),
)
huge = st.dictionaries(st.sampled_from(ours), st.just(10**30))
"""Apart from the others, for nobody can follow a wait of ten years turn by turn."""
layouts = st.sampled_from([Shared, PerQueue])
scenes = st.builds(scene, layouts, policies, st.integers(1, 4))


def check(settlement: Settlement, stage: Scene) -> None:
    """Check what holds for any settlement: what is published comes before the one effect that settles."""
    *before, last = settlement.effects
    assert isinstance(last, Ack | HandBack | Refuse)
    assert all(isinstance(effect, Publish) for effect in before)
    if settlement.fate == "handed back":
        assert len(before) == isinstance(last, Ack)
    else:
        assert len(before) == (settlement.fate in {"retried", "dead", "waiting", "recounted", "set apart"})
        assert not isinstance(last, HandBack)
    for publish in before:
        name, waited = arrives(stage.layout, publish.message)
        kept = {"dead": f"{QUEUE}.dlq", "set apart": stage.layout.suspects, "handed back": stage.layout.suspects}
        assert name == kept.get(settlement.fate, QUEUE)
        rest = publish.message.headers.get(names.WAIT, 0)
        assert waited + rest >= settlement.delay_ms or not stage.layout.delays(QUEUE)
        assert publish.message.id == ORDER.id
        assert publish.message.delivery_mode == 2


@given(scenes, messages, huge, outcomes, moments, st.booleans(), st.booleans(), st.booleans())
def test_every_message_and_outcome_has_a_settlement_that_publishes_to_one_queue_before_it_settles(
    stage, message, more, outcome, moment, redelivered, counts, alone
):
    message = replace(message, headers={**message.headers, **more})
    arrival = wire.read(message, QUEUE, redelivered=redelivered, counts=counts, alone=alone)
    check(settle(outcome, arrival, stage.plan, stage.layout, moment), stage)
    settlement = admit(arrival, stage.plan, stage.layout, moment)
    if settlement is not None:
        check(settlement, stage)


def most_attempts(policy: RetryPolicy) -> int:
    return max(policy.attempts, *(most_attempts(other) for _, other in policy.overrides), 1)


@given(scenes, messages, st.lists(failures, min_size=1, max_size=3))
def test_whatever_fails_for_ever_is_dead_after_its_attempts_wherever_it_started(stage, message, failing):
    life = live(stage, chain.from_iterable(repeat(failing)), message)
    assert life.end.fate == "dead"
    if life.end.reason != "crash-loop":
        first = life.attempts[0][0]
        assert [attempt for attempt, _ in life.attempts] == list(range(first, first + len(life.attempts)))
        assert len(life.attempts) <= most_attempts(stage.plan.retry)
        assert first == 1 or len(life.attempts) == 1 or life.attempts[-1][0] <= most_attempts(stage.plan.retry)


@given(layouts, st.integers(1, 100_000))
def test_a_wait_that_is_asked_for_is_waited_in_full_and_gets_shorter_with_each_turn(laid_out, asked_ms):
    life = live(scene(laid_out), [Retry(asked_ms), Done()])
    waited = life.attempts[-1][1]
    assert asked_ms <= waited < asked_ms + 10_000
    assert all(earlier > later for earlier, later in zip([asked_ms, *life.waits], life.waits, strict=False))
    assert len(life.waits) == (asked_ms - 1) // 15_000


@given(scenes, messages, st.sampled_from(["quorum", "quorum since 4.3", "classic"]))
def test_a_message_that_kills_every_worker_is_dead_after_its_crash_limit_wherever_it_started(stage, message, kind):
    killed, lost, alone = 0, 0, False
    while True:
        headers = dict(message.headers)
        if lost and kind != "classic":
            headers |= {"x-delivery-count": lost} | ({"x-acquired-count": lost} if "4.3" in kind else {})
        arrival: Arrival = wire.read(
            replace(message, headers=headers), QUEUE, redelivered=lost > 0, counts=kind != "classic", alone=alone
        )
        settlement = admit(arrival, stage.plan, stage.layout, MOMENT)
        if settlement is None:
            killed, lost = killed + 1, lost + 1
        elif settlement.fate == "dead":
            break
        else:
            message, lost, alone = sent(settlement), 0, alone or settlement.fate == "set apart"
        assert killed <= stage.plan.crash_limit
    assert settlement.reason == "crash-loop"
