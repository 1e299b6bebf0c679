"""The SQLite store: one file, nothing to install."""

from perdure.stores.sqlite._store import SqliteStore

__all__ = ["SqliteStore"]
