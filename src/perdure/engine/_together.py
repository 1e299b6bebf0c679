"""The transaction of one effect call (E7): rows of the user's, and the record that the effect is done, in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, TypeVar

from perdure.core.commit import Commit, Committed, Outcome
from perdure.core.errors import ConfigurationError, StoreUnavailable
from perdure.effects import Retry
from perdure.stores import Joined, JoiningStore

if TYPE_CHECKING:
    from perdure.engine._execution import Execution

T = TypeVar("T")

AGAIN: Final = Retry(attempts=3, backoff=timedelta(seconds=0.1))
"""Tries of a transaction that the database took back because others were in its way."""


class RolledBack(Exception):
    """The database took the transaction back: neither the rows nor the record are there."""


class _NotApplied(Exception):
    """The run is somebody else's, or this record stands already: nothing of the transaction may stay."""


class _At(Enum):
    NOWHERE = auto()
    IN_BLOCK = auto()
    """The body is inside `async with`."""
    PENDING = auto()
    """The block was left well; the rows wait for the record."""
    DEAD = auto()
    """The body was given up: whatever it still does in its block is taken back."""


class Together:
    """The transaction that a tool's body may open. It is ended with the record, after the body has returned: only then is the result known.

    A body that raises, is cancelled or takes too long has written nothing.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._loop = asyncio.get_running_loop()
        self._at = _At.NOWHERE
        self._joined: Joined | None = None
        self._stack = AsyncExitStack()

    @property
    def pending(self) -> bool:
        """Whether there are rows that wait for the record."""
        return self._at is _At.PENDING

    # ── for the body ───────────────────────────────────────────────────────────────────────────────────────
    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Any]:
        """`current_run().transaction()`.

        Raises:
            ConfigurationError: The store can't, or this call has a transaction already.
            RolledBack: Others were in the way, or the connection broke.
        """
        store = self._execution.store
        if not isinstance(store, JoiningStore):
            raise ConfigurationError("transaction() needs a store on Postgres: your rows and the engine's are then in one database.")
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError("transaction() works on the engine's event loop. Make the tool an `async def` and open it there.")
        if self._at is not _At.NOWHERE:
            raise ConfigurationError("One transaction a call: it is committed when the tool returns. Write everything inside one block.")
        self._at, self._stack = _At.IN_BLOCK, AsyncExitStack()
        try:
            # A stopped process must not keep its rows locked for longer than its lease: whoever takes over writes the same ones.
            joined = self._joined = await self._stack.enter_async_context(store.joined(idle=self._execution.lease_length))
        except BaseException:
            self._left()
            raise
        try:
            yield joined.connection
        except BaseException as error:
            await self._take_back(error)
            if joined.passing(error):
                raise RolledBack(f"{type(error).__name__}: {error}") from error
            raise
        if not self._still_wanted():
            error = RolledBack("The call was given up before its transaction ended.")
            await self._take_back(error)
            raise error
        self._at = _At.PENDING

    def _still_wanted(self) -> bool:
        return self._at is _At.IN_BLOCK

    # ── for the desk ───────────────────────────────────────────────────────────────────────────────────────
    async def around(self, body: Awaitable[T]) -> T:
        """The body, or what follows it; where it does not return, the rows are taken back."""
        try:
            value = await body
        except BaseException as error:
            await self._give_up(error)
            raise
        if self._at is _At.IN_BLOCK:
            self._at = _At.DEAD
            raise ConfigurationError("The tool returned while its transaction was open. Leave the block of transaction() first.")
        return value

    async def commit(self, commit: Commit) -> Committed:
        """Write the commit with the transaction, and end it. Any other answer than `applied` wrote nothing of either.

        Raises:
            StoreError: The database refused, or can't be reached: then nobody knows yet whether it was applied.
        """
        joined = self._joined
        if joined is None:
            raise StoreUnavailable("The transaction was taken back before its record could be written.")
        stack, self._stack = self._stack, AsyncExitStack()
        self._left()
        answer: Committed | None = None
        try:
            async with stack:
                answer = await joined.commit(commit)
                if answer.outcome is not Outcome.APPLIED:
                    raise _NotApplied
        except _NotApplied:
            pass
        assert answer is not None
        return answer

    async def _give_up(self, error: BaseException) -> None:
        if self._at is _At.PENDING:
            await self._take_back(error)
        elif self._at is _At.IN_BLOCK:
            # The body is still in there, and will find out when it leaves.
            self._at = _At.DEAD

    async def _take_back(self, error: BaseException) -> None:
        stack, self._stack = self._stack, AsyncExitStack()
        self._left()
        try:
            await stack.__aexit__(type(error), error, error.__traceback__)
        except Exception:
            pass  # a connection that breaks now is taken back by the database itself

    def _left(self) -> None:
        self._at, self._joined = _At.NOWHERE, None
