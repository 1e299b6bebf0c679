"""Jobs in one SQLite file, several processes at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure.core.codec import dump
from perdure.core.errors import SchemaTooNew
from perdure.core.runtime import Runtime
from perdure.pipeline._adapters import KEEP, Advance, Claim, Outcome
from perdure.pipeline._records import JobRecord
from perdure.pipeline._runner import REAL
from perdure.pipeline._sql import checked_prefix, statements
from perdure.pipeline._sql_storage import SCHEMA, Call, Row, SqlStorage, Values, claim_of, time_of, written
from perdure.pipeline._sqlite_thread import SqliteThread, Sync


class SqliteStorage(SqlStorage):
    """Every capability, durable. Opens the file at its first call; `async with`, or `close`, gives it back.

    Args:
        path: The file; made if it is not there. Its folder must be.
        prefix: Of the tables' names: a file of yours may hold several pipelines, each with its own prefix, beside other tables.
        synchronous: `FULL`: what was acknowledged survives a power cut. `NORMAL`: it survives a crash of the process, cheaper.

    Raises:
        ConfigurationError: The prefix can't be used.
    """

    def __init__(self, path: Path | str, *, prefix: str = "pipeline_", synchronous: Sync = "FULL", runtime: Runtime = REAL) -> None:
        super().__init__()
        self._runtime, self._sql = runtime, statements("sqlite", {"p": checked_prefix(prefix), "now": ":now"})
        self._path = path
        self._thread = SqliteThread(path, self._prepare, runtime, synchronous)

    async def close(self) -> None:
        await self._thread.close()

    # ── how it is asked ────────────────────────────────────────────────────────────────────────────────────
    async def _read(self, name: str, values: Values) -> Sequence[Row]:
        sql, filled = self._sql[name], {**values, "now": self._now()}
        return await self._thread.call(lambda connection: connection.execute(sql, filled).fetchall(), "read")

    async def _write(self, *calls: Call, durable: bool = True) -> Sequence[Row]:
        now = self._now()
        filled = [(self._sql[name], {**values, "now": now}) for name, values in calls]

        def write(connection: sqlite3.Connection) -> list[Row]:
            rows: list[Row] = []
            for sql, values in filled:
                rows = connection.execute(sql, values).fetchall()
            return rows

        return await self._thread.call(write, "durable" if durable else "write")

    def _now(self) -> float:
        # All processes of one file share one machine, and so its clock.
        return self._runtime.now().timestamp()

    # ── its own ways ───────────────────────────────────────────────────────────────────────────────────────
    async def claim_job(self, job_id: str, lease: timedelta) -> Claim:
        values = {"job_id": job_id, "now": self._now(), "lease": lease.total_seconds()}

        def claim(connection: sqlite3.Connection) -> Claim:
            taken = connection.execute(self._sql["claim_job"], values).rowcount == 1
            return claim_of(connection.execute(self._sql["get_job"], values).fetchone(), taken=taken)

        return await self._thread.call(claim, "write")

    async def _commit(self, outcome: Outcome, lease: timedelta | None) -> Claim | int | None:
        values: dict[str, Any] = written(outcome) | {"now": self._now(), "lease": None if lease is None else lease.total_seconds()}
        lines = [{"job_id": outcome.job_id, "line": dump(line.to_json())} for line in outcome.log]

        def commit(connection: sqlite3.Connection) -> Claim | int | None:
            if not self._move(connection, outcome, values, lines):
                return None
            version = outcome.version + (not outcome.hold)
            return version if lease is None else self._again(connection, outcome, values, version, lease)

        return await self._thread.call(commit, "durable" if outcome.durable else "write")

    async def take_advances(self, *, limit: int, hold: timedelta) -> Sequence[Advance]:
        if not await self._read("due_advance", {}):
            return []
        token = self._runtime.new_token()
        rows = await self._write(("take_advances", {"hold": hold.total_seconds(), "limit": limit, "token": token}), durable=False)
        return [Advance(job_id, token) for _, job_id in sorted(rows)]

    # ── inside a transaction, on the thread ────────────────────────────────────────────────────────────────
    def _move(self, connection: sqlite3.Connection, outcome: Outcome, values: Values, lines: Sequence[Values]) -> bool:
        sql, execute = self._sql, connection.execute
        if outcome.version == 0:
            execute(sql["make_job"], values)
        if execute(sql["commit_outcome"], values).rowcount != 1:
            return False
        if outcome.clear_log:
            execute(sql["clear_log"], values)
        if outcome.new_life:
            execute(sql["clear_entries"], values)
        if values["entry"] is not None:
            execute(sql["put_entry"], values)
        for line in lines:
            execute(sql["append_log"], line)
        if outcome.advance is not None:
            execute(sql["put_advance" if outcome.hold else "next_is"], values)
        elif not outcome.hold:
            execute(sql["delete_advance"], values)
        return True

    def _again(self, connection: sqlite3.Connection, outcome: Outcome, values: Values, version: int, lease: timedelta) -> Claim:
        """Claim the job that was moved just now."""
        taken = connection.execute(self._sql["claim_job"], values).rowcount == 1
        if not taken or outcome.checkpoint is KEEP:
            return claim_of(connection.execute(self._sql["get_job"], values).fetchone(), taken=taken)
        connection.execute(self._sql["next_is"], {**values, "delay": lease.total_seconds()})
        # What was just written need not be read back: a phase that is entered at once gets it as it would get the stored one.
        return Claim(JobRecord("running", outcome.checkpoint, version=version + 1, lease_left=lease), taken=True, now=time_of(values["now"]))

    # ── the tables ─────────────────────────────────────────────────────────────────────────────────────────
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
