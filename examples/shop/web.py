"""Takes orders over HTTP: an order and its announcement are one transaction.

Rule: what is answered with 201 is in the books; what is answered otherwise, or not at all, may be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from shop import Base, Order, Placed, app
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

LIMIT_CENTS = 100_000
database: AsyncEngine = create_async_engine(app.database.url)


@asynccontextmanager
async def tables(_api: FastAPI) -> AsyncIterator[None]:
    async with database.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await app.store.open("apply")
    yield
    await app.store.close()
    await database.dispose()


api = FastAPI(lifespan=tables)


class Basket(BaseModel):
    customer: str
    cents: int


@api.post("/orders", status_code=201)
async def place(basket: Basket) -> dict[str, str]:
    order = Order(id=uuid4().hex, customer=basket.customer, cents=basket.cents)
    async with AsyncSession(database) as session, session.begin():
        session.add(order)
        app.emit(session, "order.placed", Placed(order.id, order.customer, order.cents), key=order.id)
        if basket.cents > LIMIT_CENTS:  # on purpose after both: neither is left when the transaction is rolled back
            raise HTTPException(422, "nobody has so much money")
    return {"order": order.id}
