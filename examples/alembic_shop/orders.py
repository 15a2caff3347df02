"""Takes an order: ``python orders.py CUSTOMER CENTS``. It and its announcement are one transaction, or none.

Rule: the program verifies the tables and never makes them; that is what the revisions are for.
"""

from __future__ import annotations

import asyncio
import sys

from models import DATABASE, Order
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from carom import App
from carom.ports import Database

app = App("embedded:///alembic-shop-broker.db", database=Database(DATABASE, tables="verify"), name="alembic-shop")


@app.listen("order.placed", queue="alembic-shop.greet")
def greet(order: dict) -> None:
    print(f"thank you, {order['customer']}")


async def verify() -> None:
    """Check that the tables are those that this version of Carom needs."""
    await app.store.open("verify")
    await app.store.close()


def place(customer: str, cents: int) -> int:
    engine = create_engine(DATABASE)
    with Session(engine) as session, session.begin():
        order = Order(customer=customer, cents=cents)
        session.add(order)
        session.flush()  # the database gives the order its number
        app.emit(session, "order.placed", {"id": order.id, "customer": customer}, key=customer)
        if cents <= 0:
            raise SystemExit("nothing to pay: neither the order nor its announcement is left")
        number = order.id
    engine.dispose()
    return number


if __name__ == "__main__":
    asyncio.run(verify())
    print(place(sys.argv[1], int(sys.argv[2])))
