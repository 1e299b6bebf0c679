"""The shop's database, as the agent's tools see it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

from pydantic import BaseModel, Field

HERE = Path(__file__).parent


class Item(BaseModel):
    quantity: int
    name: str


class Payment(BaseModel):
    id: str
    taken_on: str
    method: str
    cents: int = Field(description="Cents of a euro; negative for a refund.")


class Order(BaseModel):
    id: str
    customer: str
    customer_email: str
    placed_on: str
    status: str
    total_cents: int
    items: list[Item]
    payments: list[Payment]


class Shipment(BaseModel):
    order_id: str
    carrier: str
    tracking: str
    status: str
    last_seen: str
    expected_on: str | None


class NotInShop(LookupError):
    """The shop knows nothing under this number."""


class Shop:
    """One shop database.

    Args:
        path: The SQLite file.
        latency: Seconds that the shop takes for an answer. Real ones are not instant either, and a demo needs a moment in which to be killed.
    """

    def __init__(self, path: Path, *, latency: float = 0.0) -> None:
        self.path, self.latency = path, latency

    async def order(self, order_id: str) -> Order:
        """The order with its items and payments.

        Raises:
            NotInShop: There is no such order.
        """
        async with self._request("order", order_id):
            return await asyncio.to_thread(self._order, order_id)

    async def shipment(self, order_id: str) -> Shipment:
        """Where the order's parcel is.

        Raises:
            NotInShop: Nothing has been sent under this number.
        """
        async with self._request("shipment", order_id):
            return await asyncio.to_thread(self._shipment, order_id)

    def _order(self, order_id: str) -> Order:
        with self._open() as db:
            query = "SELECT o.*, c.name AS customer, c.email AS customer_email FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.id = ?"
            row = db.execute(query, (order_id,)).fetchone()
            if row is None:
                raise NotInShop(f"There is no order {order_id} in the shop.")
            items = db.execute("SELECT quantity, name FROM items WHERE order_id = ? ORDER BY rowid", (order_id,))
            payments = db.execute("SELECT id, taken_on, method, cents FROM payments WHERE order_id = ? ORDER BY id", (order_id,))
            return Order(**dict(row), items=[Item(**dict(each)) for each in items], payments=[Payment(**dict(each)) for each in payments])

    def _shipment(self, order_id: str) -> Shipment:
        with self._open() as db:
            row = db.execute("SELECT * FROM shipments WHERE order_id = ?", (order_id,)).fetchone()
            if row is None:
                raise NotInShop(f"Nothing has been sent yet for order {order_id}.")
            return Shipment(**dict(row))

    @asynccontextmanager
    async def _request(self, request: str, subject: str) -> AsyncIterator[None]:
        """Log a request when it comes in and when it was answered, as any real system does."""
        number = await asyncio.to_thread(self._log, request, subject)
        await asyncio.sleep(self.latency)
        yield
        await asyncio.to_thread(self._logged, number)

    def _log(self, request: str, subject: str) -> int:
        with self._open() as db, db:
            cursor = db.execute("INSERT INTO access_log (request, subject, pid) VALUES (?, ?, ?)", (request, subject, os.getpid()))
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def _logged(self, number: int) -> None:
        with self._open() as db, db:
            db.execute("UPDATE access_log SET answered = 1 WHERE id = ?", (number,))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=10)) as db:
            db.row_factory = sqlite3.Row
            yield db


def build(path: Path) -> None:
    """Create the shop database from `shop.sql` unless it is there. Safe when several processes start at once."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with closing(sqlite3.connect(draft)) as db:
        db.executescript((HERE / "shop.sql").read_text("utf-8"))
    try:
        os.link(draft, path)  # the first one wins, and nobody ever sees half a shop
    except FileExistsError:
        pass
    draft.unlink()
