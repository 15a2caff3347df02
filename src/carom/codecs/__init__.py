"""Codecs: payloads to bytes and back, chosen by content type. None of them ever runs code from a message.

Rule: a decoder is built once, when a handler is declared; what it cannot read is a DecodeError, never a crash.
"""

from __future__ import annotations

from carom.codecs.json import Json
from carom.codecs.nippy import Nippy
from carom.codecs.raw import Raw
from carom.codecs.registry import Codec, Decoder, Registry

__all__ = ["Codec", "Decoder", "Json", "Nippy", "Raw", "Registry", "standard"]


def standard() -> Registry:
    """Return the codecs every app has: JSON by default, bytes as they are, and reading what Clojure froze."""
    return Registry((Json(), Raw(), Nippy()))
