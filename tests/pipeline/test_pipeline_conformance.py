"""Every storage and scheduler of ours passes the kit that users run on theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pipeline_worlds import Listing, ManualClock, Plain, Versioned, fresh_schema

from perdure.pipeline import MemoryScheduler, MemoryStorage, PipelineWorker, PostgresStorage, SqliteStorage, StorageScheduler
from perdure.testing.pipeline import SchedulerConformance, StorageConformance
from perdure.testing.postgres import PostgresServer


class _Timed(StorageConformance):
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def pass_time(self, clock: ManualClock) -> Callable[[timedelta], None]:
        return lambda span: clock.advance(span.total_seconds())


class TestMemory(_Timed):
    """The storage in memory."""

    @pytest.fixture
    def open_storage(self, clock: ManualClock) -> Callable[[], Any]:
        storage = MemoryStorage(runtime=clock)
        return lambda: storage


class TestSqlite(_Timed):
    """The storage in SQLite."""

    @pytest.fixture
    def open_storage(self, tmp_path: Path, clock: ManualClock) -> Callable[[], Any]:
        return lambda: SqliteStorage(tmp_path / "jobs.db", runtime=clock)


class TestPostgres(_Timed):
    """The storage in Postgres, with a pool of two."""

    @pytest.fixture
    def open_storage(self, postgres: PostgresServer, clock: ManualClock) -> Callable[[], Any]:
        schema = fresh_schema()
        return lambda: PostgresStorage(postgres.dsn, schema=schema, pool_max=2, clock=clock.now)


@pytest.mark.parametrize("kind", [Plain, Listing, Versioned])
class TestSmall(_Timed):
    """Storages with few capabilities, as the tests use them."""

    @pytest.fixture
    def open_storage(self, clock: ManualClock, kind: Any) -> Callable[[], Any]:
        storage = kind(MemoryStorage(runtime=clock))
        return lambda: storage


class TestMemoryScheduler(SchedulerConformance):
    """The scheduler in memory, drained."""

    @pytest.fixture
    def open_scheduler(self) -> Callable[[Any], Any]:
        def make(advance: Callable[[str], Awaitable[object]]) -> MemoryScheduler:
            scheduler = MemoryScheduler()
            scheduler.bind(advance)
            return scheduler

        return make

    async def settle(self, scheduler: Any) -> None:
        await scheduler.drain(wait=True)


class _Bound(PipelineWorker):
    """A worker that advances what it is told to instead of a pipeline."""

    def __init__(self, storage: Any, advance: Callable[[str], Awaitable[object]]) -> None:
        from perdure.pipeline import Done, Phase

        async def nothing(ctx: Any) -> Done:
            return Done()

        super().__init__([Phase("nothing", nothing, state=dict)], storage, on_error=lambda job_id, error: None)
        self._do = advance

    async def _run(self, job_id: str, cancelled: Any) -> None:
        await self._do(job_id)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
class TestWorker(SchedulerConformance):
    """The store-backed worker, on every storage."""

    @pytest.fixture
    def open_scheduler(self, tmp_path: Path, postgres: PostgresServer, kind: str) -> Callable[[Any], Any]:
        def open_storage() -> Any:
            if kind == "postgres":
                return PostgresStorage(postgres.dsn, schema=fresh_schema())
            return MemoryStorage() if kind == "memory" else SqliteStorage(tmp_path / "jobs.db")

        @asynccontextmanager
        async def make(advance: Callable[[str], Awaitable[object]]) -> Any:
            storage = open_storage()
            async with _Bound(storage, advance):
                yield StorageScheduler(storage)
            if not isinstance(storage, MemoryStorage):
                await storage.close()

        return make
