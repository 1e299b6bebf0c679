"""A real Postgres under a simulated machine: each call of the store takes real time and no virtual time, and the database shows the simulation's clock."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import psycopg

from perdure.core.runtime import Runtime
from perdure.stores import Hint
from perdure.stores.postgres import PostgresStore

SCHEMAS = itertools.count(1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONG = 60.0
"""Seconds that no call should ever take."""

STOPPED_CLOCK = """
CREATE SCHEMA {schema};
CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT to_timestamp(0) $$;
"""
"""Found before the database's own, so that the store's clock is its offset alone."""

DUE = """
SELECT least(
    (SELECT min(least(due_at, deadline)) FROM {schema}.run WHERE status IN ('pending', 'interrupted', 'waiting')),
    (SELECT min(lease_expires_at) FROM {schema}.run WHERE status = 'running'),
    (SELECT min(least(expires_at, notice_at)) FROM {schema}.wait WHERE resolved_at IS NULL)
)
"""
IDLE: dict[str, Callable[[Any], bool]] = {
    "claim": lambda runs: not runs,
    "sweep": lambda swept: not swept.count,
    "claim_notices": lambda due: not due,
    "get": lambda run: True,
}
"""Calls of who waits, and how to tell that they changed nothing."""
READS = ("get", "find", "runs", "counts", "steps", "events", "checkpoint", "waits", "wait", "effects", "load", "now", "get_artifact")


class BridgedPostgres:
    """The store that simulated engines share. The real one lives on a loop and thread of its own; whoever calls is blocked until it answers."""

    def __init__(self, dsn: str, runtime: Runtime) -> None:
        self._runtime = runtime
        self.schema = f"simulated_{next(SCHEMAS)}"
        self._listeners: list[Callable[[Hint], None]] = []
        self._hints: list[Hint] = []
        self._shown: datetime | None = None
        self._quiet: dict[Any, tuple[Any, datetime | None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._aside = psycopg.connect(dsn, autocommit=True)
        self._aside.execute(STOPPED_CLOCK.format(schema=self.schema).encode())
        options = f"options=-csearch_path%3D{self.schema},pg_catalog"
        self._store = PostgresStore(f"{dsn}&{options}", schema=self.schema, pool_max=2, pooler=True)
        self._wait(self._store.__aenter__())
        self._store.on_hint(self._hints.append)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LONG)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass  # the next engine of the test goes on with it

    def close(self) -> None:
        """End the real store and forget its schema."""
        self._wait(self._store.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._aside.execute(f"DROP SCHEMA {self.schema} CASCADE".encode())
        self._aside.close()

    def on_hint(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def on_delta(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        return lambda: None

    async def send_deltas(self, deltas: Any) -> None:
        pass

    def info(self) -> dict[str, Any]:
        return self._store.info()

    def _due(self) -> datetime | None:
        """When time alone may change an answer."""
        row = self._aside.execute(DUE.format(schema=self.schema).encode()).fetchone()
        assert row is not None
        return None if row[0] is None else EPOCH + timedelta(microseconds=row[0])

    def __getattr__(self, verb: str) -> Any:
        """Any verb of the protocol."""
        real = getattr(self._store, verb)
        empty = IDLE.get(verb)

        async def call(*args: Any, **options: Any) -> Any:
            now = self._runtime.now()
            asked = (verb, f"{args[0].agents} {args[0].run_id}" if verb == "claim" else str(args))
            if asked in self._quiet:
                # Who waits asks a thousand times an hour. What came to nothing comes to nothing until something changes or is due.
                answer, until = self._quiet[asked]
                if until is None or now < until:
                    return answer

            async def work() -> Any:
                if now != self._shown:
                    await self._store.move_clock(now - (self._shown or EPOCH))
                    self._shown = now
                return await real(*args, **options)

            try:
                answer = self._wait(work())
                if empty is not None and empty(answer):
                    self._quiet[asked] = answer, self._due()
                elif verb not in READS:
                    self._quiet.clear()
                return answer
            except BaseException:
                self._quiet.clear()
                raise
            finally:
                hints, self._hints[:] = list(self._hints), []
                for hint in hints:
                    for listener in list(self._listeners):
                        listener(hint)

        return call
