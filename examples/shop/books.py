"""Counts: one payment and one shipment for every order, and none for anything else.

Rule: it looks into the database alone; whatever was promised has to show there.
"""

from __future__ import annotations

import asyncio
import json
import sys

from shop import Model, Order, Payment, Shipment, app
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from carom.integrations.sqlalchemy import engine


async def count(connection: AsyncConnection) -> dict[str, int]:
    """Return the books: what was ordered, what was paid and shipped, how much of it twice, and for nothing at all."""
    books = {}
    for name, table in (("paid", Payment), ("shipped", Shipment)):
        per_order = select(table.order_id, func.count().label("times")).group_by(table.order_id).subquery()
        books[name] = await connection.scalar(select(func.count()).select_from(per_order)) or 0
        twice = select(func.count()).select_from(per_order).where(per_order.c.times > 1)
        books[f"{name}_twice"] = await connection.scalar(twice) or 0
        unknown = select(func.count()).select_from(per_order).where(per_order.c.order_id.not_in(select(Order.id)))
        books[f"{name}_for_nothing"] = await connection.scalar(unknown) or 0
    books["orders"] = await connection.scalar(select(func.count()).select_from(Order)) or 0
    books["cents_ordered"] = await connection.scalar(select(func.sum(Order.cents))) or 0
    books["cents_paid"] = await connection.scalar(select(func.sum(Payment.cents))) or 0
    return books


def balance(books: dict[str, int]) -> bool:
    """Tell whether everything that was ordered was paid and shipped once, and nothing else."""
    return (
        books["orders"] == books["paid"] == books["shipped"]
        and books["cents_ordered"] == books["cents_paid"]
        and not any(value for name, value in books.items() if name.endswith(("_twice", "_for_nothing")))
    )


async def main() -> int:
    async with engine(app).begin() as connection:
        await connection.run_sync(Model.metadata.create_all)
        books = await count(connection)
    await app.store.close()
    print(json.dumps({**books, "balance": balance(books)}))
    return 0 if balance(books) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
