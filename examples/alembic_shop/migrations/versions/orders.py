"""The orders of the shop.

Rule: a revision that was released is never changed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "orders"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "orders",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("customer", sa.String(), nullable=False),
        sa.Column("cents", sa.Integer(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("orders")
