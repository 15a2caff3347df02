"""A project of Django's with Carom in it: its settings, and what it listens to.

Rule: it has no model of its own, so that everything its migrations make is Carom's.
"""

import os

from sqlalchemy import make_url


def database(address):
    url = make_url(address)
    if url.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database, "TEST": {"NAME": f"{url.database}.test"}}
    named = {"NAME": url.database, "USER": url.username, "HOST": url.host, "PORT": url.port}
    return {"ENGINE": "django.db.backends.postgresql", **named}


SECRET_KEY = "of no use"  # noqa: S105 - to nobody
DATABASES = {name: database(os.environ[f"PROJECT_{name.upper()}"]) for name in ("default", "other")}
INSTALLED_APPS = ["carom.integrations.django"]
USE_TZ = True
if "PROJECT_APP" in os.environ:
    CAROM_APP = os.environ["PROJECT_APP"]
else:
    CAROM = {"BROKER": "embedded://", "NAME": "project", "RETRY": ("1s",), "KEEP_SENT": "1h"}
CAROM_PREFIX = "post_"
