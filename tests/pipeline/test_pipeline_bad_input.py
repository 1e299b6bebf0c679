"""What makes no sense is refused by name, before anything is read or written."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from pipeline_worlds import Open, World

from perdure.core.errors import ConfigurationError
from perdure.pipeline import (
    Approval,
    Done,
    Error,
    InvalidPipelineError,
    MemoryScheduler,
    MemoryStorage,
    Next,
    Phase,
    PhaseContext,
    PhaseResult,
    Pipeline,
    PipelineError,
    PipelineWorker,
    Retry,
    RetryPolicy,
    SqliteStorage,
    Wait,
    advance_phase,
    get_output,
    pause_job,
    phase,
    recover,
    resume_job,
    retry_job,
    run_pipeline,
)


@dataclass
class State:
    n: int = 0


@phase
async def one(ctx: PhaseContext[State]) -> PhaseResult[State]:
    return Done("text")


PHASES: Any = [one]
IDS: list[Any] = ["", None, 7, b"j", "a\x00b", "\udcff", "x" * 100_000]
Call = Callable[[Any, Any, Any], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "run_pipeline": lambda job, storage, scheduler: run_pipeline(job, PHASES, storage, scheduler, State()),
    "advance_phase": lambda job, storage, scheduler: advance_phase(job, PHASES, storage, scheduler),
    "retry_job": lambda job, storage, scheduler: retry_job(job, PHASES, storage, scheduler),
    "pause_job": pause_job,
    "resume_job": resume_job,
}


@pytest.mark.parametrize("name", CALLS)
async def test_what_can_name_no_job_is_refused(name: str) -> None:
    """Wherever a job is named, with the argument's name, in one short line."""
    for job in IDS:
        storage = MemoryStorage()
        with pytest.raises(InvalidPipelineError, match=r"^job_id: ") as refused:
            await CALLS[name](job, storage, MemoryScheduler())
        assert len(refused.value.message) < 200 and not storage.inspect()
    with pytest.raises(InvalidPipelineError, match=r"^job_id: "):
        await get_output("", MemoryStorage())


@pytest.mark.parametrize("name", CALLS)
async def test_what_is_no_storage_or_scheduler_is_refused(name: str) -> None:
    """It says which methods are missing."""
    for wrong in (None, object(), {}):
        with pytest.raises(InvalidPipelineError, match=r"^storage: .* get_job, set_status, set_checkpoint, append_log, clear_log"):
            await CALLS[name]("j", wrong, MemoryScheduler())
        storage = MemoryStorage()
        with pytest.raises(InvalidPipelineError, match=r"^scheduler: .* schedule_advance"):
            await CALLS[name]("j", storage, wrong)
        assert not storage.inspect()
    with pytest.raises(PipelineError, match="list_running"):
        await recover(object(), MemoryScheduler())  # type: ignore[arg-type]


@pytest.mark.parametrize("phases", [None, [], one, "abc", 7, [None], [one, "two"], {"one": one}, [one, one], [one.run]])
async def test_what_is_no_list_of_phases_is_refused(world_of: Open, phases: Any) -> None:
    """By every function that takes them; nothing is written."""
    async with world_of() as world:
        for call in (
            lambda: run_pipeline("j", phases, world.storage, world.scheduler, State()),
            lambda: advance_phase("j", phases, world.storage, world.scheduler),
            lambda: retry_job("j", phases, world.storage, world.scheduler),
        ):
            with pytest.raises(InvalidPipelineError):
                await call()
        assert await world.storage.get_job("j") is None
    with pytest.raises(InvalidPipelineError):
        PipelineWorker(phases, MemoryStorage())
    with pytest.raises(InvalidPipelineError):
        Pipeline(phases, MemoryStorage())


async def test_a_mode_that_does_not_exist_starts_nothing(world_of: Open) -> None:
    """Neither does a phase that does not, an empty name, or two ways at once: the job stays as it was."""
    async with world_of() as world:
        world.use(one)
        await world.start("j", State())
        await world.drain()
        before = await world.job("j")
        wrong: list[tuple[Callable[[], Awaitable[Any]], str]] = [
            (lambda: run_pipeline("j", PHASES, world.storage, world.scheduler, State(), "reusme"), "retry_mode: must be"),  # type: ignore[arg-type]
            (lambda: run_pipeline("j", PHASES, world.storage, world.scheduler, State(), True), "retry_mode: must be"),  # type: ignore[arg-type]
            (lambda: run_pipeline("j", PHASES, world.storage, world.scheduler, State(), None, ""), "no phase '' to start from; known: one"),
            (lambda: run_pipeline("j", PHASES, world.storage, world.scheduler, State(), None, 7), "no phase 7"),  # type: ignore[arg-type]
            (lambda: retry_job("j", PHASES, world.storage, world.scheduler, "ful"), "mode: must be"),  # type: ignore[arg-type]
            (lambda: retry_job("j", PHASES, world.storage, world.scheduler, from_phase=""), "no phase ''"),
            (lambda: retry_job("j", PHASES, world.storage, world.scheduler, "full", from_phase="one"), "say one of them"),
            (lambda: retry_job("j", PHASES, world.storage, world.scheduler, state=State(3)), "from_phase=… or mode='full'"),
            (lambda: resume_job("j", world.storage, world.scheduler, approved="yes"), "approved: must be"),  # type: ignore[arg-type]
            (lambda: resume_job("j", world.storage, world.scheduler, by=7), "by: must be"),  # type: ignore[arg-type]
            (lambda: advance_phase("j", PHASES, world.storage, world.scheduler, lease=timedelta(0)), "lease: must be"),
            (lambda: advance_phase("j", PHASES, world.storage, world.scheduler, lease=30), "lease: must be"),  # type: ignore[arg-type]
        ]
        for call, says in wrong:
            with pytest.raises(InvalidPipelineError) as refused:
                await call()
            assert says in refused.value.message
        assert await world.job("j") == before


def sync(ctx: PhaseContext[State]) -> PhaseResult[State]:
    return Done()


async def bare() -> PhaseResult[State]:
    return Done()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Phase("", one.run), "Phase name: must have 1 to"),
        (lambda: Phase(7, one.run), "Phase name: must be a text, not 7"),
        (lambda: Phase("a\x00", one.run), "Phase name: holds characters"),
        (lambda: Phase("a", None), "must be an async function, not None"),
        (lambda: phase(sync), "must be async: write `async def sync(…)`"),
        (lambda: phase(bare), "must take one argument, the PhaseContext"),
        (lambda: Phase("a", one.run, timeout=0), "timeout: must be longer than 0"),
        (lambda: Phase("a", one.run, timeout=timedelta(seconds=-1)), "timeout: must be longer than 0"),
        (lambda: Phase("a", one.run, timeout="5"), "timeout: must be seconds"),
        (lambda: Phase("a", one.run, timeout=math.nan), "timeout: must be seconds"),
        (lambda: Phase("a", one.run, retry=3), "retry: must be of type RetryPolicy"),
        (lambda: RetryPolicy(attempts=0), "RetryPolicy.attempts: must be from 1"),
        (lambda: RetryPolicy(attempts=True), "RetryPolicy.attempts: must be a whole number"),
        (lambda: RetryPolicy(backoff=5), "RetryPolicy.backoff: must be a timedelta"),
        (lambda: RetryPolicy(longest=timedelta(-1)), "RetryPolicy.longest: must not be negative"),
        (lambda: RetryPolicy(factor=math.nan), "RetryPolicy.factor: must be a number"),
        (lambda: RetryPolicy(jitter=-1), "RetryPolicy.jitter: must be at least 0"),
        (lambda: RetryPolicy(on=ValueError), "RetryPolicy.on: must be a tuple of exception classes"),
        (lambda: RetryPolicy(on=(BaseException,)), "RetryPolicy.on: must be a tuple of exception classes"),
        (lambda: PipelineWorker(PHASES, MemoryStorage(), concurrency=0), "concurrency: must be from 1"),
        (lambda: PipelineWorker(PHASES, MemoryStorage(), lease=30), "lease: must be a timedelta"),
        (lambda: PipelineWorker(PHASES, MemoryStorage(), poll=timedelta(0)), "poll: must be longer than 0"),
        (lambda: PipelineWorker(PHASES, MemoryStorage(), deaths_max=0), "deaths_max: must be from 1"),
        (lambda: PipelineWorker(PHASES, None), "NoneType keeps no advances"),
        (lambda: SqliteStorage(None), "it takes a file's path"),
        (lambda: SqliteStorage("x.db", synchronous="LOW"), "one of FULL, NORMAL, OFF"),
        (lambda: SqliteStorage("x.db", prefix=None), "prefix=None: a table prefix is"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_where_it_is_written(make: Callable[[], Any], says: str) -> None:
    """Not when the phase runs."""
    with pytest.raises(ConfigurationError) as refused:
        make()
    assert says in refused.value.message


async def test_a_type_that_can_not_be_validated_is_no_state() -> None:
    """Pydantic's own words stand in the message."""
    with pytest.raises(InvalidPipelineError, match="can't be the type of a state"):
        await run_pipeline("j", [Phase("a", one.run, state=7)], MemoryStorage(), MemoryScheduler(), 7)  # type: ignore[arg-type, list-item]


RESULTS: dict[str, Callable[[PhaseContext[State]], Any]] = {
    "Next.phase: must be a phase or its name, not None": lambda ctx: Next(None, State()),  # type: ignore[arg-type]
    "Error.message: must be of type str, not ValueError('x')": lambda ctx: Error(ValueError("x")),  # type: ignore[arg-type]
    "Retry.after: must be a timedelta or seconds, not '5'": lambda ctx: Retry("5"),  # type: ignore[arg-type]
    "Retry.after: must be at most 36,525 days": lambda ctx: Retry(math.inf),
    "Retry.after: must be at most 36,525 days (SPAN_MAX); it is nan s": lambda ctx: Retry(math.nan),
    "Wait.until: has no time zone": lambda ctx: Wait(until=datetime(2050, 1, 1)),
    "Wait.until: must be a timedelta or a datetime with a time zone, not 5": lambda ctx: Wait(until=5),  # type: ignore[arg-type]
    "Wait.until: must be at most 36,525 days": lambda ctx: Wait(until=timedelta.max),
    "Wait.approval: must be of type Approval, not 'ok?'": lambda ctx: Wait(approval="ok?"),  # type: ignore[arg-type]
    "Approval.within: must be longer than 0": lambda ctx: Wait(approval=Approval("ok?", within=timedelta(0))),
    "log level: must be one of info, warn, error, not 'fatal'": lambda ctx: ctx.log("x", "fatal"),  # type: ignore[arg-type]
    "progress: must be a number, not 'half'": lambda ctx: ctx.progress("half"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("says", RESULTS)
async def test_a_result_that_makes_no_sense_is_the_phases_failure(world_of: Open, says: str) -> None:
    """The job ends as `error` and says what was wrong; it is not entered again and again."""
    async with world_of() as world:

        @phase
        async def odd(ctx: PhaseContext[State]) -> Any:
            found = RESULTS[says](ctx)
            return await found if asyncio.iscoroutine(found) else found

        world.use(odd)
        await world.start("j", State())
        await _failed(world)
        assert says in ((await world.job("j")).error or "")


async def _failed(world: World) -> None:
    [failure] = await world.drain()
    assert failure.job_id == "j"
    job = await world.job("j")
    assert job.status == "error" and job.checkpoint is not None and job.checkpoint.next_phase == "odd"


async def test_an_output_of_another_type_is_named(full_world_of: Open) -> None:
    """Not Pydantic's bare error."""
    async with full_world_of() as world:
        world.use(one)
        await world.start("j", State())
        await world.drain()
        assert await get_output("j", world.storage, str) == "text"
        with pytest.raises(PipelineError, match="The output of job 'j' is not a <class 'int'>, at \\$: "):
            await get_output("j", world.storage, int)
