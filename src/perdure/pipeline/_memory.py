"""Storage and scheduler in memory: for tests, notebooks, and as the model that the others are measured by."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from perdure.core.runtime import Runtime
from perdure.pipeline._adapters import KEEP, Advance, Claim, Outcome
from perdure.pipeline._errors import PhaseError
from perdure.pipeline._records import Checkpoint, JobRecord, JobStatus, LogEntry, Progress
from perdure.pipeline._runner import REAL


@dataclass(frozen=True, slots=True)
class Inspection:
    """A job as `MemoryStorage.inspect` shows it."""

    job: JobRecord
    log: tuple[LogEntry, ...]


@dataclass(slots=True)
class _Job:
    record: JobRecord = field(default_factory=lambda: JobRecord("idle"))
    log: list[LogEntry] = field(default_factory=list[LogEntry])
    entries: dict[str, Checkpoint[Any]] = field(default_factory=dict[str, Checkpoint[Any]])
    lease_until: datetime | None = None


@dataclass(slots=True)
class _Due:
    due: datetime
    held_until: datetime | None = None
    token: str = ""


class MemoryStorage:
    """Every capability, no durability. Copies in and out: what a caller changes later changes nothing here."""

    def __init__(self, *, runtime: Runtime = REAL) -> None:
        self._runtime = runtime
        self._jobs: dict[str, _Job] = {}
        self._advances: dict[str, _Due] = {}
        self._callbacks: list[Callable[[], None]] = []

    def inspect(self) -> Mapping[str, Inspection]:
        """Every job with its log, for assertions."""
        return {job_id: Inspection(self._copy(job), tuple(job.log)) for job_id, job in self._jobs.items()}

    # ── what every storage has ─────────────────────────────────────────────────────────────────────────────
    async def get_job(self, job_id: str) -> JobRecord | None:
        job = self._jobs.get(job_id)
        return None if job is None else self._copy(job)

    async def set_status(self, job_id: str, status: JobStatus, error: str | None = None) -> None:
        self._change(job_id, status=status, error=error)

    async def set_checkpoint(self, job_id: str, checkpoint: Checkpoint[Any] | None) -> None:
        self._change(job_id, checkpoint=deepcopy(checkpoint))

    async def append_log(self, job_id: str, entry: LogEntry) -> None:
        self._job(job_id).log.append(entry)

    async def clear_log(self, job_id: str) -> None:
        self._job(job_id).log.clear()

    # ── capabilities ───────────────────────────────────────────────────────────────────────────────────────
    async def set_output(self, job_id: str, output: Any) -> None:
        self._change(job_id, output=deepcopy(output))

    async def get_log(self, job_id: str) -> Sequence[LogEntry]:
        job = self._jobs.get(job_id)
        return () if job is None else tuple(job.log)

    async def list_running(self) -> Sequence[str]:
        return [job_id for job_id, job in self._jobs.items() if job.record.status == "running"]

    async def list_stranded(self) -> Sequence[str]:
        return [job_id for job_id in await self.list_running() if job_id not in self._advances]

    async def list_jobs(self, *, status: JobStatus | None = None, limit: int = 100, after: str | None = None) -> Sequence[tuple[str, JobRecord]]:
        found = sorted(job_id for job_id, job in self._jobs.items() if status in (None, job.record.status) and (after is None or job_id > after))
        return [(job_id, self._copy(self._jobs[job_id])) for job_id in found[:limit]]

    async def get_entry(self, job_id: str, phase: str) -> Checkpoint[Any] | None:
        job = self._jobs.get(job_id)
        return None if job is None else deepcopy(job.entries.get(phase))

    async def commit_outcome(self, outcome: Outcome) -> int | None:
        job = self._jobs.get(outcome.job_id)
        if (0 if job is None else job.record.version) != outcome.version:
            return None
        job = job or self._job(outcome.job_id)
        if outcome.clear_log:
            job.log.clear()
        if outcome.new_life:
            job.entries.clear()
        job.log.extend(outcome.log)
        changes: dict[str, Any] = {}
        if outcome.status is not None:
            changes.update(status=outcome.status, error=outcome.error)
        if outcome.checkpoint is not KEEP:
            changes.update(checkpoint=deepcopy(outcome.checkpoint))
            if outcome.entered and outcome.checkpoint is not None:
                job.entries[outcome.checkpoint.next_phase] = deepcopy(outcome.checkpoint)
        if outcome.output is not KEEP:
            changes.update(output=deepcopy(outcome.output))
        if not outcome.hold:
            changes.update(version=outcome.version + 1, deaths=0, progress=None)
            job.lease_until = None
            self._advances.pop(outcome.job_id, None)
        if outcome.progress is not KEEP:
            changes.update(progress=outcome.progress)
        self._change(outcome.job_id, **changes)
        if outcome.advance is not None:
            await self.put_advance(outcome.job_id, outcome.advance)
        return job.record.version

    async def claim_job(self, job_id: str, lease: timedelta) -> Claim:
        job, now = self._jobs.get(job_id), self._runtime.now()
        if job is None or job.record.status != "running" or job.record.checkpoint is None:
            return Claim(None if job is None else self._copy(job), now=now)
        if job.lease_until is not None and job.lease_until > now:
            return Claim(self._copy(job), busy=job.lease_until - now, now=now)
        died = job.record.deaths + (job.lease_until is not None)
        job.lease_until = now + lease
        self._change(job_id, version=job.record.version + 1, deaths=died)
        return Claim(self._copy(job), taken=True, now=now)

    async def commit_and_claim(self, outcome: Outcome, lease: timedelta) -> Claim | None:
        await _Breath()
        if await self.commit_outcome(outcome) is None:
            return None
        claim = await self.claim_job(outcome.job_id, lease)
        if not claim.taken:
            return Claim(None)
        self._advances[outcome.job_id] = _Due(self._runtime.now() + lease)
        return claim

    async def renew_lease(self, job_id: str, version: int, lease: timedelta, progress: Progress | None = None) -> bool:
        job = self._jobs.get(job_id)
        if job is None or job.record.version != version or job.lease_until is None:
            return False
        job.lease_until = self._runtime.now() + lease
        job.record = replace(job.record, progress=progress or job.record.progress)
        return True

    # ── advances ───────────────────────────────────────────────────────────────────────────────────────────
    async def put_advance(self, job_id: str, delay: timedelta) -> None:
        due = self._runtime.now() + delay
        there = self._advances.get(job_id)
        if there is not None and there.held_until is None:
            due = min(due, there.due)
        self._advances[job_id] = _Due(due)
        for callback in list(self._callbacks):
            callback()

    async def take_advances(self, *, limit: int, hold: timedelta) -> Sequence[Advance]:
        now = self._runtime.now()
        ready = [(row.due, job_id) for job_id, row in self._advances.items() if row.due <= now and (row.held_until is None or row.held_until <= now)]
        taken: list[Advance] = []
        for _, job_id in sorted(ready)[:limit]:
            token = self._runtime.new_token()
            self._advances[job_id] = replace(self._advances[job_id], held_until=now + hold, token=token)
            taken.append(Advance(job_id, token))
        return taken

    async def drop_advance(self, advance: Advance, *, again: timedelta | None = None) -> None:
        row = self._advances.get(advance.job_id)
        if row is None or row.token != advance.token:
            return
        del self._advances[advance.job_id]
        if again is not None:
            await self.put_advance(advance.job_id, again)

    async def next_advance(self, job_id: str | None = None) -> timedelta | None:
        rows = self._advances.values() if job_id is None else [row for key, row in self._advances.items() if key == job_id]
        now = self._runtime.now()
        return min((max(timedelta(0), max(row.due, row.held_until or row.due) - now) for row in rows), default=None)

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _copy(self, job: _Job) -> JobRecord:
        left = None if job.lease_until is None else job.lease_until - self._runtime.now()
        return replace(deepcopy(job.record), lease_left=left)

    def _job(self, job_id: str) -> _Job:
        return self._jobs.setdefault(job_id, _Job())

    def _change(self, job_id: str, **changes: Any) -> None:
        job = self._job(job_id)
        job.record = replace(job.record, updated_at=self._runtime.now(), **changes)


class _Breath:
    """Awaited: everybody else on the loop has a turn, as with a storage that really waits. Otherwise a job that goes on and on would be alone."""

    def __await__(self) -> Generator[None]:
        yield


class MemoryScheduler:
    """Advances as a list in memory. Bind what advances a job, then `drain`; without `bind`, it does nothing at all.

    scheduler.bind(lambda job_id: advance_phase(job_id, phases, storage, scheduler))
    """

    def __init__(self, *, runtime: Runtime = REAL) -> None:
        self._runtime = runtime
        self._advance: Callable[[str], Awaitable[object]] | None = None
        self._due: list[tuple[float, int, str]] = []
        self._count = 0

    def bind(self, advance: Callable[[str], Awaitable[object]]) -> None:
        """Say how a job is advanced."""
        self._advance = advance

    @property
    def bound(self) -> bool:
        """Whether anybody said how a job is advanced."""
        return self._advance is not None

    @property
    def pending(self) -> list[str]:
        """The job of each advance that is on its way, soonest first."""
        return [job_id for _, _, job_id in sorted(self._due)]

    async def is_pending(self, job_id: str) -> bool:
        return any(each == job_id for _, _, each in self._due)

    async def schedule_advance(self, job_id: str, delay: timedelta = timedelta(0)) -> None:
        if self._advance is None:
            return
        self._count += 1
        heapq.heappush(self._due, (self._runtime.monotonic() + delay.total_seconds(), self._count, job_id))

    async def drain(self, *, wait: bool = False) -> list[PhaseError]:
        """Run what is due, and what that schedules, until nothing is due; with `wait`, sit out the delays until nothing is left.

        Answers the phases' failures, which their jobs record as well. Anything else is raised.
        """
        failures: list[PhaseError] = []
        while self._due and self._advance is not None:
            left = self._due[0][0] - self._runtime.monotonic()
            if left > 0:
                if not wait:
                    break
                await self._runtime.sleep(left)
                continue
            _, _, job_id = heapq.heappop(self._due)
            try:
                await self._advance(job_id)
            except PhaseError as failure:
                failures.append(failure)
        return failures
