"""JSON, strictly: typed by the handler's annotation, decoded by msgspec, or by pydantic for its models.

Rule: a body is valid JSON of the promised shape or a DecodeError that says where it is not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import msgspec.inspect

from carom.codecs.registry import Decoder
from carom.errors import ConfigurationError, DecodeError

_READ = ("application/json", "text/json")


@dataclass(frozen=True, slots=True)
class Json:
    """The default codec. A message that does not say its content type is read as JSON."""

    content_type: str = "application/json"

    def reads(self, content_type: str) -> bool:
        """Tell whether it reads this content type: JSON, ``…+json``, and none at all."""
        kind = content_type.partition(";")[0].strip().lower()
        return not kind or kind in _READ or kind.endswith("+json")

    def decoder(self, annotation: Any) -> Decoder | None:
        """Return a typed decoder; everything but bytes can be read from JSON."""
        if annotation is bytes:
            return None
        if annotation is object:
            annotation = Any
        strangers = tuple(_strangers(annotation))
        if any(_is_pydantic(stranger) for stranger in (annotation, *strangers)):
            return _pydantic(annotation)
        if strangers:
            names = ", ".join(sorted({stranger.__qualname__ for stranger in strangers}))
            raise ConfigurationError(
                f"nothing is known of how {names} looks in JSON: use a msgspec.Struct, a dataclass, a TypedDict, "
                "a pydantic model or plain types"
            )
        return _msgspec(annotation)

    def encode(self, payload: Any) -> bytes | None:
        """Return anything but bytes as JSON."""
        if isinstance(payload, bytes | bytearray | memoryview):
            return None
        try:
            return _ENCODER.encode(payload)
        except (TypeError, ValueError, RecursionError, OverflowError, UnicodeError) as error:
            raise ConfigurationError(f"a {type(payload).__qualname__} cannot be written as JSON: {error}") from error


def _model(value: Any) -> Any:
    if _is_pydantic(type(value)) and hasattr(value, "model_dump_json"):
        return msgspec.Raw(value.model_dump_json().encode())
    raise TypeError(f"{type(value).__qualname__} has no JSON form")


_SYNTAX = msgspec.json.Decoder(msgspec.Raw)
_ENCODER = msgspec.json.Encoder(enc_hook=_model)


def _is_pydantic(annotation: Any) -> bool:
    """Tell whether this is a pydantic model or dataclass; whoever has one has imported pydantic already."""
    return "pydantic" in sys.modules and isinstance(annotation, type) and hasattr(annotation, "__pydantic_validator__")


def _strangers(annotation: Any) -> Iterator[type]:
    """Yield the classes in an annotation that msgspec cannot make of JSON; those inside other classes are theirs."""
    try:
        pending = [msgspec.inspect.type_info(annotation)]
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"JSON cannot be read into {annotation!r}: {error}") from error
    while pending:
        one = pending.pop()
        if isinstance(one, msgspec.inspect.CustomType):
            yield one.cls
        for name in ("item_type", "key_type", "value_type", "item_types", "types"):
            inner = getattr(one, name, ())
            pending.extend(inner if isinstance(inner, tuple) else (inner,))


def _pydantic(annotation: Any) -> Decoder:
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - an extra, imported where it is used

    validate = TypeAdapter(annotation).validate_json
    shown = annotation.__qualname__ if isinstance(annotation, type) else annotation

    def decode(body: bytes) -> Any:
        try:
            _SYNTAX.decode(body)  # pydantic would read NaN
            return validate(body)
        except ValidationError as error:
            places = "; ".join(
                f"{'.'.join(str(part) for part in problem['loc']) or 'body'}: {problem['msg']}"
                for problem in error.errors(include_url=False, include_input=False)[:5]
            )
            raise DecodeError(f"the body is not a {shown}: {places}") from error
        except (msgspec.MsgspecError, RecursionError) as error:
            raise DecodeError(f"the body is not JSON: {error}") from error

    return decode


def _msgspec(annotation: Any) -> Decoder:
    try:
        decode_json = msgspec.json.Decoder(annotation).decode
    except TypeError as error:
        raise ConfigurationError(f"JSON cannot be read into {annotation!r}: {error}") from error

    def decode(body: bytes) -> Any:
        try:
            return decode_json(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise DecodeError(f"the body is not what the handler takes: {error or 'nested too deeply'}") from error

    return decode
