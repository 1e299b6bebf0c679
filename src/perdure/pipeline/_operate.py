"""What people and operators do with jobs that are there: pause, resume, answer, recover, read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, cast, overload

from pydantic import TypeAdapter, ValidationError

from perdure.core import given
from perdure.core.codec import clean, clean_text, dump
from perdure.core.runtime import Runtime
from perdure.pipeline import _given
from perdure.pipeline._adapters import (
    KeepsAdvances,
    KeepsOutput,
    KnowsPending,
    Leases,
    ListsJobs,
    ListsRunning,
    ListsStranded,
    Outcome,
    SchedulerAdapter,
    StorageAdapter,
    joined,
)
from perdure.pipeline._errors import JobConflictError, JobNotDoneError, JobNotFoundError, PipelineError
from perdure.pipeline._records import Answer, JobRecord, WaitRecord
from perdure.pipeline._runner import REAL
from perdure.pipeline._settle import NOW
from perdure.pipeline._writer import write

T = TypeVar("T")
TRIES: Final = 16
"""Times that an operator's write is tried against a job that moves: each miss means the job went on meanwhile."""


async def pause_job(job_id: str, storage: StorageAdapter, scheduler: SchedulerAdapter) -> None:
    """Pause a running job. A phase at work finishes first; what comes next waits until `resume_job`. Pausing a paused job changes nothing.

    Raises:
        JobNotFoundError: No such job.
        JobConflictError: It is not running.
    """
    _given.check_adapters(storage, scheduler)
    for _ in range(TRIES):
        job = await _job(job_id, storage)
        if job.status == "paused":
            return
        if job.status != "running":
            raise JobConflictError(f"Job {job_id!r} is {job.status}; only a running job can be paused.", status=job.status)
        if await write(storage, scheduler, Outcome(job_id, job.version, status="paused", hold=True), job.checkpoint) is not None:
            return
    raise JobConflictError(f"Job {job_id!r} moved on each time it was to be paused. Try again.")


async def resume_job(
    job_id: str, storage: StorageAdapter, scheduler: SchedulerAdapter, *, approved: bool | None = None, value: Any = None,
    reason: str | None = None, by: str | None = None, runtime: Runtime = REAL,
) -> None:  # fmt: skip
    """Let a paused job go on. The phase that is entered finds the answer in `ctx.answer`.

    A job that waits for an approval needs `approved`. The first answer wins: the same one again changes nothing, another is refused.

    Raises:
        JobNotFoundError: No such job.
        JobConflictError: It is not paused, somebody else decided otherwise, or `approved` is missing.
        UnserializableError: `value` can't be stored.
    """
    _given.check_adapters(storage, scheduler)
    _given.refuse(
        "approved",
        None if approved is None or isinstance(cast(object, approved), bool) else f"must be True, False or None, not {given.shown(approved)}",
    )
    _given.refuse("reason", given.words(reason))
    _given.refuse("by", given.words(by))
    answer = Answer("person", approved, clean(value), _cleaned(reason), _cleaned(by), runtime.now())
    for _ in range(TRIES):
        job = await _job(job_id, storage)
        outcome = _resumed(job_id, job, answer)
        if outcome is None or await write(storage, scheduler, outcome, job.checkpoint) is not None:
            return
    raise JobConflictError(f"Job {job_id!r} changed each time it was to be resumed. Look at it and try again.")


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


def _resumed(job_id: str, job: JobRecord, answer: Answer) -> Outcome | None:
    """What an answer writes; None where it was given before."""
    at = job.checkpoint
    wait = None if at is None else at.wait
    if wait is not None and wait.answer is not None and job.status != "paused":
        return _heard(job_id, wait, answer)
    if job.status != "paused":
        raise JobConflictError(f"Job {job_id!r} is {job.status}; only a paused job can be resumed.", status=job.status)
    if at is None or wait is None or wait.answer is not None:
        # Paused by an operator, or cut off between an answer and the resume it asked for.
        if wait is not None and answer.approved is not None:
            _heard(job_id, wait, answer)
        return Outcome(job_id, job.version, status="running", advance=NOW, hold=True)
    if wait.kind == "approval" and answer.approved is None:
        raise JobConflictError(f"Job {job_id!r} waits for a decision: {wait.question} Approve or deny it.", wait=wait.id)
    if wait.until is not None and answer.at is not None and answer.at >= wait.until and wait.kind == "approval":
        raise JobConflictError(f"The question of job {job_id!r} lapsed at {wait.until:%Y-%m-%d %H:%M:%S} UTC; it goes on undecided.", wait=wait.id)
    answered = replace(at, wait=replace(wait, answer=answer))
    return Outcome(job_id, job.version, status="running", checkpoint=answered, advance=NOW)


def _heard(job_id: str, wait: WaitRecord, answer: Answer) -> None:
    """Raises unless the job was resumed with this very answer."""
    won = wait.answer
    assert won is not None
    if not won.same_as(answer):
        who = won.by or ("nobody: its time came" if won.kind != "person" else "somebody")
        raise JobConflictError(f"Job {job_id!r} was resumed already, by {who}.", by=won.by, kind=won.kind, approved=won.approved)


async def recover(storage: StorageAdapter, scheduler: SchedulerAdapter) -> list[str]:
    """Schedule an advance for each job that is running with none on its way, or paused until a time. Answers their ids. Safe at any time.

    A job at work under a live lease gets its advance for when that lease would run out.

    Raises:
        PipelineError: The storage can't list its running jobs (`ListsRunning`).
    """
    if not isinstance(storage, ListsRunning):
        raise PipelineError(f"{type(storage).__name__} can't list running jobs; give it `list_running` to recover with it.", code="configuration")
    found: list[str] = []
    for job_id in await _without_advance(storage, scheduler):
        job = await storage.get_job(job_id)
        if job is None or job.status != "running":
            continue
        left = job.lease_left if isinstance(storage, Leases) and job.lease_left is not None else NOW
        await scheduler.schedule_advance(job_id, max(NOW, left))
        found.append(job_id)
    return found + await _recover_timers(storage, scheduler)


async def _without_advance(storage: ListsRunning, scheduler: SchedulerAdapter) -> Sequence[str]:
    """Running jobs that nobody is going to advance."""
    if isinstance(storage, ListsStranded) and joined(storage, scheduler):
        return await storage.list_stranded()
    return [job_id for job_id in await storage.list_running() if not await _pending(job_id, storage, scheduler)]


async def _recover_timers(storage: StorageAdapter, scheduler: SchedulerAdapter) -> list[str]:
    if not isinstance(storage, ListsJobs):
        return []
    found: list[str] = []
    after: str | None = None
    while page := await storage.list_jobs(status="paused", after=after):
        for job_id, job in page:
            wait = job.checkpoint.wait if job.checkpoint else None
            if wait is None or wait.until is None or wait.answer is not None or await _pending(job_id, storage, scheduler):
                continue
            await scheduler.schedule_advance(job_id, NOW)  # too early, and it asks for another: the storage's clock says when
            found.append(job_id)
        after = page[-1][0]
    return found


async def _pending(job_id: str, storage: object, scheduler: SchedulerAdapter) -> bool:
    if isinstance(scheduler, KnowsPending):
        return await scheduler.is_pending(job_id)
    if getattr(scheduler, "storage", None) is storage and isinstance(storage, KeepsAdvances):
        return await storage.next_advance(job_id) is not None
    return False


@overload
async def get_output(job_id: str, storage: StorageAdapter) -> Any: ...


@overload
async def get_output(job_id: str, storage: StorageAdapter, output_type: type[T]) -> T: ...


async def get_output(job_id: str, storage: StorageAdapter, output_type: Any = None) -> Any:
    """What the job's `Done` handed over: as `output_type` (anything Pydantic validates), or as plain JSON data.

    Raises:
        JobNotFoundError: No such job.
        JobNotDoneError: It is not complete.
        PipelineError: The output is not of this type, or this storage keeps no outputs (`KeepsOutput`).
    """
    job = await _job(job_id, storage)
    if job.status != "complete":
        raise JobNotDoneError(f"Job {job_id!r} is {job.status}; it has no output yet.", status=job.status)
    if job.output is None and not isinstance(storage, KeepsOutput):
        raise PipelineError(f"{type(storage).__name__} keeps no outputs; give it `set_output`.", code="configuration")
    if output_type is None:
        return job.output
    try:
        return TypeAdapter(output_type).validate_json(dump(job.output))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(["$", *(str(each) for each in first["loc"])])
        raise PipelineError(
            f"The output of job {job_id!r} is not a {given.shown(output_type)}, at {where}: {first['msg']}", code="invalid_state"
        ) from error


async def _job(job_id: str, storage: StorageAdapter) -> JobRecord:
    _given.check_job_id(job_id)
    job = await storage.get_job(job_id)
    if job is None:
        raise JobNotFoundError(job_id)
    return job
