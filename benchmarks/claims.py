"""The time of a claim on Postgres with a million runs stored, a thousand of them claimable, against an empty database.

python -m benchmarks.claims [--runs 1000000] [--claimable 1000] [--claims 300]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import sys
import time
from datetime import timedelta

import psycopg

from perdure.core.commit import ClaimRequest, NewRun
from perdure.core.runtime import RealRuntime
from perdure.core.trigger import TriggerEnvelope
from perdure.stores.postgres import PostgresStore
from perdure.testing.postgres import PostgresServer

RATIO_MAX = 3.0
"""Times the 95th percentile on an empty database."""

FILL = """
INSERT INTO {schema}.run (id, agent, status, priority, forked, format, executions, usage, created_at, updated_at, available_at, finished_at)
SELECT 'r' || n, 'desk', CASE WHEN n % 50 = 0 THEN 'failed' WHEN n % 20 = 0 THEN 'waiting' ELSE 'completed' END, 0, 0, 1, 1, '[0,0,0,0,0,0,"0"]', n, n, n,
    CASE WHEN n % 20 = 0 AND n % 50 > 0 THEN NULL ELSE n END
FROM generate_series(1, {runs}) n
"""


def percentile(values: list[float]) -> float:
    """The 95th."""
    return statistics.quantiles(values, n=20)[-1]


def request(runtime: RealRuntime) -> ClaimRequest:
    return ClaimRequest("bench", runtime.host(), runtime.new_token(), {"desk": None}, timedelta(hours=1), limit=1)


async def admit(store: PostgresStore, runtime: RealRuntime) -> None:
    await store.admit(NewRun(runtime.new_id(), "desk", TriggerEnvelope(runtime.new_id(), "python", "desk", {}), "hash"))


async def claims(dsn: str, schema: str, stored: int, waiting: int, count: int) -> float:
    """The 95th percentile in milliseconds of a claim that takes one run."""
    runtime = RealRuntime()
    took: list[float] = []
    async with PostgresStore(dsn, schema=schema) as store:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            if stored:
                await connection.execute(FILL.format(schema=schema, runs=stored).encode())
            for _ in range(waiting):
                await admit(store, runtime)
            await connection.execute(f"VACUUM ANALYZE {schema}.run".encode())
        for number in range(count + 20):
            if not waiting:
                await admit(store, runtime)
            began = time.perf_counter()
            taken = await store.claim(request(runtime))
            if number >= 20:  # the first ones prepare their statements
                took.append((time.perf_counter() - began) * 1_000)
            assert len(taken) == 1
    return percentile(took)


def main() -> None:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--claimable", type=int, default=1_000)
    parser.add_argument("--claims", type=int, default=300)
    given = parser.parse_args()
    with PostgresServer({"fsync": "on"}) as server:
        empty = asyncio.run(claims(server.dsn, "empty", 0, 0, given.claims))
        full = asyncio.run(claims(server.dsn, "filled", given.runs, given.claimable, given.claims))
    fine = full <= RATIO_MAX * empty
    print(f"Claims on Postgres, {given.runs:,} runs stored, {given.claimable:,} of them claimable")
    print(f"  p95 of a claim, ms: empty {empty:.2f}, full {full:.2f}, {full / empty:.2f} ×, target ≤ {RATIO_MAX} ×   {'ok' if fine else 'MISSED'}")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
