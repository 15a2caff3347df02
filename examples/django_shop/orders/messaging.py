"""The app of the shop: what is announced, and who listens.

Rule: a message may come twice, so a handler that has done its work already does nothing.
"""

import os

from carom import App
from carom.integrations.django import database, fresh_connections

app = App(
    os.environ.get("CAROM_BROKER", "embedded:///django-shop-broker.db"),
    database=database(),
    name="django-shop",
    namespace="django-shop",
    exchange="django-shop",
    retry=("100ms", "1s", "10s"),
)


@app.listen("order.placed", queue="django-shop.charge")
@fresh_connections
def charge(placed: dict) -> None:
    from .models import Payment  # noqa: PLC0415 - Django's models are there once it is set up

    Payment.objects.get_or_create(order_id=placed["order"], defaults={"cents": placed["cents"]})
