"""Integrations: Carom in programs that are built with SQLAlchemy, Alembic, Django or FastAPI.

Rule: an integration imports what it is named for, and nothing of Carom imports an integration.
"""
