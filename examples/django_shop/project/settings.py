"""The settings of the shop.

Rule: what is special to Carom is its place in INSTALLED_APPS and the name of its app; the rest is Django.
"""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying it out")
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "project.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["carom.integrations.django", "orders"]

CAROM_APP = "orders.messaging:app"

DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path("django-shop.db").resolve()}}
DATABASES["default"]["OPTIONS"] = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 30,
}  # as a web program on SQLite wants it
if "PGDATABASE" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["PGDATABASE"],
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
        "USER": os.environ.get("PGUSER", ""),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
    }
