"""Migrations: the statements that make Carom's tables, for `carom db upgrade`, for Alembic and for Django alike.

Rule: a version only adds. What an older Carom reads and writes stays, so that two versions can work side by side.
"""

from carom.stores.migrations.statements import LATEST, statements

__all__ = ["LATEST", "statements"]
