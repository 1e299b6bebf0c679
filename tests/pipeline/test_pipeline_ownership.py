"""One advance at a time, whatever dies, stalls or comes late."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pipeline_worlds import QUEUES, ManualClock, Open, OpenKind, World, open_world

from perdure.pipeline import (
    Done,
    JobConflictError,
    Next,
    Outcome,
    PhaseContext,
    PhaseResult,
    PipelineError,
    PipelineWorker,
    SqliteStorage,
    StorageScheduler,
    advance_phase,
    explain,
    phase,
    recover,
    run_pipeline,
)

LEASE = timedelta(seconds=30)


@dataclass
class Work:
    by: str = ""


class Slow:
    """Two phases; the first one stands still at its first entry until `gate` opens."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.started, self.gate = asyncio.Event(), asyncio.Event()
        self.reason: Any = None

        @phase
        async def slow(ctx: PhaseContext[Work]) -> PhaseResult[Work]:
            self.entered.append("slow")
            if len(self.entered) == 1:
                self.started.set()
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    self.reason = ctx.cancelled.reason
                    raise
                await ctx.log("the late one speaks")
                return Next("after", Work("first"))
            return Next("after", Work("second"))

        @phase
        async def after(ctx: PhaseContext[Work]) -> PhaseResult[Work]:
            self.entered.append("after")
            return Done(ctx.state.by)

        self.phases = (slow, after)


class Stalled:
    """A storage as a stalled process sees it: everything works but its renewals never arrive."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def renew_lease(self, *args: Any) -> bool:
        await asyncio.Event().wait()
        return True


# case H1
async def test_an_advance_that_slept_through_its_lease_writes_nothing(full_world_of: Open) -> None:
    """The second one does the work; log, outcome and status of the first are refused."""
    async with full_world_of() as world:
        slow = Slow()
        world.use(*slow.phases)
        await world.start("j", Work())
        first = asyncio.ensure_future(advance_phase("j", slow.phases, Stalled(world.storage), world.scheduler, runtime=world.clock))
        await slow.started.wait()
        world.clock.advance(31)
        await world.drain()
        assert await world.advance("j") in ("ran", "idle")
        await world.drain()
        done = await world.job("j")
        assert (done.status, done.output) == ("complete", "second")
        slow.gate.set()
        assert await first == "lost"
        assert await world.job("j") == done
        assert await world.said("j") == []


async def test_a_lost_lease_stops_the_phase(full_world_of: Open) -> None:
    """Once the renewal says so, the phase is cancelled and told why."""
    async with full_world_of() as world:
        slow = Slow()
        world.use(*slow.phases)
        await world.start("j", Work())
        first = asyncio.ensure_future(world.advance("j"))
        await slow.started.wait()
        job = await world.job("j")
        # Somebody takes over: nothing but the version moves.
        assert await world.storage.commit_outcome(Outcome("j", job.version)) == job.version + 1
        for _ in range(200):
            world.clock.advance(5)
            done, _ = await asyncio.wait({first}, timeout=0.01)
            if done:
                break
        assert (await first, slow.reason) == ("lost", "lease_lost")


async def test_a_start_while_an_advance_is_at_work_is_refused_in_any_mode(full_world_of: Open) -> None:
    """A live lease is a live advance."""
    async with full_world_of() as world:
        slow = Slow()
        world.use(*slow.phases)
        await world.start("j", Work())
        first = asyncio.ensure_future(world.advance("j"))
        await slow.started.wait()
        for mode in (None, "resume", "full"):
            with pytest.raises(JobConflictError):
                await world.start("j", Work(), mode)
        slow.gate.set()
        assert await first == "ran"


async def test_a_takeover_with_a_mode_shuts_the_old_advance_out(full_world_of: Open) -> None:
    """The lease ran out; `full` raises the version, so what the old one writes later is refused."""
    async with full_world_of() as world:
        slow = Slow()
        world.use(*slow.phases)
        await world.start("j", Work())
        first = asyncio.ensure_future(advance_phase("j", slow.phases, Stalled(world.storage), world.scheduler, runtime=world.clock))
        await slow.started.wait()
        world.clock.advance(31)
        await world.start("j", Work(), "full")
        slow.gate.set()
        assert await first == "lost"
        await world.drain()
        assert (await world.job("j")).output == "second"


async def test_compare_and_set_alone_shuts_a_late_writer_out(tmp_path: Path) -> None:
    """A storage with versions and no leases: after a takeover the old advance's outcome is refused."""
    async with open_world("versioned", tmp_path) as world:
        slow = Slow()
        world.use(*slow.phases)
        await world.start("j", Work())
        first = asyncio.ensure_future(world.advance("j"))
        await slow.started.wait()
        await world.start("j", Work(), "full")
        slow.gate.set()
        assert await first == "lost"
        await world.drain()
        assert (await world.job("j")).output == "second"


# case H11
async def test_a_phase_that_kills_its_process_is_given_up(full_world_of: Open) -> None:
    """Five leases in a row that ran out: status `error`, and it says so; a commit in between starts the count anew."""
    async with full_world_of() as world:
        slow = Slow()
        world.use(*slow.phases)
        await world.start("j", Work())
        for _ in range(5):
            assert (await world.storage.claim_job("j", LEASE)).taken
            world.clock.advance(31)
        await world.advance("j")
        job = await world.job("j")
        assert (job.status, job.error) == ("error", 'Phase "slow" took its process down 5 times in a row')
        assert explain(job).code == "poisoned" and slow.entered == []
        await world.start("j", Work(), "resume")
        slow.gate.set()
        await world.drain()
        assert (await world.job("j")).status == "complete"


async def test_recover_schedules_what_has_no_advance_on_its_way(world_of: Open) -> None:
    """Once; and what is at work only for when its lease would run out."""
    async with world_of() as world:
        slow = Slow()
        world.use(*slow.phases)
        if world.kind == "plain":
            with pytest.raises(PipelineError, match="list_running"):
                await recover(world.storage, world.scheduler)
            return
        await world.start("here", Work())
        await world.storage.set_status("done", "complete")
        assert await recover(world.storage, world.scheduler) == []
        world.use(*slow.phases)
        if hasattr(world.scheduler, "_due"):
            world.scheduler._due.clear()
        else:
            await world.storage.drop_advance((await world.storage.take_advances(limit=1, hold=LEASE))[0])
        if world.full:
            assert (await world.storage.claim_job("here", LEASE)).taken
        assert await recover(world.storage, world.scheduler) == ["here"]
        assert await recover(world.storage, world.scheduler) == []
        slow.gate.set()
        await world.drain()
        if world.full:
            assert slow.entered == []
            world.clock.advance(30)
            await world.drain()
        assert slow.entered == ["slow", "after"]


# case O6
async def test_running_says_whether_anybody_is_at_work(full_world_of: Open) -> None:
    """`queued`, `working`, `recovering`: by the lease, never by hope."""
    async with full_world_of() as world:
        world.use(*Slow().phases)
        await world.start("j", Work())
        assert explain(await world.job("j")).state == "queued"
        await world.storage.claim_job("j", LEASE)
        assert explain(await world.job("j")).state == "working"
        world.clock.advance(31)
        assert explain(await world.job("j")).state == "recovering"
        await world.storage.set_status("cut", "running")
        assert explain(await world.job("cut")).state == "recovering"


async def test_progress_is_shown_while_the_phase_is_at_work(full_world_of: Open) -> None:
    """At most every half second; gone when the phase has ended."""
    seen: list[Any] = []

    @phase
    async def count(ctx: PhaseContext[Work]) -> PhaseResult[Work]:
        for n in range(100):
            ctx.progress(n, 100)
            world.clock.advance(0.1)
        await ctx.log("half way")
        seen.append((await world.job("j")).progress)
        return Done()

    async with full_world_of() as world:
        world.use(count)
        await world.start("j", Work())
        await world.drain()
        assert seen[0] is not None and seen[0].total == 100 and seen[0].done > 0
        assert (await world.job("j")).progress is None


# case H3
async def test_a_phase_that_blocks_the_event_loop_keeps_its_job(tmp_path: Path) -> None:
    """The worker renews from a thread of its own: here the phase blocks until it has seen three renewals."""
    path = tmp_path / "jobs.db"

    @phase
    async def block(ctx: PhaseContext[Work]) -> PhaseResult[Work]:
        with closing(sqlite3.connect(path)) as reader:
            seen: set[float] = set()
            while len(seen) < 4:
                seen.add(reader.execute("SELECT lease_until FROM pipeline_jobs").fetchone()[0])
        return Done(len(seen))

    async with SqliteStorage(path) as storage:
        worker = PipelineWorker([block], storage, lease=timedelta(seconds=0.3))
        await run_pipeline("j", [block], storage, worker.scheduler, Work())
        await worker.run_until_idle()
        job = await storage.get_job("j")
        assert job is not None and job.status == "complete"


@pytest.mark.parametrize("kind", QUEUES)
async def test_a_drain_hands_back_what_does_not_finish(kind: str, tmp_path: Path, open_kind: OpenKind) -> None:
    """The signal first, then the grace, then the cancellation; the job is due again at once, not failed."""
    async with open_kind(kind, tmp_path) as world:
        slow = Slow()
        world.use(*slow.phases)
        await world.start("j", Work())
        async with PipelineWorker(slow.phases, world.storage, runtime=world.clock, grace=timedelta(seconds=5)) as worker:
            await slow.started.wait()
            worker.stop()
            while slow.reason is None:
                world.clock.advance(1)
                await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.001)
        assert slow.reason == "drain"
        job = await world.job("j")
        assert (job.status, job.lease_left) == ("running", None)
        assert await world.storage.next_advance("j") == timedelta(0)
        await world.drain()
        assert (await world.job("j")).output == "second"


@pytest.mark.parametrize("kind", QUEUES)
async def test_two_workers_share_the_jobs_and_run_each_phase_once(kind: str, tmp_path: Path, open_kind: OpenKind) -> None:
    """Forty jobs of two phases, two workers: eighty runs, none twice."""
    runs: list[str] = []

    @phase
    async def one(ctx: PhaseContext[Work]) -> PhaseResult[Work]:
        runs.append(f"{ctx.job_id} one")
        return Next("two", ctx.state)

    @phase
    async def two(ctx: PhaseContext[Work]) -> PhaseResult[Work]:
        runs.append(f"{ctx.job_id} two")
        return Done()

    async with open_kind(kind, tmp_path) as world:
        world.use(one, two)
        for n in range(40):
            await world.start(f"job-{n}", Work())
        workers = [PipelineWorker(world.phases, world.storage, runtime=world.clock, concurrency=4) for _ in range(2)]
        await asyncio.gather(*(worker.run_until_idle() for worker in workers))
        assert len(runs) == len(set(runs)) == 80


async def test_a_worker_waits_for_what_comes_and_goes_on_with_what_failed(tmp_path: Path) -> None:
    """It wakes for a job that is started while it is idle, hears of a failed phase, and works on."""
    done = asyncio.Event()
    heard: list[tuple[str, str]] = []

    @phase
    async def one(ctx: PhaseContext[Work]) -> PhaseResult[Work]:
        if ctx.job_id == "bad":
            raise ValueError("no")
        done.set()
        return Done()

    async with (
        SqliteStorage(tmp_path / "jobs.db") as storage,
        PipelineWorker([one], storage, on_error=lambda job, error: heard.append((job, str(error)))) as worker,
    ):
        for job_id in ("bad", "good"):
            await run_pipeline(job_id, [one], storage, worker.scheduler, Work())
        await done.wait()
    assert heard == [("bad", 'Phase "one" threw: ValueError: no')]


async def test_a_storage_without_a_queue_can_not_be_scheduled_in(tmp_path: Path) -> None:
    """Said when the scheduler is made, not at the first job."""
    async with open_world("plain", tmp_path) as world:
        with pytest.raises(PipelineError, match="keeps no advances"):
            StorageScheduler(world.storage)


# case H5
async def test_a_clock_that_is_set_back_during_a_phase_does_no_harm(tmp_path: Path) -> None:
    """The lease looks longer than it is; the outcome is written all the same, and nothing runs twice."""

    class Jumping(ManualClock):
        back = 0.0

        def now(self) -> Any:
            return super().now() - timedelta(seconds=self.back)

    clock = Jumping()
    async with SqliteStorage(tmp_path / "jobs.db", runtime=clock) as storage:
        world = World("sqlite-queue", clock, storage, StorageScheduler(storage))
        slow = Slow()
        world.use(*slow.phases)
        await world.start("j", Work())
        first = asyncio.ensure_future(world.advance("j"))
        await slow.started.wait()
        clock.back = 600
        assert await world.advance("j") == "busy"
        slow.gate.set()
        assert await first == "ran"
        clock.back = 0
        await world.drain_all()
        assert slow.entered == ["slow", "after"]
