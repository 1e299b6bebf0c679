"""How an outcome is written: in one write where the storage can, else in an order in which a crash between any two leaves a job to finish.

In order means, after a phase: log, checkpoint, status, schedule; for a job that is done: log, output, status, then the checkpoint is cleared (a complete
job's leftover checkpoint means nothing). At a start: status, checkpoint, schedule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perdure.pipeline._adapters import KEEP, CommitsOutcomes, Outcome, SchedulerAdapter, StorageAdapter, committing, comparing, joined, keeping_output
from perdure.pipeline._records import Checkpoint, JobRecord


async def write(storage: StorageAdapter, scheduler: SchedulerAdapter, outcome: Outcome, current: Checkpoint[Any] | None) -> int | None:
    """Write what came of a stay in a phase. `current` is the checkpoint as stored.

    Answers the job's version afterwards; None: another advance took the job over and nothing was written.
    """
    if (committer := committing(storage)) is not None:
        return await _commit(committer, scheduler, outcome)
    version = await _fence(storage, outcome, current)
    if version is None:
        return None
    for entry in outcome.log:
        await storage.append_log(outcome.job_id, entry)
    if outcome.status == "complete":
        await _finish(storage, outcome)
        return version
    if outcome.checkpoint is not KEEP and comparing(storage) is None:
        await storage.set_checkpoint(outcome.job_id, outcome.checkpoint)
    if outcome.status is not None:
        await storage.set_status(outcome.job_id, outcome.status, outcome.error)
    if outcome.advance is not None:
        await scheduler.schedule_advance(outcome.job_id, outcome.advance)
    return version


async def write_start(storage: StorageAdapter, scheduler: SchedulerAdapter, outcome: Outcome, job: JobRecord | None) -> int | None:
    """Write the beginning of a life, or its going on after a retry. `job` is what is there."""
    if (committer := committing(storage)) is not None:
        return await _commit(committer, scheduler, outcome)
    checkpoint = None if outcome.checkpoint is KEEP else outcome.checkpoint
    if job is not None and job.status == "complete" and job.checkpoint is not None:
        # Otherwise the leftover of the life before would, for a moment, look like this one's.
        await storage.set_checkpoint(outcome.job_id, None)
    if outcome.clear_log:
        await storage.clear_log(outcome.job_id)
    if job is not None and job.output is not None and outcome.output is None and (keeper := keeping_output(storage)) is not None:
        await keeper.set_output(outcome.job_id, None)
    await storage.set_status(outcome.job_id, "running")
    version: int | None = 0
    if (comparer := comparing(storage)) is not None:
        version = await comparer.compare_and_set(outcome.job_id, outcome.version, checkpoint)
        if version is None:
            return None
    else:
        await storage.set_checkpoint(outcome.job_id, checkpoint)
    for entry in outcome.log:
        await storage.append_log(outcome.job_id, entry)
    if outcome.advance is not None:
        await scheduler.schedule_advance(outcome.job_id, outcome.advance)
    return version


async def _commit(storage: CommitsOutcomes, scheduler: SchedulerAdapter, outcome: Outcome) -> int | None:
    if joined(storage, scheduler):
        return await storage.commit_outcome(outcome)
    version = await storage.commit_outcome(replace(outcome, advance=None))
    if version is not None and outcome.advance is not None:
        await scheduler.schedule_advance(outcome.job_id, outcome.advance)
    return version


async def _fence(storage: StorageAdapter, outcome: Outcome, current: Checkpoint[Any] | None) -> int | None:
    """Refuse a late writer, where the storage can: the checkpoint is written first, and only over the version that was read."""
    comparer = comparing(storage)
    if comparer is None:
        return outcome.version
    if outcome.hold and outcome.checkpoint is KEEP:
        return outcome.version
    # A finished job's checkpoint is cleared last, so that a crash before it is told from a job that never began.
    checkpoint = current if outcome.checkpoint is KEEP or outcome.status == "complete" else outcome.checkpoint
    return await comparer.compare_and_set(outcome.job_id, outcome.version, checkpoint)


async def _finish(storage: StorageAdapter, outcome: Outcome) -> None:
    if (keeper := keeping_output(storage)) is not None:
        await keeper.set_output(outcome.job_id, None if outcome.output is KEEP else outcome.output)
    await storage.set_status(outcome.job_id, "complete")
    await storage.set_checkpoint(outcome.job_id, None)
