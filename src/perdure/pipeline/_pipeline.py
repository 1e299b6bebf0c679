"""A pipeline with its storage, as one thing: for programs that name both once, and for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic

from perdure.core.runtime import Runtime
from perdure.pipeline._operate import get_output, pause_job, recover, resume_job
from perdure.pipeline._phase import SAME, Phase, S, Same, check_phases
from perdure.pipeline._records import JobRecord, RetryMode
from perdure.pipeline._runner import REAL, Advanced, advance_phase
from perdure.pipeline._start import retry_job, run_pipeline
from perdure.pipeline._worker import PipelineWorker, QueueStorage, StorageScheduler


class Pipeline(Generic[S]):
    """Phases and the storage that their jobs and advances are in. Every method is the function of that name, with these put in.

        pipeline = Pipeline(phases, SqliteStorage("jobs.db"))
        await pipeline.start("march", Report())

    Raises:
        InvalidPipelineError: No phases, two of one name, or a storage that keeps no advances.
    """

    def __init__(self, phases: Sequence[Phase[S]], storage: QueueStorage, *, runtime: Runtime = REAL) -> None:
        check_phases(phases)
        self.phases, self.storage, self._runtime = tuple(phases), storage, runtime
        self.scheduler = StorageScheduler(storage)

    async def start(self, job_id: str, initial_state: S, retry_mode: RetryMode | None = None, initial_phase: str | None = None) -> None:
        await run_pipeline(job_id, self.phases, self.storage, self.scheduler, initial_state, retry_mode, initial_phase, runtime=self._runtime)

    async def advance(self, job_id: str) -> Advanced:
        return await advance_phase(job_id, self.phases, self.storage, self.scheduler, runtime=self._runtime)

    async def retry(self, job_id: str, mode: RetryMode = "resume", *, from_phase: str | None = None, state: S | Same = SAME) -> None:
        await retry_job(job_id, self.phases, self.storage, self.scheduler, mode, from_phase=from_phase, state=state, runtime=self._runtime)

    async def pause(self, job_id: str) -> None:
        await pause_job(job_id, self.storage, self.scheduler)

    async def resume(
        self, job_id: str, *, approved: bool | None = None, value: Any = None, reason: str | None = None, by: str | None = None
    ) -> None:  # fmt: skip
        await resume_job(job_id, self.storage, self.scheduler, approved=approved, value=value, reason=reason, by=by, runtime=self._runtime)

    async def recover(self) -> list[str]:
        return await recover(self.storage, self.scheduler)

    async def job(self, job_id: str) -> JobRecord | None:
        return await self.storage.get_job(job_id)

    async def output(self, job_id: str) -> Any:
        return await get_output(job_id, self.storage)

    def worker(self, *, concurrency: int = 16, lease: timedelta = timedelta(seconds=30)) -> PipelineWorker:
        """A worker for this process."""
        return PipelineWorker(self.phases, self.storage, concurrency=concurrency, lease=lease, runtime=self._runtime)
