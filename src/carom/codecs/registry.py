"""Which codec reads and writes what.

Rule: a message is read by the codec of its content type, or not at all; a guess would be a wrong payload later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from carom.core.message import Message
from carom.errors import ConfigurationError, DecodeError

Decoder: TypeAlias = Callable[[bytes], Any]
_PLAIN_ENCODINGS = frozenset({"", "utf-8", "utf8", "identity"})


class Codec(Protocol):
    """One way to write payloads as bytes."""

    @property
    def content_type(self) -> str:
        """Return the content type of what it writes."""

    def reads(self, content_type: str) -> bool:
        """Tell whether it reads this content type; an empty one is a message that does not say."""

    def decoder(self, annotation: Any) -> Decoder | None:
        """Return what decodes bodies into this annotation, or None when it cannot. Built once per handler."""

    def encode(self, payload: Any) -> bytes | None:
        """Return the payload as bytes, or None when it is not this codec's to write."""


@dataclass(frozen=True, slots=True)
class Registry:
    """Codecs in the order in which they are asked."""

    codecs: tuple[Codec, ...]

    def encode(self, payload: Any) -> tuple[bytes, str]:
        """Return a payload as bytes with its content type."""
        for codec in self.codecs:
            body = codec.encode(payload)
            if body is not None:
                return body, codec.content_type
        raise ConfigurationError(
            f"no codec writes a {type(payload).__qualname__}: publish a dataclass, a msgspec.Struct, "
            "a pydantic model, plain JSON values or bytes"
        )

    def reader(self, annotation: Any) -> Callable[[Message], Any]:
        """Return what turns a message into a payload of this annotation, raising only DecodeError."""
        decoders = tuple((codec, decoder) for codec in self.codecs if (decoder := codec.decoder(annotation)))
        if not decoders:
            raise ConfigurationError(f"no codec reads into {annotation!r}")
        if annotation is bytes:
            return _body
        known: dict[str, Decoder] = {}

        def read(message: Message) -> Any:
            decode = known.get(message.content_type)
            if decode is None or (message.content_encoding and not _is_plain(message.content_encoding)):
                decode = _choose(decoders, message)
                if len(known) < _REMEMBERED:
                    known[message.content_type] = decode
            return decode(message.body)

        return read


_REMEMBERED = 64
"""How many spellings of content types a reader remembers: they come from outside, so there is an end to it."""


def _body(message: Message) -> bytes:
    return message.body


def _is_plain(content_encoding: str) -> bool:
    return content_encoding.strip().lower() in _PLAIN_ENCODINGS


def _choose(decoders: tuple[tuple[Codec, Decoder], ...], message: Message) -> Decoder:
    if not _is_plain(message.content_encoding):
        raise DecodeError(
            f"content encoding {message.content_encoding!r} is not read; take the payload as bytes instead"
        )
    for codec, decode in decoders:
        if codec.reads(message.content_type):
            return decode
    raise DecodeError(f"content type {message.content_type!r} is not one that this handler's payload can be read from")
