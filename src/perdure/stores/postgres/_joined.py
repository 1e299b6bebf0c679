"""One transaction for rows of the user's and of ours: both are there, or neither."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from perdure.core.commit import Admitted, Commit, Committed, NewRun
from perdure.core.errors import ConfigurationError
from perdure.stores._moves import _admit, _commit
from perdure.stores._moves._program import Verb
from perdure.stores._protocol import Hint
from perdure.stores.postgres._connection import Connection
from perdure.stores.postgres._errors import CONFLICTS, translate, worth_repeating

T = TypeVar("T")


class Joined:
    """A transaction that is open. Whoever opened it ends it; until then nothing of it can be seen from outside.

    `connection` is yours to use, from the same task, never at the same moment as the calls here.
    """

    def __init__(self, connection: Connection, address: str) -> None:
        self._connection, self._address = connection, address
        self.hints: set[Hint] = set()
        """What the transaction will have changed, once it is durable."""

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        return self._connection.raw

    async def admit(self, new: NewRun) -> Admitted:
        """Start a run with this transaction. It may be claimed once the transaction has ended well.

        Raises:
            Conflict: As `Store.admit`. Nothing was written; the transaction goes on.
            StoreError: The database refused; the transaction is lost.
        """
        return await self._drive(lambda work: _admit.admit(work, new))

    async def commit(self, commit: Commit) -> Committed:
        """Write an execution's commit with this transaction. An answer `lost` wrote nothing: leave the transaction with an error, so that your rows are not kept either.

        Raises:
            StoreError: The database refused; the transaction is lost.
        """
        return await self._drive(lambda work: _commit.commit(work, commit))

    def passing(self, error: BaseException) -> bool:
        """Whether the driver says that others were in the way, or that the connection broke."""
        if isinstance(error, psycopg.errors.UniqueViolation):
            return False  # the user's own table said it, and would say it again
        return isinstance(error, CONFLICTS) or (isinstance(error, psycopg.Error) and worth_repeating(error))

    async def _begun(self) -> None:
        """Our statements go past the driver, which therefore can't begin its transaction for them.

        Raises:
            ConfigurationError: There is no transaction and none would begin.
        """
        if self.connection.pgconn.transaction_status != TransactionStatus.IDLE:
            return
        if self.connection.autocommit:
            raise ConfigurationError("This connection has no transaction open. Use `async with connection.transaction():` around it.")
        await self.connection.execute("SELECT 1")

    async def _drive(self, verb: Verb[T]) -> T:
        try:
            await self._begun()
            answer, work = await self._connection.join(verb)
        except psycopg.Error as error:
            raise translate(error, self._address) from error
        self.hints |= work.hints
        return answer
