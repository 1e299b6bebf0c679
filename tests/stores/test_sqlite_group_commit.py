"""One thread writes in groups; each write stands alone all the same."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.core.commit import Outcome, RunFilter
from perdure.core.errors import Conflict, StoreError, StoreFull, StoreUnavailable
from perdure.core.limits import GROUP_COMMITS_MAX
from perdure.core.runtime import RealRuntime
from perdure.stores._moves._program import Program, Work
from perdure.stores.sqlite import SqliteStore
from perdure.stores.sqlite._connection import Connection
from perdure.testing.conformance._bench import LEASE, Bench, Owner, new_run

WRITE = "-- one write"


class HeldLane:
    """A lane that keeps its work until it is let go, so that a test decides what waits together."""

    def __init__(self, name: str) -> None:
        self.name, self.held, self.work = name, False, []  # type: str, bool, list[Callable[[], None]]

    def post(self, work: Callable[[], None]) -> None:
        self.work.append(work)
        if not self.held:
            self.go()

    def go(self) -> None:
        self.held = False
        while self.work:
            self.work.pop(0)()

    def close(self) -> None:
        self.go()


class HeldRuntime(RealRuntime):
    """The machine, but for its lanes: they run inline and can be held."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: dict[str, HeldLane] = {}

    def lane(self, name: str) -> HeldLane:  # type: ignore[override]
        return self.lanes.setdefault(name, HeldLane(name))

    @property
    def writer(self) -> HeldLane:
        return self.lanes["perdure-sqlite-writer"]


class Recorder:
    """Every statement that the writer's connection carries out, in order; some can be made to fail."""

    def __init__(self, store: SqliteStore) -> None:
        self.said: list[str] = []
        assert store._writer is not None and store._writer._open is not None
        self.connection: Connection = store._writer._open
        self.connection._raw.set_trace_callback(self.said.append)
        run = self.connection.run

        def told(*args: Any) -> Any:
            self.said.append(WRITE)
            return run(*args)

        self.connection.run = told  # type: ignore[method-assign]

    def groups(self) -> list[int]:
        """How many writes each transaction carried."""
        sizes: list[int] = []
        for statement in self.said:
            if statement == "BEGIN IMMEDIATE":
                sizes.append(0)
            elif statement == WRITE:
                sizes[-1] += 1
        return sizes


def half(work: Work) -> Program[None]:
    """A write that is refused when it has written a row already."""
    work.write("move_clock", micros=1_000_000)
    yield from work.clock()
    raise Conflict("Not like this.")


async def owned(store: SqliteStore, count: int) -> list[Owner]:
    return [await Bench(store).start(f"r{at}") for at in range(count)]


async def together(runtime: HeldRuntime, *calls: Any) -> list[Any]:
    """Make the calls wait for the writer together, then let it go."""
    runtime.writer.held = True
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    runtime.writer.go()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_writes_that_wait_together_share_one_transaction(tmp_path: Path) -> None:
    """Ten commits cost one fsync."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        owners = await owned(store, 10)
        recorder = Recorder(store)
        answers = await together(runtime, *(store.commit(owner.next()) for owner in owners))
        assert [answer.outcome for answer in answers] == [Outcome.APPLIED] * 10
        assert recorder.groups() == [10]


async def test_a_group_is_bounded(tmp_path: Path) -> None:
    """No group holds the lock for more writes than the limit, however many wait."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        recorder = Recorder(store)
        await together(runtime, *(store.admit(new_run(f"r{at}")) for at in range(GROUP_COMMITS_MAX + 5)))
        assert max(recorder.groups()) <= GROUP_COMMITS_MAX
        assert sum(recorder.groups()) == GROUP_COMMITS_MAX + 5


async def test_a_refused_write_does_not_touch_its_neighbours(tmp_path: Path) -> None:
    """A conflict in the middle of a group is told to its own caller; those before and after are durable."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        await store.admit(new_run("first", key="k"))
        calls = [store.admit(each) for each in (new_run("before"), new_run("refused", key="k", payload="other"), new_run("after"))]
        before, refused, after = await together(runtime, *calls)
        assert before.created and after.created and isinstance(refused, Conflict)
        assert {run.id for run in await store.runs(RunFilter())} == {"first", "before", "after"}


async def test_a_write_that_is_refused_in_its_middle_leaves_nothing(tmp_path: Path) -> None:
    """It had written rows when it was refused: they are gone, its caller hears why, and its neighbours are durable, once each."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        owners = await owned(store, 2)
        recorder = Recorder(store)
        before, refused, after = await together(runtime, store.commit(owners[0].next()), store._write(half), store.commit(owners[1].next()))
        assert (before.outcome, after.outcome) == (Outcome.APPLIED, Outcome.APPLIED) and isinstance(refused, Conflict)
        assert recorder.connection.execute("SELECT value FROM meta WHERE name = 'clock_offset'")[0][0] == 0
        assert [(await Bench(store).run(f"r{at}")).commit_no for at in range(2)] == [1, 1]
        assert not recorder.connection._raw.in_transaction


class Impatient(HeldRuntime):
    """A minute passes each time that somebody looks at the clock, once `hurried`."""

    minutes, hurried = 0, False

    def monotonic(self) -> float:
        self.minutes += self.hurried
        return super().monotonic() + 61.0 * self.minutes


async def test_who_is_locked_out_in_the_second_round_waits_once(tmp_path: Path) -> None:
    """A lock that another process takes between the rounds and keeps: nobody hears of it after all of those before him have waited their time."""
    runtime = Impatient()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        owners = await owned(store, 5)
        connection = Recorder(store).connection
        with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
            begin, undo, begun = connection.begin, connection.rollback, 0

            def counted() -> None:
                nonlocal begun
                begun += 1
                begin()

            def undone_and_locked() -> None:
                undo()
                if not runtime.hurried:
                    runtime.hurried = True
                    other.execute("BEGIN IMMEDIATE")

            connection.begin, connection.rollback = counted, undone_and_locked  # type: ignore[method-assign]
            answers = await together(runtime, *(store.commit(owner.next()) for owner in owners), store._write(half))
            assert all(isinstance(answer, StoreUnavailable) for answer in answers) and begun == 2
            other.execute("ROLLBACK")
        answers = await together(runtime, *(store.commit(owner.next()) for owner in owners))
        assert [answer.outcome for answer in answers] == [Outcome.APPLIED] * 5


async def test_a_write_that_is_refused_alone_leaves_nothing(tmp_path: Path) -> None:
    """The same, with nobody beside it."""
    async with SqliteStore(tmp_path / "a.db") as store:
        with pytest.raises(Conflict):
            await store._write(half)
        assert (await store.admit(new_run("later"))).created
        async with SqliteStore(tmp_path / "a.db") as other:
            assert (await other.now() - await store.now()).total_seconds() < 0.5


async def test_a_lost_commit_leaves_no_trace_in_its_group(tmp_path: Path) -> None:
    """`lost` is an answer, not an error: the others of the group are applied."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        one, two = await owned(store, 2)
        one.epoch += 1
        lost, applied = await together(runtime, store.commit(one.next()), store.commit(two.next()))
        assert (lost.outcome, applied.outcome) == (Outcome.LOST, Outcome.APPLIED)


async def test_renewals_go_first(tmp_path: Path) -> None:
    """A renewal that comes last is carried out before all that wait."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        [owner] = await owned(store, 1)
        recorder = Recorder(store)
        await together(runtime, store.admit(new_run("x")), store.admit(new_run("y")), store.renew([owner.lease], LEASE))
        first = next(statement for statement in recorder.said if statement.startswith(("INSERT", "UPDATE")))
        assert first.startswith("UPDATE run SET lease_expires_at")


class BrokenCommit:
    """A connection whose next COMMIT statements fail as a full disk would."""

    def __init__(self, connection: Connection, failures: int) -> None:
        self.failures = failures
        self._execute = connection.execute
        connection.execute = self.execute  # type: ignore[method-assign]

    def execute(self, text: str) -> list[sqlite3.Row]:
        if text == "COMMIT" and self.failures:
            self.failures -= 1
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
            raise error
        return self._execute(text)


async def test_a_failed_group_is_repeated_one_by_one(tmp_path: Path) -> None:
    """Nobody is told a failure that is not his: all are applied in the second round, once."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        owners = await owned(store, 3)
        BrokenCommit(Recorder(store).connection, failures=1)
        answers = await together(runtime, *(store.commit(owner.next()) for owner in owners))
        assert [answer.outcome for answer in answers] == [Outcome.APPLIED] * 3


async def test_the_caller_of_a_failed_write_gets_the_error_and_the_next_works(tmp_path: Path) -> None:
    """One member of a group fails for good: it alone hears of it, and the store goes on."""  # case I9
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        owners = await owned(store, 3)
        BrokenCommit(Recorder(store).connection, failures=2)
        first, second, third = await together(runtime, *(store.commit(owner.next()) for owner in owners))
        assert isinstance(first, StoreFull) and isinstance(first.__cause__, sqlite3.OperationalError)
        assert second.outcome is third.outcome is Outcome.APPLIED
        again = await store.commit(owners[0].next())
        assert again.outcome is Outcome.APPLIED, "nothing of the failed one was kept"


async def test_a_broken_statement_fails_its_own_write_alone(tmp_path: Path) -> None:
    """What the driver raises inside one write is found out one by one."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        calls = [store.admit(new_run("fine")), store.admit(new_run("broken", agent=None))]
        fine, broken = await together(runtime, *calls)
        assert fine.created and isinstance(broken, StoreError)
        assert (await store.admit(new_run("later"))).created


async def test_a_cancelled_caller_does_not_take_its_write_back(tmp_path: Path) -> None:
    """Who stops waiting hears no answer; the write stands, and its repetition is told so."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        [owner] = await owned(store, 1)
        runtime.writer.held = True
        task = asyncio.ensure_future(store.commit(owner.next()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        runtime.writer.go()
        assert (await store.commit(owner.next())).outcome is Outcome.ALREADY


async def test_nothing_is_answered_before_its_commit_returned(tmp_path: Path) -> None:
    """At the moment of COMMIT no caller of the group has an answer."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        owners = await owned(store, 3)
        connection = Recorder(store).connection
        execute, done_at_commit = connection.execute, []  # type: Any, list[bool]
        tasks: list[asyncio.Future[Any]] = []

        def watched(text: str) -> list[sqlite3.Row]:
            if text == "COMMIT":
                done_at_commit.extend(task.done() for task in tasks)
            return execute(text)

        connection.execute = watched  # type: ignore[method-assign]
        runtime.writer.held = True
        tasks += [asyncio.ensure_future(store.commit(owner.next())) for owner in owners]
        await asyncio.sleep(0)
        runtime.writer.go()
        await asyncio.gather(*tasks)
        assert done_at_commit == [False] * 3


async def test_a_loop_that_was_closed_meanwhile_harms_nobody(tmp_path: Path) -> None:
    """The renewal thread may end while its write waits; the others are answered."""
    runtime = HeldRuntime()
    async with SqliteStore(tmp_path / "a.db", runtime) as store:
        [owner] = await owned(store, 1)
        runtime.writer.held = True

        def from_another_loop() -> None:
            loop = asyncio.new_event_loop()
            task = loop.create_task(store.renew([owner.lease], LEASE))
            loop.run_until_complete(asyncio.sleep(0))
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
            loop.close()

        await asyncio.get_running_loop().run_in_executor(None, from_another_loop)
        mine = asyncio.ensure_future(store.commit(owner.next()))
        await asyncio.sleep(0)
        runtime.writer.go()
        assert (await mine).outcome is Outcome.APPLIED


async def test_a_store_that_is_closed_says_so(tmp_path: Path) -> None:
    """A call after the end is refused, not lost."""
    store = SqliteStore(tmp_path / "a.db")
    async with store:
        pass
    with pytest.raises(StoreUnavailable):
        await store.admit(new_run("r"))
    with pytest.raises(StoreUnavailable):
        await store.get("r")
