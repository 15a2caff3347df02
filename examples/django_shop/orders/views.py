"""Takes orders: an order and its announcement are one transaction.

Rule: what is answered with 201 is in the books.
"""

import json

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .messaging import app
from .models import Order, Payment

LIMIT_CENTS = 100_000


@csrf_exempt
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    basket = json.loads(request.body)
    with transaction.atomic():
        order = Order.objects.create(customer=basket["customer"], cents=basket["cents"])
        app.emit_on_sync(connection, "order.placed", {"order": order.pk, "cents": order.cents}, key=str(order.pk))
        if order.cents > LIMIT_CENTS:  # on purpose after both: neither is left
            transaction.set_rollback(True)
            return JsonResponse({"said": "nobody has so much money"}, status=422)
    return JsonResponse({"order": order.pk}, status=201)


def show(_request: HttpRequest, number: int) -> JsonResponse:
    return JsonResponse({"order": number, "paid": Payment.objects.filter(order_id=number).exists()})
