"""Orders and their payments.

Rule: an order is paid once; the database holds to it.
"""

from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=200)
    cents = models.IntegerField()

    def __str__(self):
        return f"{self.customer}: {self.cents}"


class Payment(models.Model):
    order = models.OneToOneField(Order, on_delete=models.PROTECT)
    cents = models.IntegerField()

    def __str__(self):
        return f"{self.order_id}: {self.cents}"
