"""Real processes on one SQLite file or one Postgres, killed with SIGKILL in the middle of phases."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from mortal_worker import Journal, Sheet, open_storage, phases_of
from pipeline_worlds import fresh_schema

from perdure.pipeline import StorageScheduler, run_pipeline

BATCH, KILLS = 8, 5
SCRIPT = Path(__file__).with_name("mortal_worker.py")


def _start(place: tuple[str, str], folder: Path, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(SCRIPT), *place, str(folder / "journal")],
        stdout=subprocess.PIPE, stderr=errors,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_sigkill_in_the_middle_of_phases_loses_nothing_and_runs_nothing_side_by_side(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Two workers, one killed again and again at a save or a beginning: every job ends complete, no phase of one job overlaps another."""
    phases = phases_of(Journal(str(tmp_path / "journal")))
    jobs: list[str] = []
    place = (str(tmp_path / "jobs.db") if kind == "sqlite" else request.getfixturevalue("postgres").dsn, fresh_schema())
    async with open_storage(*place) as storage:
        scheduler = StorageScheduler(storage)

        async def begin() -> None:
            for _ in range(BATCH):
                jobs.append(f"job-{len(jobs):03}")
                await run_pipeline(jobs[-1], phases, storage, scheduler, Sheet())

        await begin()
        chance, kills = random.Random(7), 0
        with (tmp_path / "errors").open("wb") as errors:
            workers = [_start(place, tmp_path, errors) for _ in range(2)]
            while (running := await storage.list_running()) or kills < KILLS:
                if kills < KILLS and len(running) < BATCH:
                    await begin()  # however fast they are, each kill meets work
                for at, worker in enumerate(workers):
                    assert worker.poll() is None, "a worker died by itself"
                    if _hear(worker, chance.randrange(2, 9)) and kills < KILLS:
                        worker.kill()
                        _end(worker)
                        kills += 1
                        workers[at] = _start(place, tmp_path, errors)
            for worker in workers:
                worker.terminate()
                _end(worker)
        for job_id in jobs:
            job = await storage.get_job(job_id)
            assert job is not None and (job.status, job.output) == ("complete", list(range(8))), job
    assert b"locked" not in (tmp_path / "errors").read_bytes()
    _check((tmp_path / "journal").read_text().splitlines(), len(jobs))


def _hear(worker: subprocess.Popen[bytes], lines: int) -> bool:
    """Whether the worker told of so many things, before it fell silent for a moment."""
    assert worker.stdout is not None
    heard = 0
    while heard < lines and select.select([worker.stdout], [], [], 0.2)[0]:
        heard += os.read(worker.stdout.fileno(), 100).count(b"\n")
    return heard >= lines


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.wait()
    assert worker.stdout is not None
    worker.stdout.close()


def _check(lines: list[str], jobs: int) -> None:
    """A job is in one process at a time and never goes back a phase, and a phase begins with all that was saved before."""
    order = ["extract", "classify", "draft", "archive"]
    owners: dict[tuple[str, str], list[str]] = {}
    at: dict[str, int] = {}
    saved: dict[str, int] = {}
    begun = 0
    for line in lines:
        what, job, name, rows, process = line.split()
        seen = owners.setdefault((job, name), [])
        if not seen or seen[-1] != process:
            assert process not in seen, f"{job}: a process wrote after another had taken the job over: {line}"
            assert what == "begin", f"{job}: a phase went on in another process: {line}"
            seen.append(process)
        assert order.index(name) >= at.get(job, 0), f"{job} went back: {line}"
        at[job] = order.index(name)
        if what == "begin":
            begun += 1
            # A save is noted once it is durable, so the next process must have it; it may have one more, whose note died with its process.
            assert int(rows) in (saved.get(job, 0), saved.get(job, 0) + 1), f"{job} lost a save: {line}"
            saved[job] = int(rows)
        elif what == "saved":
            saved[job] = int(rows)
    assert begun > jobs * 4, "nothing was killed in the middle of a phase; the test showed nothing"
