"""Jobs in a Postgres database, any number of processes on any number of machines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, cast

from perdure.core.codec import PlainCodec, dump
from perdure.core.errors import ConfigurationError, SchemaTooNew
from perdure.core.runtime import Runtime
from perdure.pipeline._adapters import Advance, Claim, Outcome
from perdure.pipeline._runner import REAL
from perdure.pipeline._sql import checked_prefix, statements
from perdure.pipeline._sql_storage import SCHEMA, Call, Row, SqlStorage, Values, claim_of, kept, written
from perdure.stores._moves._program import Query, Rows, Work
from perdure.stores.postgres._connection import Connection, address_of, connect
from perdure.stores.postgres._pool import Pool, persistently
from perdure.stores.postgres._wire import Statement

CLOCK: Final = "coalesce(CAST(%(now)s AS double precision), CAST(extract(epoch FROM statement_timestamp()) AS double precision))"
"""The database's clock, unless a test gives the time. Not `clock_timestamp()`, which changes within a statement and so can use no index."""

GOES_ON: Final = """(CAST(:lease AS double precision) IS NOT NULL AND coalesce(:status, status) = 'running'
    AND CASE WHEN CAST(:moved AS boolean) THEN coalesce(:checkpoint, :entry) ELSE coalesce(checkpoint, entry) END IS NOT NULL)"""
"""Whether the job that an outcome moves is taken again in the same write."""

_SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_PARAMETER: Final = re.compile(r":(\w+)")


class PostgresStorage(SqlStorage):
    """Every capability, durable. Connects at its first call; `async with`, or `close`, gives the connections back.

    A call that a broken connection cut off is sent again, and known if its first sending was carried out. Leases and due times are judged by the
    database's clock alone.

    Args:
        dsn: `postgresql://user:password@host/database`, or any libpq connection string. Postgres 14 or newer.
        schema: Where the tables are; made if it is not there. Lower-case letters, digits and underscores. The engine's store may live in the same one.
        prefix: Of the tables' names: one schema may hold several pipelines, each with its own prefix.
        pool_max: Connections, at least 1. Beside them, one in each other thread that calls (renewals).
        pooler: The DSN leads to a transaction pooler (PgBouncer with `pool_mode = transaction`): no prepared statements.
        clock: Tells the time instead of the database. For tests.

    Raises:
        ConfigurationError: A setting can't be used.
    """

    def __init__(
        self, dsn: str, *, schema: str = "perdure", prefix: str = "pipeline_", pool_max: int = 8, pooler: bool = False, runtime: Runtime = REAL,
        clock: Callable[[], datetime] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if not _SCHEMA_NAME.fullmatch(schema):
            raise ConfigurationError(f"schema={schema!r}: lower-case letters, digits and underscores, at most 48, not beginning with a digit.")
        if pool_max < 1:
            raise ConfigurationError(f"pool_max={pool_max}: at least one connection is needed.")
        words = {"goes_on": GOES_ON, "s": f'"{schema}"', "p": f'"{schema}".{checked_prefix(prefix)}', "i": prefix, "now": CLOCK}
        self._sql = {name: _PARAMETER.sub(r"%(\1)s", text) for name, text in statements("postgres", words).items()}
        self._statements = {name: Statement.of(f"pipeline_{name}", text) for name, text in self._sql.items() if name != "schema"}
        self._dsn, self.address, self._schema, self._prefix = dsn, address_of(dsn), schema, prefix
        self._pool_max, self._pooler, self._runtime, self._clock = pool_max, pooler, runtime, clock
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._first_loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._made = False

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        if mine := [call for call in self._calls if call.get_loop() is loop]:
            await asyncio.wait(mine)
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        self._first_loop, self._made = None, False

    # ── how it is asked ────────────────────────────────────────────────────────────────────────────────────
    async def _read(self, name: str, values: Values) -> Sequence[Row]:
        return (await self._ask((name, values)))[0]

    async def _write(self, *calls: Call, durable: bool = True) -> Sequence[Row]:
        # Always durable here: the database may go down while the process that holds a claim lives on.
        return (await self._ask(*calls))[-1]

    async def _ask(self, *calls: Call) -> list[Sequence[Row]]:
        """Statements that are sent together: one round trip, one transaction. All of them are safe to repeat with the same parameters.

        In a task of its own: a caller that is cancelled must leave neither a transaction half sent nor a connection in an unknown state.
        """
        fixed = {"now": None if self._clock is None else self._clock().timestamp(), "mark": self._runtime.new_token()}
        queries = [Query(name, {**values, **fixed}) for name, values in calls]
        call = self._runtime.spawn(persistently(self._runtime, self.address, partial(self._once, queries)), name="perdure-pipeline-postgres")
        self._calls.add(call)
        call.add_done_callback(self._ended)
        return [[tuple(row.values()) for row in rows] for rows in await asyncio.shield(call)]

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # heard, also where its caller is gone

    async def _once(self, queries: Sequence[Query]) -> Sequence[Rows]:
        async with self._pool().connection() as connection:
            if not self._made:
                await self._make(connection)
                self._made = True

            def ask(work: Work) -> Any:
                return (yield from work.read(*queries))

            return cast(Sequence[Rows], await connection.look(ask))

    def _pool(self) -> Pool:
        """This loop's connections: the thread that renews leases has a loop of its own."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            for ended in [each for each in self._pools if each.is_closed()]:
                self._pools.pop(ended).close()
            if self._first_loop is None or self._first_loop.is_closed():
                self._first_loop = loop
            pool = self._pools[loop] = Pool(self._connect, self._pool_max if loop is self._first_loop else 1)
        return pool

    async def _connect(self) -> Connection:
        return Connection(await connect(self._dsn), self._statements, PlainCodec(), prepare=not self._pooler)

    # ── its own ways ───────────────────────────────────────────────────────────────────────────────────────
    async def claim_job(self, job_id: str, lease: timedelta) -> Claim:
        values = {"job_id": job_id, "lease": lease.total_seconds()}
        _, rows, mine = await self._ask(("claim_job", values), ("get_job", values), ("is_marked", values))
        return claim_of(rows[0] if rows else None, taken=bool(mine))

    async def _commit(self, outcome: Outcome) -> int | None:
        moved = await self._moved(outcome, None)
        return moved[0] if moved else None

    async def commit_and_claim(self, outcome: Outcome, lease: timedelta) -> Claim | None:
        moved = await self._moved(outcome, lease)
        if moved is None:
            return None
        version, held, now = moved
        return kept(outcome, version, lease, now) if held else Claim(None)

    async def _moved(self, outcome: Outcome, lease: timedelta | None) -> tuple[int, bool, float] | None:
        """Write the outcome; with `lease`, claim the job again if it is still to run. Answers its version, whether it is held, and the time."""
        values = written(outcome) | {
            "lease": None if lease is None else lease.total_seconds(), "clear_log": outcome.clear_log, "new_life": outcome.new_life,
            "log": _array([dump(line.to_json()) for line in outcome.log]),
        }  # fmt: skip
        make: list[Call] = [("make_job", {"job_id": outcome.job_id})] if outcome.version == 0 else []
        rows = await self._write(*make, ("commit_outcome", values))
        return cast(tuple[int, bool, float], rows[0]) if rows else None

    async def take_advances(self, *, limit: int, hold: timedelta) -> Sequence[Advance]:
        token = self._runtime.new_token()
        values = {"hold": hold.total_seconds(), "limit": limit, "token": token}
        rows = await self._write(("take_advances", values), ("list_taken", values))
        return [Advance(job_id, token) for (job_id,) in rows]

    # ── the tables ─────────────────────────────────────────────────────────────────────────────────────────
    async def _make(self, connection: Connection) -> None:
        """Make the tables if they are not there. Many processes may do it at once: a lock of the database lets one after the other in."""
        if await self._known(connection):
            return
        async with connection.raw.transaction():
            await connection.ask("SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 0))", name=f"perdure:{self._schema}")
            await connection.ask(self._sql["schema"])
            await connection.ask(self._sql["put_schema"], schema=SCHEMA)
        await self._known(connection)

    async def _known(self, connection: Connection) -> bool:
        """Whether the tables are there, in a layout that this version knows."""
        # Asked of the catalogue's tables: `to_regclass` would answer from a cache that does not see what somebody else made just now.
        there = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %(schema)s AND tablename = %(name)s"
        if not await connection.ask(there, schema=self._schema, name=f"{self._prefix}meta"):
            return False
        rows = await connection.ask(self._sql["get_schema"])
        if rows and rows[0]["schema"] > SCHEMA:
            found = rows[0]["schema"]
            raise SchemaTooNew(
                f"{self._schema}.{self._prefix}… at {self.address} has layout {found}; this Perdure knows {SCHEMA}. Upgrade it.", found=found
            )
        return bool(rows)


def _array(texts: Sequence[str]) -> str:
    """Texts as Postgres writes an array of them."""
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"
