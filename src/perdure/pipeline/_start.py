"""How a life of a job begins, and how it goes on after it stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from perdure.core import given
from perdure.core.runtime import Runtime
from perdure.pipeline import _given
from perdure.pipeline._adapters import KeepsEntries, Leases, Outcome, SchedulerAdapter, StorageAdapter
from perdure.pipeline._errors import InvalidPipelineError, InvalidStateError, JobConflictError, JobNotFoundError
from perdure.pipeline._phase import SAME, Phase, S, Same, check_phases
from perdure.pipeline._records import Checkpoint, JobRecord, LogEntry, RetryMode
from perdure.pipeline._runner import REAL
from perdure.pipeline._settle import NOW, Phases
from perdure.pipeline._writer import write_start


async def run_pipeline(
    job_id: str, phases: Sequence[Phase[S]], storage: StorageAdapter, scheduler: SchedulerAdapter, initial_state: S,
    retry_mode: RetryMode | None = None, initial_phase: str | None = None, *, runtime: Runtime = REAL,
) -> None:  # fmt: skip
    """Start a job, or start it again: status `running`, any earlier error gone, the first checkpoint, an advance scheduled. Runs no phase.

    `resume` goes on at the job's checkpoint with its state, whatever `initial_state` says; `full` starts again from `initial_phase` (the first phase
    if None) with `initial_state`. With neither: resume if there is a checkpoint, else a fresh start.

    Raises:
        InvalidPipelineError: No phases, two of one name, `initial_phase` is none of them, or another argument can't be.
        InvalidStateError: `initial_state` does not fit its phase or can't be stored.
        JobConflictError: The job is running and no `retry_mode` is given, or is at work right now under a live lease.
        JobNotFoundError: A `retry_mode` is given for a job that nobody started.
    """
    named = check_phases(phases)
    _check(job_id, storage, scheduler)
    if retry_mode is not None:
        _given.check_mode("retry_mode", retry_mode)
    first = _first(named, phases, initial_phase)
    job = await storage.get_job(job_id)
    _may_start(job_id, job, retry_mode, storage)
    kept = None if job is None or job.status == "complete" else job.checkpoint
    if kept is not None and retry_mode != "full":
        outcome = _go_on(job_id, job, replace(kept, attempt=0, not_before=None))
    else:
        packed = named[first].state.pack(initial_state, first)
        outcome = _begin(job_id, job, resolve_start_phase(retry_mode, kept, first), packed, runtime)
    await _write(storage, scheduler, outcome, job)


def resolve_start_phase(mode: RetryMode | None, checkpoint: Checkpoint[Any] | None, initial_phase: str) -> str:
    """The phase that a start in this mode enters: the checkpoint's, unless there is none or everything is to run again."""
    if checkpoint is None or mode == "full":
        return initial_phase
    return checkpoint.next_phase


async def retry_job(
    job_id: str, phases: Sequence[Phase[S]], storage: StorageAdapter, scheduler: SchedulerAdapter, mode: RetryMode = "resume", *,
    from_phase: str | None = None, state: S | Same = SAME, runtime: Runtime = REAL,
) -> None:  # fmt: skip
    """Retry a job with nothing in hand but its id: the cheap way (`resume`) unless told otherwise.

    `from_phase` starts again at that phase, of a completed job too; `full` at the first. Either takes the state with which that phase was
    last reached, where the storage keeps it (`KeepsEntries`), or `state`. What the phases before it made is not made again. It is a new life
    of the job: phases get new keys.

    Raises:
        JobNotFoundError: Nobody started this job.
        JobConflictError: It is at work, or there is nothing to go on with.
        InvalidPipelineError: `from_phase` is no phase, its state is not known, or the arguments say two things at once.
    """
    named = check_phases(phases)
    _check(job_id, storage, scheduler)
    _given.check_mode("mode", mode)
    if from_phase is not None and mode == "full":
        raise InvalidPipelineError("mode='full' starts at the first phase, from_phase at another one: say one of them.", field="from_phase")
    if from_phase is None and mode == "resume" and not isinstance(state, Same):
        raise InvalidPipelineError(
            "state: a resume goes on with the state that is stored. Say from_phase=… or mode='full' to start with another.", field="state"
        )
    name = _first(named, phases, from_phase)
    job = await storage.get_job(job_id)
    if job is None:
        raise JobNotFoundError(job_id)
    if from_phase is None and mode == "resume":
        if job.status == "complete" or job.checkpoint is None:
            raise JobConflictError(f"Job {job_id!r} has nothing to resume: it is {job.status}. Start it in full or from a phase.", status=job.status)
        _may_start(job_id, job, mode, storage)
        outcome = _go_on(job_id, job, replace(job.checkpoint, attempt=0, not_before=None))
    else:
        _may_start(job_id, job, "full", storage)
        packed = await _state_of(job_id, named[name], storage, state)
        outcome = _begin(job_id, job, name, packed, runtime, forget=from_phase is None)
    await _write(storage, scheduler, outcome, job)


def _check(job_id: Any, storage: Any, scheduler: Any) -> None:
    _given.check_job_id(job_id)
    _given.check_adapters(storage, scheduler)


def _first(named: Phases, phases: Sequence[Phase[Any]], asked: str | None) -> str:
    """The phase to start from."""
    if asked is None:
        return phases[0].name
    if not isinstance(cast(object, asked), str) or asked not in named:
        raise InvalidPipelineError(f"There is no phase {given.shown(asked)} to start from; known: {', '.join(named)}.", phase=given.shown(asked))
    return asked


def _may_start(job_id: str, job: JobRecord | None, mode: RetryMode | None, storage: StorageAdapter) -> None:
    if job is None:
        if mode is not None:
            raise JobNotFoundError(job_id)
        return
    if job.status != "running":
        return
    if mode is None:
        raise JobConflictError(f"Job {job_id!r} is running. To take it over, say how: retry_mode='resume' or 'full'.", status=job.status)
    if isinstance(storage, Leases) and job.lease_left is not None and job.lease_left > NOW:
        left = job.lease_left.total_seconds()
        raise JobConflictError(f"Job {job_id!r} is at work; its lease runs for {left:.0f} s. Pause it, or wait for it to end.", status=job.status)


def _begin(job_id: str, job: JobRecord | None, name: str, packed: Any, runtime: Runtime, *, forget: bool = True) -> Outcome:
    now = runtime.now()
    checkpoint = Checkpoint(name, packed, now, life=runtime.new_id())
    version = 0 if job is None else job.version
    return Outcome(
        job_id, version, status="running", checkpoint=checkpoint, output=None, clear_log=forget, entered=True, new_life=forget, advance=NOW,
        log=() if job is None or job.status == "idle" else (LogEntry(now, f"Started again from {name}", name),),
    )  # fmt: skip


def _go_on(job_id: str, job: JobRecord | None, checkpoint: Checkpoint[Any]) -> Outcome:
    version = 0 if job is None else job.version
    return Outcome(job_id, version, status="running", checkpoint=checkpoint, advance=NOW)


async def _state_of(job_id: str, phase: Phase[Any], storage: StorageAdapter, state: Any) -> Any:
    if not isinstance(state, Same):
        return phase.state.pack(state, phase.name)
    entry = await storage.get_entry(job_id, phase.name) if isinstance(storage, KeepsEntries) else None
    if entry is None:
        raise InvalidPipelineError(f"The state with which job {job_id!r} reached {phase.name!r} is not kept here; pass `state=`.", phase=phase.name)
    try:
        phase.state.unpack(entry.state, phase.name)
    except InvalidStateError as error:
        raise InvalidPipelineError(f"{error.message} Pass `state=`.", **error.details) from error
    return entry.state


async def _write(storage: StorageAdapter, scheduler: SchedulerAdapter, outcome: Outcome, job: JobRecord | None) -> None:
    if await write_start(storage, scheduler, outcome, job) is None:
        raise JobConflictError(f"Job {outcome.job_id!r} was started, resumed or taken by somebody else at the same moment.")
