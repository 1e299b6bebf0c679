"""Storages, schedulers and a clock for the pipeline's tests. A world is one of each, and a way to run everything that is due."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from perdure.core.runtime import RealRuntime
from perdure.pipeline import (
    Checkpoint,
    JobRecord,
    JobStatus,
    LogEntry,
    MemoryScheduler,
    MemoryStorage,
    Phase,
    PhaseError,
    PipelineWorker,
    PostgresStorage,
    RetryMode,
    SqliteStorage,
    StorageScheduler,
    advance_phase,
    run_pipeline,
)
from perdure.testing.postgres import PostgresServer

_SCHEMAS = itertools.count(1)
START = datetime(2031, 5, 1, 12, tzinfo=UTC)


def fresh_schema() -> str:
    """The name of a Postgres schema that no other test has."""
    return f"pipeline_{next(_SCHEMAS)}"


class ManualClock(RealRuntime):
    """A runtime whose clocks move only when told to. Whoever sleeps wakes when they have moved far enough."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return START + timedelta(seconds=self._seconds)

    def monotonic(self) -> float:
        return self._seconds

    def random(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        done = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._seconds + seconds, done))
        await done

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
        for due, sleeper in list(self._sleepers):
            if due <= self._seconds:
                self._sleepers.remove((due, sleeper))
                if not sleeper.done():
                    sleeper.get_loop().call_soon_threadsafe(lambda each=sleeper: each.done() or each.set_result(None))


class Plain:
    """A storage with the five methods and nothing else: what somebody writes in ten minutes."""

    def __init__(self, inner: MemoryStorage) -> None:
        self.inner = inner

    async def get_job(self, job_id: str) -> JobRecord | None:
        job = await self.inner.get_job(job_id)
        return None if job is None else JobRecord(job.status, job.checkpoint, job.error, job.output)

    async def set_status(self, job_id: str, status: JobStatus, error: str | None = None) -> None:
        await self.inner.set_status(job_id, status, error)

    async def set_checkpoint(self, job_id: str, checkpoint: Checkpoint[Any] | None) -> None:
        await self.inner.set_checkpoint(job_id, checkpoint)

    async def append_log(self, job_id: str, entry: LogEntry) -> None:
        await self.inner.append_log(job_id, entry)

    async def clear_log(self, job_id: str) -> None:
        await self.inner.clear_log(job_id)


class Listing(Plain):
    """Plain, and it keeps outputs and can list what runs."""

    async def set_output(self, job_id: str, output: Any) -> None:
        await self.inner.set_output(job_id, output)

    async def list_running(self) -> Sequence[str]:
        return await self.inner.list_running()


class Versioned(Listing):
    """Compare-and-set on the checkpoint's version, and no leases."""

    async def get_job(self, job_id: str) -> JobRecord | None:
        job = await self.inner.get_job(job_id)
        return None if job is None else JobRecord(job.status, job.checkpoint, job.error, job.output, job.version)

    async def compare_and_set(self, job_id: str, version: int, checkpoint: Checkpoint[Any] | None) -> int | None:
        job = await self.inner.get_job(job_id)
        if (job.version if job else 0) != version:
            return None
        await self.inner.set_checkpoint(job_id, checkpoint)
        held = self.inner._jobs[job_id]
        held.record = replace(held.record, version=version + 1)
        return version + 1


@dataclass
class World:
    """`log` reads what was logged; `drain` runs all that is due and answers the failures; `reopen` is a new process on the same storage."""

    kind: str
    clock: ManualClock
    storage: Any
    scheduler: Any
    phases: Sequence[Phase[Any]] = ()
    reopen: Callable[[], Awaitable[None]] | None = None

    @property
    def full(self) -> bool:
        """Whether the storage has every capability."""
        return self.kind in FULL

    async def log(self, job_id: str) -> list[LogEntry]:
        reader = self.storage if hasattr(self.storage, "get_log") else self.storage.inner
        return list(await reader.get_log(job_id))

    async def said(self, job_id: str) -> list[str]:
        return [entry.message for entry in await self.log(job_id)]

    async def job(self, job_id: str) -> JobRecord:
        job = await self.storage.get_job(job_id)
        assert job is not None
        return job

    def use(self, *phases: Phase[Any]) -> None:
        self.phases = phases
        if isinstance(self.scheduler, MemoryScheduler):
            self.scheduler.bind(self.advance)

    async def advance(self, job_id: str) -> str:
        return await advance_phase(job_id, self.phases, self.storage, self.scheduler, runtime=self.clock)

    async def start(self, job_id: str, state: Any, retry_mode: RetryMode | None = None, initial_phase: str | None = None) -> None:
        await run_pipeline(job_id, self.phases, self.storage, self.scheduler, state, retry_mode, initial_phase, runtime=self.clock)

    async def drain(self) -> list[PhaseError]:
        if isinstance(self.scheduler, MemoryScheduler):
            return await self.scheduler.drain()
        failures: list[PhaseError] = []

        def note(job_id: str, error: Exception) -> None:
            if not isinstance(error, PhaseError):
                raise error
            failures.append(error)

        await PipelineWorker(self.phases, self.storage, runtime=self.clock, on_error=note).run_until_idle()
        return failures

    async def drain_all(self, step: float = 3600, limit: int = 40) -> list[PhaseError]:
        """Drain, and move the clock until nothing is on its way."""
        failures = await self.drain()
        for _ in range(limit):
            if not await self._later():
                return failures
            self.clock.advance(step)
            failures += await self.drain()
        raise AssertionError("it never came to rest")

    async def _later(self) -> bool:
        if isinstance(self.scheduler, MemoryScheduler):
            return bool(self.scheduler.pending)
        return await self.storage.next_advance() is not None


FULL = ("memory", "memory-queue", "sqlite", "sqlite-queue", "postgres-queue")
QUEUES = ("memory-queue", "sqlite-queue", "postgres-queue")
AGENTS = ("memory", "sqlite-queue", "postgres-queue", "plain", "versioned")
KINDS = (*FULL, "plain", "listing", "versioned")
Open = Callable[[], AbstractAsyncContextManager[World]]
OpenKind = Callable[[str, Path], AbstractAsyncContextManager[World]]


@asynccontextmanager
async def open_world(kind: str, folder: Path, server: PostgresServer | None = None) -> AsyncGenerator[World]:
    clock = ManualClock()
    if kind.startswith("postgres"):
        assert server is not None
        async with PostgresStorage(server.dsn, schema=fresh_schema(), runtime=clock, clock=clock.now) as storage:
            yield World(kind, clock, storage, StorageScheduler(storage) if kind == "postgres-queue" else MemoryScheduler(runtime=clock))
        return
    if kind.startswith("sqlite"):
        async with SqliteStorage(folder / "jobs.db", runtime=clock) as storage:
            scheduler = StorageScheduler(storage) if kind == "sqlite-queue" else MemoryScheduler(runtime=clock)
            yield World(kind, clock, storage, scheduler)
        return
    memory = MemoryStorage(runtime=clock)
    storage = {"plain": Plain, "listing": Listing, "versioned": Versioned}.get(kind, lambda inner: inner)(memory)
    scheduler = StorageScheduler(memory) if kind == "memory-queue" else MemoryScheduler(runtime=clock)
    yield World(kind, clock, storage, scheduler)
