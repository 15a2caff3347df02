"""Tables: the statements of Carom's own migrations as an operation of Django's.

Rule: the statements are those of `carom.stores.migrations`; here they are only run, or printed by ``sqlmigrate``.
"""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from carom.integrations.django.connections import prefix
from carom.stores.dialects import Names, dialect
from carom.stores.migrations import statements

_TABLES = ("outbox", "inbox", "lease", "version")


def version(connection: Any) -> int:
    """Return the version of Carom's tables in a database of Django's; 0 when there are none."""
    table = f"{prefix()}version"
    if table not in connection.introspection.table_names():
        return 0
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT MAX(version) FROM {connection.ops.quote_name(table)}")  # noqa: S608 - a quoted name
        return cursor.fetchone()[0] or 0


class CaromTables(Operation):
    """Bring the tables to the latest version from whichever is there; backwards, remove them."""

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: what the models need to know is said beside this."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Run what leads to the latest version."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            connection = schema_editor.connection
            for statement in statements(connection.vendor, None, prefix(), version(connection)):
                schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Remove the tables and all that belongs to them."""
        if not router.allow_migrate(schema_editor.connection.alias, app_label):
            return
        names = Names(dialect(schema_editor.connection.vendor), None, prefix())
        for short in _TABLES:
            schema_editor.execute(f"DROP TABLE IF EXISTS {names.table(short)}", params=None)
        if names.dialect.name == "postgresql":
            schema_editor.execute(f"DROP FUNCTION IF EXISTS {names.table('outbox_wake')}()", params=None)

    def describe(self) -> str:
        """Say what it does."""
        return "Bring Carom's tables to the latest version"
