"""The two threads of a SQLite store: one that writes in groups, one that reads.

Everything that a process writes goes through one thread. Writes that wait at the same moment share one transaction, and so one fsync. Each stands alone all the
same: one that is refused before it wrote anything has left nothing, and where it had, the group is undone and its members are carried out one by one. (A savepoint
for each would cost more than all of that: two statements a write, and with each the thread gives Python's lock away.) A write is answered only after its COMMIT returned.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from perdure.core.codec import Codec
from perdure.core.errors import StoreError, StoreUnavailable
from perdure.core.limits import GROUP_COMMITS_MAX, GROUP_SECONDS_MAX
from perdure.core.runtime import Runtime
from perdure.stores._moves._program import Program, Verb, Work
from perdure.stores._protocol import Hint
from perdure.stores.sqlite._connection import Connection
from perdure.stores.sqlite._errors import is_busy, translate

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """One call that waits on a lane, and the caller who waits for its answer."""

    verb: Verb[T]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    answer: T | None = None
    error: BaseException | None = None
    hints: set[Hint] = field(default_factory=set[Hint])

    def deliver(self) -> None:
        """On the caller's loop: tell the answer. A caller that was cancelled hears nothing; what it wrote stays written."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)  # pyright: ignore[reportArgumentType]


Word = tuple[asyncio.AbstractEventLoop, Callable[[], None]]
"""What is to be called, and on which loop."""


def answer(jobs: Iterable[Job[Any]], news: Word | None = None) -> None:
    """Tell every caller, and then the `news`, with one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job.deliver)
    if news is not None:
        by_loop.setdefault(news[0], []).append(news[1])
    for loop, calls in by_loop.items():
        try:
            loop.call_soon_threadsafe(_call, calls)
        except RuntimeError:
            pass  # the loop was closed: nobody waits there any more


def _call(calls: list[Callable[[], None]]) -> None:
    for each in calls:
        each()


class _Lane:
    """Calls of any loop, carried out one after the other on a thread that owns a connection."""

    def __init__(self, connect: Callable[[], Connection], codec: Codec, runtime: Runtime, name: str) -> None:
        self._connect, self._codec, self._runtime = connect, codec, runtime
        self._lane = runtime.lane(name)
        self._open: Connection | None = None
        self._closed = False

    async def call(self, work: Callable[[Connection], T]) -> T:
        """Carry out `work` alone on this lane: for what is no program, such as opening the file."""
        loop = asyncio.get_running_loop()
        job: Job[T] = Job(_no_verb, loop, loop.create_future())

        def carry_out() -> None:
            try:
                job.answer = work(self._connection())
            except BaseException as error:  # whatever it is, the caller must hear of it
                job.error = error
            answer([job])

        self._lane.post(carry_out)
        return await job.future

    def _connection(self) -> Connection:
        if self._open is None:
            self._open = self._connect()
        return self._open

    def close(self) -> None:
        """Finish what was asked for, then close the connection and end the thread."""
        if self._closed:
            return
        self._closed = True

        def close() -> None:
            if self._open is not None:
                self._open.close()
                self._open = None

        self._lane.post(close)
        self._lane.close()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable("This store is closed. Open it with `async with` and keep it open while it is used.")


def _no_verb(work: Work) -> Program[Any]:
    raise AssertionError("this job is no program")
    yield


class Reader(_Lane):
    """Reads, each as of one moment. No transaction outlives its call."""

    async def read(self, verb: Verb[T]) -> T:
        self._refuse_when_closed()

        def within(connection: Connection) -> T:
            with connection.translated(), connection.snapshot():
                work = Work(self._codec)
                return connection.run(verb(work), work)

        return await self.call(within)


class Writer(_Lane):
    """Writes, in groups. `news` is asked, on the writer's thread, whom to tell of what a durable group may have changed."""

    def __init__(
        self, connect: Callable[[], Connection], codec: Codec, runtime: Runtime, name: str, news: Callable[[set[Hint]], Word | None]
    ) -> None:
        super().__init__(connect, codec, runtime, name)
        self._news = news
        self._urgent: deque[Job[Any]] = deque()
        self._waiting: deque[Job[Any]] = deque()

    async def write(self, verb: Verb[T], *, urgent: bool = False) -> T:
        """Carry out `verb` in a transaction; returns once that is durable. `urgent` writes (renewals) go before all that wait."""
        self._refuse_when_closed()
        loop = asyncio.get_running_loop()
        job: Job[T] = Job(verb, loop, loop.create_future())
        (self._urgent if urgent else self._waiting).append(job)
        # One wake-up for each job; those that find nothing left to do are free.
        self._lane.post(self._write_group)
        return await job.future

    def _next(self) -> Job[Any] | None:
        if self._urgent:
            return self._urgent.popleft()
        return self._waiting.popleft() if self._waiting else None

    # ── on the writer's thread ─────────────────────────────────────────────────────────────────────────────
    def _write_group(self) -> None:
        first = self._next()
        if first is None:
            return
        group = [first]
        try:
            connection = self._connection()
            connection.begin()
            self._fill(connection, group)
            connection.execute("COMMIT")
        except BaseException as error:
            self._after_a_failed_group(group, error)
        # A write that failed has no hints.
        answer(group, self._news({hint for job in group for hint in job.hints}))

    def _fill(self, connection: Connection, group: list[Job[Any]]) -> None:
        """Carry out the first job, and those that wait, while the group is within its bounds."""
        until = self._runtime.monotonic() + GROUP_SECONDS_MAX
        job: Job[Any] | None = group[0]
        while job is not None:
            self._carry_out_in_group(connection, job)
            if len(group) >= GROUP_COMMITS_MAX or self._runtime.monotonic() >= until:
                return
            job = self._next()
            if job is not None:
                group.append(job)

    def _carry_out_in_group(self, connection: Connection, job: Job[Any]) -> None:
        written = connection.written
        try:
            self._carry_out(connection, job)
        except Exception as error:
            if isinstance(error, sqlite3.Error) or connection.written != written:
                raise  # the group's: what it left is undone, and who is to blame is found out one by one
            job.error = error

    def _carry_out(self, connection: Connection, job: Job[Any]) -> None:
        work = Work(self._codec)
        job.answer = connection.run(job.verb(work), work)
        job.hints = work.hints

    def _after_a_failed_group(self, group: list[Job[Any]], error: BaseException) -> None:
        """Nothing of the group was kept. Repeat its members one by one, so that each gets its own answer."""
        connection = self._open
        if _is_locked_out(error):
            self._give_up_all(connection, group, 0, error)
            return
        if connection is None or len(group) == 1:
            self._give_up(connection, group, error)
            return
        for at, job in enumerate(group):
            job.error = job.answer = None
            job.hints = set()
            try:
                connection.rollback()
                connection.begin()
                self._carry_out(connection, job)
                connection.execute("COMMIT")
            except BaseException as own:
                if _is_locked_out(own):
                    self._give_up_all(connection, group, at, own)
                    return
                self._give_up(connection, [job], own)

    def _give_up_all(self, connection: Connection | None, group: list[Job[Any]], at: int, error: BaseException) -> None:
        """Somebody keeps the write lock. All that wait for it, be it in this group (from `at` on) or after it, hear so at the same moment, not each after a wait
        of its own."""
        while (job := self._next()) is not None:
            group.append(job)
        self._give_up(connection, group[at:], error)

    def _give_up(self, connection: Connection | None, group: list[Job[Any]], error: BaseException) -> None:
        if isinstance(error, sqlite3.Error) and connection is not None:
            translated: StoreError = translate(error, connection.path)
            translated.__cause__ = error
            error = translated
        for job in group:
            job.answer, job.error, job.hints = None, error, set()
        if connection is not None:
            try:
                connection.rollback()
            except sqlite3.Error:
                # A connection that can't even roll back is given up; the next call opens another.
                connection.close()
                self._open = None


def _is_locked_out(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and is_busy(error)
