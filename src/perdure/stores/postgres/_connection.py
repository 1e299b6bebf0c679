"""One connection, and one transaction on it: a program's batches, each one round trip."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, TransactionStatus
from psycopg.rows import dict_row

from perdure.core.codec import Codec
from perdure.core.errors import ConfigurationError
from perdure.stores._moves._files import load_migrations, load_queries
from perdure.stores._moves._program import NOTHING, Query, Row, Rows, Verb, Work
from perdure.stores.postgres._foresight import Foreseen
from perdure.stores.postgres._wire import Raw, Statement, Wire

T = TypeVar("T")

QUERIES: Final = load_queries("perdure.stores.postgres")
MIGRATIONS: Final = load_migrations("perdure.stores.postgres")
SCHEMA: Final = len(MIGRATIONS)
"""The newest schema that this version knows."""

Bound = tuple[Statement, Mapping[str, Any]]
"""A statement and its parameters."""

_OURS: Final = re.compile(r"\bperdure\.")
_WRITING: Final = Statement.of("begin", "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_READING: Final = Statement.of("begin_read", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_COMMIT: Final = Statement.of("commit", "COMMIT")


def in_schema(text: str, schema: str) -> str:
    """A text of ours for the schema that the user chose. Names are written out, because a pooler may give each transaction another session."""
    return _OURS.sub(f'"{schema}".', text)


def statements_in(schema: str) -> dict[str, Statement]:
    """Every query for this schema."""
    return {name: Statement.of(name, in_schema(text, schema)) for name, text in QUERIES.items()}


def address_of(dsn: str) -> str:
    """The address without its secrets.

    Raises:
        ConfigurationError: It is no address of a Postgres database.
    """
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error as error:
        raise ConfigurationError(f"This is no address of a Postgres database: {error}. Write postgresql://user:password@host/database.") from None
    return make_conninfo("", **{name: value for name, value in parts.items() if name in ("host", "port", "dbname", "user")})


async def connect(dsn: str) -> Raw:
    """A connection as the store uses it."""
    return await Raw.connect(dsn, autocommit=True, row_factory=dict_row, prepare_threshold=None, application_name="perdure")


class Connection:
    """A connection of the pool. Used by one call at a time."""

    def __init__(self, raw: Raw, statements: Mapping[str, Statement], codec: Codec, *, prepare: bool) -> None:
        self.raw, self._statements, self._codec = raw, statements, codec
        self._wire = Wire(raw, prepare=prepare)

    # ── transactions ───────────────────────────────────────────────────────────────────────────────────────
    async def write(self, verb: Verb[T], foreseen: Foreseen | None = None) -> tuple[T, Work]:
        """Drive a program in one transaction. BEGIN goes with its first batch, its last writes and the COMMIT are one.

        What its first batch would answer may be `foreseen`: then all of it is one. Where that turns out wrong nothing was written, and it is driven again.
        """
        if foreseen is not None:
            try:
                return await self._transaction(_WRITING, verb, foreseen)
            except psycopg.errors.InvalidTextRepresentation:
                pass
        return await self._transaction(_WRITING, verb)

    async def read(self, verb: Verb[T]) -> T:
        """Drive a program that only reads, as of one moment."""
        answer, _ = await self._transaction(_READING, verb)
        return answer

    async def look(self, verb: Verb[T]) -> T:
        """Drive a program that reads, each query as of its own moment: no transaction, so no round trip for its end."""
        answer, _ = await self._drive([], verb, [])
        return answer

    async def join(self, verb: Verb[T]) -> tuple[T, Work]:
        """Drive a program inside the transaction that is open."""
        return await self._drive([], verb, [])

    async def _transaction(self, begin: Statement, verb: Verb[T], foreseen: Foreseen | None = None) -> tuple[T, Work]:
        try:
            return await self._drive([(begin, {})], verb, [(_COMMIT, {})], foreseen)
        except BaseException:
            await self._roll_back()
            raise

    async def _drive(self, begin: Sequence[Bound], verb: Verb[T], end: Sequence[Bound], foreseen: Foreseen | None = None) -> tuple[T, Work]:
        work = Work(self._codec)
        program = verb(work)
        try:
            batch = next(program)
            if foreseen is not None and (answers := foreseen.answers(batch)) is not None:
                begin = [*begin, self._bound(foreseen.proof)]
                batch = program.send(answers)
            while True:
                answers = await self._ask(begin, batch)
                begin = []
                batch = program.send(answers)
        except StopIteration as stop:
            last = [*begin, *(self._bound(query) for query in work.finish()), *end]
            if last:
                await self._wire.exchange(last)
            return stop.value, work

    async def _ask(self, before: Sequence[Bound], batch: Sequence[Query]) -> Sequence[Rows]:
        asked = [query for query in batch if query.name != NOTHING.name]
        answers = await self._wire.exchange([*before, *(self._bound(query) for query in asked)])
        rows = iter(answers[len(before) :])
        return [() if query.name == NOTHING.name else next(rows) for query in batch]

    def _bound(self, query: Query) -> Bound:
        return self._statements[query.name], query.params

    async def _roll_back(self) -> None:
        """Undo what is open. A connection whose state is not plain is ended: the pool makes another."""
        if self._wire.amid:
            self.finish()
        elif self.raw.pgconn.transaction_status != TransactionStatus.IDLE:
            try:
                await self.raw.execute("ROLLBACK")
            except psycopg.Error:
                self.finish()

    # ── single statements ──────────────────────────────────────────────────────────────────────────────────
    async def ask(self, text: str, **params: Any) -> list[Row]:
        """One statement of its own, never prepared."""
        cursor = await self.raw.execute(text.encode(), params or None)
        return [*await cursor.fetchall()] if cursor.description is not None else []

    # ── its end ────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def broken(self) -> bool:
        """Whether it can't be used again."""
        return self.raw.pgconn.status == ConnStatus.BAD or self.raw.pgconn.transaction_status != TransactionStatus.IDLE

    def finish(self) -> None:
        """End it at once, from whatever loop or thread: nothing is waited for."""
        self.raw.pgconn.finish()
