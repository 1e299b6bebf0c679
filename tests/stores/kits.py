"""What each store brings to the tests that all of them pass."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

from perdure.stores import Store
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore


class MemoryKit:
    """One memory, through as many handles as there are: they are the same object."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def open(self) -> Store:
        return self._store

    def advance(self, by: timedelta) -> None:
        self._store.offset += by

    def size(self) -> int:
        return self._store.info()["bytes"]


class SqliteKit:
    """One file, a store object for each handle, and the clock in the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> Store:
        return SqliteStore(self._path)

    def advance(self, by: timedelta) -> None:
        connection = sqlite3.connect(self._path)
        with connection:
            connection.execute("UPDATE meta SET value = value + ? WHERE name = 'clock_offset'", (by // timedelta(microseconds=1),))
        connection.close()

    def size(self) -> int:
        connection = sqlite3.connect(self._path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        return self._path.stat().st_size
