"""What a phase costs beside its own work, and how many a few processes get through.

    python -m benchmarks.pipeline [--rounds N] [--advances N] [--jobs N]

The floor is a bare SQLite commit (WAL, FULL) that writes the same checkpoint, on the main thread and with nothing around it. What the same commit costs a
program that may not block its event loop is shown beside it. Rounds are short and interleaved, because a disk has moods; a ratio is taken within its round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.quick import line
from perdure.core.runtime import RealRuntime
from perdure.pipeline import (
    Done,
    Next,
    Phase,
    PhaseContext,
    PhaseResult,
    PipelineWorker,
    SqliteStorage,
    StorageScheduler,
    advance_phase,
    phase,
    run_pipeline,
)

ADVANCE_MAX = 2.0
"""An empty phase's advance, as times a bare commit of the same bytes."""
TEXT = "x" * 200
State = dict[str, object]


@phase
async def turn(ctx: PhaseContext[State]) -> PhaseResult[State]:
    return Next("turn", ctx.state)


@phase
async def count(ctx: PhaseContext[State]) -> PhaseResult[State]:
    left = ctx.state["left"]
    assert isinstance(left, int)
    return Next("count", {**ctx.state, "left": left - 1}) if left else Done()


def hop(at: int) -> Phase[State]:
    """The phase `at` of five: it goes on to the next, the last one ends."""

    async def run(ctx: PhaseContext[State]) -> PhaseResult[State]:
        return Next(f"phase {at + 1}", ctx.state) if at < 5 else Done()

    return Phase(f"phase {at}", run, state=State)


FIVE = [hop(at) for at in range(1, 6)]


# ── one advance ────────────────────────────────────────────────────────────────────────────────────────────
async def advances(path: Path, times: int) -> tuple[float, str]:
    """Seconds an advance of an empty phase, and the checkpoint that it writes."""
    async with SqliteStorage(path) as storage:
        scheduler = StorageScheduler(storage)
        await run_pipeline("job", [turn], storage, scheduler, {"text": TEXT})
        await advance_phase("job", [turn], storage, scheduler)
        began = time.perf_counter()
        for _ in range(times):
            await advance_phase("job", [turn], storage, scheduler)
        seconds = (time.perf_counter() - began) / times
        job = await storage.get_job("job")
        assert job is not None and job.checkpoint is not None
        return seconds, json.dumps(
            {"next_phase": job.checkpoint.next_phase, "state": job.checkpoint.state, "life": job.checkpoint.life, "step": job.checkpoint.step}
        )


async def chained(path: Path, times: int) -> float:
    """Seconds a phase of one job that a worker carries on by itself, where the outcome of a phase and the claim of the next are one commit."""
    async with SqliteStorage(path) as storage:
        worker = PipelineWorker([count], storage)
        await run_pipeline("job", [count], storage, worker.scheduler, {"text": TEXT, "left": times})
        began = time.perf_counter()
        await worker.run_until_idle()
        return (time.perf_counter() - began) / times


def opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE job(id TEXT PRIMARY KEY, checkpoint TEXT)")
    db.execute("INSERT INTO job VALUES('job', '')")
    return db


def commit(db: sqlite3.Connection, body: str) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE job SET checkpoint = ? WHERE id = 'job'", (body,))
    db.execute("COMMIT")


def bare(path: Path, times: int, body: str) -> float:
    """Seconds a commit that writes `body` over what was there."""
    db = opened(path)
    began = time.perf_counter()
    for at in range(times):
        commit(db, f"{body}{at}")
    seconds = (time.perf_counter() - began) / times
    db.close()
    return seconds


async def asked(path: Path, times: int, body: str) -> float:
    """Seconds the same commit takes when a coroutine asks another thread for it and waits."""
    db, loop, lane = opened(path), asyncio.get_running_loop(), RealRuntime().lane("floor")

    def work(at: int, done: asyncio.Future[None]) -> None:
        commit(db, f"{body}{at}")
        loop.call_soon_threadsafe(done.set_result, None)

    began = time.perf_counter()
    for at in range(times):
        done: asyncio.Future[None] = loop.create_future()
        lane.post(partial(work, at, done))
        await done
    seconds = (time.perf_counter() - began) / times
    lane.close()
    db.close()
    return seconds


def cost(rounds: int, times: int) -> bool:
    print("An advance of an empty phase on SQLite (WAL, FULL), against a bare commit of the same bytes")
    found: dict[str, list[float]] = {"bare": [], "asked": [], "alone": [], "worker": []}
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            alone, body = asyncio.run(advances(Path(folder) / "jobs.db", times))
            took = {
                "bare": bare(Path(folder) / "floor.db", times, body),
                "asked": asyncio.run(asked(Path(folder) / "asked.db", times, body)),
                "alone": alone,
                "worker": asyncio.run(chained(Path(folder) / "chain.db", times)),
            }
        if number:  # the first round warms up
            for name, seconds in took.items():
                found[name].append(seconds * 1_000)
    line("bare commit, ms", found["bare"])
    line("bare commit, asked for from an event loop, ms", found["asked"])
    line("advance in a worker (one commit), ms", found["worker"])
    line("advance by itself (a claim and an outcome: two commits), ms", found["alone"])
    ratios = {name: [ours / floor for ours, floor in zip(found[name], found["bare"], strict=True)] for name in ("asked", "worker", "alone")}
    line("asked for from an event loop / bare commit", ratios["asked"], "x")
    line("advance in a worker / bare commit", ratios["worker"], "x", f"target ≤ {ADVANCE_MAX:g}")
    line("the same, by the best rounds of both", [min(found["worker"]) / min(found["bare"])], "x")
    line("advance by itself / bare commit", ratios["alone"], "x")
    return statistics.median(ratios["worker"]) <= ADVANCE_MAX


# ── many jobs ──────────────────────────────────────────────────────────────────────────────────────────────
async def start_jobs(path: Path, jobs: int) -> None:
    async with SqliteStorage(path) as storage:
        scheduler = StorageScheduler(storage)
        for number in range(jobs):
            await run_pipeline(f"job {number}", FIVE, storage, scheduler, {"text": TEXT})


async def work(path: Path) -> None:
    """What a worker process does; it says from when to when."""
    async with SqliteStorage(path) as storage:
        began = time.time()
        await PipelineWorker(FIVE, storage).run_until_idle()
        print(began, time.time())


async def left(path: Path) -> int:
    async with SqliteStorage(path) as storage:
        return len(await storage.list_running())


def throughput(jobs: int) -> None:
    print(f"{jobs:,} jobs of 5 phases")
    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "jobs.db"
            asyncio.run(start_jobs(path, jobs))
            began = time.perf_counter()
            workers = [
                subprocess.Popen([sys.executable, "-m", "benchmarks.pipeline", "--work", str(path)], stdout=subprocess.PIPE) for _ in range(processes)
            ]
            said = [[float(each) for each in worker.communicate()[0].split()] for worker in workers]
            seconds = time.perf_counter() - began
            assert asyncio.run(left(path)) == 0
        at_work = max(end for _, end in said) - min(start for start, _ in said)
        line(f"{processes} worker process{'es' * (processes > 1)}: phases a second", [jobs * 5 / at_work])
        line("the start of Python included: phases a second", [jobs * 5 / seconds])


def main() -> int:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--advances", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        asyncio.run(work(given.work))
        return 0
    met = cost(given.rounds, given.advances)
    throughput(given.jobs)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
