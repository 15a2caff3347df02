"""Takes orders over HTTP: an order and its announcement are one transaction.

Rule: what is answered with 201 is in the books; what is answered otherwise, or not at all, may be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import uuid4

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from shop import Model, Order, Placed, app
from sqlalchemy.ext.asyncio import AsyncSession

from carom.integrations.fastapi import Emitter, emitter, lifespan
from carom.integrations.sqlalchemy import engine, session_factory

LIMIT_CENTS = 100_000
sessions = session_factory(app)


@asynccontextmanager
async def tables(_api: FastAPI) -> AsyncIterator[None]:
    async with engine(app).begin() as connection:
        await connection.run_sync(Model.metadata.create_all)
    yield


async def begun() -> AsyncIterator[AsyncSession]:
    async with sessions() as session:
        yield session


# Emitting needs the database alone: orders are taken while the broker and all workers are away.
api = FastAPI(lifespan=lifespan(app, tables))
Session = Annotated[AsyncSession, Depends(begun)]
Emitting = Annotated[Emitter, Depends(emitter(app, begun))]


class Basket(BaseModel):
    customer: str
    cents: int


@api.post("/orders", status_code=201)
async def place(basket: Basket, session: Session, emit: Emitting) -> dict[str, str]:
    async with session.begin():  # committed before the answer: a 201 is a promise
        order = Order(id=uuid4().hex, customer=basket.customer, cents=basket.cents)
        session.add(order)
        emit("order.placed", Placed(order.id, order.customer, order.cents), key=order.id)
        if basket.cents > LIMIT_CENTS:  # on purpose after both: neither is left when the transaction is rolled back
            raise HTTPException(422, "nobody has so much money")
    return {"order": order.id}
