"""The embedded store: one SQLite file, one thread that writes in groups, one that reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, get_args
from urllib.parse import unquote, urlsplit

from perdure.core.codec import Codec, PlainCodec
from perdure.core.commit import ClaimRequest, Lease, Renewed
from perdure.core.errors import ConfigurationError
from perdure.core.event import Delta, Reset
from perdure.core.run import Run
from perdure.core.runtime import RealRuntime, Runtime
from perdure.stores._moves import _claim
from perdure.stores._moves._program import Program, Verb, Work, moment
from perdure.stores._moves._store import SqlStore
from perdure.stores._protocol import Hint
from perdure.stores.sqlite._connection import SCHEMA, Connection, Synchronous
from perdure.stores.sqlite._lane import Reader, Word, Writer

T = TypeVar("T")
L = TypeVar("L", Reader, Writer)


class SqliteStore(SqlStore):
    """Runs in one SQLite file. Several processes of one machine may use it at once; a file belongs to one machine at a time.

    Args:
        path: The file, or a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`.
        runtime: Where clocks and threads come from.
        synchronous: `FULL` survives a power cut; `NORMAL` may lose the last commits in one, though never the file.
        codec: What stands between the stored values and their bytes, for example encryption.
        migrate: Whether opening brings the schema up to date.

    Raises:
        ConfigurationError: The path or a setting can't be used (when made, or when opened).
        NotADatabase, ReadOnlyStore, SchemaTooNew, StoreError: The file can't be used (when opened).
    """

    def __init__(
        self, path: str | Path, runtime: Runtime | None = None, *, synchronous: Synchronous = "FULL", codec: Codec | None = None, migrate: bool = True
    ) -> None:
        super().__init__()
        if synchronous not in get_args(Synchronous):
            raise ConfigurationError(f"SqliteStore(synchronous={synchronous!r}): one of {', '.join(get_args(Synchronous))}.")
        self.path = file_of(path)
        self._runtime = runtime or RealRuntime()
        self._codec = codec or PlainCodec()
        self._synchronous: Synchronous = synchronous
        self._migrate_at_start = migrate
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._entered = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._entered and self._loop is not loop:
            raise ConfigurationError("This store is open already, on another event loop. Give each engine a store of its own.")
        self._entered += 1
        if self._entered > 1:
            return self
        self._loop = loop
        self._writer = Writer(self._connect, self._codec, self._runtime, "perdure-sqlite-writer", self._news)
        self._reader = Reader(self._connect, self._codec, self._runtime, "perdure-sqlite-reader")
        try:
            await self._writer.call(Connection.migrate if self._migrate_at_start else Connection.ready)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._entered = max(0, self._entered - 1)
        if self._entered:
            return  # another engine works on it
        self._loop = None
        # The reader first: the last connection to close copies the log back into the file.
        for lane in (self._reader, self._writer):
            if lane is not None:
                lane.close()

    async def migrate(self) -> int:
        return await self._opened(self._writer).call(Connection.migrate)

    def info(self) -> dict[str, Any]:
        return {"kind": "sqlite", "address": f"sqlite:///{self.path}", "schema": SCHEMA, "durable": True, "synchronous": self._synchronous}

    def _connect(self) -> Connection:
        return Connection(self.path, self._runtime, synchronous=self._synchronous)

    # ── where SQLite differs ───────────────────────────────────────────────────────────────────────────────
    async def claim(self, request: ClaimRequest) -> Sequence[Run]:
        return await self._write(lambda work: _claim_alone(work, request, self.path))

    async def renew(self, leases: Sequence[Lease], lease: timedelta) -> Sequence[Renewed]:
        return await self._opened(self._writer).write(lambda work: _claim.renew(work, leases, lease), urgent=True)

    # ── hints ──────────────────────────────────────────────────────────────────────────────────────────────
    async def send_deltas(self, deltas: Sequence[Delta | Reset]) -> None:
        """A file carries no messages: other processes see the text once its step is stored."""

    def on_delta(self, callback: Callable[[Delta | Reset], None]) -> Callable[[], None]:
        return lambda: None

    def _news(self, hints: set[Hint]) -> Word | None:
        """On the writer's thread: how to tell the loop that entered the store what a durable group may have changed."""
        loop = self._loop
        return (loop, partial(self._publish, hints)) if loop is not None and hints and self._listeners else None

    # ── small parts ────────────────────────────────────────────────────────────────────────────────────────
    def _opened(self, lane: L | None) -> L:
        if lane is None:
            raise ConfigurationError("This store is not open yet: use it inside `async with store:`.")
        return lane

    async def _write(self, verb: Verb[T]) -> T:
        return await self._opened(self._writer).write(verb)

    async def _read(self, verb: Verb[T]) -> T:
        return await self._opened(self._reader).read(verb)

    async def _look(self, verb: Verb[T]) -> T:
        return await self._read(verb)


def _claim_alone(work: Work, request: ClaimRequest, path: Path) -> Program[Sequence[Run]]:
    """A claim, unless a worker of another machine is alive on this file: file locks don't hold between machines."""
    now = yield from work.clock()
    row = yield from work.row("foreign_lease", now=now, host=request.host)
    if row is not None:
        raise ConfigurationError(
            f"{path} is in use on another machine: {row['lease_host']} holds a lease until {moment(row['lease_expires_at'])}, this is {request.host}. "
            "A SQLite file belongs to one machine at a time: stop the worker there and wait until its lease has ended, or use Postgres.",
            host=row["lease_host"],
        )  # fmt: skip
    return (yield from _claim.claim(work, request))


def file_of(path: str | Path) -> Path:
    """The file that a path or a `sqlite:` URL names."""
    text = str(path)
    if not text.startswith("sqlite:"):
        return Path(text)
    parts = urlsplit(text)
    name = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not name:
        raise ConfigurationError(
            f"{text!r} names no file. Write sqlite:///perdure.db for a relative path, sqlite:////var/lib/perdure.db for an absolute one."
        )
    return Path(name)
