"""The driver's errors, translated once, and which of them are worth repeating."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg import errors as pg

from perdure.core.errors import ConfigurationError, PerdureError, ReadOnlyStore, StoreError, StoreFull, StoreUnavailable

CONFLICTS: Final = (pg.SerializationFailure, pg.DeadlockDetected, pg.UniqueViolation)
"""Two transactions got in each other's way: this one was undone whole, so it is driven again from its beginning.

A unique violation is one of them: programs look before they insert, so it means that somebody else inserted in between, and is durable by now.
"""

PASSING: Final = (
    pg.AdminShutdown, pg.CrashShutdown, pg.CannotConnectNow, pg.IdleInTransactionSessionTimeout, pg.TooManyConnections, pg.ReadOnlySqlTransaction,
    pg.LockNotAvailable, pg.QueryCanceled, pg.FeatureNotSupported, pg.ProtocolViolation,
)  # fmt: skip
"""The server says that it will pass: a restart, a failover to another machine, too many at once.

`FeatureNotSupported` is what a prepared statement says whose table got a new column meanwhile: on another connection it is prepared anew.
`ProtocolViolation` is what PgBouncer says of a server that it can't reach at the moment.
"""

MISTAKES: Final = (
    "password authentication failed",
    "no pg_hba.conf entry",
    "does not exist",
    "no password supplied",
    "invalid connection option",
    "SSL",
)
"""Words of connection errors that repeating does not help with. The driver gives no code for them."""


def worth_repeating(error: psycopg.Error) -> bool:
    """Whether the same call may work on another connection in a moment. Nothing is known of what became of it; every verb is safe to repeat."""
    if isinstance(error, PASSING):
        return True
    # A broken connection is an OperationalError without a code; those with one are the server's last word.
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and error.sqlstate is None and not _mistake(error)


def _mistake(error: psycopg.Error) -> bool:
    return any(words in str(error) for words in MISTAKES)


def translate(error: psycopg.Error, where: str) -> PerdureError:
    """Our error for the driver's. Raise it `from` the driver's. `where` is the address without its secrets."""
    if isinstance(error, (pg.DiskFull, pg.OutOfMemory)):
        return StoreFull(
            f"Postgres at {where} has no room left ({error}). Nothing of the refused write was kept: free some, and the store goes on.", address=where
        )
    if isinstance(error, (pg.ReadOnlySqlTransaction, pg.InsufficientPrivilege)):
        return ReadOnlyStore(
            f"Postgres at {where} lets this user or this server write nothing: {error}. Use the primary, and a user who owns the schema.",
            address=where,
        )
    if isinstance(error, (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidSchemaName)):
        return StoreUnavailable(f"The schema at {where} is not the one that this Perdure works with ({error}). Run `perdure migrate`.", address=where)
    if isinstance(error, (pg.InvalidSqlStatementName, pg.DuplicatePreparedStatement)):
        return ConfigurationError(
            f"Postgres at {where} lost or doubled a prepared statement: a transaction pooler stands before it. Open the store with pooler=True.",
            address=where,
        )
    if isinstance(error, pg.UniqueViolation):
        return StoreError(f"Postgres at {where} refused a row that is there already: {_first_line(error)}.", address=where)
    if isinstance(error, CONFLICTS):
        return StoreUnavailable(
            f"Postgres at {where} undid this call several times because others were in its way. Nothing was written; try again.", address=where
        )
    if worth_repeating(error):
        return StoreUnavailable(
            f"Postgres at {where} can't be reached: {_first_line(error)}. What was sent may have been applied; repeat it.", address=where
        )
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return StoreError(f"Postgres at {where} refused the connection: {_first_line(error)}. Check user, password and database.", address=where)
    return StoreError(f"Postgres at {where} refused a call: {_first_line(error)} ({error.sqlstate}).", address=where)


def _first_line(error: psycopg.Error) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
