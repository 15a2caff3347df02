"""Databases of one test alone: on the PostgreSQL of the run, or a file.

Rule: what is made here is gone when the test is over, whoever is still connected to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
from sqlalchemy import make_url


@contextmanager
def database_of_its_own(postgres_url: str) -> Iterator[str]:
    """Make a database on a server; give its URL, with no driver named."""
    name = f"carom_test_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def spoken_by(driver: str, url: str) -> str:
    """Return a URL with the driver that is to speak to it."""
    made = make_url(url)
    return made.set(drivername=f"{made.get_backend_name()}+{driver}").render_as_string(hide_password=False)
