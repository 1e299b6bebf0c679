"""Statements in a pipeline, straight on libpq: a batch is sent as a whole, and its answers are read as a whole.

The driver has a pipeline of its own. It wakes up once for each statement, which costs more than the statements do, and it waits for ever where a batch is
longer than the socket's buffer. Here a batch is one wake-up, whatever its length. Everything else (connecting, TLS, notifications, errors) is the driver's.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import errors as pg
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import DictRow

from perdure.stores._moves._program import Row

Raw = psycopg.AsyncConnection[DictRow]

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as the server takes it: parameters by number, and the name under which a session prepares it."""

    name: bytes
    text: bytes
    parameters: tuple[str, ...]

    @classmethod
    def of(cls, name: str, text: str) -> Statement:
        """From a text with `%(name)s` for parameters."""
        found = tuple(dict.fromkeys(_PARAMETER.findall(text)))
        numbered = _PARAMETER.sub(lambda match: f"${found.index(match[1]) + 1}", text)
        return cls(f"perdure_{name}".encode(), numbered.encode(), found)


# ── values ─────────────────────────────────────────────────────────────────────────────────────────────────
def _encoded(value: Any) -> bytes | None:
    """A parameter as text (bytes as they are). Its type is left to the column, so each statement is prepared once, whatever its values, NULL included."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else str(int(value) if isinstance(value, bool) else value).encode()


def _integer(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


_DECODERS: Final[dict[int, Callable[[bytes], Any]]] = {
    16: lambda data: data != b"\x00",
    17: bytes,
    20: _integer,
    21: _integer,
    23: _integer,
    701: lambda data: struct.unpack(">d", data)[0],
    2278: lambda data: None,
}
"""By the oid of the type: boolean, bytea, the integers, double precision, void. Whatever else comes is text."""


def _rows(result: PGresult) -> list[Row]:
    columns: list[tuple[int, str, Callable[[bytes], Any]]] = []
    for at in range(result.nfields):
        name = result.fname(at)
        assert name is not None
        columns.append((at, name.decode(), _DECODERS.get(result.ftype(at), bytes.decode)))
    value = result.get_value
    rows: list[Row] = []
    for line in range(result.ntuples):
        rows.append({name: None if (data := value(line, at)) is None else decode(data) for at, name, decode in columns})
    return rows


# ── the exchange ───────────────────────────────────────────────────────────────────────────────────────────
class Wire:
    """The sending and receiving on one connection. Between `exchange` calls the connection may be used by the driver too.

    `prepare` False: every statement is sent whole, because a pooler may give each transaction another session.
    """

    def __init__(self, raw: Raw, *, prepare: bool) -> None:
        self._raw, self._prepare = raw, prepare
        self._prepared: set[bytes] = set()

    @property
    def amid(self) -> bool:
        """Whether a batch was sent whose answers were not read to their end."""
        return bool(self._raw.pgconn.pipeline_status)

    async def exchange(self, statements: Sequence[tuple[Statement, Mapping[str, Any]]]) -> list[list[Row]]:
        """Send a batch; answers the rows of each statement.

        Raises:
            psycopg.Error: The first statement that was refused; those after it were not carried out. Or the connection broke.
        """
        pgconn = self._raw.pgconn
        pgconn.enter_pipeline_mode()
        asked = [(statement, self._send(pgconn, statement, params)) for statement, params in statements]
        pgconn.pipeline_sync()
        results = await _received(pgconn)
        pgconn.exit_pipeline_mode()
        return [_rows(result) for result in self._checked(asked, results)]

    def _checked(self, asked: Sequence[tuple[Statement, bool]], results: Sequence[PGresult]) -> list[PGresult]:
        """The result of each statement; a statement that was prepared has one more before it."""
        remaining, answers, refused = iter(results), list[PGresult](), None
        for statement, new in asked:
            if new and not _fine(prepared := next(remaining)):
                self._prepared.discard(statement.name)
                refused = refused or prepared
            answers.append(answer := next(remaining))
            refused = refused or (None if _fine(answer) else answer)
        if refused is not None:
            error = pg.error_from_result(refused)
            if isinstance(error, pg.FeatureNotSupported):
                # A table has changed under a prepared statement: another session prepares it anew.
                self._raw.pgconn.finish()
            raise error
        return answers

    def _send(self, pgconn: PGconn, statement: Statement, params: Mapping[str, Any]) -> bool:
        """Queue one statement; answers whether it had to be prepared first."""
        values = [params[name] for name in statement.parameters]
        formats = [Format.BINARY if isinstance(value, bytes) else Format.TEXT for value in values]
        encoded = [_encoded(value) for value in values]
        if not self._prepare:
            pgconn.send_query_params(statement.text, encoded, param_formats=formats, result_format=Format.BINARY)
            return False
        new = statement.name not in self._prepared
        if new:
            pgconn.send_prepare(statement.name, statement.text)
            self._prepared.add(statement.name)
        pgconn.send_query_prepared(statement.name, encoded, param_formats=formats, result_format=Format.BINARY)
        return new


def _fine(result: PGresult) -> bool:
    return result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)


async def _received(pgconn: PGconn) -> list[PGresult]:
    """Every result of the batch, up to its end."""
    results: list[PGresult] = []
    unsent = pgconn.flush() == 1
    while True:
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if pgconn.status == ConnStatus.BAD:
                    raise psycopg.OperationalError(pgconn.get_error_message())
            elif result.status == ExecStatus.PIPELINE_SYNC:
                return results
            else:
                results.append(result)
        await _ready(pgconn.socket, unsent)
        pgconn.consume_input()
        unsent = unsent and pgconn.flush() == 1


async def _ready(socket: int, unsent: bool) -> None:
    """Wait until the socket has something for us, or takes more of what is unsent."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(socket, wake)
    if unsent:
        loop.add_writer(socket, wake)
    try:
        await ready
    finally:
        loop.remove_reader(socket)
        if unsent:
            loop.remove_writer(socket)
