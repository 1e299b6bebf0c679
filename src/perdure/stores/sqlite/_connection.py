"""One connection to the file, used by one thread: its settings, its queries, its transactions."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeVar

from perdure.core import given
from perdure.core.errors import ConfigurationError, NotADatabase, SchemaTooNew, StoreError, StoreUnavailable
from perdure.core.runtime import Runtime
from perdure.stores._moves._files import load_migrations, load_queries
from perdure.stores._moves._program import CLOCK, NOTHING, Program, Rows, Work, micros
from perdure.stores.sqlite._errors import is_busy, translate

logger = logging.getLogger("perdure")
T = TypeVar("T")

Synchronous = Literal["FULL", "NORMAL", "OFF", "EXTRA"]

QUERIES: Final = load_queries("perdure.stores.sqlite")
MIGRATIONS: Final = load_migrations("perdure.stores.sqlite")
SCHEMA: Final = len(MIGRATIONS)
"""The newest schema that this version knows."""

APPLICATION: Final = 0x50657264
"""Marks the file as ours (`Perd`), see PRAGMA application_id."""

SMALLEST: Final = 512
"""Bytes of the smallest database that SQLite writes: one page."""

BUSY_MS: Final = 25
"""How long SQLite itself waits for a lock before we look again. Short, because its waits grow and make it lose to processes that come later."""

BUSY_SECONDS_MAX: Final = 60.0
"""How long a lock may be held against us before the call fails as unavailable: far above any commit of ours, below a person's patience."""

BUSY_SECONDS_TOLD: Final = 5.0
"""After how long a warning says that a lock is held against us: most often a process was stopped in the middle of a write."""


class Connection:
    """A connection that belongs to the thread which opened it."""

    def __init__(self, path: Path, runtime: Runtime, *, synchronous: Synchronous = "FULL") -> None:
        self.path, self._runtime = path, runtime
        self._offset: int | None = None
        self._files: dict[str, tuple[int, int]] = {}
        try:
            path.lstat()
        except FileNotFoundError:
            pass  # it is made now
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{given.shown(str(path))} can't be the name of a file here: {error.strerror if isinstance(error, OSError) else error}."
            ) from error
        if not path.parent.is_dir():
            raise ConfigurationError(
                f"The folder {path.parent} does not exist, so {path.name} can't be created there. Make the folder, or name another path."
            )
        if path.is_dir():
            raise ConfigurationError(f"{path} is a folder. Name a file in it, for example {path / 'perdure.db'}.")
        self._refuse_other_files()
        with self.translated():
            self._raw = sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None, cached_statements=256, check_same_thread=False)
        try:
            with self.translated():
                self._prepare(synchronous)
        except BaseException:
            self._raw.close()
            raise

    def _prepare(self, synchronous: Synchronous) -> None:
        raw = self._raw
        raw.row_factory = sqlite3.Row
        # Asked for first: setting it again would need the file alone for a moment, which other processes would feel.
        if self.patiently(lambda: raw.execute("PRAGMA journal_mode").fetchone()[0]) != "wal":
            self._refuse_strangers()
            self.patiently(lambda: raw.execute("PRAGMA journal_mode = WAL").fetchone())
        raw.execute(f"PRAGMA synchronous = {synchronous}")
        raw.execute("PRAGMA temp_store = MEMORY")
        raw.execute("PRAGMA cache_size = -16000")
        # The log is copied back every 1000 pages; a file that once grew gives its room back.
        raw.execute("PRAGMA journal_size_limit = 16777216")

    # ── statements ─────────────────────────────────────────────────────────────────────────────────────────
    def execute(self, text: str) -> list[sqlite3.Row]:
        """One statement without parameters."""
        return self._raw.execute(text).fetchall()

    def run(self, program: Program[T], work: Work) -> T:
        """Drive a program inside the transaction that is open."""
        execute = self._raw.execute
        try:
            batch = next(program)
            while True:
                answers: list[Rows] = []
                for name, params in batch:
                    if name == CLOCK.name:
                        answers.append([{"now": self._clock()}])
                    elif name == NOTHING.name:
                        answers.append(())
                    else:
                        answers.append(execute(QUERIES[name], params).fetchall())
                batch = program.send(answers)
        except StopIteration as stop:
            for name, params in work.finish():
                execute(QUERIES[name], params)
            return stop.value

    @property
    def written(self) -> int:
        """How many rows this connection has written."""
        return self._raw.total_changes

    def _clock(self) -> int:
        """The store's clock: the machine's, and what a test has added to it (read once in a transaction)."""
        if self._offset is None:
            [[self._offset]] = self._raw.execute(QUERIES["clock_offset"]).fetchall()
        now = micros(self._runtime.now())
        assert now is not None and self._offset is not None
        return now + self._offset

    # ── transactions ───────────────────────────────────────────────────────────────────────────────────────
    def begin(self) -> None:
        """Take the write lock, however many other processes want it.

        Raises:
            sqlite3.OperationalError: Nobody let us have it within `BUSY_SECONDS_MAX`.
            StoreError: The file is no longer where it was.
        """
        self.patiently(lambda: self._raw.execute("BEGIN IMMEDIATE"))
        self._offset = None
        self._check_files()

    def _check_files(self) -> None:
        """SQLite goes on writing into files that were removed or replaced, and says that all is well: what it acknowledges then is lost for everybody else."""
        now = {name: _inode(name) for name in (str(self.path), f"{self.path}-wal")}
        gone = [name for name, inode in self._files.items() if now[name] != inode]
        if gone:
            self.rollback()
            raise StoreError(
                f"{gone[0]} was removed, moved or replaced while it was open. Nothing more is written to it: put it back, or stop this process.",
                path=gone[0],
            )
        self._files = {name: inode for name, inode in now.items() if inode is not None}

    @contextmanager
    def snapshot(self) -> Generator[None, None, None]:
        """A read transaction: everything in it is seen as of one moment."""
        self.patiently(lambda: self._raw.execute("BEGIN"))
        self._offset = None
        try:
            yield
        finally:
            self.rollback()

    def rollback(self) -> None:
        """Undo what is open, if anything is: some errors end the transaction by themselves."""
        if self._raw.in_transaction:
            self._raw.execute("ROLLBACK")

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Repeat while the file is locked by others, within `BUSY_SECONDS_MAX`. Each attempt waits `BUSY_MS` by itself."""
        since: float | None = None
        told = False
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                now = self._runtime.monotonic()
                since = now if since is None else since
                if now - since >= BUSY_SECONDS_MAX:
                    raise
                if now - since >= BUSY_SECONDS_TOLD and not told:
                    told = True
                    logger.warning(
                        "%s has been locked by another process for %.0f s, and everything waits for it. A process that was stopped in the middle of a "
                        "write holds the lock until it goes on or is ended.",
                        self.path,
                        now - since,
                    )

    @contextmanager
    def translated(self) -> Generator[None, None, None]:
        """Our errors in place of the driver's."""
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self.path) from error

    def close(self) -> None:
        self._raw.close()

    # ── schema ─────────────────────────────────────────────────────────────────────────────────────────────
    def schema(self) -> int:
        """The version of the file's schema; 0 for an empty file.

        Raises:
            SchemaTooNew: A newer Perdure wrote it.
            NotADatabase: It is another program's.
        """
        with self.translated():
            [[version]] = self.patiently(lambda: self.execute("PRAGMA user_version"))
            self._refuse_strangers()
        if version > SCHEMA:
            raise SchemaTooNew(
                f"{self.path} has schema {version}; this Perdure knows schemas up to {SCHEMA}. Upgrade Perdure; nothing was touched.",
                path=str(self.path), found=version, known=SCHEMA,
            )  # fmt: skip
        return version

    def _refuse_other_files(self) -> None:
        """SQLite takes a file that is shorter than its header for an empty one, and would write over it.

        Told by its size alone: to open the file here and close it again would drop every lock that this process's other connections hold on it
        (POSIX locks belong to the process), and the next process to leave would delete their log under their feet.
        """
        if self.path.is_file() and 0 < self.path.stat().st_size < SMALLEST:
            raise NotADatabase(f"{self.path} is not a SQLite database. Name another file, or move this one away.", path=str(self.path))

    def _refuse_strangers(self) -> None:
        [[application]] = self.patiently(lambda: self.execute("PRAGMA application_id"))
        if application == APPLICATION:
            return
        if application or self.patiently(lambda: self.execute("SELECT 1 FROM sqlite_schema LIMIT 1")):
            raise NotADatabase(f"{self.path} holds another program's tables. Give Perdure a file of its own.", path=str(self.path))

    def migrate(self) -> int:
        """Bring the schema up to date. Any number of processes may do it at once: the first one to get the lock does it."""
        if self.schema() == SCHEMA:
            return SCHEMA
        with self.translated():
            self.begin()
            try:
                # Asked again under the lock: somebody may have been here meanwhile.
                for step in MIGRATIONS[self.schema() :]:
                    for statement in statements(step.text):
                        self._raw.execute(statement)
                    self._raw.execute(f"PRAGMA user_version = {step.number}")
                self._raw.execute(f"PRAGMA application_id = {APPLICATION}")
                self._raw.execute("COMMIT")
            except BaseException:
                self.rollback()
                raise
        return SCHEMA

    def ready(self) -> None:
        """Raises unless the schema is the one that this version works with."""
        if (found := self.schema()) != SCHEMA:
            raise StoreUnavailable(
                f"{self.path} has schema {found}, this Perdure works with {SCHEMA}. Run `perdure migrate`.",
                path=str(self.path),
                found=found,
                known=SCHEMA,
            )


def statements(text: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit the open transaction first."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""


def _inode(name: str) -> tuple[int, int] | None:
    try:
        found = Path(name).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
