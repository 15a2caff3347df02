"""The shop in Django's own tests: what was announced can be asserted, and nothing is sent.

Rule: a test case is a transaction that is rolled back, messages included.
"""

import json

from django.test import TestCase

from carom.integrations.django.models import Outbox
from orders.messaging import charge
from orders.models import Order, Payment


class Orders(TestCase):
    def place(self, cents):
        return self.client.post("/orders", {"customer": "ada", "cents": cents}, content_type="application/json")

    def test_an_order_is_announced(self):
        answer = self.place(1250)
        self.assertEqual(answer.status_code, 201)
        row = Outbox.objects.get()
        self.assertEqual(row.routing_key, "order.placed")
        self.assertEqual(json.loads(row.body), {"order": answer.json()["order"], "cents": 1250})

    def test_what_is_rolled_back_was_never_announced(self):
        self.assertEqual(self.place(200_000).status_code, 422)
        self.assertEqual((Order.objects.count(), Outbox.objects.count()), (0, 0))

    def test_an_order_is_paid_once_though_its_message_comes_twice(self):
        order = self.place(1250).json()["order"]
        for _ in range(2):
            charge({"order": order, "cents": 1250})
        self.assertEqual(Payment.objects.get().cents, 1250)
        self.assertTrue(self.client.get(f"/orders/{order}").json()["paid"])
