"""Connections that are used one call at a time, and calls that are repeated when a connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import psycopg

from perdure.core.runtime import Runtime
from perdure.stores.postgres._connection import Connection
from perdure.stores.postgres._errors import CONFLICTS, translate, worth_repeating

T = TypeVar("T")

CONFLICT_TRIES: Final = 10
"""How often a transaction is driven again because another one was in its way."""

UNREACHABLE_SECONDS_MAX: Final = 10.0
"""How long a call repeats by itself while the server can't be reached: a restart of it, not an outage. The engine goes on repeating after that."""


class Pool:
    """At most `size` connections of one event loop. A connection is held for one transaction, never for longer."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._free: list[Connection] = []
        self._all: set[Connection] = set()
        self._room = asyncio.Semaphore(size)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """A connection that nobody else uses meanwhile; it waits in line where all are in use."""
        async with self._room:
            connection = await self._take()
            try:
                yield connection
            finally:
                self._give_back(connection)

    async def _take(self) -> Connection:
        if self._free:
            return self._free.pop()
        connection = await self._connect()
        self._all.add(connection)
        return connection

    def _give_back(self, connection: Connection) -> None:
        if connection.broken:
            self._drop(connection)
        else:
            self._free.append(connection)

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.finish()

    def close(self) -> None:
        """End every connection, whichever loop it belongs to: at once, and without I/O that could wait."""
        for connection in list(self._all):
            self._drop(connection)
        self._free.clear()


async def persistently(runtime: Runtime, where: str, call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call whose transaction was in another's way, or whose connection broke, within bounds. Every verb is safe to repeat.

    Raises:
        StoreError: What the driver says, in our words, once repeating did not help.
    """
    until = runtime.monotonic() + UNREACHABLE_SECONDS_MAX
    tried = 0
    while True:
        tried += 1
        try:
            return await call()
        except psycopg.Error as error:
            again = tried < CONFLICT_TRIES if isinstance(error, CONFLICTS) else worth_repeating(error) and runtime.monotonic() < until
            if not again:
                raise translate(error, where) from error
            pause = 0.005 if isinstance(error, CONFLICTS) else 0.05
        # Spread out, so that those who got in each other's way do not meet again.
        await runtime.sleep(min(pause * 2**tried, 1.0) * (0.5 + runtime.random()))
