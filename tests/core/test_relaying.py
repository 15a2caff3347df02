"""What becomes of a row is decided here: examples, and properties over all results, keys and orders of events.

Rule: no store, no broker and no clock; what a relay would be told, the tests tell.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carom.core.effects import CONFIRMED, Nacked, Returned, Unknown, lasts
from carom.core.message import Message
from carom.core.relaying import (
    PATIENCE,
    REASON_LIMIT,
    Again,
    Lanes,
    Parked,
    Patience,
    Row,
    Sent,
    flawed,
    resolve,
    said,
)

RETURNED, NACKED, UNKNOWN = Returned(), Nacked("full"), Unknown("no answer")
TOO_LARGE, NEVER = Returned(311, "CONTENT_TOO_LARGE"), Nacked("too large", lasting=True)

results = st.one_of(
    st.just(CONFIRMED),
    st.builds(Returned, st.integers(200, 600), st.text()),
    st.builds(Nacked, st.text(), st.booleans()),
    st.builds(Unknown, st.text()),
)
fractions = st.floats(0, 1, exclude_max=True)
patiences = st.builds(Patience, st.integers(1, 20), st.integers(1, 10_000), st.integers(10_000, 1_000_000))


def row(seq, key="", failures=0):
    return Row(seq, Message(id=str(seq)), key, failures)


def rows(*seqs, key=""):
    return [row(seq, key) for seq in seqs]


# --- what becomes of a row


def test_a_confirmed_row_is_sent():
    assert resolve(row(7), CONFIRMED, PATIENCE, 0.5) == Sent(7)


@pytest.mark.parametrize("result", [RETURNED, NACKED])
def test_what_no_queue_takes_is_tried_again_and_parked_after_its_attempts(result):
    patience = Patience(attempts=3, first_ms=1_000)
    first, second, third = (resolve(row(1, failures=number), result, patience, 0.999999) for number in range(3))
    assert isinstance(first, Again)
    assert isinstance(second, Again)
    assert (first.wait_ms, second.wait_ms) == (999, 1_999)
    assert third == Parked(1, said(result))


@pytest.mark.parametrize("result", [TOO_LARGE, NEVER])
def test_what_can_never_be_published_is_parked_at_once(result):
    assert resolve(row(1), result, PATIENCE, 0.5) == Parked(1, said(result))


@given(st.integers(0, 10**6), fractions, patiences)
def test_what_nobody_knows_never_parks(failures, fraction, patience):
    assert isinstance(resolve(row(1, failures=failures), UNKNOWN, patience, fraction), Again)


@given(results, st.integers(0, 100), fractions, patiences)
def test_a_row_is_sent_only_when_it_was_confirmed_and_parked_only_with_a_reason(result, failures, fraction, patience):
    mark = resolve(row(3, failures=failures), result, patience, fraction)
    assert mark.seq == 3
    assert isinstance(mark, Sent) == (result == CONFIRMED)
    if isinstance(mark, Parked):
        assert lasts(result) or failures + 1 >= patience.attempts
        assert mark.reason
    if isinstance(mark, Again):
        assert 0 <= mark.wait_ms <= patience.most_ms
        assert len(mark.reason.encode()) <= REASON_LIMIT


@given(patiences, fractions)
def test_waits_grow_up_to_the_longest(patience, fraction):
    waits = [patience.wait_ms(failures, fraction) for failures in range(1, 60)]
    assert waits == sorted(waits)
    assert waits[-1] == int(patience.most_ms * (0.5 + fraction / 2))


def test_a_row_that_is_no_message_is_parked_with_its_flaw():
    mark = flawed(Row(9, Message(), flaw="the headers are no JSON"))
    assert mark == Parked(9, "no message can be made of this row: the headers are no JSON")


@pytest.mark.parametrize(
    ("result", "part"),
    [
        (CONFIRMED, "confirmed"),
        (RETURNED, "312 NO_ROUTE; no queue"),
        (NACKED, "refused by the broker: full"),
        (Nacked(), "full or broken"),
        (UNKNOWN, "nobody knows whether the broker has it: no answer"),
    ],
)
def test_what_the_broker_said_is_a_sentence(result, part):
    assert part in said(result)


# --- lanes


def test_rows_without_a_key_wait_for_nobody():
    lanes = Lanes()
    lanes.claiming()
    assert lanes.take(rows(1, 2, 3)) == (rows(1, 2, 3), [])
    assert (lanes.flying, lanes.held) == (3, 0)
    assert lanes.passed(rows(2, 1)) == []
    lanes.marked([1, 2])
    assert lanes.claiming() == [3]


def test_rows_of_a_key_go_one_after_the_other_and_those_others_wait_for_go_apart():
    lanes = Lanes()
    lanes.claiming()
    one, two, three = rows(1, 3, 4, key="a")
    alone, other = row(2, "b"), row(5)
    assert lanes.take([one, alone, two, three, other]) == ([alone, other], [one])
    assert (lanes.flying, lanes.held) == (3, 2)
    assert lanes.passed([one]) == [two]
    assert lanes.passed([two]) == [three]
    assert lanes.passed([three, alone]) == []
    lanes.claiming()
    assert lanes.take(rows(9, key="a")) == (rows(9, key="a"), [])


def test_what_is_claimed_later_waits_behind_what_is_in_flight():
    lanes = Lanes()
    lanes.claiming()
    lanes.take(rows(1, key="a"))
    lanes.claiming()
    assert lanes.take(rows(2, 3, key="a")) == ([], [])
    assert lanes.passed(rows(1, key="a")) == rows(2, key="a")


def test_a_row_is_never_taken_twice():
    lanes = Lanes()
    lanes.claiming()
    lanes.take(rows(1, 2))
    assert lanes.take(rows(2, 3)) == (rows(3), [])


def test_those_behind_a_failure_are_let_go_of_once_it_is_written_down():
    lanes = Lanes()
    lanes.claiming()
    first, second, third = rows(1, 2, 3, key="a")
    lanes.take([first, second, third])
    assert lanes.failed(first) == [2, 3]
    assert sorted(lanes.claiming()) == [1, 2, 3]
    assert lanes.take([row(4, "a"), row(5)]) == ([row(5)], []), "the claim may not have seen the failure"
    lanes.marked([1, 2, 3], [first])
    assert lanes.take([second]) == ([], []), "it began before the failure was written down"
    assert lanes.claiming() == [5]
    assert lanes.take([second]) == ([second], []), "the database says by now what may go"


def test_a_failure_without_a_key_concerns_nobody():
    lanes = Lanes()
    lanes.claiming()
    lanes.take(rows(1, 2))
    assert lanes.failed(row(1)) == []
    lanes.marked([], rows(1))
    assert lanes.claiming() == [2]


def test_what_is_given_back_is_claimed_again_in_its_order():
    lanes = Lanes()
    lanes.claiming()
    keyed, free = rows(1, 2, key="a"), row(3)
    lanes.take([*keyed, free])
    lanes.claiming()
    lanes.give_back([keyed[0], free])
    assert lanes.take([keyed[1]]) == ([], []), "a claim that left out the first must not bring the second"
    assert lanes.claiming() == []
    assert lanes.take([*keyed, free]) == ([free], [keyed[0]])


class Relaying(RuleBasedStateMachine):
    """A table, claims that see it at one moment, and a broker that answers as it likes, in any order of events.

    The database brings no row of a key that has an earlier one waiting after a failure.
    """

    def __init__(self):
        super().__init__()
        self.lanes = Lanes()
        self.table = {}
        self.failing = set()
        self.flights = []
        self.unmarked = []
        self.claimed = None
        self.numbers = iter(range(1, 10**9))
        self.sent = []
        self.launched = set()

    @rule(keys=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=4))
    def commit(self, keys):
        for key in keys:
            number = next(self.numbers)
            self.table[number] = row(number, key)

    @precondition(lambda self: self.claimed is None)
    @rule(limit=st.integers(1, 5))
    def begin_claim(self, limit):
        without = set(self.lanes.claiming())
        shut = {(self.table[seq].ordering_key, seq) for seq in self.failing}
        visible = [
            one
            for seq, one in sorted(self.table.items())
            if seq not in without
            and seq not in self.failing
            and not any(one.ordering_key and key == one.ordering_key and bad < seq for key, bad in shut)
        ]
        self.claimed = visible[:limit]

    @precondition(lambda self: self.claimed is not None)
    @rule()
    def end_claim(self):
        now, ahead = self.lanes.take(self.claimed)
        self.claimed = None
        self._launch([*now, *ahead])

    def _launch(self, found):
        for one in found:
            assert one.seq in self.table, "it is in nobody's hands and gone"
            assert one not in self.flights
            if one.ordering_key:
                assert all(other.ordering_key != one.ordering_key for other in self.flights), "two of a key at once"
                earlier = [o for o in self.table.values() if o.ordering_key == one.ordering_key and o.seq < one.seq]
                confirmed = {other.seq for other, _, is_sent in self.unmarked if is_sent}
                assert all(o.seq in confirmed for o in earlier), "one of its key is before it"
            self.flights.append(one)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def confirm(self, data):
        one = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        self.sent.append(one)
        self.unmarked.append((one, [], True))
        self._launch(self.lanes.passed([one]))

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def fail(self, data):
        one = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        self.unmarked.append((one, self.lanes.failed(one), False))

    @precondition(lambda self: self.flights)
    @rule()
    def lose(self):
        found, self.flights = self.flights, []
        self.lanes.give_back(found)

    @precondition(lambda self: self.unmarked)
    @rule()
    def mark(self):
        done, self.unmarked = self.unmarked, []
        for one, _, is_sent in done:
            if is_sent:
                del self.table[one.seq]
            else:
                self.failing.add(one.seq)
        self.lanes.marked([one.seq for one, _, is_sent in done if is_sent])
        failed = [one for one, _, is_sent in done if not is_sent]
        self.lanes.marked([seq for _, let_go, _ in done for seq in let_go], failed)

    @precondition(lambda self: self.failing)
    @rule()
    def release(self):
        self.failing.clear()

    @invariant()
    def counts_hold(self):
        assert self.lanes.held >= 0
        assert self.lanes.flying >= len(self.flights)

    def teardown(self):
        """When nothing fails any more everything is sent, and nothing stays in anybody's hands."""
        self.failing.clear()
        for _ in range(3 * len(self.table) + 10):
            if self.claimed is not None:
                self.end_claim()
            while self.flights:
                one = self.flights.pop(0)
                self.sent.append(one)
                self.unmarked.append((one, [], True))
                self._launch(self.lanes.passed([one]))
            self.mark()
            self.begin_claim(5)
            self.failing.clear()
        self.end_claim()
        assert not self.table
        assert self.lanes.claiming() == []
        assert self.lanes.held == 0


TestRelaying = Relaying.TestCase
