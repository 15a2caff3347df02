"""Claims about the codec: handlers of Clojure jobs are typed like any other."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from carom.codecs import Nippy, standard
from carom.core.freezing import freeze
from carom.core.message import Message
from carom.core.nippy import Keyword, Symbol, thaw
from carom.errors import ConfigurationError, DecodeError

FROZEN = "application/x-nippy"


class Order(msgspec.Struct):
    id: int
    tags: list[str]
    share: float = 0.0


def read(annotation: Any, value: object) -> Any:
    return standard().reader(annotation)(Message(body=freeze(value), content_type=FROZEN))


def test_arguments_are_read_into_what_the_handler_takes():
    value = {Keyword("id"): 7, Keyword("tags"): frozenset({Keyword("a")}), Keyword("share"): Fraction(1, 2)}
    assert read(Order, value) == Order(7, ["a"], 0.5)
    assert read(dict, {Keyword("s"): Symbol("x")}) == {"s": "x"}
    assert read(bytes, value) == freeze(value)


@pytest.mark.parametrize("value", [{}, 2**70, {(1, 2): 3}, float("nan")])
def test_what_does_not_fit_is_a_decode_error(value):
    with pytest.raises(DecodeError):
        read(Order, value)


def test_what_would_run_code_is_a_decode_error():
    with pytest.raises(DecodeError, match="runs code"):
        standard().reader(dict)(Message(body=b"NPY\0\x06", content_type=FROZEN))


def test_it_reads_its_own_content_type_alone():
    assert Nippy().reads("Application/X-Nippy; v=2")
    assert not Nippy().reads("")


def test_large_payloads_are_packed():
    assert Nippy().encode({"a": 1})[3] == 0
    packed = Nippy().encode({"a": "x" * 10_000})
    assert packed[3] == 8
    assert thaw(packed) == {"a": "x" * 10_000}
    with pytest.raises(ConfigurationError):
        Nippy().encode(object())
