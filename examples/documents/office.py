"""The world outside: customers, a ledger, and an archive folder. What happens here can't be taken back."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Office:
    """Files below `folder`. The ledger knows the key of every booking, as a bank does: the same key again books nothing."""

    folder: Path

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    def open(self) -> sqlite3.Connection:
        self.folder.mkdir(parents=True, exist_ok=True)
        ledger = sqlite3.connect(self.ledger, isolation_level=None, timeout=30)
        ledger.execute("CREATE TABLE IF NOT EXISTS booking (key TEXT PRIMARY KEY, document TEXT, kind TEXT, cents INTEGER)")
        ledger.execute("CREATE TABLE IF NOT EXISTS asked (key TEXT)")
        return ledger

    def book(self, key: str, document: str, kind: str, cents: int) -> bool:
        """Book it; False if it was booked before."""
        with closing(self.open()) as ledger:
            ledger.execute("INSERT INTO asked VALUES (?)", (key,))
            return ledger.execute("INSERT OR IGNORE INTO booking VALUES (?, ?, ?, ?)", (key, document, kind, cents)).rowcount == 1

    def file(self, document: str, letter: str) -> Path:
        """Put the letter into the archive, whole or not at all."""
        place = self.folder / "archive" / f"{Path(document).stem}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_suffix(".part")
        draft.write_text(letter, encoding="utf-8")
        draft.replace(place)
        return place

    def bookings(self) -> dict[str, int]:
        """How often each document was booked."""
        with closing(self.open()) as ledger:
            return dict(ledger.execute("SELECT document, count(*) FROM booking GROUP BY document"))


def customer_number(name: str) -> int | None:
    """The number of the customer whose name this is, as far as anybody wrote it right."""
    wanted = name.casefold().split(",")[0].strip()
    with (HERE / "customers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["name"].casefold() == wanted:
                return int(row["number"])
    return None
