"""An effect whose record is in the commit of the user's own rows, when the reply is lost and when the process is killed: never unknown, never twice."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic_ai import Agent
from wiretap import When, Wiretap

from perdure import Engine, current_run, effect
from perdure.core.effect import EffectState
from perdure.stores.postgres import PostgresStore
from perdure.testing.models import ScriptedModel, call, say
from perdure.testing.postgres import PostgresServer

NAMES = itertools.count(1)
LONG = 60.0


@pytest.fixture
def name(postgres: PostgresServer) -> Iterator[str]:
    """A schema for one test, and a table of the user's beside it."""
    name = f"killed_{next(NAMES)}"
    sql(postgres, f"CREATE TABLE orders_{name} (run TEXT)")
    yield name
    sql(postgres, f"DROP TABLE orders_{name}; DROP SCHEMA IF EXISTS {name} CASCADE")


def sql(server: PostgresServer, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_whose_reply_is_lost_is_asked_for(postgres: PostgresServer, name: str, when: When) -> None:
    """Not applied: the body runs again. Applied: it does not. Either way there is one row, and a record with the tool's result."""
    bodies: list[str | None] = []
    async with Wiretap(postgres.folder) as tap:
        agent = Agent(ScriptedModel([call("order"), say("done")]), name="shop")

        @agent.tool_plain(metadata=effect("transaction"))
        async def order() -> str:
            bodies.append(current_run().key)
            async with current_run().transaction() as connection:
                await connection.execute(f"INSERT INTO orders_{name} VALUES ('{current_run().id}')".encode())
            if len(bodies) == 1:
                # Nobody else of this process commits between here and the record: its reply is the one that is lost.
                tap.cut(b"COMMIT", when)
            return f"ordered by {len(bodies)}"

        engine = Engine(PostgresStore(tap.dsn, schema=name, pool_max=2, pooler=True), tick=None)
        engine.agent(agent)
        async with engine:
            run = await engine.start("shop", {})
            assert await run.result(LONG) == "done"
            [row] = await engine.effects(run_id=run.id, state=None)
    assert tap.pending == 0
    assert len(bodies) == (2 if when == "before" else 1) and len(set(bodies)) == 1
    assert (row.state, row.row.result) == (EffectState.DONE, f"ordered by {len(bodies)}")
    assert sql(postgres, f"SELECT count(*) FROM orders_{name}") == [(1,)]


WORKER = '''
"""A worker that says when it is where the test wants to kill it, and then waits there."""
import asyncio, signal, sys
from datetime import timedelta
from pydantic_ai import Agent
from perdure import Engine, current_run, effect
from perdure.stores.postgres import PostgresStore
from perdure.testing.models import ScriptedModel, call, say

dsn, schema, stop_at = sys.argv[1:]
agent = Agent(ScriptedModel([call("order"), say("done")]), name="shop")

async def here(place: str) -> None:
    if place == stop_at:
        print(place, flush=True)
        await asyncio.Event().wait()

@agent.tool_plain(metadata=effect("transaction"))
async def order() -> str:
    async with current_run().transaction() as connection:
        await here("before the row")
        await connection.execute(f"INSERT INTO orders_{schema} VALUES ('{current_run().id}')".encode())
        await here("in the block")
    await here("before the commit")
    return "ordered"

async def main() -> None:
    engine = Engine(PostgresStore(dsn, schema=schema), lease=timedelta(seconds=1), tick=timedelta(seconds=0.2))
    engine.agent(agent)
    if stop_at == "after the commit":
        engine.on("effect.done", lambda event: (print(stop_at, flush=True), signal.pause()))
    async with engine:
        await asyncio.Event().wait()

asyncio.run(main())
'''


NIGHTLY = [pytest.param(place, marks=pytest.mark.nightly) for place in ("before the row", "before the commit")]


@pytest.mark.parametrize("place", ["in the block", "after the commit", *NIGHTLY])
def test_a_process_that_is_killed_leaves_both_or_neither(postgres: PostgresServer, name: str, place: str, tmp_path: Path) -> None:
    """SIGKILL at each place of the tool: the next worker finishes the run by itself, with one row. # case A1"""
    (tmp_path / "worker.py").write_text(WORKER)

    def worker(stop_at: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, str(tmp_path / "worker.py"), postgres.dsn, name, stop_at], stdout=subprocess.PIPE, text=True)

    async def start() -> str:
        engine = Engine(PostgresStore(postgres.dsn, schema=name), workers=0)
        engine.agent(Agent(ScriptedModel([]), name="shop"))
        async with engine:
            return (await engine.start("shop", {})).id

    async def finish(run_id: str) -> list[Any]:
        async with Engine(PostgresStore(postgres.dsn, schema=name), workers=0) as engine:
            assert await engine.handle(run_id).result(LONG) == "done"
            return list(await engine.effects(run_id=run_id, state=None))

    run_id = asyncio.run(start())
    first = worker(place)
    assert first.stdout is not None and first.stdout.readline().strip() == place
    rows = sql(postgres, f"SELECT count(*) FROM orders_{name}")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    first.stdout.close()
    assert rows == [(1 if place == "after the commit" else 0,)]
    second = worker("")
    try:
        [row] = asyncio.run(finish(run_id))
    finally:
        second.kill()
        second.wait()
        assert second.stdout is not None
        second.stdout.close()
    assert (row.state, row.row.result, row.row.try_no) == (EffectState.DONE, "ordered", 1)
    assert sql(postgres, f"SELECT run FROM orders_{name}") == [(run_id,)]
