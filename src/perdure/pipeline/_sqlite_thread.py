"""SQLite on one thread, with group commit: what waits at the same moment shares one fsync."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from perdure.core import given
from perdure.core.errors import ConfigurationError, NotADatabase, PerdureError, ReadOnlyStore, StoreError, StoreFull, StoreUnavailable
from perdure.core.limits import GROUP_COMMITS_MAX
from perdure.core.runtime import Lane, Runtime

T = TypeVar("T")
Sync = Literal["FULL", "NORMAL", "OFF"]
Access = Literal["read", "write", "durable"]

BUSY_SECONDS: Final = 60.0
"""How long a write waits for other processes' writes before it is an error."""


@dataclass(slots=True)
class _Work:
    do: Callable[[sqlite3.Connection], Any]
    access: Access
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class SqliteThread:
    """Runs work in order. A call answers once its transaction is committed; one that raises takes nothing else with it.

    `access="write"` may be lost with the machine, never with the process: a claim that only matters while its process lives costs no fsync.
    """

    def __init__(self, path: Path | str, prepare: Callable[[sqlite3.Connection], None], runtime: Runtime, synchronous: Sync) -> None:
        self._path, self._prepare, self._runtime = str(path), prepare, runtime
        self._full: Sync = synchronous
        self._lane: Lane | None = None
        self._connections: dict[Sync, sqlite3.Connection] = {}
        self._queue: deque[_Work] = deque()

    async def call(self, do: Callable[[sqlite3.Connection], T], access: Access = "durable") -> T:
        """Run `do` in a transaction.

        Raises:
            StoreError: SQLite refused; nothing of this call was kept.
        """
        loop = asyncio.get_running_loop()
        work = _Work(do, access, loop, loop.create_future())
        if self._lane is None:
            self._lane = self._runtime.lane("perdure-pipeline-sqlite")
        self._queue.append(work)
        self._lane.post(self._flush)
        return await work.answer

    async def close(self) -> None:
        """Finish what was asked for, then close."""
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.post(self._close)
            await self._runtime.in_thread(lane.close)

    # ── on the thread ──────────────────────────────────────────────────────────────────────────────────────
    def _flush(self) -> None:
        batch: list[_Work] = []
        while self._queue and len(batch) < GROUP_COMMITS_MAX:
            batch.append(self._queue.popleft())
        if batch:
            self._run(batch)

    def _run(self, batch: list[_Work]) -> None:
        try:
            answers = self._transaction(self._open(self._sync_of(batch)), batch)
        except Exception as error:
            if len(batch) > 1 and not isinstance(translate(error, self._path), StoreUnavailable):
                # The whole group failed: each is tried alone, so that every caller hears of its own failure only.
                for work in batch:
                    self._run([work])
                return
            # Where somebody keeps the write lock, all hear so at the same moment, not each after a wait of its own.
            for work in batch:
                _answer(work, translate(error, self._path))
            return
        for work, answer in zip(batch, answers, strict=True):
            _answer(work, answer)

    def _transaction(self, connection: sqlite3.Connection, batch: list[_Work]) -> list[Any]:
        connection.execute("BEGIN" if all(work.access == "read" for work in batch) else "BEGIN IMMEDIATE")
        try:
            answers = [work.do(connection) for work in batch] if len(batch) == 1 else [self._apart(connection, work) for work in batch]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return answers

    def _apart(self, connection: sqlite3.Connection, work: _Work) -> Any:
        connection.execute("SAVEPOINT one")
        try:
            answer = work.do(connection)
        except Exception as error:
            connection.execute("ROLLBACK TO one")
            answer = translate(error, self._path)
        connection.execute("RELEASE one")
        return answer

    def _sync_of(self, batch: list[_Work]) -> Sync:
        return self._full if any(work.access == "durable" for work in batch) else "NORMAL"

    def _open(self, sync: Sync) -> sqlite3.Connection:
        # One connection for each, not one that is switched: a repeated `PRAGMA synchronous` comes from the statement cache, where it does nothing.
        if sync not in self._connections:
            try:
                connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            except ValueError as error:
                raise ConfigurationError(f"{given.shown(self._path)} can't be the name of a file: {error}.") from error
            try:
                _use_wal(connection)
                connection.execute(f"PRAGMA synchronous={sync}")
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connections[sync] = connection
        return self._connections[sync]

    def _close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()


def _use_wal(connection: sqlite3.Connection) -> None:
    """Turn on WAL. Processes that do it at the same moment refuse each other at once, so each waits for the lock and looks again."""
    for left in reversed(range(50)):
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal" or connection.execute("PRAGMA journal_mode=WAL").fetchone():
                return
        except sqlite3.OperationalError as error:
            if left == 0 or "locked" not in str(error):
                raise
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("COMMIT")


def _answer(work: _Work, answer: Any) -> None:
    def give() -> None:
        if work.answer.done():
            return  # its caller was cancelled; the write stands
        if isinstance(answer, Exception):
            work.answer.set_exception(answer)
        else:
            work.answer.set_result(answer)

    try:
        work.loop.call_soon_threadsafe(give)
    except RuntimeError:
        pass  # the loop that asked has ended


def translate(error: Exception, path: str) -> Exception:
    """A driver's error as one of ours, the driver's own as its cause."""
    if isinstance(error, PerdureError) or not isinstance(error, sqlite3.Error):
        return error
    name, text = getattr(error, "sqlite_errorname", None) or "", str(error)
    if name.startswith("SQLITE_NOTADB"):
        ours: StoreError = NotADatabase(f"{path} is there and is not an SQLite database. Name another file.", path=path)
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        ours = StoreUnavailable(f"{path} was busy for {BUSY_SECONDS:.0f} s: another process holds a transaction open.", path=path)
    elif name.startswith("SQLITE_FULL"):
        ours = StoreFull(f"No room left for {path}. Nothing of this write was kept.", path=path)
    elif name.startswith("SQLITE_READONLY"):
        ours = ReadOnlyStore(f"{path} can't be written: {text}.", path=path)
    elif name.startswith("SQLITE_CANTOPEN"):
        ours = StoreError(f"{path} can't be opened: does its folder exist, and may this process write there?", path=path)
    else:
        ours = StoreError(f"{path}: {text}", path=path)
    ours.__cause__ = error
    return ours
