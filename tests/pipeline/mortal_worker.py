"""A worker process that a test kills: `mortal_worker.py DATABASE SCHEMA JOURNAL`. DATABASE is a file, or a Postgres, where SCHEMA is used. It tells its parent of each phase that begins, and each save."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from perdure.pipeline import Done, Next, Phase, PhaseContext, PhaseResult, PipelineWorker, PostgresStorage, SqliteStorage

LEASE = timedelta(seconds=0.5)


@dataclass
class Sheet:
    rows: list[int] = field(default_factory=list)


class Journal:
    """One file for all processes, appended to with single writes."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, *words: object) -> None:
        os.write(self._file, (" ".join(str(each) for each in (*words, os.getpid())) + "\n").encode())


def tell(*words: object) -> None:
    print(*words, flush=True)


def phases_of(journal: Journal) -> list[Phase[Any]]:
    names = ["extract", "classify", "draft", "archive"]

    def make(at: int, name: str) -> Phase[Any]:
        async def run(ctx: PhaseContext[Sheet]) -> PhaseResult[Sheet]:
            journal.note("begin", ctx.job_id, name, len(ctx.state.rows))
            tell("begin", ctx.job_id, name)
            for row in range(len(ctx.state.rows), 2 * (at + 1)):
                await ctx.save_state(Sheet([*ctx.state.rows, row]))
                journal.note("saved", ctx.job_id, name, len(ctx.state.rows))
                tell("saved", ctx.job_id, name)
            journal.note("end", ctx.job_id, name, len(ctx.state.rows))
            return Next(names[at + 1], ctx.state) if name != "archive" else Done(ctx.state.rows)

        return Phase(name, run, state=Sheet)

    return [make(at, name) for at, name in enumerate(names)]


def open_storage(database: str, schema: str) -> Any:
    return PostgresStorage(database, schema=schema) if "://" in database else SqliteStorage(database)


async def main(database: str, schema: str, journal: str) -> None:
    async with open_storage(database, schema) as storage:
        # Leases run out here because processes are killed, and on a busy machine because they are so short: no phase is to blame.
        phases, poll = phases_of(Journal(journal)), timedelta(seconds=0.05)
        worker = PipelineWorker(phases, storage, lease=LEASE, poll=poll, concurrency=3, deaths_max=10_000)
        tell("ready")
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
