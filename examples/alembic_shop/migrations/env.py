"""How Alembic reaches the database of the shop.

Rule: nothing here is special to Carom; its tables are on the MetaData like all others.
"""

from __future__ import annotations

from alembic import context
from models import DATABASE, Model
from sqlalchemy import create_engine


def run_online() -> None:
    engine = create_engine(DATABASE)
    with engine.connect() as connection:
        context.configure(connection, target_metadata=Model.metadata)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


def run_offline() -> None:
    context.configure(url=DATABASE, target_metadata=Model.metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
