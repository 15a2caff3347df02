"""A shop with books: orders are taken over HTTP, charged and shipped by workers, and the books balance whatever dies.

    uvicorn web:api                # takes orders, and announces each in the transaction that writes it down
    carom run shop:app             # the workers and the relay; start as many as you like
    python books.py                # counts: one payment and one shipment for every order, and none for anything else

Nothing else changes with the servers; by default it is two files:

    export CAROM_BROKER=amqp://guest:guest@localhost/ CAROM_DATABASE=postgresql+asyncpg://localhost/shop

Rule: nothing here is unique in the database but the orders, so that a payment made twice would show in the books.
"""

from __future__ import annotations

import os

import msgspec
from sqlalchemy import ForeignKey
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from carom import App, Message

app = App(
    os.environ.get("CAROM_BROKER", "embedded:///shop-broker.db"),
    database=os.environ.get("CAROM_DATABASE", "sqlite+aiosqlite:///shop.db"),
    name="shop",
    namespace="shop",
    exchange="shop",
    retry=("100ms", "500ms", "2s"),
)


class Model(DeclarativeBase):
    pass


class Order(Model):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class Payment(Model):
    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(ForeignKey(Order.id))
    cents: Mapped[int]


class Shipment(Model):
    __tablename__ = "shipments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(ForeignKey(Order.id))


class Placed(msgspec.Struct):
    order: str
    customer: str
    cents: int


class Paid(msgspec.Struct):
    order: str
    cents: int


class BankIsBusy(Exception):
    """It happens: to the first attempt of every third payment here."""


# The session is the inbox's: that this message was handled, the payment and what is announced are one transaction. Each
# of those that run at a time holds a connection to the database.
@app.listen("order.placed", queue="shop.charge", idempotent=True, concurrency=4)
async def charge(placed: Placed, message: Message, session: AsyncSession) -> None:
    session.add(Payment(order_id=placed.order, cents=placed.cents))
    app.emit(session, "order.paid", Paid(placed.order, placed.cents), key=placed.order)
    if message.attempt == 1 and int(placed.order[-1], 16) % 3 == 0:
        raise BankIsBusy


@app.listen("order.paid", queue="shop.ship", idempotent=True, concurrency=4)
async def ship(paid: Paid, session: AsyncSession) -> None:
    session.add(Shipment(order_id=paid.order))
