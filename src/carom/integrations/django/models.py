"""Models: the outbox, to be looked at by programs and asserted in tests.

    self.assertEqual(Outbox.objects.get().routing_key, "order.placed")

Rule: rows are written by `emit` and by a relay alone; the model is for reading.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.db import models

from carom.integrations.django.connections import prefix


class MomentField(models.Field):
    """A moment as Carom's tables keep it: a ``timestamptz`` on PostgreSQL, milliseconds since 1970 elsewhere."""

    def db_type(self, connection: Any) -> str:
        """Name the type of the column."""
        return "timestamptz" if connection.vendor == "postgresql" else "bigint"

    def from_db_value(self, value: Any, _expression: object, _connection: object) -> datetime | None:
        """Return a datetime in UTC."""
        if value is None or isinstance(value, datetime):
            return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)
        return datetime.fromtimestamp(value / 1000, UTC)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:  # noqa: FBT001, FBT002 - Django's signature
        """Compare with a datetime."""
        if isinstance(value, datetime) and connection.vendor != "postgresql":
            return int(value.timestamp() * 1000)
        return super().get_db_prep_value(value, connection, prepared)


class Outbox(models.Model):
    """A message that was promised in a committed transaction."""

    seq = models.BigAutoField(primary_key=True)
    message_id = models.TextField(db_column="id")
    exchange = models.TextField()
    routing_key = models.TextField()
    body = models.BinaryField()
    content_type = models.TextField()
    headers = models.TextField()
    ordering_key = models.TextField()
    wait_until = MomentField(null=True)
    attempts = models.IntegerField(default=0)
    last_error = models.TextField(null=True)  # noqa: DJ001 - NULL is what the table has
    created_at = MomentField()
    sent_at = MomentField(null=True)
    parked_at = MomentField(null=True)

    class Meta:
        """Where it is."""

        app_label = "carom"
        db_table = f"{prefix()}outbox"
        ordering = ("seq",)
        verbose_name = "promised message"
        verbose_name_plural = "outbox"

    def __str__(self) -> str:
        return f"{self.routing_key} {self.message_id}"
