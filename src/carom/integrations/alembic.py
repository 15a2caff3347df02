"""Alembic: Carom's tables as a revision of one's own history.

    from carom.integrations import alembic as carom

    def upgrade() -> None:
        carom.upgrade()

    def downgrade() -> None:
        carom.downgrade()

A later Carom may need a later version of the tables; it says so when it starts, and the cure is one more revision with
the same ``upgrade``. Versions only add, so the ``downgrade`` of such a revision has nothing to do.

Autogenerate has to know that the tables are nobody's mistake. Either they are drawn on the MetaData that it compares,
see `carom.integrations.sqlalchemy.add_tables`, or it is told to leave them alone:

    context.configure(..., include_object=carom.include_object())

Rule: the statements are those of `carom.stores.migrations`; here they are only run, or printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from alembic import op
from sqlalchemy import MetaData, func, inspect, select, text

from carom.errors import ConfigurationError
from carom.stores import make_tables
from carom.stores.dialects import Names, dialect
from carom.stores.migrations import statements

IncludeObject: TypeAlias = Callable[[Any, str | None, str, bool, Any], bool]
_TABLES = ("outbox", "inbox", "lease", "version")


def upgrade(schema: str | None = None, prefix: str = "carom_", *, since: int | None = None) -> None:
    """Bring Carom's tables to the latest version, from whichever is there; nothing happens when it is the latest.

    ``since`` is the version that is there, for ``--sql``, which cannot look: 0, none, unless it is said. A schema is
    made where it is missing.
    """
    names = _names(schema, prefix)
    if schema and names.dialect.name == "postgresql":
        _run(f"CREATE SCHEMA IF NOT EXISTS {names.dialect.quoted(schema)}")
    if since is None:
        since = 0 if op.get_context().as_sql else _version(names)
    for statement in statements(names.dialect.name, schema, prefix, since):
        _run(statement)


def downgrade(schema: str | None = None, prefix: str = "carom_", *, lose_messages: bool = False) -> None:
    """Remove Carom's tables and all that belongs to them; a schema stays.

    Raises ConfigurationError when messages wait in the outbox that were promised and not yet published, unless
    ``lose_messages`` says that they may go.
    """
    names = _names(schema, prefix)
    if not op.get_context().as_sql and not lose_messages and _version(names):
        outbox = make_tables(MetaData(), schema, prefix).outbox
        waiting = op.get_bind().scalar(select(func.count()).where(outbox.c.sent_at.is_(None)))
        if waiting:
            raise ConfigurationError(
                f"{waiting} messages in {names.outbox} were promised and not published: let a relay publish them, "
                "or say downgrade(lose_messages=True)"
            )
    for short in _TABLES:
        _run(f"DROP TABLE IF EXISTS {names.table(short)}")
    if names.dialect.name == "postgresql":
        _run(f"DROP FUNCTION IF EXISTS {names.table('outbox_wake')}()")


def include_object(
    schema: str | None = None, prefix: str = "carom_", *, also: IncludeObject | None = None
) -> IncludeObject:
    """Return what tells autogenerate to leave Carom's tables alone; ``also`` is asked about everything else."""
    ours = {f"{prefix}{short}" for short in _TABLES}

    def include(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:  # noqa: FBT001 - Alembic's signature
        table = thing if kind == "table" else getattr(thing, "table", None)
        if table is not None and table.name in ours and table.schema in {schema, None}:
            return False
        return also is None or also(thing, name, kind, reflected, compare_to)

    return include


def _names(schema: str | None, prefix: str) -> Names:
    return Names(dialect(op.get_context().dialect.name), schema, prefix)


def _version(names: Names) -> int:
    bind = op.get_bind()
    if not inspect(bind).has_table(f"{names.prefix}version", names.schema):
        return 0
    version = make_tables(MetaData(), names.schema, names.prefix).version
    return bind.scalar(select(func.max(version.c.version))) or 0


def _run(statement: str) -> None:
    op.execute(text(statement.replace(":", "\\:")))  # a colon is no parameter here
