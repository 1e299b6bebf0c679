"""What the database itself costs: raw commits of the same bytes, nothing around them."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from pathlib import Path

import psycopg

from benchmarks.work import bare
from perdure.core.runtime import RealRuntime

RESPONSE = b"x" * 650
RESULTS = b"x" * 1_250


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE run(id INTEGER PRIMARY KEY, step INTEGER)")
    db.execute("CREATE TABLE message(id INTEGER PRIMARY KEY, body BLOB)")
    db.execute("INSERT INTO run VALUES(1, 0)")
    return db


def _commit(db: sqlite3.Connection, step: int, body: bytes) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE run SET step = ? WHERE id = 1", (step,))
    db.execute("INSERT INTO message(body) VALUES(?)", (body,))
    db.execute("COMMIT")


def sqlite_two_commits(path: Path, steps: int) -> None:
    """WAL, synchronous FULL, two commits a step: what a durable step costs at least."""
    db = _opened(path)
    for step in range(steps):
        for body in (RESPONSE, RESULTS):
            _commit(db, step, body)
    db.close()


async def loop_with_two_commits(path: Path, steps: int) -> None:
    """The bare agent loop with the same commits where a durable one has them, each on a thread so that the event loop is not blocked.

    Nothing of ours is in it. What it takes longer than the bare loop is what waiting for a disk costs a program that does other things in between: the processor
    goes to sleep and wakes up with cold caches. The commits in a row, with nothing around them, do not see that.
    """
    db, loop, lane = _opened(path), asyncio.get_running_loop(), RealRuntime().lane("floor")
    bodies = itertools.cycle((RESPONSE, RESULTS))
    steps_done = itertools.count()

    async def committed() -> None:
        done: asyncio.Future[None] = loop.create_future()

        def work() -> None:
            _commit(db, next(steps_done), next(bodies))
            loop.call_soon_threadsafe(done.set_result, None)

        lane.post(work)
        await done

    await bare(steps, after_each=committed)
    lane.close()
    db.close()


async def postgres_two_commits(dsn: str, steps: int) -> None:
    """One connection, two commits a step, each as few round trips as the driver makes of them."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as db:
        await db.execute("DROP TABLE IF EXISTS floor_run; DROP TABLE IF EXISTS floor_message")
        await db.execute("CREATE TABLE floor_run(id INTEGER PRIMARY KEY, step INTEGER)")
        await db.execute("CREATE TABLE floor_message(id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body BYTEA)")
        await db.execute("INSERT INTO floor_run VALUES(1, 0)")
        for step in range(steps):
            for body in (RESPONSE, RESULTS):
                async with db.pipeline(), db.transaction():
                    await db.execute("UPDATE floor_run SET step = %s WHERE id = 1", (step,))
                    await db.execute("INSERT INTO floor_message(body) VALUES(%s)", (body,))
