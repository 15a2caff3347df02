"""Claims about JSON envelopes: they are total."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.layouts.envelopes import opened, payload, sealed


@given(st.binary())
def test_any_body_is_an_envelope_or_none(body):
    assert opened(body) is None or isinstance(opened(body), dict)
    assert sealed(payload(body)) is not None


def test_what_json_cannot_say_is_not_sealed():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert sealed(deep) is None
    assert sealed(b"bytes") is None


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, True]}, "Zürich", "\ud800", 2**70])
def test_what_was_sealed_is_what_is_opened(value):
    written = sealed({"data": value})
    assert written is not None
    assert opened(written) == {"data": value}
