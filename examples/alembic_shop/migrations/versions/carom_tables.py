"""Carom's tables.

Rule: a revision that was released is never changed.
"""

from __future__ import annotations

from carom.integrations import alembic as carom

revision = "carom_tables"
down_revision = "orders"


def upgrade() -> None:
    carom.upgrade()


def downgrade() -> None:
    carom.downgrade()
