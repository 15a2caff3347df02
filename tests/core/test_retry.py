from __future__ import annotations

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carom.core.classify import Classification
from carom.core.durations import LONGEST_MS
from carom.core.retry import ATTEMPTS_LIMIT, DELAYS_LIMIT, Delay, GiveUp, RetryPolicy, policy
from carom.core.schedule import Step
from carom.errors import ConfigurationError, DecodeError

EXHAUSTED, PERMANENT = GiveUp("exhausted"), GiveUp("permanent")
SEED = RetryPolicy.delays(2, 5, 15)


class RateLimited(Exception):
    pass


class HardLimited(RateLimited):
    pass


def delays_of(retry: RetryPolicy) -> list[int | None]:
    return [step.delay_ms for step in retry.schedule()[1:]]


# Forms


def test_delays_of_2_5_and_15_seconds_attempt_at_0_2_7_and_22_seconds_then_dead_letter():
    assert SEED.attempts == 4
    assert SEED.schedule() == (Step(1, 0, 0), Step(2, 2000, 2000), Step(3, 5000, 7000), Step(4, 15000, 22000))
    assert [SEED.decide(attempt, ValueError()) for attempt in (1, 2, 3, 4)] == [
        Delay(2000),
        Delay(5000),
        Delay(15000),
        EXHAUSTED,
    ]


def test_the_table_is_the_one_of_seed_000_section_5():
    assert SEED.table() == (
        "| Attempt       | Delay Before | Header Count | In Delay Queue | Total Elapsed Time |\n"
        "| ------------- | ------------ | ------------ | -------------- | ------------------ |\n"
        "| 1 (initial)   | 0s           | -            | No             | 0s                 |\n"
        "| 2 (1st retry) | 2s           | 2            | Yes (2s)       | 2s                 |\n"
        "| 3 (2nd retry) | 5s           | 3            | Yes (5s)       | 7s                 |\n"
        "| 4 (3rd retry) | 15s          | 4            | Yes (15s)      | 22s                |\n"
        "| 5+            | -            | -            | → DLQ          | -                  |"
    )


def test_every_retry_of_the_table_is_counted_as_people_count():
    lines = RetryPolicy.fixed("1s", attempts=114).table().splitlines()[3:-1]
    counted = [line.partition("(")[2].partition(" retry")[0] for line in lines]
    assert counted[:4] == ["1st", "2nd", "3rd", "4th"]
    assert [counted[number - 1] for number in (10, 11, 12, 13, 20, 21, 22, 23, 101, 111, 112, 113)] == [
        *("10th", "11th", "12th", "13th", "20th", "21st", "22nd", "23rd", "101st", "111th", "112th", "113th")
    ]


def test_an_instant_retry_is_in_no_delay_queue():
    lines = RetryPolicy.delays(0, "2s").table().splitlines()
    assert lines[3] == "| 2 (1st retry) | 0s           | 2            | No             | 0s                 |"


def test_the_table_says_what_the_schedule_leaves_out():
    retry = RetryPolicy.fixed("1s", attempts=2, jitter=0.25).on(KeyError, ())
    assert retry.table().endswith(
        "\n\nJitter makes each delay up to 25 % longer.\n\nKeyError is treated by RetryPolicy.delays()."
    )


def test_the_table_of_a_custom_policy_admits_what_it_cannot_know():
    lines = RetryPolicy.custom(lambda attempt, error: 1, attempts=2).table().splitlines()
    assert lines[3] == "| 2 (1st retry) | chosen then  | 2            | Yes (chosen then) | -                  |"


def test_no_delays_are_one_attempt():
    retry = RetryPolicy.delays()
    assert retry.attempts == 1
    assert retry.schedule() == (Step(1, 0, 0),)
    assert retry.decide(1, ValueError()) == EXHAUSTED
    assert retry.possible_delays() == ()


def test_fixed_waits_the_same():
    assert delays_of(RetryPolicy.fixed("30s", attempts=4)) == [30_000] * 3


def test_linear_waits_one_more_each_time():
    assert delays_of(RetryPolicy.linear("1s", attempts=5)) == [1000, 2000, 3000, 4000]


def test_exponential_grows_to_its_cap():
    retry = RetryPolicy.exponential("1s", factor=4, max_delay="1m", attempts=6)
    assert delays_of(retry) == [1000, 4000, 16_000, 60_000, 60_000]


def test_exponential_stops_at_an_hour_when_nobody_said():
    retry = RetryPolicy.exponential("1s", factor=1_000_000, attempts=ATTEMPTS_LIMIT)
    assert retry.possible_delays() == (1000, 3_600_000)
    assert len(delays_of(retry)) == ATTEMPTS_LIMIT - 1


def test_a_factor_with_decimals_means_what_is_written():
    assert delays_of(RetryPolicy.exponential(1, factor=1.1, attempts=5)) == [1000, 1100, 1210, 1331]


def test_every_known_form_takes_a_cap():
    assert delays_of(RetryPolicy.linear("1s", attempts=5, max_delay="2s")) == [1000, 2000, 2000, 2000]
    assert delays_of(RetryPolicy.delays(1, 9, max_delay=2)) == [1000, 2000]
    assert delays_of(RetryPolicy.fixed(1, attempts=2, max_delay="1m")) == [1000]
    assert delays_of(RetryPolicy.linear("3650d", attempts=3)) == [LONGEST_MS, LONGEST_MS]


def test_durations_are_taken_in_every_form():
    assert RetryPolicy.delays(2, "5s", timedelta(seconds=15)) == SEED


def test_custom_asks_a_function():
    asked = []

    def choose(attempt, error):
        asked.append((attempt, error))
        return None if isinstance(error, KeyError) else f"{attempt}m"

    retry = RetryPolicy.custom(choose, attempts=3)
    error = ValueError()
    assert retry.decide(2, error) == Delay(120_000)
    assert asked == [(2, error)]
    assert retry.decide(1, KeyError()) == GiveUp("exhausted", "the function of the retry policy gave up")
    assert retry.decide(3, error) == EXHAUSTED
    assert retry.schedule() == (Step(1, 0, 0), Step(2, None, None), Step(3, None, None))
    assert retry.possible_delays() == ()


def boom(attempt, error):
    raise ZeroDivisionError("in the policy")


def leave(attempt, error):
    raise SystemExit


@pytest.mark.parametrize(
    "choose",
    [boom, leave, lambda: 1, *(lambda a, e, wish=wish: wish for wish in (-1, math.nan, math.inf, 1e308, 10**400, True))]
    + [lambda a, e, wish=wish: wish for wish in ("soon", "", "3651d", [1], object(), timedelta(days=-1))],
)
def test_a_custom_function_that_fails_or_talks_nonsense_makes_a_dead_letter_that_says_so(choose):
    decision = RetryPolicy.custom(choose, attempts=3).decide(1, ValueError())
    assert isinstance(decision, GiveUp)
    assert decision.reason == "exhausted"
    assert decision.note.startswith("the function of the retry policy failed: ")


def test_the_note_names_the_mistake_of_a_custom_function():
    decision = RetryPolicy.custom(boom, attempts=3).decide(1, ValueError())
    assert decision == GiveUp("exhausted", "the function of the retry policy failed: ZeroDivisionError: in the policy")


def test_a_policy_says_whether_its_delays_are_all_known():
    custom = RetryPolicy.custom(boom, attempts=3)
    assert custom.open_ended
    assert SEED.on(KeyError, custom).open_ended
    assert not SEED.on(KeyError, (1,)).open_ended


# Classification


def test_permanent_errors_give_up_at_once():
    retry = SEED.permanent(KeyError, RateLimited)
    assert retry.decide(1, KeyError()) == PERMANENT
    assert retry.decide(1, HardLimited()) == PERMANENT
    assert retry.decide(1, DecodeError()) == PERMANENT
    assert retry.decide(1, LookupError()) == Delay(2000)


def test_transient_excepts_from_permanent():
    retry = SEED.permanent(LookupError).transient(KeyError, DecodeError)
    assert retry.decide(1, KeyError()) == Delay(2000)
    assert retry.decide(1, IndexError()) == PERMANENT
    assert retry.decide(1, DecodeError()) == Delay(2000)


def test_a_policy_classifies_by_its_lists_then_by_the_defaults():
    retry = SEED.permanent(KeyError).on(DecodeError, (1,))
    assert retry.classify(KeyError()) is Classification.PERMANENT
    assert retry.classify(DecodeError()) is Classification.TRANSIENT
    assert retry.classify(ConnectionError()) is Classification.TRANSIENT
    assert retry.classify(ValueError()) is Classification.UNKNOWN
    assert retry.classify(ExceptionGroup("g", [ValueError(), KeyError()])) is Classification.PERMANENT


# Overrides


def test_an_override_counts_every_attempt_against_its_own_limit():
    retry = SEED.on(RateLimited, RetryPolicy.fixed("1m", attempts=30))
    assert retry.decide(29, RateLimited()) == Delay(60_000)
    assert retry.decide(30, RateLimited()) == EXHAUSTED
    assert retry.decide(10, ValueError()) == EXHAUSTED
    assert retry.decide(1, ValueError()) == Delay(2000)


def test_the_most_specific_override_wins():
    retry = SEED.on(RateLimited, ("1m",)).on(HardLimited, ("1h",))
    assert retry.decide(1, HardLimited()) == Delay(3_600_000)
    assert retry.decide(1, RateLimited()) == Delay(60_000)
    turned = SEED.on(HardLimited, ("1h",)).on(RateLimited, ("1m",))
    assert turned.decide(1, HardLimited()) == Delay(3_600_000)


def test_the_later_override_of_the_same_class_replaces_the_earlier():
    assert SEED.on(KeyError, (1,)).on(KeyError, (7,)) == SEED.on(KeyError, (7,))


def test_permanent_and_override_are_weighed_by_how_specific_they_are():
    assert SEED.permanent(LookupError).on(KeyError, (1,)).decide(1, KeyError()) == Delay(1000)
    assert SEED.permanent(KeyError).on(LookupError, (1,)).decide(1, KeyError()) == PERMANENT
    assert SEED.permanent(KeyError).on(KeyError, (1,)).decide(1, KeyError()) == PERMANENT


def test_an_override_may_have_its_own_lists_and_overrides():
    retry = SEED.on(LookupError, RetryPolicy.delays(1).permanent(IndexError).on(KeyError, (9,)))
    assert retry.decide(1, LookupError()) == Delay(1000)
    assert retry.decide(1, IndexError()) == PERMANENT
    assert retry.decide(1, KeyError()) == Delay(9000)
    assert retry.classify(IndexError()) is Classification.PERMANENT


def test_the_possible_delays_include_those_of_the_overrides():
    retry = SEED.on(KeyError, (1, 5)).on(OSError, RetryPolicy.fixed(7, attempts=3).on(TimeoutError, (8,)))
    assert retry.possible_delays() == (1000, 2000, 5000, 7000, 8000, 15_000)


def test_changing_a_policy_leaves_the_original_as_it_was():
    SEED.on(KeyError, ()).permanent(ValueError).transient(OSError)
    assert RetryPolicy.delays(2, 5, 15) == SEED


# Groups


def test_a_group_waits_for_its_slowest_leaf():
    retry = SEED.on(RateLimited, RetryPolicy.fixed("1m", attempts=30))
    group = ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [RateLimited()]), OSError()])
    assert retry.decide(1, group) == Delay(60_000)


def test_a_group_gives_up_when_one_leaf_is_exhausted():
    retry = SEED.on(RateLimited, RetryPolicy.fixed("1m", attempts=30))
    assert retry.decide(4, ExceptionGroup("g", [RateLimited(), ValueError()])) == EXHAUSTED


def test_a_group_with_a_permanent_leaf_is_permanent_even_when_another_is_exhausted():
    retry = SEED.permanent(KeyError).on(RateLimited, ())
    assert retry.decide(1, ExceptionGroup("g", [RateLimited(), ValueError(), KeyError()])) == PERMANENT


# Clamping


@pytest.mark.parametrize("attempt", [0, -1, -(10**9)])
def test_an_attempt_before_the_first_counts_as_the_first(attempt):
    assert SEED.decide(attempt, ValueError()) == Delay(2000)


def test_an_attempt_beyond_belief_is_exhausted():
    assert SEED.decide(10**9, ValueError()) == EXHAUSTED


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [
        (0.0, 1000),
        (0.25, 1100),
        (0.5, 1200),
        (0.75, 1300),
        (0.999, 1300),
        (1.0, 1300),
        (math.inf, 1300),
        (-5.0, 1000),
    ],
)
def test_jitter_comes_in_four_steps_and_any_fraction_chooses_one(fraction, expected):
    assert RetryPolicy.delays(1, jitter=0.3).decide(1, ValueError(), fraction) == Delay(expected)


def test_a_fraction_that_is_no_number_still_chooses_a_possible_delay():
    retry = RetryPolicy.delays(1, jitter=0.3)
    assert retry.decide(1, ValueError(), math.nan).ms in retry.possible_delays()


def test_jitter_never_exceeds_ten_years():
    assert RetryPolicy.delays("3650d", jitter=1).possible_delays() == (LONGEST_MS,)


# Refusals


@pytest.mark.parametrize("attempts", [0, -1, 1001, True, 2.0, "3", None])
def test_unbounded_or_absurd_attempts_are_refused(attempts):
    for make in (
        lambda: RetryPolicy.fixed(1, attempts=attempts),
        lambda: RetryPolicy.linear(1, attempts=attempts),
        lambda: RetryPolicy.exponential(1, attempts=attempts),
        lambda: RetryPolicy.custom(boom, attempts=attempts),
    ):
        with pytest.raises(ConfigurationError, match="say a number from 1 to 1000"):
            make()


def test_a_thousand_delays_are_one_attempt_too_many():
    assert RetryPolicy.delays(*[1] * 999).attempts == 1000
    with pytest.raises(ConfigurationError, match="attempts=1001"):
        RetryPolicy.delays(*[1] * 1000)


@pytest.mark.parametrize("factor", [0.99, 0, -2, math.nan, math.inf, 10**400, "2", True])
def test_a_factor_that_shrinks_or_is_no_number_is_refused(factor):
    with pytest.raises(ConfigurationError, match="factor="):
        RetryPolicy.exponential(1, factor=factor, attempts=3)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, math.nan, math.inf, "0.1", True])
def test_jitter_that_shortens_or_is_no_number_is_refused(jitter):
    with pytest.raises(ConfigurationError, match="jitter="):
        RetryPolicy.delays(1, jitter=jitter)


@pytest.mark.parametrize("delay", [-1, math.nan, "soon", "3651d", None, (1, 2)])
def test_what_is_no_delay_is_refused(delay):
    with pytest.raises(ConfigurationError, match=r"duration|ten years"):
        RetryPolicy.delays(delay)


def test_a_first_delay_above_the_cap_is_refused():
    with pytest.raises(ConfigurationError, match="starts with a delay above max_delay"):
        RetryPolicy.exponential("2h", attempts=3)


def test_more_delays_than_queues_are_wanted_are_refused():
    assert len(RetryPolicy.linear(1, attempts=DELAYS_LIMIT + 1).possible_delays()) == DELAYS_LIMIT
    with pytest.raises(ConfigurationError, match="65 distinct delays; each is a queue"):
        RetryPolicy.linear(1, attempts=DELAYS_LIMIT + 2)
    with pytest.raises(ConfigurationError, match="distinct delays"):
        RetryPolicy.linear(1, attempts=DELAYS_LIMIT + 1, jitter=0.1)


def test_the_delays_of_the_overrides_count_too():
    with pytest.raises(ConfigurationError, match="distinct delays"):
        RetryPolicy.linear(1, attempts=DELAYS_LIMIT + 1).on(KeyError, ("1ms",))


def test_delays_and_attempts_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigurationError, match="3 attempts need 2 delays"):
        RetryPolicy(attempts=3, delays_ms=(1,))
    with pytest.raises(ConfigurationError, match="delays_ms=-1"):
        RetryPolicy(attempts=2, delays_ms=(-1,))


@pytest.mark.parametrize("wrong", [KeyError(), "KeyError", int, None, (KeyError,), ExceptionGroup, BaseExceptionGroup])
def test_only_classes_of_exceptions_can_be_named_and_no_groups(wrong):
    for take in (SEED.permanent, SEED.transient, lambda error: SEED.on(error, (1,))):
        with pytest.raises(ConfigurationError, match="name classes of exceptions"):
            take(wrong)


def test_custom_needs_a_function():
    with pytest.raises(ConfigurationError, match="needs a function"):
        RetryPolicy.custom("5s", attempts=2)


# Values


def test_a_policy_is_taken_in_every_form():
    assert policy(SEED) is SEED
    assert policy((2, 5, 15)) == SEED == policy(["2s", "5s", "15s"])
    assert policy(()) == policy(None) == RetryPolicy.delays()


@pytest.mark.parametrize("wrong", ["2s", 3, object(), {"attempts": 3}])
def test_anything_else_is_refused_with_a_sentence(wrong):
    with pytest.raises(ConfigurationError, match="is not a retry policy"):
        policy(wrong)


def test_policies_that_decide_alike_are_equal():
    assert RetryPolicy.fixed(1, attempts=3) == RetryPolicy.delays("1s", "1s")
    assert hash(RetryPolicy.fixed(1, attempts=3)) == hash(RetryPolicy.delays("1s", "1s"))
    assert SEED.permanent(KeyError, KeyError).permanent(KeyError) == SEED.permanent(KeyError)
    assert RetryPolicy.delays(1) != RetryPolicy.delays(1, jitter=0.1)


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (SEED, "RetryPolicy.delays('2s', '5s', '15s')"),
        (RetryPolicy.delays(), "RetryPolicy.delays()"),
        (RetryPolicy.delays(jitter=0.1, max_delay=9), "RetryPolicy.delays(max_delay='9s', jitter=0.1)"),
        (RetryPolicy.fixed(90, attempts=10), "RetryPolicy.fixed('1m30s', attempts=10)"),
        (RetryPolicy.linear(1, attempts=5, jitter=0.5), "RetryPolicy.linear('1s', attempts=5, jitter=0.5)"),
        (
            RetryPolicy.exponential("1s", attempts=8, max_delay=300, jitter=0.2),
            "RetryPolicy.exponential('1s', factor=2, attempts=8, max_delay='5m', jitter=0.2)",
        ),
        (
            RetryPolicy.delays(2).on(KeyError, (1,)).permanent(OSError).transient(EOFError),
            "RetryPolicy.delays('2s').on(KeyError, RetryPolicy.delays('1s')).permanent(OSError).transient(EOFError)",
        ),
    ],
)
def test_a_policy_reads_as_it_is_written(made, written):
    assert repr(made) == written
    assert eval(written) == made  # noqa: S307 - the text is the literal above


def test_a_custom_policy_names_its_function():
    assert repr(RetryPolicy.custom(boom, attempts=3)) == "RetryPolicy.custom(boom, attempts=3)"


# Properties

DELAYS = st.integers(0, 86_400_000).map(lambda ms: timedelta(milliseconds=ms))
JITTER = st.sampled_from([0, 0.1, 0.2, 1 / 3, 0.5, 1]) | st.floats(0, 1)
KNOWN = st.one_of(
    st.builds(lambda delays, jitter: RetryPolicy.delays(*delays, jitter=jitter), st.lists(DELAYS, max_size=12), JITTER),
    st.builds(lambda d, n, j: RetryPolicy.fixed(d, attempts=n, jitter=j), DELAYS, st.integers(1, 1000), JITTER),
    st.builds(lambda d, n, j: RetryPolicy.linear(d, attempts=n, jitter=j), DELAYS, st.integers(1, 12), JITTER),
    st.builds(
        lambda d, f, n, j: RetryPolicy.exponential(d, factor=f, attempts=n, jitter=j, max_delay="1d"),
        DELAYS,
        st.floats(1, 1_000_000),
        st.integers(1, 12),
        JITTER,
    ),
)
ERRORS = st.sampled_from([ValueError(), KeyError(), ConnectionError(), HardLimited(), KeyboardInterrupt()])
GROUPS = st.recursive(
    ERRORS, lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda es: BaseExceptionGroup("g", es))
)
FRACTIONS = st.floats(0, 1, exclude_max=True)


@given(KNOWN, st.integers(), GROUPS, st.floats())
def test_a_decision_is_always_a_possible_delay_or_the_end(retry, attempt, error, fraction):
    decision = retry.decide(attempt, error, fraction)
    if max(1, attempt) >= retry.attempts:
        assert decision == EXHAUSTED
    else:
        assert isinstance(decision, Delay)
        assert decision.ms in retry.possible_delays()


@given(KNOWN, KNOWN, st.integers(1, 1000), GROUPS, FRACTIONS)
def test_overrides_and_lists_never_ask_for_a_delay_that_has_no_queue(retry, other, attempt, error, fraction):
    if len({*retry.possible_delays(), *other.possible_delays()}) > DELAYS_LIMIT:
        return
    full = retry.on(RateLimited, other).on(KeyError, other).permanent(LookupError).transient(HardLimited)
    decision = full.decide(attempt, error, fraction)
    assert isinstance(decision, GiveUp) or decision.ms in full.possible_delays()
    assert isinstance(decision, GiveUp) or attempt < max(retry.attempts, other.attempts)


@given(KNOWN, FRACTIONS)
def test_the_schedule_is_what_decide_says_and_jitter_only_adds_its_share(retry, fraction):
    elapsed = 0
    for step in retry.schedule()[1:]:
        elapsed += step.delay_ms
        assert retry.decide(step.attempt - 1, ValueError()) == Delay(step.delay_ms)
        assert step.elapsed_ms == elapsed
        jittered = retry.decide(step.attempt - 1, ValueError(), fraction).ms
        assert step.delay_ms <= jittered <= math.ceil(step.delay_ms * (1 + Fraction(str(retry.jitter))))


@given(DELAYS, st.floats(1, 1_000_000), st.integers(1, 12), DELAYS)
def test_growing_delays_never_shrink_and_never_pass_the_cap(delay, factor, attempts, more):
    cap = delay + more
    for retry in (
        RetryPolicy.exponential(delay, factor=factor, attempts=attempts, max_delay=cap),
        RetryPolicy.linear(delay, attempts=attempts, max_delay=cap),
    ):
        waits = delays_of(retry)
        assert waits == sorted(waits)
        assert all(wait <= cap // timedelta(milliseconds=1) for wait in waits)
        assert len(waits) == retry.attempts - 1 == attempts - 1


@given(KNOWN, st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=60)
def test_a_larger_fraction_never_shortens_a_delay(retry, one, other):
    less, more = sorted((one, other))
    for attempt in range(1, min(retry.attempts, 20)):
        assert retry.decide(attempt, OSError(), less).ms <= retry.decide(attempt, OSError(), more).ms


@given(st.one_of(st.none(), st.floats(), st.integers(), st.text(), st.timedeltas(), st.binary()), st.integers())
def test_a_custom_policy_never_raises_and_stays_bounded(wish, attempt):
    decision = RetryPolicy.custom(lambda _attempt, _error: wish, attempts=5).decide(attempt, ValueError())
    if isinstance(decision, Delay):
        assert attempt < 5
        assert 0 <= decision.ms <= LONGEST_MS
