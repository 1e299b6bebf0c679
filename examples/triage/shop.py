"""The shop's database, as the agent's tools see it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

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


class Receipt(BaseModel):
    payment: str
    cents: int


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

    async def refund(self, order_id: str, cents: int, *, reference: str) -> Receipt:
        """Have the bank pay `cents` back. Called twice, it pays twice: only `reference` tells afterwards what a payment was for."""
        number = await asyncio.to_thread(self._log, "refund", order_id)
        receipt = await asyncio.to_thread(self._pay, order_id, cents, reference)
        await asyncio.sleep(self.latency)  # the money has left; the bank's answer takes its time
        await asyncio.to_thread(self._logged, number)
        return receipt

    async def file_ticket(self, ticket: Mapping[str, Any], *, reference: str) -> str:
        """Put a ticket on the support team's desk and answer its number."""
        number = await asyncio.to_thread(self._log, "ticket", reference)
        filed = await asyncio.to_thread(self._file, ticket, reference)
        await asyncio.sleep(self.latency)
        await asyncio.to_thread(self._logged, number)
        return filed

    async def find_ticket(self, reference: str) -> str | None:
        """The number of the ticket that was filed under this reference."""
        rows = await asyncio.to_thread(self.rows, "SELECT id FROM tickets WHERE reference = ?", reference)
        return f"T-{rows[0]['id']:04}" if rows else None

    async def find_refund(self, reference: str) -> Receipt | None:
        """The payment with this reference, from the bank's statement."""
        rows = await asyncio.to_thread(self.rows, "SELECT id, -cents AS cents FROM payments WHERE reference = ?", reference)
        return Receipt(payment=rows[0]["id"], cents=rows[0]["cents"]) if rows else None

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        """What a query answers."""
        with self._open() as db:
            return [dict(row) for row in db.execute(query, values)]

    def _pay(self, order_id: str, cents: int, reference: str) -> Receipt:
        with self._open() as db, db:
            payment = f"pay-{4000 + db.execute('SELECT count(*) FROM payments').fetchone()[0]}"
            db.execute("INSERT INTO payments VALUES (?, ?, date('now'), 'card refund', ?, ?)", (payment, order_id, -cents, reference))
            return Receipt(payment=payment, cents=cents)

    def _file(self, ticket: Mapping[str, Any], reference: str) -> str:
        with self._open() as db, db:
            columns = [ticket[name] for name in ("category", "priority", "order_id", "summary", "suggested_reply", "needs_human")]
            insert = "INSERT INTO tickets (category, priority, order_id, summary, reply, person, reference) VALUES (?, ?, ?, ?, ?, ?, ?)"
            return f"T-{db.execute(insert, (*columns, reference)).lastrowid:04}"

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
