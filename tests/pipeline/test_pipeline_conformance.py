"""Every storage and scheduler of ours passes the kit that users run on theirs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
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

    storage_type = MemoryStorage

    @pytest.fixture
    def open_storage(self, clock: ManualClock) -> Callable[[], Any]:
        storage = MemoryStorage(runtime=clock)
        return lambda: storage


class TestSqlite(_Timed):
    """The storage in SQLite."""

    storage_type = SqliteStorage

    @pytest.fixture
    def open_storage(self, tmp_path: Path, clock: ManualClock) -> Callable[[], Any]:
        return lambda: SqliteStorage(tmp_path / "jobs.db", runtime=clock)


class TestPostgres(_Timed):
    """The storage in Postgres, with a pool of two."""

    storage_type = PostgresStorage

    @pytest.fixture
    def open_storage(self, postgres: PostgresServer, clock: ManualClock) -> Callable[[], Any]:
        schema = fresh_schema()
        return lambda: PostgresStorage(postgres.dsn, schema=schema, pool_max=2, clock=clock.now)


class _Small(_Timed):
    @pytest.fixture
    def open_storage(self, clock: ManualClock) -> Callable[[], Any]:
        assert self.storage_type is not None
        storage = self.storage_type(MemoryStorage(runtime=clock))
        return lambda: storage


class TestPlain(_Small):
    """The five methods and nothing else."""

    storage_type = Plain


class TestListing(_Small):
    """Keeps outputs and lists what runs."""

    storage_type = Listing


class TestVersioned(_Small):
    """Compares versions, and has no leases."""

    storage_type = Versioned


def test_the_kit_leaves_out_what_a_storage_does_without() -> None:
    """And nothing else: the tests of what it can do are there."""
    lease, output = "test_a_claimed_job_is_nobody_elses", "test_an_output_is_kept"
    assert [getattr(each, lease) is None for each in (TestMemory, TestSqlite, TestPostgres, TestListing)] == [False, False, False, True]
    assert [getattr(each, output) is None for each in (TestPlain, TestListing)] == [True, False]


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
        async def make(advance: Callable[[str], Awaitable[object]]) -> AsyncGenerator[Any]:
            storage = open_storage()
            async with _Bound(storage, advance):
                yield StorageScheduler(storage)
            if not isinstance(storage, MemoryStorage):
                await storage.close()

        return make
