"""Jobs in one SQLite file, several processes at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast, get_args

from perdure.core import given
from perdure.core.codec import dump
from perdure.core.errors import ConfigurationError, SchemaTooNew
from perdure.core.runtime import Runtime
from perdure.pipeline._adapters import Advance, Claim, Outcome
from perdure.pipeline._runner import REAL
from perdure.pipeline._sql import checked_prefix, statements
from perdure.pipeline._sql_storage import SCHEMA, Call, Row, SqlStorage, Values, claim_of, kept, written
from perdure.pipeline._sqlite_thread import SqliteThread, Sync


class SqliteStorage(SqlStorage):
    """Every capability, durable. Opens the file at its first call; `async with`, or `close`, gives it back.

    Args:
        path: The file; made if it is not there. Its folder must be.
        prefix: Of the tables' names: a file of yours may hold several pipelines, each with its own prefix, beside other tables.
        synchronous: `FULL`: what was acknowledged survives a power cut. `NORMAL`: it survives a crash of the process, cheaper.

    Raises:
        ConfigurationError: A setting can't be used.
    """

    def __init__(self, path: Path | str, *, prefix: str = "pipeline_", synchronous: Sync = "FULL", runtime: Runtime = REAL) -> None:
        super().__init__()
        if not isinstance(cast(object, path), (str, Path)) or synchronous not in get_args(Sync):
            raise ConfigurationError(
                f"SqliteStorage({given.shown(path)}, synchronous={given.shown(synchronous)}): it takes a file's path, and one of {', '.join(get_args(Sync))}."
            )
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

    async def _commit(self, outcome: Outcome) -> int | None:
        values, lines = self._values(outcome)
        moved = await self._thread.call(lambda connection: self._move(connection, outcome, values, lines), "durable" if outcome.durable else "write")
        return outcome.version + (not outcome.hold) if moved else None

    async def commit_and_claim(self, outcome: Outcome, lease: timedelta) -> Claim | None:
        values, lines = self._values(outcome)
        values["lease"] = lease.total_seconds()

        def commit(connection: sqlite3.Connection) -> Claim | None:
            sql, execute = self._sql, connection.execute
            if execute(sql["move_on"], values).rowcount != 1:
                return Claim(None) if self._move(connection, outcome, values, lines) else None
            if values["entry"] is not None:
                execute(sql["put_entry"], values)
            for line in lines:
                execute(sql["append_log"], line)
            execute(sql["keep_advance"], values)
            return kept(outcome, outcome.version + 2, lease, values["now"])

        return await self._thread.call(commit)

    def _values(self, outcome: Outcome) -> tuple[dict[str, Any], list[Values]]:
        """The parameters of an outcome's statements, and those of its lines of log."""
        return written(outcome) | {"now": self._now()}, [{"job_id": outcome.job_id, "line": dump(line.to_json())} for line in outcome.log]

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
