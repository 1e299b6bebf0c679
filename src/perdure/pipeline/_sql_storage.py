"""What the storages in SQL have in common: one table layout, one JSON form, and every call that is the same statement everywhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from perdure.core.codec import dump, load
from perdure.pipeline._adapters import KEEP, Advance, Claim, Outcome
from perdure.pipeline._records import Checkpoint, JobRecord, JobStatus, LogEntry, Progress

SCHEMA: Final = 1
"""The newest layout of the tables that this version knows."""

Values = Mapping[str, Any]
Call = tuple[str, Values]
"""A statement's name and its parameters."""
Row = tuple[Any, ...]


class SqlStorage(ABC):
    """Every capability. What is left to a kind of database is how it is asked, and the few writes that it does in its own way."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    # ── what a kind of database does its own way ───────────────────────────────────────────────────────────
    @abstractmethod
    async def _read(self, name: str, values: Values) -> Sequence[Row]:
        """The rows of one statement that changes nothing."""

    @abstractmethod
    async def _write(self, *calls: Call, durable: bool = True) -> Sequence[Row]:
        """Statements in one transaction; the rows of the last. `durable` False: it may be lost with the machine, not with the process."""

    @abstractmethod
    async def _commit(self, outcome: Outcome) -> int | None:
        """Write the outcome whole. Answers the version; None: somebody else was there first."""

    @abstractmethod
    async def commit_and_claim(self, outcome: Outcome, lease: timedelta) -> Claim | None: ...

    @abstractmethod
    async def claim_job(self, job_id: str, lease: timedelta) -> Claim: ...

    @abstractmethod
    async def take_advances(self, *, limit: int, hold: timedelta) -> Sequence[Advance]: ...

    @abstractmethod
    async def close(self) -> None:
        """Finish what was asked for, then give back what the storage holds. It may be used again after that."""

    async def __aenter__(self) -> Self:
        try:
            await self._read("get_schema", {})
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ── what every storage has ─────────────────────────────────────────────────────────────────────────────
    async def get_job(self, job_id: str) -> JobRecord | None:
        rows = await self._read("get_job", {"job_id": job_id})
        return record(rows[0]) if rows else None

    async def set_status(self, job_id: str, status: JobStatus, error: str | None = None) -> None:
        await self._set("set_status", {"job_id": job_id, "status": status, "error": error})

    async def set_checkpoint(self, job_id: str, checkpoint: Checkpoint[Any] | None) -> None:
        await self._set("set_checkpoint", {"job_id": job_id, "checkpoint": pack(checkpoint)})

    async def append_log(self, job_id: str, entry: LogEntry) -> None:
        await self._write(("append_log", {"job_id": job_id, "line": dump(entry.to_json())}))

    async def clear_log(self, job_id: str) -> None:
        await self._write(("clear_log", {"job_id": job_id}))

    # ── capabilities ───────────────────────────────────────────────────────────────────────────────────────
    async def set_output(self, job_id: str, output: Any) -> None:
        await self._set("set_output", {"job_id": job_id, "output": json_of(output)})

    async def get_log(self, job_id: str) -> Sequence[LogEntry]:
        return [LogEntry.from_json(load(entry)) for (entry,) in await self._read("get_log", {"job_id": job_id})]

    async def list_running(self) -> Sequence[str]:
        return [job_id for (job_id,) in await self._read("list_running", {})]

    async def list_stranded(self) -> Sequence[str]:
        return [job_id for (job_id,) in await self._read("list_stranded", {})]

    async def list_jobs(self, *, status: JobStatus | None = None, limit: int = 100, after: str | None = None) -> Sequence[tuple[str, JobRecord]]:
        rows = await self._read("list_jobs", {"status": status, "limit": limit, "after": after or ""})
        return [(row[0], record(row)) for row in rows]

    async def get_entry(self, job_id: str, phase: str) -> Checkpoint[Any] | None:
        rows = await self._read("get_entry", {"job_id": job_id, "phase": phase})
        return unpack(rows[0][0]) if rows else None

    async def commit_outcome(self, outcome: Outcome) -> int | None:
        version = await self._commit(outcome)
        if version is not None and outcome.advance is not None:
            self._tell()
        return version

    async def renew_lease(self, job_id: str, version: int, lease: timedelta, progress: Progress | None = None) -> bool:
        values = {"job_id": job_id, "version": version, "lease": lease.total_seconds(), "progress": progress_of(progress)}
        return bool(await self._write(("renew_lease", values), durable=False))

    # ── advances ───────────────────────────────────────────────────────────────────────────────────────────
    async def put_advance(self, job_id: str, delay: timedelta) -> None:
        await self._write(("put_advance", {"job_id": job_id, "delay": delay.total_seconds()}))
        self._tell()

    async def drop_advance(self, advance: Advance, *, again: timedelta | None = None) -> None:
        mine = {"job_id": advance.job_id, "token": advance.token}
        if again is None:
            # Losing this with the machine only means that one advance more finds nothing to do.
            await self._write(("drop_advance", mine), durable=False)
        else:
            await self._write(("defer_advance", {**mine, "delay": again.total_seconds()}))

    async def next_advance(self, job_id: str | None = None) -> timedelta | None:
        rows = await (self._read("next_advance", {}) if job_id is None else self._read("next_advance_of", {"job_id": job_id}))
        return timedelta(seconds=max(0.0, rows[0][0])) if rows and rows[0][0] is not None else None

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    # ── small helpers ──────────────────────────────────────────────────────────────────────────────────────
    async def _set(self, name: str, values: Values) -> None:
        await self._write(("make_job", values), (name, values))

    def _tell(self) -> None:
        for callback in list(self._callbacks):
            callback()


def written(outcome: Outcome) -> dict[str, Any]:
    """The parameters of an outcome's statements."""
    at = outcome.checkpoint
    text = None if at is KEEP else pack(at)
    entry = at.next_phase if at is not KEEP and at is not None and outcome.entered else None
    return {
        "job_id": outcome.job_id, "version": outcome.version, "status": outcome.status, "error": outcome.error, "hold": outcome.hold,
        "moved": at is not KEEP, "entry": entry, "checkpoint": None if entry is not None else text, "reached": text,
        "gave": outcome.output is not KEEP, "output": None if outcome.output is KEEP else json_of(outcome.output),
        "shown": outcome.progress is not KEEP, "progress": None if outcome.progress is KEEP else progress_of(outcome.progress),
        "delay": None if outcome.advance is None else outcome.advance.total_seconds(),
    }  # fmt: skip


def claim_of(row: Row | None, *, taken: bool) -> Claim:
    """What became of a claim, from the job's row as it is now."""
    if row is None:
        return Claim(None)
    job = record(row)
    held = None if taken or job.status != "running" else job.lease_left
    return Claim(job, taken, held, time_of(row[-1]))


def kept(outcome: Outcome, version: int, lease: timedelta, now: float) -> Claim:
    """The claim of a job that was moved and kept in one write. What was just written need not be read back: the next phase is entered with it."""
    assert isinstance(outcome.checkpoint, Checkpoint)
    return Claim(JobRecord("running", outcome.checkpoint, version=version, lease_left=lease), taken=True, now=time_of(now))


def record(row: Row) -> JobRecord:
    """A job from its row. The last column is the storage's clock."""
    _, status, error, checkpoint, output, version, lease_until, deaths, progress, updated_at, now = row
    return JobRecord(
        status, unpack(checkpoint), error, load(output), version, None if lease_until is None else time_of(lease_until) - time_of(now), deaths,
        None if progress is None else Progress(*load(progress)), time_of(updated_at),
    )  # fmt: skip


def json_of(value: Any) -> str | None:
    return None if value is None else dump(value)


def pack(checkpoint: Checkpoint[Any] | None) -> str | None:
    return None if checkpoint is None else dump(checkpoint.to_json())


def unpack(text: str | None) -> Checkpoint[Any] | None:
    return None if text is None else Checkpoint.from_json(load(text))


def progress_of(progress: Progress | None) -> str | None:
    return None if progress is None else dump([progress.done, progress.total])


def time_of(seconds: float | None) -> Any:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
