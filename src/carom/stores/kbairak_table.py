"""The outbox table of kbairak/outbox: how it is made, how a message becomes a row of it, and a row a message.

Rule: it is declared exactly as theirs does it, nothing is added to it, and a row we write is one their relay publishes.
Rule: what the table has no column for is refused when it is written: their relay would publish the message without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from carom.core import message as names
from carom.core.message import Message
from carom.core.relaying import Entry, Row
from carom.errors import ConfigurationError
from carom.ports import KbairakTable
from carom.stores.inserting import CHUNK, Batches, Insertion

CHANNEL = "outbox_channel"
TRACKING = "x-outbox-tracking-ids"
_INHERITED = frozenset({TRACKING, names.TRAIL, "traceparent", "tracestate"})
"""What is known of by the tracking ids, and what a trace loses: it is no part of what was announced."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_FIELDS = {
    "routing_key": "text",
    "body": "bytea",
    "tracking_ids": "text",
    "expiration_ms": "bigint",
    "wait_ms": "bigint",
    "at_ms": "bigint",
}


def quoted(table: str) -> str:
    """Return the name of a table, and of its schema if it has one, for SQL. Raises ConfigurationError."""
    parts = table.split(".")
    if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):  # noqa: PLR2004 - a schema and a name
        raise ConfigurationError(f"{table!r} is no name of a table: say outbox_table, or public.outbox_table")
    return ".".join(f'"{part}"' for part in parts)


def statements(table: str) -> list[str]:
    """Return what makes the table, as theirs makes it; what is there stays as it is."""
    name = quoted(table)
    return [
        f"""CREATE TABLE IF NOT EXISTS {name} (
  id SERIAL PRIMARY KEY,
  routing_key TEXT NOT NULL,
  body BYTEA NOT NULL,
  tracking_ids JSONB NOT NULL,
  created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
  expiration INTERVAL,
  send_after TIMESTAMPTZ NOT NULL,
  sent_at TIMESTAMPTZ
)""",
        f"CREATE INDEX IF NOT EXISTS outbox_pending_idx ON {name} (send_after, created_at) WHERE sent_at IS NULL",
        f"CREATE INDEX IF NOT EXISTS outbox_cleanup_idx ON {name} (sent_at) WHERE sent_at IS NOT NULL",
        f"""CREATE OR REPLACE FUNCTION notify_outbox_insert() RETURNS trigger LANGUAGE plpgsql AS $carom$
BEGIN
  IF NEW.send_after <= NOW() THEN
    PERFORM pg_notify('{CHANNEL}', '');
  END IF;
  RETURN NEW;
END
$carom$""",
        f"""CREATE TRIGGER outbox_notify_trigger AFTER INSERT ON {name}
FOR EACH ROW EXECUTE FUNCTION notify_outbox_insert()""",
    ]


@dataclass(frozen=True)
class KbairakInsertion(Insertion):
    """How rows get into their table: one for each message, which their relay publishes as well as ours."""

    theirs: KbairakTable = KbairakTable()  # noqa: RUF009 - a frozen value

    def __post_init__(self) -> None:
        """Write the statements."""
        into = (
            f"INSERT INTO {quoted(self.theirs.table)} "
            "(routing_key, body, tracking_ids, expiration, created_at, send_after)"
        )
        given = {name: f"CAST(:{name} AS {kind})" for name, kind in _FIELDS.items()}
        columns = {name: f"wanted.{name}" for name in _FIELDS}
        arrays = ", ".join(f"CAST(:{name} AS {kind}[])" for name, kind in _FIELDS.items())
        one = f"{into} VALUES ({self._values(given)})"
        many = f"{into} SELECT {self._values(columns)} FROM unnest({arrays}) AS wanted({', '.join(_FIELDS)})"
        object.__setattr__(self, "one", one)
        object.__setattr__(self, "many", many)
        object.__setattr__(self, "one_clause", text(one))
        object.__setattr__(self, "many_clause", text(many))

    def batches(self, entries: Sequence[Entry]) -> Batches:
        """Return what is to be run to write entries. Raises ConfigurationError for what the table has no place for."""
        found = [self._row(entry) for entry in entries]
        if len(found) == 1:
            return [(False, [dict(zip(_FIELDS, found[0], strict=True))])]
        chunks = (found[start : start + CHUNK] for start in range(0, len(found), CHUNK))
        return [(True, dict(zip(_FIELDS, map(list, zip(*chunk, strict=True)), strict=True))) for chunk in chunks]

    def _values(self, said: dict[str, str]) -> str:
        # What is due at once is so since the transaction began: their trigger tells of nothing later than that.
        later = f"CASE WHEN {said['wait_ms']} > 0 THEN {self.dialect.later(said['wait_ms'])} ELSE now() END"
        due = f"COALESCE({self.dialect.moment(said['at_ms'])}, {later})"
        expires = f"{said['expiration_ms']} * interval '1 millisecond'"
        tracking = f"CAST({said['tracking_ids']} AS jsonb)"
        return f"{said['routing_key']}, {said['body']}, {tracking}, {expires}, {self.dialect.now}, {due}"

    def _row(self, entry: Entry) -> tuple[object, ...]:
        message = entry.message
        if said := self._unkept(entry):
            raise ConfigurationError(
                f"the message {message.id} to {message.routing_key[:80]!r} cannot be kept in {self.theirs.table!r}, a "
                f"table of kbairak/outbox: {said}"
            )
        tracked = tracking(message.headers.get(TRACKING)) or [*message.trail, message.id]
        expires = int(message.expiration) if message.expiration else None
        return (message.routing_key, message.body, json.dumps(tracked), expires, max(0, entry.wait_ms), entry.at_ms)

    def _unkept(self, entry: Entry) -> str:
        message = entry.message
        if entry.ordering_key:
            return "it has no place for an ordering key, and publishes in no order"
        if message.exchange != self.theirs.exchange:
            return f"its rows go to exchange {self.theirs.exchange!r}, and this is for {message.exchange!r}"
        beyond = sorted(set(message.headers) - _INHERITED)
        if beyond:
            return f"it has no place for headers, and these would be lost: {', '.join(beyond)[:200]}"
        if message.content_type not in {"application/json", ""}:
            return f"everything in it is sent as application/json, and this is {message.content_type}"
        if "\0" in message.routing_key or not names.fits(message.routing_key, names.NAME_LIMIT):
            return "its routing key is no text of at most 255 bytes without a zero byte"
        return ""


def row(found: Sequence[Any], theirs: KbairakTable) -> Row:
    """Return what a relay takes: id, routing key, body, tracking ids as text, expiration in ms, failures."""
    seq, routing_key, body, written, expires_ms, failures = found
    if routing_key is None or body is None:
        return Row(seq, Message(id=f"{theirs.table}-{seq}"), failures=failures or 0, flaw="it has no key, or no body")
    tracked = tracking(written)
    message = Message(
        body=bytes(body),
        exchange=theirs.exchange,
        routing_key=routing_key,
        id=(tracked[-1] if tracked else "") or f"{theirs.table}-{seq}",
        content_type="application/json",
        expiration="" if expires_ms is None else str(max(0, int(expires_ms))),
        headers={TRACKING: json.dumps(tracked)},
    )
    return Row(seq, message, failures=failures or 0)


def tracking(written: object) -> list[str]:
    """Return tracking ids from their JSON; what is none is left out."""
    try:
        found = json.loads(written) if isinstance(written, str) else None
    except (ValueError, RecursionError):
        return []
    return [one for one in found if names.name(one)] if isinstance(found, list) else []
