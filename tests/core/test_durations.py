"""Claims about durations: one way in, one way out, and a sentence for everything that is none."""

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carom.core.durations import LONGEST_MS, milliseconds, text
from carom.errors import ConfigurationError


@given(st.integers(0, LONGEST_MS))
@example(0)
@example(LONGEST_MS)
@example(59_999)
def test_what_is_written_is_read_back(value):
    assert milliseconds(text(value)) == value


@given(st.integers(0, LONGEST_MS))
def test_a_timedelta_is_exact_to_the_millisecond(value):
    assert milliseconds(timedelta(milliseconds=value)) == value


@given(st.floats(0, LONGEST_MS / 1000))
def test_a_number_of_seconds_never_comes_early_nor_a_millisecond_late(seconds):
    exact = Fraction(seconds) * 1000
    noise = max(Fraction(1, 1_000_000), exact / 2**50)
    assert exact - noise <= milliseconds(seconds) < exact + 1 + noise


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("1m30s", 90_000),
        ("250ms", 250),
        ("1h30m", 5_400_000),
        ("2d3h4m5s6ms", 183_845_006),
        ("5m5ms", 300_005),
        ("0s", 0),
        ("90s", 90_000),
        (90, 90_000),
        (0.07, 70),
        (0.0001, 1),
        (2.5, 2_500),
        (timedelta(microseconds=1), 1),
        (timedelta(days=3650), LONGEST_MS),
        (-0.0, 0),
    ],
)
def test_durations_mean_what_they_say(duration, expected):
    assert milliseconds(duration) == expected


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0s"), (250, "250ms"), (2_000, "2s"), (90_000, "1m30s"), (86_400_000, "1d"), (3_600_001, "1h1ms")],
)
def test_milliseconds_are_written_as_queue_names_have_them(value, written):
    assert text(value) == written


@pytest.mark.parametrize(
    "ugly",
    [
        "", " ", "5", "s", "5S", "1.5s", "٣s", "5s\n", " 5s", "5 s", "-5d", "+5s", "1m1m", "1ms1s", "1s1m",
        "5x", "1e3s", "0x5s", "1_000s", "²s", "9999999999999s", "5m\x00", "\udc80s",
    ],
)  # fmt: skip
def test_text_that_is_no_duration_is_refused_with_an_example(ugly):
    with pytest.raises(ConfigurationError, match=r"is not a duration: write it as '250ms'"):
        milliseconds(ugly)


@pytest.mark.parametrize("ugly", [True, False, None, b"5s", [5], object(), math.nan])
def test_what_is_no_duration_at_all_is_refused_with_what_to_say(ugly):
    with pytest.raises(ConfigurationError, match="is not a duration: say seconds, a timedelta or text"):
        milliseconds(ugly)


@pytest.mark.parametrize(
    "negative", [-1, -0.001, -math.inf, -1e308, pytest.param(-(10**5000), id="huge"), timedelta(seconds=-1)]
)
def test_a_negative_duration_is_refused(negative):
    with pytest.raises(ConfigurationError, match="it is negative"):
        milliseconds(negative)


@pytest.mark.parametrize(
    "endless",
    [
        math.inf,
        1e308,
        pytest.param(10**5000, id="huge"),
        315_360_000.001,
        "3651d",
        "999999999999d",
        timedelta(days=3651),
    ],
)
def test_more_than_ten_years_is_refused(endless):
    with pytest.raises(ConfigurationError, match="longer than ten years"):
        milliseconds(endless)


def test_ten_years_are_not_too_long():
    assert milliseconds(315_360_000) == milliseconds("3650d") == LONGEST_MS


def test_a_long_text_does_not_make_a_long_sentence():
    with pytest.raises(ConfigurationError) as caught:
        milliseconds("x" * 1_000_000)
    assert len(str(caught.value)) < 200


def test_negative_milliseconds_are_not_written():
    with pytest.raises(ConfigurationError, match="-5 ms is not a duration"):
        text(-5)
