"""Nippy, for jobs of Clojure programs: what was frozen is thawed as data, then read into the handler's annotation.

Keywords and symbols become text, lists and sets become lists, ratios become numbers; from there on everything is as it
is for JSON, typed and strict. A handler that wants to see keywords takes bytes and thaws them with `carom.core.nippy`.

Rule: what is no data is refused by its type, never run; what cannot be read is a DecodeError.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import msgspec

from carom.codecs.json import Json
from carom.codecs.registry import Decoder
from carom.core.freezing import freeze
from carom.core.nippy import thaw
from carom.errors import DecodeError

CONTENT_TYPE = "application/x-nippy"


@dataclass(frozen=True, slots=True)
class Nippy:
    """Reads and writes ``application/x-nippy``."""

    content_type: str = CONTENT_TYPE

    def reads(self, content_type: str) -> bool:
        """Tell whether it reads this content type: its own alone."""
        return content_type.partition(";")[0].strip().lower() == self.content_type

    def decoder(self, annotation: Any) -> Decoder | None:
        """Return what thaws a body and reads it into an annotation, as JSON would be."""
        read = Json().decoder(annotation)
        if read is None:
            return None

        def decode(body: bytes) -> Any:
            try:
                written = msgspec.json.encode(_plain(thaw(body)))
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise DecodeError(f"what was thawed cannot be read as data: {error}") from error
            return read(written)

        return decode

    def encode(self, payload: Any) -> bytes | None:
        """Return a payload frozen, and packed above eight kilobytes where lz4 is installed."""
        try:
            from lz4.block import compress  # noqa: PLC0415 - an extra, imported where it is used
        except ImportError:
            return freeze(payload)
        return freeze(payload, lambda data: bytes(compress(data, store_size=False)))


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    return float(value) if isinstance(value, Fraction) else value
