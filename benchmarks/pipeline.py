"""What a phase costs beside its own work, and how many a few processes get through.

    python -m benchmarks.pipeline [--rounds N] [--advances N] [--jobs N]

The floor is a bare SQLite commit (WAL, FULL) that writes the same checkpoint, on the main thread and with nothing around it. Rounds are short and
interleaved, because a disk has moods; a ratio is taken within its round.
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
from pathlib import Path

from benchmarks.quick import line
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


def bare(path: Path, times: int, body: str) -> float:
    """Seconds a commit that writes `body` over what was there."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE job(id TEXT PRIMARY KEY, checkpoint TEXT)")
    db.execute("INSERT INTO job VALUES('job', '')")
    began = time.perf_counter()
    for at in range(times):
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE job SET checkpoint = ? WHERE id = 'job'", (f"{body}{at}",))
        db.execute("COMMIT")
    seconds = (time.perf_counter() - began) / times
    db.close()
    return seconds


def cost(rounds: int, times: int) -> bool:
    print("An advance of an empty phase on SQLite (WAL, FULL), against a bare commit of the same bytes")
    ours, carried, floors, ratios, carried_ratios = [], [], [], [], []
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            advance, body = asyncio.run(advances(Path(folder) / "jobs.db", times))
            phase_s = asyncio.run(chained(Path(folder) / "chain.db", times))
            floor = bare(Path(folder) / "floor.db", times, body)
        if number:
            ours.append(advance * 1_000)
            floors.append(floor * 1_000)
            carried.append(phase_s * 1_000)
            carried_ratios.append(phase_s / floor)
            ratios.append(advance / floor)
    line("bare commit, ms", floors)
    line("advance by itself (a claim and an outcome: two commits), ms", ours)
    line("advance by itself / bare commit", ratios, "x")
    line("advance in a worker (one commit), ms", carried)
    line("advance in a worker / bare commit", carried_ratios, "x", f"target ≤ {ADVANCE_MAX:g}")
    return statistics.median(carried_ratios) <= ADVANCE_MAX


# ── many jobs ──────────────────────────────────────────────────────────────────────────────────────────────
async def start_jobs(path: Path, jobs: int) -> None:
    async with SqliteStorage(path) as storage:
        scheduler = StorageScheduler(storage)
        for number in range(jobs):
            await run_pipeline(f"job {number}", FIVE, storage, scheduler, {"text": TEXT})


async def work(path: Path) -> None:
    async with SqliteStorage(path) as storage:
        await PipelineWorker(FIVE, storage).run_until_idle()


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
            workers = [subprocess.Popen([sys.executable, "-m", "benchmarks.pipeline", "--work", str(path)]) for _ in range(processes)]
            for worker in workers:
                worker.wait()
            seconds = time.perf_counter() - began
            assert asyncio.run(left(path)) == 0
        line(f"{processes} worker process{'es' * (processes > 1)}, their start included: phases a second", [jobs * 5 / seconds])


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
