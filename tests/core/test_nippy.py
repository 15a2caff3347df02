"""Claims about Nippy: golden bytes of a Clojure program, every value back as it was, and nothing that runs."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from uuid import UUID

import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.core.blocks import unpacked
from carom.core.freezing import freeze
from carom.core.nippy import DEPTH_LIMIT, SIZE_LIMIT, Keyword, Symbol, thaw
from carom.errors import ConfigurationError, DecodeError

K = Keyword
GOLDEN = {
    "4e50590070056a086a6f622d6e616d656a056a6f622d316a046172677370016a0568656c6c6f6a07776f726c642d316a1163757272656e742d6974"
    "65726174696f6e006a0972657472792d6d617864056a1072657472792d74696d656f75742d6d736503e8": {
        K("job-name"): K("job-1"),
        K("args"): {K("hello"): K("world-1")},
        K("current-iteration"): 0,
        K("retry-max"): 5,
        K("retry-timeout-ms"): 1000,
    },
    "4e50590070056a086a6f622d6e616d656a056a6f622d326a046172677370016a0568656c6c6f6a07776f726c642d326a1163757272656e742d6974"
    "65726174696f6e006a0972657472792d6d6178036a1072657472792d74696d656f75742d6d7303": {
        K("job-name"): K("job-2"),
        K("args"): {K("hello"): K("world-2")},
        K("current-iteration"): 0,
        K("retry-max"): None,
        K("retry-timeout-ms"): None,
    },
}
HEAD = b"NPY\0"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    texts,
    texts.map(Keyword),
    texts.map(Symbol),
    st.binary(max_size=9),
    st.uuids(),
    st.fractions(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(texts.map(Keyword), inner, max_size=4),
        st.frozensets(st.integers(), max_size=4),
    ),
    max_leaves=12,
)


def frozen(hexadecimal: str) -> bytes:
    return HEAD + bytes.fromhex(hexadecimal)


def alike(one: object, other: object) -> bool:
    """Tell whether two values are the same, kind by kind."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other and (isinstance(one, frozenset) or str(one) == str(other))


@pytest.mark.parametrize(("written", "value"), GOLDEN.items())
def test_what_a_clojure_program_froze_is_thawed_and_frozen_alike(written, value):
    thawed = thaw(bytes.fromhex(written))
    assert alike(thawed, value)
    assert freeze(value).hex() == written


@given(values)
def test_everything_comes_back_as_it_was(value):
    assert alike(thaw(freeze(value)), value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *(("03", None), ("08", True), ("09", False), ("00", 0), ("64ff", -1), ("658000", -32768)),
        *(("66ffff0000", -65536), ("2b7fffffffffffffff", 2**63 - 1), ("2a0000002a", 42)),
        *(("2c00000009" + "0080" + 7 * "00", 2**63), ("37", 0.0), ("3d3ff0000000000000", 1.0)),
        *(("3c3f800000", 1.0), ("22", ""), ("690161", "a"), ("10000161", "a")),
        *(("0d0000000161", "a"), ("0e0000000161", K("a")), ("380161", Symbol("a")), ("0a0061", "a"), ("35", b"")),
        *(("070100", b"\0"), ("0f000100", b"\0"), ("020000000100", b"\0"), ("11", []), ("710809", [True, False])),
        *(("72030303", [None] * 3), ("6e0103", [None]), ("45000103", [None]), ("150000000103", [None])),
        *(("12", frozenset()), ("6f0103", frozenset({None})), ("23", ()), ("240103", (None,)), ("260103", (None,))),
        *(("13", {}), ("70010300", {None: 0}), ("2100010300", {None: 0}), ("1e000000010300", {None: 0})),
        ("5a0000000000000000", datetime(1970, 1, 1, tzinfo=UTC)),
        ("5b" + "00" * 16, UUID(int=0)),
        ("3e000000017b00000002", Decimal("1.23")),
        ("4600000001010000000102", Fraction(1, 2)),
        ("19130 3".replace(" ", ""), None),
        ("70016e010303", {(None,): None}),
    ],
)
def test_every_type_that_is_read_is_read(written, value):
    assert alike(thaw(frozen(written)), value)


@pytest.mark.parametrize("kind", [5, 6, *range(46, 53), 75, 76, 80, 82, 128, 200, 255])
def test_what_would_run_code_is_refused_by_its_type(kind):
    with pytest.raises(DecodeError, match=f"type {kind} of Nippy runs code when it is thawed: it is refused"):
        thaw(HEAD + bytes((kind,)) + b"\0" * 20)
    with pytest.raises(DecodeError, match="runs code"):
        thaw(HEAD + b"\x6e\x01" + bytes((kind,)))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "does not begin with NPY"),
        (b"NPZ\0\0", "does not begin with NPY"),
        (b"NPY\x01\0", "compressed otherwise or encrypted"),
        (HEAD + b"\x01", "type 1 of Nippy is not one that is read"),
        (HEAD + b"\x03\x03", "1 bytes are left over"),
        (HEAD + b"\x65\0", "ends before it is complete"),
        (HEAD + b"\x6e\x7f\0", "announces 127 more parts than it has"),
        (HEAD + b"\x6e\xff\0", "announces -1 more parts"),
        (HEAD + b"\x69\x01\xff", "broken"),
        (HEAD + b"\x0a\xd8\x00", "broken"),
        (HEAD + b"\x5a\x7f" + b"\xff" * 7, "broken"),
        (HEAD + bytes.fromhex("4600000001010000000100"), "broken"),
        (HEAD + b"\x70\x02\x03\x00\x03\x00", "the key None twice"),
        (HEAD + b"\x6f\x02\x03\x03", "a member twice"),
        (HEAD + b"\x70\x01\x13\x00", "a map as a key"),
        (HEAD + b"\x6f\x01\x13", "a map as a key or in a set"),
        (HEAD + b"\x6e\x01" * (DEPTH_LIMIT + 2) + b"\x03", "nested more than"),
        (b"NPY\x08" + (SIZE_LIMIT + 1).to_bytes(4) + b"\0", "is the limit"),
    ],
)
def test_what_cannot_be_thawed_says_why(body, complaint):
    with pytest.raises(DecodeError, match=complaint):
        thaw(body)


@given(st.binary(max_size=60), st.sampled_from([b"", HEAD, HEAD + b"\x70\x01", b"NPY\x08\0\0\0\x20"]))
def test_any_bytes_are_thawed_or_refused(body, head):
    try:
        thawed = thaw(head + body)
    except DecodeError:
        return
    assert thaw(freeze(thawed)) == thawed or thawed != thawed  # noqa: PLR0124 - nan is not itself


def test_large_values_are_packed_where_there_is_something_to_pack_them_with():
    large = {K("text"): "to and fro " * 1000}
    assert freeze(large)[3] == 0
    packed = freeze(large, lambda data: lz4.block.compress(data, store_size=False))
    assert packed[3] == 8
    assert len(packed) < 200
    assert thaw(packed) == large
    small = freeze({K("n"): 1}, lambda data: lz4.block.compress(data, store_size=False))
    assert small[3] == 0


@given(
    st.one_of(
        st.binary(max_size=300), st.lists(st.sampled_from([b"abc", b"x", b"01234567"]), max_size=300).map(b"".join)
    )
)
def test_a_block_holds_what_lz4_packed(data):
    assert unpacked(lz4.block.compress(data, store_size=False), len(data)) == data


@given(st.binary(max_size=40), st.integers(0, 50))
def test_any_block_is_unpacked_to_what_was_announced_or_refused(block, size):
    with suppress(DecodeError):
        assert len(unpacked(block, size)) == size


@pytest.mark.parametrize(
    "block", [b"\x10a\x00\x00", b"\x10a\x02\x00", b"\xf0\xff\xff", b"\x20a", b"\x1fa\x01\x00\xff\xff\x00"]
)
def test_a_broken_block_is_refused(block):
    with pytest.raises(DecodeError):
        unpacked(block, 10)


def test_a_long_literal_and_a_long_match_are_read():
    assert unpacked(b"\xf0\x05" + b"a" * 20, 20) == b"a" * 20
    with pytest.raises(DecodeError, match="holds 20 bytes where 21 were announced"):
        unpacked(b"\xf0\x05" + b"a" * 20, 21)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        datetime(2026, 1, 1),  # noqa: DTZ001 - that it is nowhere is the point
        Decimal("NaN"),
        "\ud800",
        frozenset(range(128)),
        Symbol("x" * 128),
        1j,
    ],
)
def test_what_has_no_form_is_refused(value):
    with pytest.raises(ConfigurationError, match="cannot be frozen"):
        freeze({K("value"): value})


def test_what_contains_itself_is_refused():
    around: list[object] = []
    around.append(around)
    with pytest.raises(ConfigurationError, match="nested more than"):
        freeze(around)


def test_many_of_a_kind_have_a_wider_count():
    assert freeze(list(range(200)))[4] == 0x45
    assert freeze([None] * 40_000)[4] == 0x15
    assert freeze(dict.fromkeys(range(200)))[4] == 0x21
    assert freeze("x" * 200)[4] == 0x10
    assert freeze(K("x" * 200))[4] == 0x0E
    assert thaw(freeze(tuple(range(200)))) == list(range(200))
