"""What the Postgres storage adds to the promises of every storage: replies that get lost, a server that goes away, one schema for many, errors that say what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from pipeline_worlds import START, fresh_schema

from perdure.core.errors import ConfigurationError, SchemaTooNew, StoreError
from perdure.pipeline import (
    Checkpoint,
    Done,
    LogEntry,
    Next,
    Outcome,
    Phase,
    PhaseContext,
    PhaseResult,
    PipelineWorker,
    PostgresStorage,
    run_pipeline,
)
from perdure.stores.postgres import PostgresStore
from perdure.testing.postgres import PostgresServer

LEASE = timedelta(seconds=30)


class Deaf(PostgresStorage):
    """Each call is carried out, and its reply is lost once: what a connection does that breaks at the wrong moment."""

    async def _once(self, queries: Any) -> Any:
        call = asyncio.current_task()
        if call not in self._deaf:
            self._deaf.add(call)
            await super()._once(queries)
            raise psycopg.OperationalError("the connection is lost")
        return await super()._once(queries)

    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options)
        self._deaf: set[Any] = set()


class Counting:
    """Three phases; `seen` is what was entered."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @property
    def phases(self) -> Sequence[Phase[dict[str, int]]]:
        def of(name: str, then: str | None) -> Phase[dict[str, int]]:
            async def run(ctx: PhaseContext[dict[str, int]]) -> PhaseResult[dict[str, int]]:
                self.seen.append(name)
                await ctx.log(f"at {name}")
                await ctx.save_state({"n": ctx.state["n"] + 1})
                return Next(then, {"n": ctx.state["n"]}) if then else Done(ctx.state)

            return Phase(name, run, state=dict[str, int])

        return [of("a", "b"), of("b", "c"), of("c", None)]


async def test_a_reply_that_gets_lost_costs_nothing(postgres: PostgresServer) -> None:
    """Every call of a job is sent twice, and the second sending knows the first: no phase, no line, no version twice."""

    async def story(kind: Callable[..., PostgresStorage]) -> Any:
        counting = Counting()
        async with kind(postgres.dsn, schema=fresh_schema()) as storage:
            worker = PipelineWorker(counting.phases, storage)
            await run_pipeline("j", counting.phases, storage, worker.scheduler, {"n": 0})
            await worker.run_until_idle()
            await storage.append_log("j", LogEntry(START, "by hand"))
            job = await storage.get_job("j")
            assert job is not None
            lines = [entry.message for entry in await storage.get_log("j")]
            return counting.seen, lines, job.status, job.output, job.version, job.deaths, await storage.next_advance("j")

    assert await story(Deaf) == await story(PostgresStorage)


async def test_a_lost_reply_to_a_claim_is_no_other_owner(postgres: PostgresServer) -> None:
    """The claim that was carried out unheard is ours, not somebody's whose lease has to be waited for."""
    async with Deaf(postgres.dsn, schema=fresh_schema()) as storage:
        await storage.commit_outcome(Outcome("j", 0, status="running", checkpoint=Checkpoint("a", 1, START), entered=True))
        claim = await storage.claim_job("j", LEASE)
        assert claim.taken and claim.job is not None and (claim.job.version, claim.job.deaths) == (2, 0)
        chained = await storage.commit_and_claim(Outcome("j", 2, checkpoint=Checkpoint("b", 2, START), entered=True, advance=timedelta(0)), LEASE)
        assert chained is not None and chained.taken and chained.job is not None and chained.job.version == 4
        assert not (await storage.claim_job("j", LEASE)).taken


async def test_work_goes_on_after_the_server_was_away() -> None:
    """A crash of the server between two phases: the worker's next call waits for it, and nothing is run twice."""
    counting = Counting()
    with PostgresServer() as server:
        phases = list(counting.phases)
        middle = phases[1].run

        async def crashing(ctx: PhaseContext[dict[str, int]]) -> PhaseResult[dict[str, int]]:
            await asyncio.to_thread(server.restart, "immediate")
            return await middle(ctx)

        phases[1] = Phase("b", crashing, state=dict[str, int])
        async with PostgresStorage(server.dsn) as storage:
            worker = PipelineWorker(phases, storage, on_error=lambda job_id, error: pytest.fail(f"{job_id}: {error}"))
            await run_pipeline("j", phases, storage, worker.scheduler, {"n": 0})
            await worker.run_until_idle()
            job = await storage.get_job("j")
    assert job is not None and (job.status, job.output) == ("complete", {"n": 3})
    assert counting.seen == ["a", "b", "c"]


# case H5
async def test_leases_are_judged_by_the_databases_clock(postgres: PostgresServer) -> None:
    """A machine whose clock is ten years off claims, waits and takes over like any other."""
    from perdure.core.runtime import RealRuntime

    class Off(RealRuntime):
        def now(self) -> Any:
            return super().now() + timedelta(days=3650)

    schema = fresh_schema()
    async with PostgresStorage(postgres.dsn, schema=schema) as here, PostgresStorage(postgres.dsn, schema=schema, runtime=Off()) as there:
        await here.commit_outcome(Outcome("j", 0, status="running", checkpoint=Checkpoint("a", 1, START), entered=True, advance=timedelta(hours=1)))
        assert (await here.claim_job("j", LEASE)).taken
        late = await there.claim_job("j", LEASE)
        assert not late.taken and late.busy is not None and timedelta(0) < late.busy <= LEASE
        assert await there.take_advances(limit=1, hold=LEASE) == []


# case I7
async def test_many_handles_may_make_the_tables_at_once(postgres: PostgresServer) -> None:
    """Eight processes' worth of storages start on an empty database; a ninth finds the tables, and the engine's store lives beside them."""
    schema = fresh_schema()
    storages = [PostgresStorage(postgres.dsn, schema=schema, pool_max=1) for _ in range(8)]
    async with PostgresStore(postgres.dsn, schema=schema):
        await asyncio.gather(*(storage.set_status(f"j{n}", "running") for n, storage in enumerate(storages)))
        assert len(await storages[0].list_running()) == 8
    await asyncio.gather(*(storage.close() for storage in storages))
    async with PostgresStorage(postgres.dsn, schema=schema, prefix="other_") as other:
        assert await other.get_job("j0") is None


async def test_more_calls_than_connections_wait_in_line(postgres: PostgresServer) -> None:
    """A pool of one serves a worker with sixteen phases at once, and the thread that renews their leases."""
    counting = Counting()
    async with PostgresStorage(postgres.dsn, schema=fresh_schema(), pool_max=1) as storage:
        worker = PipelineWorker(counting.phases, storage, concurrency=16)
        for n in range(20):
            await run_pipeline(f"j{n}", counting.phases, storage, worker.scheduler, {"n": 0})
        await worker.run_until_idle()
        assert len(await storage.list_jobs(status="complete")) == 20 and len(counting.seen) == 60


async def test_a_caller_that_is_cancelled_does_not_take_its_write_back(postgres: PostgresServer) -> None:
    """Nor does it leave a connection that the next call trips over."""
    async with PostgresStorage(postgres.dsn, schema=fresh_schema(), pool_max=1) as storage:
        task = asyncio.ensure_future(storage.set_status("j", "running"))
        beside = asyncio.ensure_future(storage.set_status("k", "running"))
        await asyncio.wait({beside}, timeout=0)
        task.cancel()
        await asyncio.wait({task})
        await beside
        assert list(await storage.list_running()) == ["j", "k"]


async def test_bad_places_have_named_errors(postgres: PostgresServer) -> None:
    """No address, a schema that is no name, a newer layout; nothing is changed."""
    for options in ({"schema": "Mine"}, {"schema": "a b"}, {"prefix": "x;--"}, {"pool_max": 0}):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            PostgresStorage(postgres.dsn, **options)
    with pytest.raises(ConfigurationError, match="no address of a Postgres database"):
        PostgresStorage("nowhere")
    with pytest.raises(StoreError, match=r"database .*nowhere.* does not exist"):
        await PostgresStorage(postgres.dsn.replace("/postgres?", "/nowhere?")).get_job("j")
    schema = fresh_schema()
    async with PostgresStorage(postgres.dsn, schema=schema) as storage:
        await storage.set_status("j", "running")
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute(f"UPDATE {schema}.pipeline_meta SET schema = 99")  # pyright: ignore[reportArgumentType]
    with pytest.raises(SchemaTooNew, match="layout 99"):
        await PostgresStorage(postgres.dsn, schema=schema).__aenter__()


async def test_a_claim_reads_and_locks_in_proportion_to_one_job(postgres: PostgresServer) -> None:
    """The plans of the statements that run all the time use an index, whatever their parameters."""
    schema = fresh_schema()
    storage = PostgresStorage(postgres.dsn, schema=schema)
    await storage.set_status("j", "running")
    await storage.close()
    with psycopg.connect(postgres.dsn) as connection:
        for table in ("jobs", "entries", "log", "advances"):
            columns = {"jobs": "job_id", "entries": "job_id, phase, checkpoint", "log": "job_id, entry", "advances": "job_id, due"}[table]
            values = {"jobs": "'k' || n", "entries": "'k' || n, 'a', ''", "log": "'k' || n, ''", "advances": "'k' || n, 1e11"}[table]
            connection.execute(f"INSERT INTO {schema}.pipeline_{table} ({columns}) SELECT {values} FROM generate_series(1, 5000) n")  # pyright: ignore
            connection.execute(f"ANALYZE {schema}.pipeline_{table}")  # pyright: ignore[reportArgumentType]
        connection.execute("SET plan_cache_mode = force_generic_plan")
        for name in (
            "get_job",
            "claim_job",
            "renew_lease",
            "commit_outcome",
            "get_log",
            "take_advances",
            "put_advance",
            "drop_advance",
            "next_advance_of",
        ):
            statement = storage._statements[name]
            connection.execute(f"PREPARE {name} AS {statement.text.decode()}")  # pyright: ignore[reportArgumentType]
            nulls = ", ".join(["NULL"] * len(statement.parameters))
            plan = connection.execute(f"EXPLAIN EXECUTE {name} ({nulls})").fetchall()  # pyright: ignore[reportArgumentType]
            for (line,) in plan:
                assert "Seq Scan" not in line or "meta" in line, f"{name}: {line}"
