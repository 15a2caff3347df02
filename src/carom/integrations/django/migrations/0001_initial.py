"""The first version of Carom's tables, and the model of the outbox.

Rule: this was released; it is never changed.
"""

from __future__ import annotations

from django.db import migrations, models

from carom.integrations.django.connections import prefix
from carom.integrations.django.models import MomentField
from carom.integrations.django.tables import CaromTables

OUTBOX = migrations.CreateModel(
    name="Outbox",
    fields=[
        ("seq", models.BigAutoField(primary_key=True, serialize=False)),
        ("message_id", models.TextField(db_column="id")),
        ("exchange", models.TextField()),
        ("routing_key", models.TextField()),
        ("body", models.BinaryField()),
        ("content_type", models.TextField()),
        ("headers", models.TextField()),
        ("ordering_key", models.TextField()),
        ("wait_until", MomentField(null=True)),
        ("attempts", models.IntegerField(default=0)),
        ("last_error", models.TextField(null=True)),
        ("created_at", MomentField()),
        ("sent_at", MomentField(null=True)),
        ("parked_at", MomentField(null=True)),
    ],
    options={
        "db_table": f"{prefix()}outbox",
        "ordering": ("seq",),
        "verbose_name": "promised message",
        "verbose_name_plural": "outbox",
    },
)


class Migration(migrations.Migration):
    """Version 1."""

    initial = True
    dependencies = ()
    operations = (migrations.SeparateDatabaseAndState([CaromTables()], [OUTBOX]),)
