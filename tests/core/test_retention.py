"""How long the inbox has to remember, and what is said when it would not."""

import pytest

from carom import ConfigurationError, RetryPolicy
from carom.core.durations import milliseconds
from carom.core.retention import check_retention, ladder

DAY = 86_400_000


def seconds(*values):
    return tuple(value * 1000 for value in values)


def test_a_ladder_is_the_delays_of_the_policy():
    assert ladder(RetryPolicy.delays(2, 5, 15)) == seconds(2, 5, 15)
    assert ladder(RetryPolicy.delays()) == ()


def test_jitter_counts_at_its_longest():
    assert ladder(RetryPolicy.delays(10, 20, jitter=0.5)) == seconds(15, 30)


def test_errors_may_come_in_any_order_so_each_step_is_the_longest_of_all_policies():
    policy = RetryPolicy.delays(10, 10).on(KeyError, (1, 60, 5, 5)).on(OSError, RetryPolicy.fixed(30, attempts=2))
    assert ladder(policy) == seconds(30, 60, 5, 5)


def test_overrides_of_overrides_count():
    inner = RetryPolicy.delays(1).on(KeyError, (100, 100))
    assert ladder(RetryPolicy.delays(10).on(LookupError, inner)) == seconds(100, 100)


def test_of_a_custom_policy_only_its_overrides_are_known():
    custom = RetryPolicy.custom(lambda attempt, error: 5, attempts=4)
    assert ladder(custom) == ()
    assert ladder(custom.on(KeyError, (7,))) == seconds(7)


@pytest.mark.parametrize(("spare", "holds"), [(-1, False), (0, False), (1, True)])
def test_memory_has_to_outlast_the_ladder_and_the_replay_window(spare, holds):
    policy = RetryPolicy.delays(60, 3600)
    needed = milliseconds("1h1m") + 7 * DAY
    if holds:
        check_retention("q", policy, needed + spare, 7 * DAY)
    else:
        with pytest.raises(ConfigurationError, match="keep_seen"):
            check_retention("q", policy, needed + spare, 7 * DAY)


def test_a_refusal_shows_the_arithmetic():
    with pytest.raises(ConfigurationError) as refused:
        check_retention("billing.charge", RetryPolicy.delays(2, 5, 15), DAY, 7 * DAY)
    said = str(refused.value)
    assert "keep_seen='1d' is too short for billing.charge" in said
    assert "2s + 5s + 15s = 22s" in said
    assert "for 7d after that (replay_window), 7d22s together" in said


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (RetryPolicy.delays(), "its retries may take no time,"),
        (RetryPolicy.delays(9), "its retries may take 9s,"),
        (RetryPolicy.linear(1, attempts=11), "1s + 2s + 3s + 4s + … + 10s = 55s,"),
    ],
)
def test_long_ladders_are_written_by_their_ends(policy, said):
    with pytest.raises(ConfigurationError) as refused:
        check_retention("q", policy, 1000, DAY)
    assert said in str(refused.value)
