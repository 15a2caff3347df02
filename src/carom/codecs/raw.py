"""Bytes as they are, and text.

Rule: bytes go out and come in untouched; text is UTF-8 or it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from carom.codecs.registry import Decoder
from carom.errors import DecodeError


@dataclass(frozen=True, slots=True)
class Raw:
    """``bytes`` for any content type, ``str`` for ``text/*``."""

    content_type: str = "application/octet-stream"

    def reads(self, content_type: str) -> bool:
        """Tell whether it reads this content type: plain text and opaque bytes."""
        return content_type.lower().startswith(("text/", "application/octet-stream"))

    def decoder(self, annotation: Any) -> Decoder | None:
        """Return a decoder for ``bytes`` and ``str``."""
        if annotation is bytes:
            return bytes
        return _text if annotation is str else None

    def encode(self, payload: Any) -> bytes | None:
        """Return bytes-like payloads as they are."""
        return bytes(payload) if isinstance(payload, bytes | bytearray | memoryview) else None


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"the body is not UTF-8 text: byte {error.start} cannot be read") from error
