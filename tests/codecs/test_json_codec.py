"""JSON, strictly: typed, valid, or a DecodeError that says where it is not."""

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import sys
import uuid

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carom.codecs import Json
from carom.errors import ConfigurationError, DecodeError

JSON = Json()


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    color: Color
    price: decimal.Decimal


class Order(msgspec.Struct):
    id: uuid.UUID
    at: dt.datetime
    lines: list[Line]


class Model(pydantic.BaseModel):
    id: uuid.UUID
    lines: list[Line]


LINES = [Line(Color.RED, decimal.Decimal("1.10"))]
ORDER = Order(uuid.UUID(int=5), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), LINES)


@pytest.mark.parametrize(
    ("content_type", "reads"),
    [
        ("", True),
        ("application/json", True),
        ("APPLICATION/JSON; charset=utf-8", True),
        ("text/json", True),
        ("application/vnd.shop+json", True),
        ("text/plain", False),
        ("application/octet-stream", False),
        ("jsonish", False),
    ],
)
def test_it_reads_json_and_what_does_not_say_what_it_is(content_type, reads):
    assert JSON.reads(content_type) is reads


@pytest.mark.parametrize("value", [ORDER, Model(id=uuid.UUID(int=5), lines=LINES)])
def test_what_is_written_is_read_again(value):
    assert JSON.decoder(type(value))(JSON.encode(value)) == value


text = st.text(st.characters(exclude_categories=["Cs"]))
floats = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | floats | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=10,
)


@given(plain)
def test_plain_values_go_round(value):
    assert JSON.decoder(object)(JSON.encode(value)) == value


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_decode_error(body):
    for annotation in (object, Order, Model, list[Model], Model | None):
        with contextlib.suppress(DecodeError):
            JSON.decoder(annotation)(body)


def test_a_decode_error_says_where():
    with pytest.raises(DecodeError, match=r"\$.lines\[0\].color"):
        JSON.decoder(Order)(JSON.encode(ORDER).replace(b'"red"', b'"blue"'))
    with pytest.raises(DecodeError, match=r"the body is not a Model: id: .*UUID.*; lines: Field required"):
        JSON.decoder(Model)(b'{"id": 5}')
    with pytest.raises(DecodeError, match="the body is not JSON"):
        JSON.decoder(Model)(b'{"id": NaN}')
    with pytest.raises(DecodeError, match=r"the body is not a list\[.*Model\]: 0.id"):
        JSON.decoder(list[Model])(b'[{"lines": []}]')


def test_what_a_decode_error_says_of_a_model_has_an_end():
    class Wide(pydantic.BaseModel):
        values: list[int]

    with pytest.raises(DecodeError) as caught:
        JSON.decoder(Wide)(msgspec.json.encode({"values": ["x"] * 1_000}))
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("annotation", [Order, Model, object])
def test_deep_nesting_is_a_decode_error(annotation):
    for body in (b"[" * 200_000, b'{"id":' * 200_000, b"[" * 200_000 + b"]" * 200_000):
        with pytest.raises(DecodeError):
            JSON.decoder(annotation)(body)


def test_bytes_are_not_its_business():
    assert JSON.decoder(bytes) is None
    for payload in (b"x", bytearray(b"x"), memoryview(b"x")):
        assert JSON.encode(payload) is None


def test_without_pydantic_everything_else_goes_on(monkeypatch):
    monkeypatch.delitem(sys.modules, "pydantic")
    assert JSON.decoder(Order)(JSON.encode(ORDER)) == ORDER
    with pytest.raises(ConfigurationError, match="Model"):
        JSON.decoder(Model)


def test_a_text_that_names_nothing_is_refused():
    class Forward(msgspec.Struct):
        child: "Nothing"  # noqa: F821 - that it is not there is the point

    for annotation in (Forward, 5, Order | Line):
        with pytest.raises(ConfigurationError, match="cannot be read into"):
            JSON.decoder(annotation)


def test_not_a_number_has_no_form_in_json():
    assert JSON.encode({"x": float("nan")}) == b'{"x":null}'
