"""The store for many workers on many machines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

import psycopg

from perdure.core.codec import Codec, PlainCodec
from perdure.core.commit import Commit, Committed
from perdure.core.errors import ConfigurationError, SchemaTooNew, StoreUnavailable
from perdure.core.event import Delta, Reset
from perdure.core.runtime import RealRuntime, Runtime
from perdure.stores._moves._commit import commit as apply
from perdure.stores._moves._program import Verb
from perdure.stores._moves._store import SqlStore
from perdure.stores._protocol import Hint
from perdure.stores.postgres._connection import MIGRATIONS, SCHEMA, Connection, address_of, connect, in_schema, statements_in
from perdure.stores.postgres._errors import translate
from perdure.stores.postgres._foresight import Foresight
from perdure.stores.postgres._joined import Joined
from perdure.stores.postgres._listen import Announcer, Ears, Listener
from perdure.stores.postgres._pool import Pool, persistently

T = TypeVar("T")

SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")


class PostgresStore(SqlStore):
    """Runs in a Postgres database (14 or newer).

    Args:
        dsn: `postgresql://user:password@host/database`, or any libpq connection string.
        runtime: Where clocks, tasks and sleep come from. The terms of leases and waits are judged by the database's clock alone.
        schema: The schema that holds the tables: lower-case letters, digits and underscores.
        pool_max: Connections for calls, at least 1. Beside them there is one that listens, one in each other thread that calls (renewals), and as many
            again as there are transactions with rows of yours open at once, at most `pool_max`.
        pooler: The DSN leads to a transaction pooler (PgBouncer with `pool_mode = transaction`): no prepared statements and no LISTEN, so workers find
            work by polling.
        codec: What stands between the stored values and their bytes, for example encryption.
        migrate: Whether opening brings the schema up to date.

    Raises:
        ConfigurationError: A setting can't be used.
        StoreError, StoreUnavailable, SchemaTooNew: The database can't be used (when opened).
    """

    def __init__(
        self,
        dsn: str,
        runtime: Runtime | None = None,
        *,
        schema: str = "perdure",
        pool_max: int = 8,
        pooler: bool = False,
        codec: Codec | None = None,
        migrate: bool = True,
    ) -> None:
        super().__init__()
        if not SCHEMA_NAME.fullmatch(schema):
            raise ConfigurationError(
                f"PostgresStore(schema={schema!r}): lower-case letters, digits and underscores, at most 48, not beginning with a digit."
            )
        if pool_max < 1:
            raise ConfigurationError(f"PostgresStore(pool_max={pool_max}): at least one connection is needed.")
        self._dsn, self.address = dsn, address_of(dsn)
        self._runtime = runtime or RealRuntime()
        self._schema, self._pool_max, self._pooler, self._migrate_at_start = schema, pool_max, pooler, migrate
        self._codec = codec or PlainCodec()
        self._statements = statements_in(schema)
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._joining: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._foresight = Foresight(self._runtime)
        self._delta_listeners: list[Callable[[Delta | Reset], None]] = []
        self._announcer: Announcer | None = None
        self._listener: Listener | None = None

    # ── open and close ─────────────────────────────────────────────────────────────────────────────────────
    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await (self.migrate() if self._migrate_at_start else self._check_schema())
        except BaseException:
            await self.__aexit__()
            raise
        sender = self._runtime.new_token()
        self._announcer = Announcer(self._runtime, sender, self._notify)
        if not self._pooler:
            ears = Ears(sender, lambda hint: self._publish([hint]), self._publish_delta)
            self._listener = Listener(self._runtime, lambda: connect(self._dsn), self._schema, ears, lambda: self._publish([Hint("work")]))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for part in (self._listener, self._announcer):
            if part is not None:
                await part.close()
        self._listener = self._announcer = None
        for pools in (self._pools, self._joining):
            for pool in pools.values():
                pool.close()
            pools.clear()
        self._loop = None

    def info(self) -> dict[str, Any]:
        return {"kind": "postgres", "address": self.address, "schema": SCHEMA, "durable": True, "namespace": self._schema, "pool_max": self._pool_max}

    async def _connect(self) -> Connection:
        return Connection(await connect(self._dsn), self._statements, self._codec, prepare=not self._pooler)

    # ── schema ─────────────────────────────────────────────────────────────────────────────────────────────
    async def migrate(self) -> int:
        return await self._call(self._migrate)

    async def _migrate(self, connection: Connection) -> int:
        """Any number of processes may do it at once: a lock of the database lets one after the other in."""
        found = await self._version(connection)
        if found == SCHEMA:
            return found
        async with connection.raw.transaction():
            await connection.ask("SELECT pg_advisory_xact_lock(hashtextextended(%(name)s, 0))", name=f"perdure:{self._schema}")
            # Asked again under the lock: somebody may have been here meanwhile.
            found = await self._version(connection)
            if found == 0:
                await connection.ask(f'CREATE SCHEMA IF NOT EXISTS "{self._schema}"')
            for step in MIGRATIONS[found:]:
                await connection.ask(in_schema(step.text, self._schema))
                await connection.ask(in_schema("UPDATE perdure.meta SET value = %(number)s WHERE name = 'schema'", self._schema), number=step.number)
        return SCHEMA

    async def _version(self, connection: Connection) -> int:
        """The version of the schema; 0 where there is none.

        Raises:
            SchemaTooNew: A newer Perdure made it.
        """
        # Asked of the catalogue's tables: `to_regclass` would answer from a cache that does not see what was made while we waited for the lock.
        if not await connection.ask("SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %(schema)s AND tablename = 'meta'", schema=self._schema):
            return 0
        [row] = await connection.ask(in_schema("SELECT value FROM perdure.meta WHERE name = 'schema'", self._schema))
        found: int = row["value"]
        if found > SCHEMA:
            raise SchemaTooNew(
                f"The schema {self._schema!r} at {self.address} has version {found}; this Perdure knows versions up to {SCHEMA}. Upgrade Perdure; nothing was touched.",
                address=self.address, found=found, known=SCHEMA,
            )  # fmt: skip
        return found

    async def _check_schema(self) -> None:
        found = await self._call(self._version)
        if found != SCHEMA:
            raise StoreUnavailable(
                f"The schema {self._schema!r} at {self.address} has version {found}, this Perdure works with {SCHEMA}. Run `perdure migrate`.",
                address=self.address, found=found, known=SCHEMA,
            )  # fmt: skip

    # ── calls ──────────────────────────────────────────────────────────────────────────────────────────────
    async def _write(self, verb: Verb[T]) -> T:
        answer, work = await self._call(lambda connection: connection.write(verb))
        self._foresight.learn_claims(work)
        if work.hints:
            self._tell(work.hints)
        return answer

    async def commit(self, commit: Commit) -> Committed:
        answer, hints = await self._call(partial(self._commit, commit))
        if hints:
            self._tell(hints)
        return answer

    async def _commit(self, commit: Commit, connection: Connection) -> tuple[Committed, set[Hint]]:
        foreseen = self._foresight.take(commit)
        answer, work = await connection.write(partial(apply, ask=commit), foreseen)
        self._foresight.learn(commit, answer, work, foreseen)
        return answer, work.hints

    async def _read(self, verb: Verb[T]) -> T:
        return await self._call(lambda connection: connection.read(verb))

    async def _look(self, verb: Verb[T]) -> T:
        return await self._call(lambda connection: connection.look(verb))

    async def _call(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Use a connection of this loop for one transaction, again and again while others are in its way or the server is away.

        A caller that is cancelled in the middle ends the connection with it: nobody knows what became of what was sent.
        """
        self._refuse_when_closed()
        return await persistently(self._runtime, self.address, partial(self._once, work))

    def _refuse_when_closed(self) -> None:
        if self._loop is None:
            raise StoreUnavailable("This store is not open. Open it with `async with` and keep it open while it is used.")

    async def _once(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._pool().connection() as connection:
            return await work(connection)

    def _pool(self, pools: dict[asyncio.AbstractEventLoop, Pool] | None = None) -> Pool:
        pools = self._pools if pools is None else pools
        loop = asyncio.get_running_loop()
        pool = pools.get(loop)
        if pool is None:
            for closed in [each for each in pools if each.is_closed()]:
                pools.pop(closed).close()
            pool = pools[loop] = Pool(self._connect, self._pool_max if loop is self._loop else 1)
        return pool

    # ── transactions with others ───────────────────────────────────────────────────────────────────────────
    @asynccontextmanager
    async def joined(self, *, idle: timedelta | None = None) -> AsyncGenerator[Joined]:
        """A transaction of the user's own rows and of runs: `async with store.joined() as together:`. An exception undoes all of it.

        It holds a connection until it ends, so it should not wait for a model or a person. That connection is none of those for calls: who has one open
        may call the store all the same, or would wait for himself.

        Args:
            idle: How long it may stay without a statement before the database takes it back.
        """
        self._refuse_when_closed()
        try:
            async with AsyncExitStack() as stack:
                connection = await persistently(self._runtime, self.address, partial(self._begin, stack, idle))
                together = Joined(connection, self.address)
                yield together
        except psycopg.Error as error:
            raise translate(error, self.address) from error
        self._tell(together.hints)

    async def _begin(self, stack: AsyncExitStack, idle: timedelta | None) -> Connection:
        """A transaction on a connection that is alive: one that has lain in the pool may have been ended meanwhile."""
        async with AsyncExitStack() as tried:
            connection = await tried.enter_async_context(self._pool(self._joining).connection())
            await tried.enter_async_context(connection.raw.transaction())
            milliseconds = 0 if idle is None else max(1, idle // timedelta(milliseconds=1))
            await connection.ask("SELECT set_config('idle_in_transaction_session_timeout', %(time)s, true)", time=str(milliseconds))
            stack.push_async_exit(tried.pop_all())
        return connection

    def joining(self, connection: Any) -> Joined:
        """A transaction that the user has opened on a connection of his own, to start runs with it. It is his to end; workers find the runs by polling.

        Raises:
            ConfigurationError: This is no `psycopg.AsyncConnection`.
        """
        if not isinstance(connection, psycopg.AsyncConnection):
            raise ConfigurationError(f"A run joins a transaction of psycopg 3: pass its AsyncConnection, not a {type(connection).__qualname__}.")
        own = cast("psycopg.AsyncConnection[Any]", connection)
        return Joined(Connection(own, self._statements, self._codec, prepare=False), self.address)

    # ── hints ──────────────────────────────────────────────────────────────────────────────────────────────
    def _tell(self, hints: set[Hint]) -> None:
        """What a durable write may have changed, told here and to others."""
        loop = self._loop
        if loop is None:
            return
        if loop is asyncio.get_running_loop():
            self._tell_here(hints)
        else:
            loop.call_soon_threadsafe(self._tell_here, hints)

    def _tell_here(self, hints: set[Hint]) -> None:
        self._publish(hints)
        if self._announcer is not None:
            self._announcer.tell(hints)

    async def _notify(self, payloads: Sequence[str]) -> None:
        """Send notifications, each transaction on its own. Never raises: they are only hints."""
        try:
            async with self._pool().connection() as connection:
                for payload in payloads:
                    await connection.ask("SELECT pg_notify(%(channel)s, %(payload)s)", channel=self._schema, payload=payload)
        except psycopg.Error:
            pass  # whoever did not hear it looks by himself

    async def send_deltas(self, deltas: Sequence[Delta | Reset]) -> None:
        if self._announcer is not None:
            self._announcer.stream(deltas)

    def on_delta(self, callback: Callable[[Delta | Reset], None]) -> Callable[[], None]:
        self._delta_listeners.append(callback)
        return lambda: self._delta_listeners.remove(callback) if callback in self._delta_listeners else None

    def _publish_delta(self, delta: Delta | Reset) -> None:
        for listener in list(self._delta_listeners):
            listener(delta)
