"""What every storage promises."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar, cast

import pytest

from perdure.pipeline import (
    Answer,
    Chains,
    Checkpoint,
    CommitsOutcomes,
    ComparesAndSets,
    Done,
    JobRecord,
    KeepsAdvances,
    KeepsEntries,
    KeepsOutput,
    Leases,
    ListsJobs,
    ListsRunning,
    ListsStranded,
    LogEntry,
    MemoryScheduler,
    Next,
    Outcome,
    Phase,
    PhaseContext,
    PhaseResult,
    Progress,
    ReadsLog,
    WaitRecord,
    advance_phase,
    get_output,
    recover,
    run_pipeline,
)
from perdure.testing.conformance import Conformance
from perdure.testing.pipeline._crash import Crash, Fuse, dying

NOW = datetime(2031, 5, 1, 12, 30, 15, 123456, UTC)
LEASE = timedelta(seconds=30)
STATE: dict[str, Any] = {"pages": [1, 2.5, None, True], "title": "Grüße 🧾 “x” \\u0000", "nested": {"": {"deep": []}}, "big": 2**53}

OpenStorage = Callable[[], Any]
PassTime = Callable[[timedelta], None]


@asynccontextmanager
async def entered(made: Any) -> AsyncGenerator[Any]:
    """A storage in use: entered or closed as far as it wants to be."""
    if hasattr(made, "__aenter__"):
        async with made as storage:
            yield storage
        return
    try:
        yield made
    finally:
        close = getattr(made, "aclose", None) or getattr(made, "close", None)
        if close is not None:
            closing = close()
            if asyncio.iscoroutine(closing):
                await closing


def has(storage: Any, capability: Any) -> bool:
    # Not `isinstance` at the place of use: it would narrow a user's storage to that one protocol.
    return isinstance(storage, capability)


def needs(storage: Any, capability: Any) -> None:
    """Skip where the storage does without it."""
    if not has(storage, capability):
        pytest.skip(f"{type(storage).__name__} is no {capability.__name__}")


def at(phase: str = "a", **more: Any) -> Checkpoint[Any]:
    return Checkpoint(phase, STATE, NOW, **more)


async def there(storage: Any, job_id: str) -> JobRecord:
    job = await storage.get_job(job_id)
    assert job is not None
    return job


@dataclass
class Count:
    n: int = 0


@dataclass
class Runs:
    """Three phases, the second of which saves in the middle; `seen` is what was entered."""

    seen: list[str] = field(default_factory=list[str])
    broken: bool = False

    def phases(self) -> list[Phase[Count]]:
        async def first(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
            self.seen.append("first")
            await ctx.log("begun")
            return Next("second", Count(ctx.state.n + 1))

        async def second(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
            self.seen.append("second")
            if ctx.state.n < 10:
                await ctx.save_state(Count(ctx.state.n + 10))
            if self.broken:
                raise RuntimeError("broken")
            return Next("third", ctx.state)

        async def third(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
            self.seen.append("third")
            return Done(ctx.state)

        return [Phase(run.__name__, run, state=Count) for run in (first, second, third)]


Test = TypeVar("Test", bound=Callable[..., Awaitable[None]])


def of(*capabilities: type) -> Callable[[Test], Test]:
    """A test of capabilities that a storage may do without."""

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        async def run(self: Any, open_storage: OpenStorage, **fixtures: Any) -> None:
            async with entered(open_storage()) as storage:
                for each in capabilities:
                    needs(storage, each)
            await test(self, open_storage, **fixtures)

        run.capabilities = capabilities  # type: ignore[attr-defined]
        return cast(Test, run)

    return decorate


class StorageConformance(Conformance):
    """Every promise of a storage. Give it a fixture `open_storage`, and `pass_time` where the storage's clock can be moved.

    `open_storage()` answers a handle on one empty place; called again in one test, another handle on the same place.
    """

    storage_type: ClassVar[type | None] = None
    """Your storage's class. Named, the tests of capabilities that it does without are left out; else they skip themselves."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.storage_type is None:
            return
        for name in dir(cls):
            needed: tuple[type, ...] = getattr(getattr(cls, name), "capabilities", ())
            if not all(issubclass(cls.storage_type, each) for each in needed):
                setattr(cls, name, None)

    @pytest.fixture
    def pass_time(self) -> PassTime | None:
        """Moves the storage's own clock forward. Without it, what waits for a lease to run out is skipped."""
        return None

    # ── the five methods ───────────────────────────────────────────────────────────────────────────────────
    async def test_an_unknown_job_is_none(self, open_storage: OpenStorage) -> None:
        """And asking makes nothing."""
        async with entered(open_storage()) as storage:
            assert await storage.get_job("nobody") is None
            assert await storage.get_job("nobody") is None

    async def test_a_status_without_an_error_clears_the_error(self, open_storage: OpenStorage) -> None:
        """Status and error are set together; the job is made by the first call."""
        async with entered(open_storage()) as storage:
            await storage.set_status("j", "error", "it broke")
            job = await there(storage, "j")
            assert (job.status, job.error, job.checkpoint) == ("error", "it broke", None)
            for status in ("running", "paused", "complete", "idle"):
                await storage.set_status("j", status)
                job = await there(storage, "j")
                assert (job.status, job.error) == (status, None)

    async def test_a_checkpoint_comes_back_as_it_was(self, open_storage: OpenStorage) -> None:
        """Every field of it, and all that JSON can hold."""
        answer = Answer("person", True, {"edit": [1]}, "fine", "eva", NOW)
        for checkpoint in (
            at(),
            at(life="7", step=3, attempt=2, not_before=NOW + timedelta(hours=1)),
            at(wait=WaitRecord("w", "approval", "Send “it”?", NOW, {"to": None})),
            at(wait=WaitRecord("w", "until", until=NOW, answer=answer)),
            Checkpoint("b", None, NOW),
        ):
            async with entered(open_storage()) as storage:
                await storage.set_checkpoint("j", checkpoint)
                assert (await there(storage, "j")).checkpoint == checkpoint
            async with entered(open_storage()) as storage:
                await storage.set_checkpoint("j", checkpoint)
                await storage.set_checkpoint("j", None)
                assert (await there(storage, "j")).checkpoint is None

    async def test_status_and_checkpoint_do_not_touch_each_other(self, open_storage: OpenStorage) -> None:
        """An error leaves the checkpoint for the retry."""
        async with entered(open_storage()) as storage:
            await storage.set_status("j", "running")
            await storage.set_checkpoint("j", at())
            await storage.set_status("j", "error", "it broke")
            assert (await there(storage, "j")).checkpoint == at()
            await storage.set_checkpoint("j", at("b"))
            job = await there(storage, "j")
            assert (job.status, job.error) == ("error", "it broke")

    async def test_what_is_handed_out_is_a_copy(self, open_storage: OpenStorage) -> None:
        """Changing it, or what was handed in, changes nothing that is stored."""
        async with entered(open_storage()) as storage:
            mine = {"n": 1}
            await storage.set_checkpoint("j", Checkpoint("a", mine, NOW))
            mine["n"] = 2
            job = await there(storage, "j")
            assert job.checkpoint is not None and job.checkpoint.state == {"n": 1}
            job.checkpoint.state["n"] = 3
            job = await there(storage, "j")
            assert job.checkpoint is not None and job.checkpoint.state == {"n": 1}

    @of(ReadsLog)
    async def test_the_log_is_append_only_in_order_and_per_job(self, open_storage: OpenStorage) -> None:
        """Clearing one job's log leaves the other's."""
        async with entered(open_storage()) as storage:
            entries = [
                LogEntry(NOW + timedelta(seconds=n % 3), f"line {n}", "a" if n % 2 else None, "warn" if n % 5 == 0 else "info") for n in range(25)
            ]
            for entry in entries:
                await storage.append_log("j", entry)
            await storage.append_log("k", entries[0])
            assert list(await storage.get_log("j")) == entries
            await storage.clear_log("j")
            assert (list(await storage.get_log("j")), list(await storage.get_log("k"))) == ([], entries[:1])
            assert list(await storage.get_log("nobody")) == []

    async def test_what_was_written_is_there_for_the_next_process(self, open_storage: OpenStorage) -> None:
        """Durable when the call returns. (A storage in memory answers the same place from one object.)"""
        async with entered(open_storage()) as storage:
            await storage.set_status("j", "running")
            await storage.set_checkpoint("j", at())
        async with entered(open_storage()) as storage:
            job = await storage.get_job("j")
            if job is None:
                pytest.skip(f"{type(storage).__name__} forgets")
            assert (job.status, job.checkpoint) == ("running", at())

    async def test_calls_at_the_same_moment_keep_every_entry(self, open_storage: OpenStorage) -> None:
        """Twenty tasks write at once."""
        async with entered(open_storage()) as storage:
            await asyncio.gather(*(storage.append_log(f"j{n % 4}", LogEntry(NOW, str(n))) for n in range(40)))
            await asyncio.gather(*(storage.set_status(f"j{n}", "running") for n in range(20)))
            assert [(await there(storage, f"j{n}")).status for n in range(20)] == ["running"] * 20
            if has(storage, ReadsLog):
                assert [len(await storage.get_log(f"j{n}")) for n in range(4)] == [10] * 4

    # ── capabilities ───────────────────────────────────────────────────────────────────────────────────────
    @of(KeepsOutput)
    async def test_an_output_is_kept(self, open_storage: OpenStorage) -> None:
        """As JSON, None included."""
        async with entered(open_storage()) as storage:
            await storage.set_output("j", STATE)
            assert (await there(storage, "j")).output == STATE
            await storage.set_output("j", None)
            assert (await there(storage, "j")).output is None

    @of(ListsRunning)
    async def test_running_jobs_are_listed(self, open_storage: OpenStorage) -> None:
        """Those and no others."""
        async with entered(open_storage()) as storage:
            for status in ("idle", "running", "paused", "complete", "error"):
                await storage.set_status(f"job {status}", status)
            assert list(await storage.list_running()) == ["job running"]

    @of(ListsStranded, KeepsAdvances)
    async def test_running_jobs_without_an_advance_are_listed(self, open_storage: OpenStorage) -> None:
        """An advance that is taken is one too."""
        async with entered(open_storage()) as storage:
            for name in ("none", "taken", "waits"):
                await storage.set_status(name, "running")
            await storage.set_status("paused", "paused")
            await storage.put_advance("taken", timedelta(0))
            assert [each.job_id for each in await storage.take_advances(limit=5, hold=LEASE)] == ["taken"]
            await storage.put_advance("waits", timedelta(hours=1))
            assert list(await storage.list_stranded()) == ["none"]

    @of(ListsJobs)
    async def test_jobs_are_listed_page_by_page(self, open_storage: OpenStorage) -> None:
        """In the order of their ids, none twice and none left out."""
        async with entered(open_storage()) as storage:
            for n in range(7):
                await storage.set_status(f"j{n}", "paused" if n % 2 else "running")
            found: list[str] = []
            after: str | None = None
            while page := await storage.list_jobs(limit=3, after=after):
                found += [job_id for job_id, _ in page]
                after = page[-1][0]
            assert found == [f"j{n}" for n in range(7)]
            assert [job_id for job_id, _ in await storage.list_jobs(status="paused")] == ["j1", "j3", "j5"]

    @of(ComparesAndSets)
    async def test_of_many_that_read_one_version_one_writes(self, open_storage: OpenStorage) -> None:
        """Compare-and-set: the others are told, and their checkpoints are not there."""
        async with entered(open_storage()) as storage:
            first = await storage.compare_and_set("j", 0, at("a"))
            assert first is not None and (await there(storage, "j")).version == first
            answers = await asyncio.gather(*(storage.compare_and_set("j", first, at(f"p{n}")) for n in range(10)))
            [winner] = [n for n, answer in enumerate(answers) if answer is not None]
            job = await there(storage, "j")
            assert job.version == answers[winner] and job.checkpoint == at(f"p{winner}")

    @of(CommitsOutcomes)
    async def test_a_refused_outcome_writes_nothing(self, open_storage: OpenStorage) -> None:
        """Not the status, not the log, not the next advance."""
        async with entered(open_storage()) as storage:
            version = await storage.commit_outcome(Outcome("j", 0, status="running", checkpoint=at(), entered=True))
            assert version is not None
            before = await there(storage, "j")
            late = Outcome(
                "j",
                version - 1,
                status="error",
                error="late",
                checkpoint=None,
                output=1,
                log=(LogEntry(NOW, "late"),),
                clear_log=True,
                advance=timedelta(0),
            )
            assert await storage.commit_outcome(late) is None
            assert await storage.commit_outcome(Outcome("nobody", 3, status="error")) is None
            assert await there(storage, "j") == before
            if has(storage, ReadsLog):
                assert list(await storage.get_log("j")) == []
            if has(storage, KeepsAdvances):
                assert await storage.next_advance("j") is None

    @of(CommitsOutcomes)
    async def test_an_outcome_is_written_whole(self, open_storage: OpenStorage) -> None:
        """What it leaves out stays as it was; the version goes up by one, and not at all while the writer holds on."""
        async with entered(open_storage()) as storage:
            one = LogEntry(NOW, "one", "a")
            version = await storage.commit_outcome(Outcome("j", 0, status="running", checkpoint=at(), log=(one,), entered=True, new_life=True))
            assert version == 1
            assert await storage.commit_outcome(Outcome("j", 1, checkpoint=at("a", attempt=1), hold=True, durable=False)) == 1
            assert await storage.commit_outcome(Outcome("j", 1, progress=Progress(3, 9), hold=True)) == 1
            job = await there(storage, "j")
            assert (job.status, job.version, job.checkpoint, job.progress) == ("running", 1, at("a", attempt=1), Progress(3, 9))
            assert await storage.commit_outcome(Outcome("j", 1, status="complete", checkpoint=None, output={"x": 1})) == 2
            job = await there(storage, "j")
            assert (job.status, job.error, job.checkpoint, job.output, job.progress) == ("complete", None, None, {"x": 1}, None)
            if has(storage, ReadsLog):
                assert list(await storage.get_log("j")) == [one]

    @of(KeepsEntries)
    async def test_the_beginning_of_a_phase_is_kept(self, open_storage: OpenStorage) -> None:
        """Whatever was saved later, until the phase is reached again or a new life begins."""
        async with entered(open_storage()) as storage:
            await storage.commit_outcome(Outcome("j", 0, status="running", checkpoint=at("a"), entered=True, new_life=True))
            await storage.commit_outcome(Outcome("j", 1, checkpoint=Checkpoint("a", {"later": 1}, NOW), hold=True))
            await storage.commit_outcome(Outcome("j", 1, checkpoint=at("b"), entered=True))
            assert (await storage.get_entry("j", "a"), await storage.get_entry("j", "b"), await storage.get_entry("j", "c")) == (
                at("a"),
                at("b"),
                None,
            )
            await storage.commit_outcome(Outcome("j", 2, status="complete", checkpoint=None))
            assert await storage.get_entry("j", "b") == at("b")
            await storage.commit_outcome(Outcome("j", 3, status="running", checkpoint=at("a"), entered=True, new_life=True))
            assert await storage.get_entry("j", "b") is None

    @of(Leases)
    async def test_a_claimed_job_is_nobody_elses(self, open_storage: OpenStorage) -> None:
        """Ten claims at once: one has it, the others hear for how long; the outcome gives it back."""
        async with entered(open_storage()) as storage:
            assert (await storage.claim_job("nobody", LEASE)).job is None
            await storage.set_status("j", "running")
            assert not (await storage.claim_job("j", LEASE)).taken
            await storage.set_checkpoint("j", at())
            claims = await asyncio.gather(*(storage.claim_job("j", LEASE) for _ in range(10)))
            [mine] = [claim for claim in claims if claim.taken]
            for other in claims:
                assert other is mine or (other.busy is not None and timedelta(0) < other.busy <= LEASE)
            assert mine.job is not None and mine.job.checkpoint == at()
            assert await storage.renew_lease("j", mine.job.version, LEASE, Progress(1, None))
            assert not await storage.renew_lease("j", mine.job.version - 1, LEASE)
            assert (await there(storage, "j")).progress == Progress(1, None)
            assert await storage.commit_outcome(Outcome("j", mine.job.version, checkpoint=at("b"))) == mine.job.version + 1
            assert not await storage.renew_lease("j", mine.job.version, LEASE)
            again = await storage.claim_job("j", LEASE)
            assert again.taken and again.job is not None and (again.job.deaths, again.job.version) == (0, mine.job.version + 2)

    @of(Chains)
    async def test_an_outcome_and_the_next_claim_are_one_write(self, open_storage: OpenStorage) -> None:
        """The job stays with its worker, under a new version; a job that was paused meanwhile does not."""
        async with entered(open_storage()) as storage:
            await storage.commit_outcome(Outcome("j", 0, status="running", checkpoint=at(), entered=True))
            mine = await storage.claim_job("j", LEASE)
            assert mine.job is not None
            version = mine.job.version
            step = Outcome("j", version, checkpoint=at("b"), entered=True, advance=timedelta(0))
            again = await storage.commit_and_claim(step, LEASE)
            assert again is not None and again.taken and again.job is not None
            assert (again.job.version, again.job.checkpoint, again.job.status) == (version + 2, at("b"), "running")
            assert (await storage.claim_job("j", LEASE)).busy is not None
            assert await storage.commit_and_claim(step, LEASE) is None, "a version was used twice"
            if has(storage, KeepsAdvances):
                due = await storage.next_advance("j")
                assert due is not None and timedelta(0) < due <= LEASE
            await storage.commit_outcome(Outcome("j", version + 2, status="paused", hold=True))
            paused = await storage.commit_and_claim(Outcome("j", version + 2, checkpoint=at("c"), entered=True, advance=timedelta(0)), LEASE)
            assert paused is not None and not paused.taken and paused.busy is None
            job = await there(storage, "j")
            assert (job.status, job.checkpoint, job.lease_left) == ("paused", at("c"), None)

    @of(Leases)
    async def test_only_a_running_job_can_be_claimed(self, open_storage: OpenStorage) -> None:
        """A paused or finished one answers what it is."""
        async with entered(open_storage()) as storage:
            await storage.set_checkpoint("j", at())
            for status in ("idle", "paused", "complete", "error"):
                await storage.set_status("j", status)
                claim = await storage.claim_job("j", LEASE)
                assert not claim.taken and claim.busy is None and claim.job is not None and claim.job.status == status

    @of(Leases)
    async def test_a_lease_that_ran_out_can_be_taken_and_counts_as_a_death(self, open_storage: OpenStorage, pass_time: PassTime | None) -> None:
        """The old owner can neither renew nor write."""
        if pass_time is None:
            pytest.skip("no `pass_time`")
        async with entered(open_storage()) as storage:
            await storage.set_status("j", "running")
            await storage.set_checkpoint("j", at())
            old = await storage.claim_job("j", LEASE)
            pass_time(LEASE - timedelta(seconds=1))
            assert not (await storage.claim_job("j", LEASE)).taken
            pass_time(timedelta(seconds=1))
            new = await storage.claim_job("j", LEASE)
            assert new.taken and new.job is not None and new.job.deaths == 1
            assert old.job is not None and not await storage.renew_lease("j", old.job.version, LEASE)
            assert await storage.commit_outcome(Outcome("j", old.job.version, status="error", error="late")) is None
            pass_time(LEASE - timedelta(seconds=1))
            assert await storage.renew_lease("j", new.job.version, LEASE)
            pass_time(LEASE - timedelta(seconds=1))
            assert (await storage.claim_job("j", LEASE)).busy == timedelta(seconds=1)

    @of(KeepsAdvances)
    async def test_an_advance_is_taken_by_one_and_comes_again_if_it_is_not_dropped(
        self, open_storage: OpenStorage, pass_time: PassTime | None
    ) -> None:
        """A queue: durable, delayed, one row a job."""
        if pass_time is None:
            pytest.skip("no `pass_time`")
        async with entered(open_storage()) as storage:
            await storage.put_advance("later", timedelta(seconds=100))
            await storage.put_advance("second", timedelta(seconds=2))
            await storage.put_advance("first", timedelta(seconds=9))
            await storage.put_advance("first", timedelta(seconds=1))
            await storage.put_advance("first", timedelta(seconds=5))
            assert not await storage.take_advances(limit=5, hold=LEASE)
            assert await storage.next_advance("first") == timedelta(seconds=1)
            pass_time(timedelta(seconds=10))
            taken = [each for page in await asyncio.gather(*(storage.take_advances(limit=1, hold=LEASE) for _ in range(4))) for each in page]
            assert [each.job_id for each in taken] == ["first", "second"]
            pass_time(LEASE)
            again = await storage.take_advances(limit=5, hold=LEASE)
            assert [each.job_id for each in again] == ["first", "second"]
            await storage.drop_advance(taken[0])
            assert await storage.next_advance("first") is not None, "an old taker dropped what another has"
            await storage.drop_advance(again[0])
            assert await storage.next_advance("first") is None
            await storage.put_advance("second", timedelta(0))
            await storage.drop_advance(again[1])
            assert [each.job_id for each in await storage.take_advances(limit=5, hold=LEASE)] == ["second"], "what was put anew was dropped"

    @of(KeepsAdvances, CommitsOutcomes)
    async def test_an_outcome_replaces_the_advance(self, open_storage: OpenStorage) -> None:
        """The next one in the same write; none, and the old one is gone."""
        async with entered(open_storage()) as storage:
            await storage.commit_outcome(Outcome("j", 0, status="running", checkpoint=at(), advance=timedelta(0)))
            [taken] = await storage.take_advances(limit=1, hold=LEASE)
            await storage.commit_outcome(Outcome("j", 1, checkpoint=at("b"), advance=timedelta(0)))
            await storage.drop_advance(taken)
            assert await storage.next_advance("j") == timedelta(0)
            await storage.commit_outcome(Outcome("j", 2, status="complete", checkpoint=None))
            assert await storage.next_advance("j") is None

    # ── a pipeline on it ───────────────────────────────────────────────────────────────────────────────────
    async def test_a_pipeline_runs_fails_and_goes_on(self, open_storage: OpenStorage) -> None:
        """An error keeps the checkpoint as last saved; resume enters the failed phase; done clears it and keeps the output."""
        async with entered(open_storage()) as storage:
            runs, scheduler = Runs(broken=True), MemoryScheduler()
            phases = runs.phases()
            scheduler.bind(lambda job_id: advance_phase(job_id, phases, storage, scheduler))
            await run_pipeline("j", phases, storage, scheduler, Count(0))
            [failure] = await scheduler.drain()
            job = await there(storage, "j")
            assert job.status == "error" and job.error == failure.message == 'Phase "second" threw: RuntimeError: broken'
            assert job.checkpoint is not None and (job.checkpoint.next_phase, job.checkpoint.state) == ("second", {"n": 11})
            runs.broken = False
            await run_pipeline("j", phases, storage, scheduler, Count(99), "resume")
            job = await there(storage, "j")
            assert (job.status, job.error) == ("running", None)
            for _ in range(3):
                await scheduler.schedule_advance("j")
            assert await scheduler.drain() == []
            job = await there(storage, "j")
            assert (job.status, job.checkpoint, job.error) == ("complete", None, None)
            assert runs.seen == ["first", "second", "second", "third"]
            if has(storage, KeepsOutput):
                assert await get_output("j", storage) == {"n": 11}

    @pytest.mark.parametrize("after", [False, True], ids=["before", "reply-lost"])
    async def test_a_crash_between_any_two_calls_leaves_a_job_to_finish(
        self, open_storage: OpenStorage, pass_time: PassTime | None, after: bool
    ) -> None:
        """Die at every call in turn; `recover` or a retry finishes, and at most one phase is entered again."""
        async with entered(open_storage()) as storage:
            if has(storage, Leases) and pass_time is None:
                pytest.skip("no `pass_time`")
            probe = Fuse()
            await _drive("probe", Runs(), dying(storage, probe))
            for k in range(1, len(probe.calls) + 1):
                job_id, runs, fuse = f"dies-at-{k}", Runs(), Fuse(k, after)
                mortal = dying(storage, fuse)
                with pytest.raises(Crash):
                    await _drive(job_id, runs, mortal)
                fuse.renew()
                if pass_time is not None:
                    pass_time(LEASE + timedelta(seconds=1))
                await _drive(job_id, runs, mortal)
                assert len(runs.seen) <= 4, f"died at {probe.calls[k - 1]} (call {k}): {runs.seen}"
                assert (await there(storage, job_id)).status == "complete"


async def _drive(job_id: str, runs: Runs, storage: Any) -> None:
    """What an operator does until the job is complete, in one process."""
    phases, scheduler = runs.phases(), MemoryScheduler()
    scheduler.bind(lambda each: advance_phase(each, phases, storage, scheduler))
    for _ in range(4):
        job = await storage.get_job(job_id)
        if job is not None and job.status == "complete":
            return
        if job is None or job.status == "idle":
            await run_pipeline(job_id, phases, storage, scheduler, Count(0))
        elif job.checkpoint is None or not has(storage, ListsRunning):
            await run_pipeline(job_id, phases, storage, scheduler, Count(0), "resume")
        else:
            await recover(storage, scheduler)
        await scheduler.drain()
    raise AssertionError(f"{job_id} did not finish")
