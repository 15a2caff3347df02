"""The app of Django's that Carom is: its label is ``carom``.

Rule: getting ready registers, and neither imports the user's app nor reaches a database.
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.signals import setting_changed

from carom.integrations.django import checks
from carom.integrations.django.wiring import current_app


class CaromConfig(AppConfig):
    """Carom in a project of Django's."""

    name = "carom.integrations.django"
    label = "carom"
    verbose_name = "Carom"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks."""
        checks.register_all()
        setting_changed.connect(_forget, dispatch_uid="carom")


def _forget(*, setting: str, **_given: Any) -> None:
    """Make the app anew when a test says other settings."""
    if setting in {"CAROM", "CAROM_APP", "CAROM_PREFIX", "DATABASES"}:
        current_app.cache_clear()
