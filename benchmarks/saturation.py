"""What saturates first: processor time of workers and of the database for one step, and how many commits the database's disk takes.

    python -m benchmarks.saturation [--runs N] [--workers 1,2]

Workers are processes of their own, on a Postgres server that waits for its disk. Processor time is the kernel's count, so that it does not depend on what else the
machine does. From these three figures follows which of them a larger installation meets first.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg

from benchmarks.postgres import fresh
from benchmarks.work import PROMPT, agent_of
from perdure import Budget, Engine
from perdure.stores.postgres import PostgresStore
from perdure.testing.postgres import PostgresServer

STEPS = 10
TICKS = os.sysconf("SC_CLK_TCK")

COMMITTING = """
CREATE TABLE IF NOT EXISTS floor_commit(id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body BYTEA);
CREATE OR REPLACE PROCEDURE floor_commits(times integer) LANGUAGE plpgsql AS $$
BEGIN
    FOR at IN 1..times LOOP
        INSERT INTO floor_commit(body) VALUES (decode(repeat('ab', 1000), 'hex'));
        COMMIT;
    END LOOP;
END $$;
"""


def engine_of(store: PostgresStore, places: int) -> Engine:
    engine = Engine(store, workers=places)
    engine.agent(agent_of(STEPS), budget=Budget(max_steps=STEPS + 10))
    return engine


async def work(dsn: str, schema: str, runs: int) -> None:
    """A worker: says that it is ready, waits for the word, works until all runs are done, says what it used."""
    async with PostgresStore(dsn, schema=schema) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        began = time.process_time()
        async with engine_of(store, places=100):
            while (await store.counts()).get("completed", 0) < runs:  # noqa: ASYNC110 - another process may finish the last one
                await asyncio.sleep(0.05)
            print(time.process_time() - began, flush=True)
            sys.stdin.readline()


async def admit(store: PostgresStore, runs: int) -> None:
    async with store, engine_of(store, places=0) as engine:
        for number in range(runs):
            await engine.start("bench", {"n": number, "prompt": PROMPT})


def server_seconds(postmaster: int) -> float:
    """Processor time of the server's processes that live."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == postmaster:
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def several(server: PostgresServer, workers: int, runs: int) -> None:
    store = fresh(server.dsn)
    schema = store.info()["namespace"]
    asyncio.run(admit(store, runs))
    postmaster = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    command = [sys.executable, "-m", "benchmarks.saturation", "--work", server.dsn, schema, str(runs)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
    try:
        for each in processes:
            _heard(each)
        before, began = server_seconds(postmaster), time.perf_counter()
        for each in processes:
            _say(each)
        used = [float(_heard(each)) for each in processes]
        seconds, server_s = time.perf_counter() - began, server_seconds(postmaster) - before
    finally:
        for each in processes:
            _say(each)
            each.wait()
    steps = runs * STEPS
    print(
        f"  {workers} worker process{'es' if workers > 1 else ''}: {steps / seconds:6.0f} steps/s; of processor time a step takes "
        f"{sum(used) / steps * 1_000:.1f} ms in a worker and {server_s / steps * 1_000:.2f} ms in the database",
        flush=True,
    )


def _heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("A worker ended by itself.")
    return line


def _say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write("\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended


def disk(dsn: str, sessions: int, times: int) -> None:
    """Commits of 1 KB from several sessions at once, made by the server itself."""

    def call() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"CALL floor_commits({times})".encode())

    threads = [threading.Thread(target=call) for _ in range(sessions)]
    began = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    rate = sessions * times / (time.perf_counter() - began)
    print(f"  {sessions:2} sessions: {rate:6.0f} commits/s, so at most {rate / 2:6.0f} steps/s", flush=True)


def main() -> None:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--work", nargs=3, metavar=("DSN", "SCHEMA", "RUNS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        dsn, schema, runs = given.work
        asyncio.run(work(dsn, schema, int(runs)))
        return
    with PostgresServer({"fsync": "on"}) as server:
        print(f"{given.runs} runs of {STEPS} steps")
        for workers in (int(each) for each in given.workers.split(",")):
            several(server, workers, given.runs)
        print("The database alone, committing 1 KB at a time")
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(COMMITTING.encode())
        for sessions in (1, 4, 16):
            disk(server.dsn, sessions, 500)


if __name__ == "__main__":
    main()
