"""Where orders are taken.

Rule: one address for one thing.
"""

from django.urls import path
from orders.views import place, show

urlpatterns = [path("orders", place), path("orders/<int:number>", show)]
