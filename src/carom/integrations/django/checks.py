"""Checks: what ``manage.py check`` says about Carom, and with ``--database`` about its tables.

    carom.E001   the settings name no app, or one that cannot be had
    carom.E002   the app has no database to announce into
    carom.E003   a database that Carom keeps no tables in
    carom.E004   the app looks for its tables elsewhere than the migrations make them
    carom.W001   the tables are missing or of an older version: run manage.py migrate

Rule: tables are warned about and never an error, because ``manage.py migrate``, which cures it, runs the checks first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core import checks
from django.db import connections, router

from carom.errors import ConfigurationError
from carom.integrations.django.connections import VENDORS, prefix
from carom.integrations.django.tables import version
from carom.integrations.django.wiring import alias, current_app
from carom.stores.migrations import LATEST


def register_all() -> None:
    """Register the checks with Django."""
    checks.register(settings_are_sane)
    checks.register(tables_are_current, checks.Tags.database)


def settings_are_sane(**_given: Any) -> list[checks.CheckMessage]:
    """Say what is wrong with the settings and with the app they mean."""
    vendor = connections[alias()].vendor
    if vendor not in VENDORS:
        hint = f"it knows {', '.join(VENDORS)}"
        return [checks.Error(f"Carom keeps no tables in {vendor}, the database {alias()!r}", hint, id="carom.E003")]
    try:
        app = current_app()
    except ConfigurationError as error:
        return [checks.Error(str(error), id="carom.E001")]
    kept = app.database
    if kept is None:
        hint = "say App(…, database=carom.integrations.django.database())"
        return [checks.Error(f"the app {app.name!r} has no database to announce into", hint, id="carom.E002")]
    if kept.schema is not None or kept.prefix != prefix():
        where = f"schema {kept.schema!r} and prefix {kept.prefix!r}"
        hint = "say CAROM_PREFIX in the settings, and no schema: Django has none of its own"
        return [checks.Error(f"the app's tables have {where}, the migrations' {prefix()!r}", hint, id="carom.E004")]
    return []


def tables_are_current(databases: Iterable[str] | None = None, **_given: Any) -> list[checks.CheckMessage]:
    """Say where the tables are missing or too old."""
    found: list[checks.CheckMessage] = []
    for using in databases or ():
        if using != alias() or connections[using].vendor not in VENDORS or not router.allow_migrate(using, "carom"):
            continue
        there = version(connections[using])
        if there < LATEST:
            said = f"there are none of Carom's tables in {using!r}" if there == 0 else f"those in {using!r} are old"
            found.append(checks.Warning(said, f"run manage.py migrate --database {using}", id="carom.W001"))
    return found
