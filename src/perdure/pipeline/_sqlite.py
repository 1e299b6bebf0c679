"""Jobs in one SQLite file, several processes at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from perdure.core.codec import dump, load
from perdure.core.errors import SchemaTooNew
from perdure.core.runtime import Runtime
from perdure.pipeline._adapters import KEEP, Advance, Claim, Outcome
from perdure.pipeline._records import Checkpoint, JobRecord, JobStatus, LogEntry, Progress
from perdure.pipeline._runner import REAL
from perdure.pipeline._sql import statements
from perdure.pipeline._sqlite_thread import SqliteThread, Sync

SCHEMA: Final = 1
"""The newest layout of the tables that this version knows."""


class SqliteStorage:
    """Every capability, durable. Opens the file at its first call; `async with`, or `close`, gives it back.

    Args:
        path: The file; made if it is not there. Its folder must be.
        prefix: Of the tables' names: a file of yours may hold several pipelines, each with its own prefix, beside other tables.
        synchronous: `FULL`: what was acknowledged survives a power cut. `NORMAL`: it survives a crash of the process, cheaper.
    """

    def __init__(self, path: Path | str, *, prefix: str = "pipeline_", synchronous: Sync = "FULL", runtime: Runtime = REAL) -> None:
        self._runtime, self._sql = runtime, statements("sqlite.sql", prefix)
        self._path = path
        self._thread = SqliteThread(path, self._prepare, runtime, synchronous)
        self._callbacks: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        await self._thread.call(lambda connection: None, "read")
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._thread.close()

    # ── what every storage has ─────────────────────────────────────────────────────────────────────────────
    async def get_job(self, job_id: str) -> JobRecord | None:
        now = self._now()
        return await self._thread.call(lambda connection: self._job(connection, job_id, now), "read")

    async def set_status(self, job_id: str, status: JobStatus, error: str | None = None) -> None:
        await self._set("set_status", job_id, status=status, error=error)

    async def set_checkpoint(self, job_id: str, checkpoint: Checkpoint[Any] | None) -> None:
        await self._set("set_checkpoint", job_id, checkpoint=_pack(checkpoint))

    async def append_log(self, job_id: str, entry: LogEntry) -> None:
        await self._do("append_log", job_id=job_id, entry=dump(entry.to_json()))

    async def clear_log(self, job_id: str) -> None:
        await self._do("clear_log", job_id=job_id)

    # ── capabilities ───────────────────────────────────────────────────────────────────────────────────────
    async def set_output(self, job_id: str, output: Any) -> None:
        await self._set("set_output", job_id, output=_json(output))

    async def get_log(self, job_id: str) -> Sequence[LogEntry]:
        return [LogEntry.from_json(load(entry)) for (entry,) in await self._rows("get_log", job_id=job_id)]

    async def list_running(self) -> Sequence[str]:
        return [job_id for (job_id,) in await self._rows("list_running")]

    async def list_jobs(self, *, status: JobStatus | None = None, limit: int = 100, after: str | None = None) -> Sequence[tuple[str, JobRecord]]:
        rows = await self._rows("list_jobs", status=status, limit=limit, after=after or "")
        now = self._now()
        return [(row[0], _record(row, now)) for row in rows]

    async def get_entry(self, job_id: str, phase: str) -> Checkpoint[Any] | None:
        rows = await self._rows("get_entry", job_id=job_id, phase=phase)
        return _unpack(rows[0][0]) if rows else None

    async def commit_outcome(self, outcome: Outcome) -> int | None:
        now = self._now()
        version = await self._thread.call(lambda connection: self._commit(connection, outcome, now), "durable" if outcome.durable else "write")
        if version is not None and outcome.advance is not None:
            self._tell()
        return version

    async def claim_job(self, job_id: str, lease: timedelta) -> Claim:
        now = self._now()
        until = now + lease.total_seconds()

        def claim(connection: sqlite3.Connection) -> Claim:
            taken = connection.execute(self._sql["claim_job"], {"job_id": job_id, "now": now, "until": until}).rowcount == 1
            job = self._job(connection, job_id, now)
            held = None if taken or job is None or job.status != "running" else job.lease_left
            return Claim(job, taken, held, _time(now))

        return await self._thread.call(claim, "write")

    async def commit_and_claim(self, outcome: Outcome, lease: timedelta) -> Claim | None:
        now = self._now()
        until = now + lease.total_seconds()

        def commit(connection: sqlite3.Connection) -> Claim | None:
            version = self._commit(connection, outcome, now)
            if version is None:
                return None
            taken = connection.execute(self._sql["claim_job"], {"job_id": outcome.job_id, "now": now, "until": until}).rowcount == 1
            if not taken or outcome.checkpoint is KEEP:
                return Claim(self._job(connection, outcome.job_id, now), taken, now=_time(now))
            connection.execute(self._sql["next_is"], {"job_id": outcome.job_id, "due": until})
            # What was just written need not be read back: a phase that is entered at once gets it as it would get the stored one.
            return Claim(JobRecord("running", outcome.checkpoint, version=version + 1, lease_left=lease), taken=True, now=_time(now))

        return await self._thread.call(commit)

    async def renew_lease(self, job_id: str, version: int, lease: timedelta, progress: Progress | None = None) -> bool:
        until, shown = self._now() + lease.total_seconds(), _progress(progress)

        def renew(connection: sqlite3.Connection) -> bool:
            values = {"job_id": job_id, "version": version, "until": until, "progress": shown}
            return connection.execute(self._sql["renew_lease"], values).rowcount == 1

        return await self._thread.call(renew, "write")

    # ── advances ───────────────────────────────────────────────────────────────────────────────────────────
    async def put_advance(self, job_id: str, delay: timedelta) -> None:
        await self._do("put_advance", job_id=job_id, due=self._now() + delay.total_seconds())
        self._tell()

    async def take_advances(self, *, limit: int, hold: timedelta) -> Sequence[Advance]:
        now = self._now()
        if not await self._rows("due_advance", now=now):
            return []
        values = {"now": now, "until": now + hold.total_seconds(), "limit": limit, "token": self._runtime.new_token()}
        rows = await self._thread.call(lambda connection: connection.execute(self._sql["take_advances"], values).fetchall(), "write")
        return [Advance(job_id, token) for _, job_id, token in sorted(rows)]

    async def drop_advance(self, advance: Advance, *, again: timedelta | None = None) -> None:
        now = self._now()

        def drop(connection: sqlite3.Connection) -> None:
            mine = connection.execute(self._sql["drop_advance"], {"job_id": advance.job_id, "token": advance.token}).rowcount == 1
            if mine and again is not None:
                connection.execute(self._sql["put_advance"], {"job_id": advance.job_id, "due": now + again.total_seconds()})

        # Losing this with the machine only means that one advance more finds nothing to do.
        await self._thread.call(drop, "write" if again is None else "durable")

    async def next_advance(self, job_id: str | None = None) -> timedelta | None:
        [(due,)] = await self._rows("next_advance", job_id=job_id)
        return None if due is None else timedelta(seconds=max(0.0, due - self._now()))

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    # ── inside a transaction, on the thread ────────────────────────────────────────────────────────────────
    def _commit(self, connection: sqlite3.Connection, outcome: Outcome, now: float) -> int | None:
        sql, job_id = self._sql, outcome.job_id
        if outcome.version == 0:
            connection.execute(sql["make_job"], {"job_id": job_id})
        at = outcome.checkpoint
        text = None if at is KEEP else _pack(at)
        entry = at.next_phase if at is not KEEP and at is not None and outcome.entered else None
        values = {
            "job_id": job_id, "version": outcome.version, "status": outcome.status, "error": outcome.error, "moved": at is not KEEP, "entry": entry,
            "checkpoint": None if entry else text, "gave": outcome.output is not KEEP,
            "output": None if outcome.output is KEEP else _json(outcome.output), "shown": outcome.progress is not KEEP,
            "progress": None if outcome.progress is KEEP else _progress(outcome.progress), "hold": outcome.hold, "now": now,
        }  # fmt: skip
        if connection.execute(sql["commit_outcome"], values).rowcount != 1:
            return None
        if outcome.clear_log:
            connection.execute(sql["clear_log"], {"job_id": job_id})
        if outcome.new_life:
            connection.execute(sql["clear_entries"], {"job_id": job_id})
        if entry:
            connection.execute(sql["put_entry"], {"job_id": job_id, "phase": entry, "checkpoint": text})
        for line in outcome.log:
            connection.execute(sql["append_log"], {"job_id": job_id, "entry": dump(line.to_json())})
        if outcome.advance is not None:
            name = "put_advance" if outcome.hold else "next_is"
            connection.execute(sql[name], {"job_id": job_id, "due": now + outcome.advance.total_seconds()})
        elif not outcome.hold:
            connection.execute(sql["delete_advance"], {"job_id": job_id})
        return outcome.version + (not outcome.hold)

    def _job(self, connection: sqlite3.Connection, job_id: str, now: float) -> JobRecord | None:
        row = connection.execute(self._sql["get_job"], {"job_id": job_id}).fetchone()
        return None if row is None else _record(row, now)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables if they are not there. Many processes may do it at once."""
        if not self._known(connection):
            connection.execute("BEGIN IMMEDIATE")
            try:
                for statement in self._sql["schema"].split(";\n"):
                    connection.execute(statement)
                connection.execute(self._sql["put_schema"], {"schema": SCHEMA})
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            self._known(connection)

    def _known(self, connection: sqlite3.Connection) -> bool:
        """Whether the tables are there, in a layout that this version knows."""
        if connection.execute(self._sql["has_schema"]).fetchone() is None:
            return False
        row = connection.execute(self._sql["get_schema"]).fetchone()
        if row is not None and row[0] > SCHEMA:
            raise SchemaTooNew(f"{self._path}: its pipeline tables have layout {row[0]}; this Perdure knows {SCHEMA}. Upgrade it.", found=row[0])
        return row is not None

    # ── small helpers ──────────────────────────────────────────────────────────────────────────────────────
    async def _set(self, name: str, job_id: str, **values: Any) -> None:
        values.update(job_id=job_id, now=self._now())

        def change(connection: sqlite3.Connection) -> None:
            connection.execute(self._sql["make_job"], {"job_id": job_id})
            connection.execute(self._sql[name], values)

        await self._thread.call(change)

    async def _do(self, name: str, **values: Any) -> None:
        await self._thread.call(lambda connection: connection.execute(self._sql[name], values).rowcount)

    async def _rows(self, name: str, **values: Any) -> list[Any]:
        return await self._thread.call(lambda connection: connection.execute(self._sql[name], values).fetchall(), "read")

    def _now(self) -> float:
        return self._runtime.now().timestamp()

    def _tell(self) -> None:
        for callback in list(self._callbacks):
            callback()


def _record(row: Any, now: float) -> JobRecord:
    _, status, error, checkpoint, output, version, lease_until, deaths, progress, updated_at = row
    return JobRecord(
        status, _unpack(checkpoint), error, load(output), version, None if lease_until is None else _time(lease_until) - _time(now), deaths,
        None if progress is None else Progress(*load(progress)), _time(updated_at),
    )  # fmt: skip


def _json(value: Any) -> str | None:
    return None if value is None else dump(value)


def _pack(checkpoint: Checkpoint[Any] | None) -> str | None:
    return None if checkpoint is None else dump(checkpoint.to_json())


def _unpack(text: str | None) -> Checkpoint[Any] | None:
    return None if text is None else Checkpoint.from_json(load(text))


def _progress(progress: Progress | None) -> str | None:
    return None if progress is None else dump([progress.done, progress.total])


def _time(seconds: float | None) -> Any:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
