"""The tables of the shop, Carom's among them, on one MetaData.

Rule: what is drawn here is what the revisions make; `alembic check` says so.
"""

from __future__ import annotations

import os

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from carom.integrations.sqlalchemy import add_tables

DATABASE = os.environ.get("SHOP_DATABASE", "sqlite:///alembic-shop.db")


class Model(DeclarativeBase):
    pass


class Order(Model):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


carom = add_tables(Model.metadata)
