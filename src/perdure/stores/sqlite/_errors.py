"""The driver's errors, translated once: what happened, to which file, what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from perdure.core.errors import NotADatabase, ReadOnlyStore, StoreError, StoreFull, StoreUnavailable

_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code of an error (0 where the driver gave none)."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_busy(error: sqlite3.Error) -> bool:
    """Somebody else holds the lock right now: worth trying again."""
    return primary_code(error) in _BUSY


def translate(error: sqlite3.Error, path: Path) -> StoreError:
    """Our error for the driver's. Raise it `from` the driver's."""
    code = primary_code(error)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code in _BUSY:
        return StoreUnavailable(
            f"{path} was locked by another process for too long. Nothing was written; try again, or look for a program that keeps a transaction open on it.",
            path=str(path),
        )
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(
            f"There is no room left for {path}. Nothing of the refused write was kept: free some space, and the store goes on.", path=str(path)
        )
    if code == sqlite3.SQLITE_IOERR:
        if name in {"SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_IOERR_TRUNCATE", "SQLITE_IOERR_SHMSIZE"}:
            return StoreFull(
                f"{path} could not be written ({name}): most often the disk is full. Nothing of the refused write was kept: free some space, and the store goes on.",
                path=str(path),
            )
        return StoreUnavailable(f"{path} could not be read or written ({name}): check the disk. Nothing of this call was kept.", path=str(path))
    if code == sqlite3.SQLITE_READONLY:
        return ReadOnlyStore(
            f"{path} can't be written. Give this user the right to write the file and its folder (SQLite keeps two more files there).", path=str(path)
        )
    if code == sqlite3.SQLITE_NOTADB:
        return NotADatabase(f"{path} is not a SQLite database. Name another file, or move this one away.", path=str(path))
    if code == sqlite3.SQLITE_CORRUPT:
        return NotADatabase(f"{path} is damaged ({error}). Restore it from a backup, or see what `sqlite3 {path} .recover` can save.", path=str(path))
    if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
        return StoreError(f"{path} can't be opened: check that its folder is there and that this user may write in it.", path=str(path))
    if code == sqlite3.SQLITE_NOMEM:
        return StoreUnavailable(f"SQLite ran out of memory on {path}. Nothing of this call was kept; try again.", path=str(path))
    return StoreError(f"SQLite refused a call on {path}: {error} ({name}).", path=str(path))
