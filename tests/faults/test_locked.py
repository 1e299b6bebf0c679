"""Somebody keeps SQLite's write lock: everybody waits, is told so, and goes on when it is free."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic_ai import Agent

from perdure import Engine, LeaseLostError, RunStatus, current_run, plain
from perdure.core.errors import StoreUnavailable
from perdure.pipeline import SqliteStorage, _sqlite_thread
from perdure.stores.sqlite import SqliteStore, _connection
from perdure.testing.conformance._bench import new_run
from perdure.testing.models import ScriptedModel, call, calls, say

RUNS = 12
HOLDER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def stopped_in_a_write(database: Path) -> Iterator[None]:
    """Another process has begun to write, and is stopped there; then it is killed."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        os.kill(holder.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            holder.kill()


class Desk:
    """An engine whose runs all have a tool at work when `held` is not set yet."""

    def __init__(self, database: Path, lease: timedelta) -> None:
        self.errors: list[BaseException] = []
        self.told = asyncio.Event()
        self.at_work, self.held = asyncio.Event(), asyncio.Event()
        self.deeds: Counter[str] = Counter()
        agent = Agent(ScriptedModel([calls(call("work"), call("work")), call("work"), say("done")]), name="worked")

        @agent.tool_plain(metadata=plain())
        async def work() -> str:
            self.deeds[current_run().id] += 1
            if len(self.deeds) == RUNS:
                self.at_work.set()
            await self.held.wait()
            return "ok"

        self.engine = Engine(f"sqlite:///{database}", workers=RUNS, lease=lease, on_error=self._hear)
        self.engine.agent(agent)

    def _hear(self, error: BaseException) -> None:
        self.errors.append(error)
        self.told.set()

    async def until_told(self, *kinds: type[BaseException]) -> None:
        while not all(any(isinstance(error, kind) for error in self.errors) for kind in kinds):
            self.told.clear()
            await self.told.wait()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock is waited for and warned of within fractions of a second."""
    monkeypatch.setattr(_connection, "BUSY_SECONDS_MAX", 0.2)
    monkeypatch.setattr(_connection, "BUSY_SECONDS_TOLD", 0.1)


async def test_commits_wait_for_a_lock_that_is_kept_and_lose_nothing(impatient: None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who starts a run is told, the log says why, and what was done meanwhile is stored when the lock is free: no call is repeated."""
    desk = Desk(tmp_path / "runs.db", timedelta(minutes=5))
    async with desk.engine as engine:
        runs = [await engine.start("worked", {"n": number}) for number in range(RUNS)]
        await desk.at_work.wait()
        with stopped_in_a_write(tmp_path / "runs.db"):
            desk.held.set()
            with pytest.raises(StoreUnavailable, match="locked by another process"):
                await engine.start("worked", {"n": RUNS})
            assert "stopped in the middle of a write" in caplog.text
            # What is stored can be read all the while.
            assert [await run.status() for run in runs] == [RunStatus.RUNNING] * RUNS
        for run in runs:
            assert await run.result(timeout=60) == "done"
            assert (await run.run()).epoch == 1, "a lock is no reason to take a run over"
    assert set(desk.deeds.values()) == {3}


async def test_a_lock_that_is_kept_past_the_lease_is_told_and_the_runs_go_on(impatient: None, tmp_path: Path) -> None:
    """`on_error` hears that the store is away and that leases are lost; when the lock is free, the runs are taken up again. # case H7"""
    desk = Desk(tmp_path / "runs.db", timedelta(seconds=1))
    async with desk.engine as engine:
        runs = [await engine.start("worked", {"n": number}) for number in range(RUNS)]
        await desk.at_work.wait()
        with stopped_in_a_write(tmp_path / "runs.db"):
            desk.held.set()
            await desk.until_told(StoreUnavailable, LeaseLostError)
        for run in runs:
            assert await run.result(timeout=60) == "done"
        assert max([(await run.run()).epoch for run in runs]) > 1
    assert all(isinstance(error, StoreUnavailable | LeaseLostError) for error in desk.errors), desk.errors


async def test_all_that_wait_for_a_lock_are_told_at_the_same_moment(impatient: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty writes wait for it a few times between them, not each for as long as one may wait."""
    waits: list[int] = []
    begin = _connection.Connection.begin
    monkeypatch.setattr(_connection.Connection, "begin", lambda self: waits.append(1) or begin(self))
    async with SqliteStore(tmp_path / "runs.db") as store:
        waits.clear()
        with stopped_in_a_write(tmp_path / "runs.db"):
            told = await asyncio.gather(*(store.admit(new_run(f"r{n}")) for n in range(30)), return_exceptions=True)
        assert all(isinstance(each, StoreUnavailable) for each in told)
        assert len(waits) < 10
        assert (await store.admit(new_run("r0"))).created, "nothing of the refused write was kept"


async def test_jobs_of_a_pipeline_wait_for_a_lock_together_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused as one, and written when it is free."""
    monkeypatch.setattr(_sqlite_thread, "BUSY_SECONDS", 0.2)
    waits: list[int] = []
    transaction = _sqlite_thread.SqliteThread._transaction
    monkeypatch.setattr(_sqlite_thread.SqliteThread, "_transaction", lambda self, *work: waits.append(1) or transaction(self, *work))
    async with SqliteStorage(tmp_path / "jobs.db") as storage:
        await storage.set_status("there", "running")
        waits.clear()
        with stopped_in_a_write(tmp_path / "jobs.db"):
            told = await asyncio.gather(*(storage.set_status(f"j{n}", "running") for n in range(30)), return_exceptions=True)
        assert all(isinstance(each, StoreUnavailable) for each in told)
        assert len(waits) < 10
        await storage.set_status("j0", "running")
        assert sorted(await storage.list_running()) == ["j0", "there"]
