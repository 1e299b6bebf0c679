"""What the database itself costs: raw commits of the same bytes, nothing around them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg

RESPONSE = b"x" * 650
RESULTS = b"x" * 1_250


def sqlite_two_commits(path: Path, steps: int) -> None:
    """WAL, synchronous FULL, two commits a step: what a durable step costs at least."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE run(id INTEGER PRIMARY KEY, step INTEGER)")
    db.execute("CREATE TABLE message(id INTEGER PRIMARY KEY, body BLOB)")
    db.execute("INSERT INTO run VALUES(1, 0)")
    for step in range(steps):
        for body in (RESPONSE, RESULTS):
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE run SET step = ? WHERE id = 1", (step,))
            db.execute("INSERT INTO message(body) VALUES(?)", (body,))
            db.execute("COMMIT")
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
