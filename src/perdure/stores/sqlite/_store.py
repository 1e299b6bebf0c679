"""The embedded store: one SQLite file, one thread that writes in groups, one that reads."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, get_args
from urllib.parse import unquote, urlsplit

from perdure.core.artifact import Artifact
from perdure.core.checkpoint import Checkpoint
from perdure.core.codec import Codec, PlainCodec
from perdure.core.commit import (
    Admitted,
    Cancelled,
    CancelRequest,
    ClaimRequest,
    Commit,
    Committed,
    EffectFilter,
    Lease,
    Loaded,
    NewRun,
    Renewed,
    Resolve,
    Resolved,
    Retried,
    RetryRequest,
    RunFilter,
    SettleEffect,
    Signal,
    SweepRequest,
    Swept,
    WaitFilter,
)  # fmt: skip
from perdure.core.effect import Effect
from perdure.core.errors import ConfigurationError
from perdure.core.event import Delta, Event, Reset
from perdure.core.run import Run
from perdure.core.runtime import RealRuntime, Runtime
from perdure.core.step import Step
from perdure.core.wait import WaitPoint
from perdure.stores._moves import _admit, _claim, _commit, _lifecycle, _notices, _reads, _resolve
from perdure.stores._moves._program import Program, Work, moment, span
from perdure.stores._protocol import Hint
from perdure.stores.sqlite._connection import SCHEMA, Connection, Synchronous
from perdure.stores.sqlite._lane import Reader, Writer

T = TypeVar("T")


class SqliteStore:
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
        if synchronous not in get_args(Synchronous):
            raise ConfigurationError(f"SqliteStore(synchronous={synchronous!r}): one of {', '.join(get_args(Synchronous))}.")
        self.path = file_of(path)
        self._runtime = runtime or RealRuntime()
        self._codec = codec or PlainCodec()
        self._synchronous: Synchronous = synchronous
        self._migrate_at_start = migrate
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[Callable[[Hint], None]] = []

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(self._connect, self._codec, self._runtime, "perdure-sqlite-writer", self._told)
        self._reader = Reader(self._connect, self._codec, self._runtime, "perdure-sqlite-reader")
        try:
            await self._writer.call(Connection.migrate if self._migrate_at_start else Connection.ready)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._loop = None
        # The reader first: the last connection to close copies the log back into the file.
        for lane in (self._reader, self._writer):
            if lane is not None:
                lane.close()

    async def migrate(self) -> int:
        return await self._writing.call(Connection.migrate)

    def info(self) -> dict[str, Any]:
        return {"kind": "sqlite", "address": f"sqlite:///{self.path}", "schema": SCHEMA, "durable": True, "synchronous": self._synchronous}

    def _connect(self) -> Connection:
        return Connection(self.path, self._runtime, synchronous=self._synchronous)

    # ── moves ──────────────────────────────────────────────────────────────────────────────────────────────
    async def admit(self, new: NewRun) -> Admitted:
        return await self._write(_admit.admit, new)

    async def claim(self, request: ClaimRequest) -> Sequence[Run]:
        return await self._write(_claim_alone, request, self.path)

    async def renew(self, leases: Sequence[Lease], lease: timedelta) -> Sequence[Renewed]:
        return await self._writing.write(lambda work: _claim.renew(work, leases, lease), urgent=True)

    async def commit(self, commit: Commit) -> Committed:
        return await self._write(_commit.commit, commit)

    async def resolve(self, request: Resolve) -> Resolved:
        return await self._write(_resolve.resolve, request)

    async def extend(self, wait_id: str, expires_at: datetime | None) -> Resolved:
        return await self._write(_resolve.extend, wait_id, expires_at)

    async def cancel(self, request: CancelRequest) -> Cancelled:
        return await self._write(_lifecycle.cancel, request)

    async def retry(self, request: RetryRequest) -> Retried:
        return await self._write(_lifecycle.retry, request)

    async def sweep(self, request: SweepRequest) -> Swept:
        # Each in a transaction of its own: one bad run never ends a pass.
        due = await self._read(_lifecycle.list_due, request)
        done: list[tuple[str, _lifecycle.Head | None]] = []
        for each in due:
            done.append((each.run_id, await self._write(_lifecycle.sweep, each, request.deaths_max)))
        return _lifecycle.tally(done, await self._read(_lifecycle.next_due))

    async def signal(self, signal: Signal) -> bool:
        return await self._write(_resolve.signal, signal)

    async def settle_effect(self, request: SettleEffect) -> Effect:
        return await self._write(_resolve.settle_effect, request)

    # ── notifications ──────────────────────────────────────────────────────────────────────────────────────
    async def claim_notices(self, *, limit: int, hold: timedelta) -> Sequence[WaitPoint]:
        return await self._write(_notices.claim_notices, limit, hold)

    async def note_notice(
        self, wait_id: str, *, tries: int, accepted: bool, warning: bool, retry_in: timedelta | None, token_hash: str | None
    ) -> None:
        notice = partial(
            _notices.note_notice, wait_id=wait_id, tries=tries, accepted=accepted, warning=warning, retry_in=retry_in, token_hash=token_hash
        )
        await self._write(notice)

    # ── reads ──────────────────────────────────────────────────────────────────────────────────────────────
    async def now(self) -> datetime:
        return await self._read(_reads.now)

    async def load(self, run_id: str) -> Loaded:
        return await self._read(_reads.load, run_id)

    async def get(self, run_id: str) -> Run | None:
        return await self._read(_reads.get, run_id)

    async def find(self, agent: str, key: str) -> Run | None:
        return await self._read(_reads.find, agent, key)

    async def runs(self, where: RunFilter) -> Sequence[Run]:
        return await self._read(_reads.runs, where)

    async def counts(self, agent: str | None = None) -> dict[str, int]:
        return await self._read(_reads.counts, agent)

    async def steps(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Step]:
        return await self._read(_reads.steps, run_id, after, limit)

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Event]:
        return await self._read(_reads.events, run_id, after, limit)

    async def checkpoint(self, run_id: str, *, generation: int | None = None, index: int | None = None) -> Checkpoint | None:
        return await self._read(_reads.checkpoint, run_id, generation, index)

    async def waits(self, where: WaitFilter) -> Sequence[WaitPoint]:
        return await self._read(_reads.waits, where)

    async def wait(self, wait_id: str) -> WaitPoint | None:
        return await self._read(_reads.wait, wait_id)

    async def effects(self, where: EffectFilter) -> Sequence[Effect]:
        return await self._read(_reads.effects, where)

    # ── artifacts ──────────────────────────────────────────────────────────────────────────────────────────
    async def put_artifact(self, data: bytes, *, media_type: str, filename: str | None = None) -> Artifact:
        artifact = Artifact(hashlib.sha256(data).hexdigest(), media_type, len(data), filename=filename)
        return await self._write(_reads.put_artifact, artifact, data)

    async def get_artifact(self, artifact_id: str) -> tuple[Artifact, bytes]:
        return await self._read(_reads.get_artifact, artifact_id)

    # ── hints ──────────────────────────────────────────────────────────────────────────────────────────────
    def on_hint(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    async def send_deltas(self, deltas: Sequence[Delta | Reset]) -> None:
        """A file carries no messages: other processes see the text once its step is stored."""

    def on_delta(self, callback: Callable[[Delta | Reset], None]) -> Callable[[], None]:
        return lambda: None

    def _told(self, hints: set[Hint]) -> None:
        """On the writer's thread: what a durable group may have changed, passed on to the loop that entered the store."""
        loop = self._loop
        if loop is None or not hints or not self._listeners:
            return
        try:
            loop.call_soon_threadsafe(self._publish, hints)
        except RuntimeError:
            pass  # that loop was closed: nobody listens any more

    def _publish(self, hints: set[Hint]) -> None:
        # Sorted, because the order of a set differs from process to process and a simulation must not.
        for hint in sorted(hints, key=lambda each: (each.kind, each.run_id or "")):
            for listener in list(self._listeners):
                listener(hint)

    # ── small parts ────────────────────────────────────────────────────────────────────────────────────────
    @property
    def _writing(self) -> Writer:
        return self._opened(self._writer)

    def _opened(self, lane: T | None) -> T:
        if lane is None:
            raise ConfigurationError("This store is not open yet: use it inside `async with store:`.")
        return lane

    async def _write(self, verb: Callable[..., Program[T]], *args: Any) -> T:
        return await self._writing.write(lambda work: verb(work, *args))

    async def _read(self, verb: Callable[..., Program[T]], *args: Any) -> T:
        return await self._opened(self._reader).read(lambda work: verb(work, *args))

    async def move_clock(self, by: timedelta) -> None:
        """For tests: move the store's clock, for every process on this file."""
        await self._write(_move_clock, by)


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


def _move_clock(work: Work, by: timedelta) -> Program[None]:
    work.write("move_clock", micros=span(by))
    return
    yield


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
