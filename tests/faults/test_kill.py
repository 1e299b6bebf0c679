"""Real worker processes on one SQLite file, killed and stopped for real."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launcher import engine_of

from perdure import RunStatus

HERE = Path(__file__).parent
KILLS = 50
RUNS = 200
LEASE = 1.5


class Workers:
    """Two workers at a time, by pid."""

    def __init__(self, folder: Path, lease: float = LEASE) -> None:
        self.database, self.log, self.lease = str(folder / "runs.db"), folder / "log.jsonl", lease
        self.launcher = subprocess.Popen(
            [sys.executable, str(HERE / "launcher.py"), self.database, str(self.log), str(lease)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == "ready"
        self.pids: list[int] = []

    def _read(self) -> str:
        assert self.launcher.stdout is not None
        return self.launcher.stdout.readline().strip()

    def start(self) -> int:
        pid = self._ask("start")
        self.pids.append(pid)
        return pid

    def stop_between_writes(self, pid: int) -> None:
        """Stop a worker, and not while it is inside a write: it would keep SQLite's write lock, and everybody would wait for it."""
        while True:
            self._ask(f"stop {pid}")
            if self._writable():
                return
            os.kill(pid, signal.SIGCONT)

    def _writable(self) -> bool:
        database = sqlite3.connect(self.database, timeout=0.1, isolation_level=None)
        try:
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            assert error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            return False
        finally:
            database.close()
        return True

    def _ask(self, line: str) -> int:
        assert self.launcher.stdin is not None
        self.launcher.stdin.write(f"{line}\n")
        self.launcher.stdin.flush()
        return int(self._read())

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.pids.remove(pid)

    def close(self) -> None:
        for pid in list(self.pids):
            self.kill(pid)
        assert self.launcher.stdin is not None
        self.launcher.stdin.close()
        self.launcher.wait(10)
        assert self.launcher.stdout is not None
        self.launcher.stdout.close()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    started = Workers(tmp_path)
    yield started
    started.close()


def overlaps(lines: list[dict[str, Any]]) -> list[str]:
    """Runs of which a tool was at work under one epoch after a later one had begun."""
    found: list[str] = []
    highest: dict[str, int] = {}
    for line in sorted((line for line in lines if line["kind"] != "error"), key=lambda each: each["at"]):
        run, epoch = line["run"], line["epoch"]
        if epoch < highest.get(run, 0):
            found.append(f"{run}: epoch {epoch} after {highest[run]}")
        highest[run] = max(highest.get(run, 0), epoch)
    return found


async def test_fifty_kills_lose_nothing_and_no_two_owners_meet(workers: Workers, tmp_path: Path) -> None:
    """Two workers, 200 runs, 50 times SIGKILL: all finish, no run is at work in two processes, no lock error reaches anybody. # case H9, # case A10"""
    chance = random.Random(7)
    engine = engine_of(workers.database, tmp_path / "mine.jsonl", LEASE)
    engine.adjust(workers=0)
    async with engine:
        runs = [await engine.start("worked", {"n": number}, key=str(number)) for number in range(RUNS)]
        for _ in range(2):
            workers.start()
        kills = 0
        seen = 0
        while kills < KILLS:
            # Wait for a sign of life since the last kill, so that each kill meets work and not an import.
            for _ in range(2_000):
                lines = workers.log.stat().st_size if workers.log.exists() else 0
                if lines > seen:
                    seen = lines
                    break
                await asyncio.to_thread(os.sched_yield)
                if (await engine.store.counts()).get("completed", 0) == RUNS:
                    break
            if (await engine.store.counts()).get("completed", 0) >= RUNS - 5:
                runs += [await engine.start("worked", {"n": len(runs)}) for _ in range(40)]
            workers.kill(chance.choice(workers.pids))
            workers.start()
            kills += 1
        for run in runs:
            assert await run.result(timeout=120) == "done"
        counts = await engine.store.counts()
        assert {status: count for status, count in counts.items() if count} == {"completed": len(runs)}
    lines = workers.lines()
    assert overlaps(lines) == []
    assert [line for line in lines if line["kind"] == "error" and "locked" in line["error"]] == []
    assert len({line["pid"] for line in lines}) > KILLS / 4


async def test_a_stopped_process_is_told_when_it_wakes(workers: Workers, tmp_path: Path) -> None:
    """SIGSTOP past the lease, then SIGCONT: its next commit answers lost, `on_error` hears LeaseLostError, the new owner finishes. # case H1, # case H7"""
    engine = engine_of(workers.database, tmp_path / "mine.jsonl", LEASE)
    engine.adjust(workers=0)
    async with engine:
        runs = [await engine.start("worked", {"n": number}) for number in range(30)]
        first = workers.start()
        while not any(line["kind"] == "start" for line in workers.lines()):
            os.kill(first, 0)  # raises if it has died: nothing would ever come
            await asyncio.to_thread(os.sched_yield)
        workers.stop_between_writes(first)
        workers.start()
        for run in runs:
            assert await run.result(timeout=60) == "done"
        taken = [run for run in runs if (await run.run()).epoch > 1]
        assert taken
        os.kill(first, signal.SIGCONT)
        while not any("LeaseLostError" in line.get("error", "") for line in workers.lines()):
            os.kill(first, 0)
            await asyncio.to_thread(os.sched_yield)
        for run in runs:
            assert await run.status() is RunStatus.COMPLETED
    lines = workers.lines()
    # The stopped process may finish the bodies it was in, and its loop the one line of code at which it was stopped: that may be the last before a body,
    # past the question whether the lease is still ours. All that come after it are asked again, and begin nothing.
    begun = [line for line in lines if line["kind"] == "start" and line["epoch"] == 1 and line["pid"] == first]
    after = max(line["at"] for line in lines if line["kind"] == "start" and line["pid"] != first)
    assert sum(line["at"] > after for line in begun) <= 1
