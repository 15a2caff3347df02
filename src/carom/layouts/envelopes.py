"""Envelopes: a payload inside a JSON object, as several systems send it.

Rule: total. A body that is no such envelope, or JSON beyond any use, is None and never an exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping


def opened(body: bytes) -> dict[str, object] | None:
    """Return the JSON object a body is, or None."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def payload(body: bytes) -> object:
    """Return the JSON value a body is; text where it is none, because an envelope of JSON has no bytes."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def sealed(envelope: Mapping[str, object] | object) -> bytes | None:
    """Return a value as compact JSON; None when JSON has no form for it, or it is nested beyond any use."""
    try:
        return json.dumps(envelope, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(envelope, separators=(",", ":")).encode()
    except (RecursionError, ValueError, TypeError):
        return None
