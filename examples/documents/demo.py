"""What `make demo-pipeline` runs: documents through a pipeline, killed at every write, retried, and counted.

python demo.py              everything
python demo.py --points 9   only every ninth moment to die at
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

import app
import clerk_model
from mortal import UNFINISHED, Later, MortalStorage, in_a_process
from office import Office
from perdure.pipeline import JobRecord, PipelineWorker, SqliteStorage, explain, resume_job, retry_job, run_pipeline

HERE = Path(__file__).parent
INBOX = sorted((HERE / "inbox").iterdir())
MORTAL = HERE / "inbox" / "02-invoice-large.pdf"
ONCE = Counter({"extract": 1, "draft": 1, "review": 2, "archive": 1, "find_customer": 1, "model": 2})
"""What one document costs when nothing goes wrong. `review` is entered to ask and again with the answer."""


@dataclass(frozen=True)
class Desk:
    """One place to work in: a database, an office, and a journal of what ran, written line by line by whatever process."""

    folder: Path

    @property
    def office(self) -> Office:
        return Office(self.folder / "office")

    @property
    def database(self) -> Path:
        return self.folder / "jobs.db"

    def witness(self, job: str, what: str) -> None:
        journal = os.open(self.folder / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(journal, f"{what.split()[0]}\n".encode())
        os.close(journal)

    def ran(self) -> Counter[str]:
        journal = self.folder / "journal"
        return Counter(journal.read_text().split()) if journal.exists() else Counter()

    def forget(self) -> None:
        (self.folder / "journal").unlink(missing_ok=True)


async def work(desk: Desk, storage: SqliteStorage, files: list[Path], runtime: Later, *, approve: bool = True) -> None:
    """What a worker and a person do until every document is through: start, work, answer."""
    phases = app.build(desk.office, desk.witness)
    worker = PipelineWorker(phases, storage, runtime=runtime, concurrency=4, on_error=lambda job, error: None)
    for file in files:
        if await storage.get_job(file.name) is None:
            await run_pipeline(file.name, phases, storage, worker.scheduler, app.Case(str(file)), runtime=runtime)
    await worker.run_until_idle()
    paused = await storage.list_jobs(status="paused")
    for job_id, _ in paused if approve else ():
        await resume_job(job_id, storage, worker.scheduler, approved=True, by="the demo's person", runtime=runtime)
    if paused and approve:
        await PipelineWorker(phases, storage, runtime=runtime, on_error=lambda job, error: None).run_until_idle()


def killed_everywhere(console: Console, every: int) -> bool:
    """Die before and after every write in turn; a new process finishes what is there."""
    table = Table("killed at", "finished", "phases entered again, at most", "model calls again, at most", "bookings", title=MORTAL.name)
    finished, again_most, calls_most, booked, point = 0, 0, 0, Counter[int](), 0
    with tempfile.TemporaryDirectory() as folder, console.status("killing") as status:
        while True:
            point += 1
            status.update(f"killed with SIGKILL at moment {point}")
            desk = Desk(Path(folder) / str(point))
            desk.folder.mkdir()
            if _killed_at(desk, point * every) is False:
                point -= 1
                break
            job = asyncio.run(_job(desk))
            finished += job is not None and job.status == "complete"
            extra = desk.ran() - ONCE
            again_most = max(again_most, sum(extra[name] for name in ("extract", "draft", "review", "archive")))
            calls_most = max(calls_most, extra["model"])
            booked[desk.office.bookings().get(MORTAL.name, 0)] += 1
            shutil.rmtree(desk.folder)
    table.add_row(f"{point} moments", str(finished), str(again_most), str(calls_most), ", ".join(f"{n} × {times}" for n, times in booked.items()))
    console.print(table)
    return finished == point > 0 and again_most <= 1 and calls_most <= 1 and set(booked) == {1}


def _killed_at(desk: Desk, moment: int) -> bool:
    """Whether the process lived long enough to be killed at this moment; afterwards, others have finished the work."""

    async def process(runtime: Later, dies_at: int | None) -> bool:
        async with MortalStorage(desk.database, dies_at=dies_at, runtime=runtime) as storage:
            await work(desk, storage, [MORTAL], runtime)
            job = await storage.get_job(MORTAL.name)
            return job is not None and job.status == "complete"

    if in_a_process(lambda: process(Later(0), moment)) is not None:
        return False
    for time in range(1, 6):
        # Each successor comes when the lease of the one before has run out.
        ended = in_a_process(lambda time=time: process(Later(31.0 * time), None))
        if ended == 0:
            return True
        if ended != UNFINISHED:
            raise SystemExit("A process that nobody killed failed; its error stands above.")
    return True


async def _job(desk: Desk) -> JobRecord | None:
    async with SqliteStorage(desk.database) as storage:
        return await storage.get_job(MORTAL.name)


async def everything(console: Console, desk: Desk) -> bool:
    """Every document, one worker, a person who approves."""
    async with SqliteStorage(desk.database) as storage:
        await work(desk, storage, INBOX, Later(0))
        table = Table(Column("document", no_wrap=True), "status", "kind", Column("€", justify="right"), "decided by", title="The inbox")
        refused: list[str] = []
        good = True
        for job_id, job in await storage.list_jobs():
            filed = job.output or {}
            said = explain(job)
            good &= job.status == ("error" if "cut-off" in job_id else "complete")
            cents = f"{filed['cents'] / 100:,.2f}" if filed else ""
            table.add_row(job_id, job.status, filed.get("kind", ""), cents, filed.get("decided_by", ""))
            refused += [said.text] if said.text else []
    console.print(table)
    for text in refused:
        console.print(f"refused  {text}", highlight=False)
    return good and all(times == 1 for times in desk.office.bookings().values())


async def retried(console: Console, desk: Desk) -> bool:
    """A phase that fails; resume enters it alone, full enters all, and what was booked stays booked once."""
    file = INBOX[0]
    rows: list[tuple[str, str, Counter[str], int]] = []
    async with SqliteStorage(desk.database) as storage:
        os.environ["DOCUMENTS_LETTERS"] = str(desk.folder / "no letters here")
        await work(desk, storage, [file], Later(0))
        job = await storage.get_job(file.name)
        assert job is not None
        rows.append(("the letters are missing", f"{job.status}: {explain(job).phase}", desk.ran(), desk.office.bookings().get(file.name, 0)))
        del os.environ["DOCUMENTS_LETTERS"]
        phases = app.build(desk.office, desk.witness)
        for how in ("resume", "full"):
            desk.forget()
            worker = PipelineWorker(phases, storage)
            await retry_job(file.name, phases, storage, worker.scheduler, "resume" if how == "resume" else "full")
            await worker.run_until_idle()
            job = await storage.get_job(file.name)
            assert job is not None
            rows.append((how, job.status, desk.ran(), desk.office.bookings().get(file.name, 0)))
    table = Table("what", "came to", "what ran", "bookings", title=f"Retry: {file.name}")
    for what, status, ran, booked in rows:
        table.add_row(what, status, ", ".join(f"{name} {times}" for name, times in ran.items()), str(booked))
    console.print(table)
    broken, resumed, full = (ran for _, _, ran, _ in rows)
    return (
        broken == {"extract": 1, "model": 2, "find_customer": 1, "draft": 1}
        and resumed == {"draft": 1, "review": 1, "archive": 1}
        and full == {"extract": 1, "model": 2, "find_customer": 1, "draft": 1, "review": 1, "archive": 1}
        and desk.office.bookings() == {file.name: 1}
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--points", type=int, default=1, metavar="N", help="die only at every Nth moment")
    every = arguments.parse_args().points
    console = Console()
    console.print(clerk_model.described())
    checks: dict[str, bool] = {}
    if hasattr(os, "fork") and not isinstance(clerk_model.chosen(), str):
        # Before anything here starts a thread: a fork copies none.
        checks["killed at every write: finished, one phase repeated at most, booked once"] = killed_everywhere(console, every)
    else:
        console.print("Nothing is killed here: that needs fork, and a model that may be asked for nothing.")
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        checks["every document through, or refused with a reason"] = asyncio.run(everything(console, Desk(Path(one))))
        checks["resume enters the failed phase and those after it, full enters all, each booked once"] = asyncio.run(
            retried(console, Desk(Path(two)))
        )
    for what, held in checks.items():
        console.print(f"[{'green' if held else 'red'}]{'held' if held else 'BROKEN'}[/]  {what}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
