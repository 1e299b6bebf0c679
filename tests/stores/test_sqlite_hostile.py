"""What may happen to a SQLite file from outside: removed, moved, replaced while it is open; its first process killed in the middle of making it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic_ai import Agent

from perdure import Engine, RunStatus, effect
from perdure.core.commit import RunFilter
from perdure.core.errors import StoreError
from perdure.stores.sqlite import SqliteStore
from perdure.stores.sqlite._connection import SCHEMA
from perdure.testing.conformance._bench import new_run
from perdure.testing.models import ScriptedModel, call, say

Hurt = Callable[[Path], object]


def _remove_all(path: Path) -> None:
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        each.unlink()


def _replace(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE shop (item)")
    raw.close()


HURTS: dict[str, Hurt] = {
    "removed": lambda path: path.unlink(),
    "log removed": lambda path: Path(f"{path}-wal").unlink(),
    "all removed": _remove_all,
    "replaced": _replace,
    "moved": lambda path: path.rename(path.with_name("elsewhere.db")),
    "folder moved": lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder / "perdure.db"


@pytest.mark.parametrize("name", HURTS)
async def test_nothing_is_acknowledged_that_nobody_else_would_find(path: Path, name: str) -> None:
    """SQLite itself goes on writing into a file without a name: the write is refused, and the file is named."""
    async with SqliteStore(path) as store:
        await store.admit(new_run("r1"))
        HURTS[name](path)
        for _ in range(2):
            with pytest.raises(StoreError, match="removed, moved or replaced") as caught:
                await store.admit(new_run("r2"))
            assert caught.value.details["path"].startswith(str(path))


@pytest.mark.parametrize("name", ["removed", "all removed", "replaced"])
async def test_a_run_whose_file_is_gone_is_not_said_to_be_completed(path: Path, name: str) -> None:
    """Its tools stop at the next step, and whoever asks hears why."""
    errors: list[BaseException] = []
    calls: list[int] = []
    engine = Engine(f"sqlite:///{path}", on_error=errors.append)
    agent = Agent(ScriptedModel([call("pay"), call("pay"), call("pay"), say("done")]), name="shop")

    @agent.tool_plain(metadata=effect())
    def pay() -> str:
        calls.append(len(calls))
        if len(calls) == 2:
            HURTS[name](path)
        return "paid"

    shop = engine.agent(agent)
    async with engine:
        run = await shop.start({})
        while not errors:
            await asyncio.wait_for(asyncio.shield(engine.settled(run.id, 0.1)), 120)
        assert (await run.status()) is not RunStatus.COMPLETED
        with pytest.raises(StoreError):
            await shop.start({})
    assert len(calls) == 2
    assert isinstance(errors[0], StoreError)


MAKING = """
import asyncio, os, signal, sys
from perdure.stores.sqlite import SqliteStore, _connection

whole, last = _connection.statements, int(sys.argv[2])

def statements(text):
    for number, statement in enumerate(whole(text)):
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
        yield statement
    if last < 0:
        os.kill(os.getpid(), signal.SIGKILL)

_connection.statements = statements

async def main():
    async with SqliteStore(sys.argv[1]):
        pass

asyncio.run(main())
"""


@pytest.mark.parametrize("at", [0, 1, 7, -1])
def test_a_process_killed_while_it_makes_the_file_leaves_one_that_can_be_made(path: Path, at: int) -> None:
    """The schema is there whole or not at all: before the first statement, between two, after the last."""
    killed = subprocess.run([sys.executable, "-c", MAKING, str(path), str(at)], capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr

    async def main() -> None:
        async with SqliteStore(path) as store:
            assert store.info()["schema"] == SCHEMA
            await store.admit(new_run("r1"))
            assert len(await store.runs(RunFilter())) == 1

    asyncio.run(main())
    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert raw.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    raw.close()


ENTERING = """
import asyncio, sys
from pydantic_ai import Agent
from perdure import Engine
from perdure.testing.models import ScriptedModel, say

engine = Engine("sqlite:///" + sys.argv[1])
shop = engine.agent(Agent(ScriptedModel([say("done")]), name="shop"))

async def main():
    print("ready", flush=True)
    sys.stdin.readline()
    async with engine:
        return await shop.run({"n": sys.argv[2]}, timeout=120)

print(asyncio.run(main()))
"""


def test_processes_that_enter_an_engine_on_no_file_at_the_same_moment_all_work(path: Path) -> None:
    """One of them makes the file; none hears of the others, and every run is executed once."""
    command = [sys.executable, "-c", ENTERING, str(path)]
    env = {**os.environ, "PYDANTIC_AI_NO_BANNER": "1"}
    workers = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        for n in range(3)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    said = [worker.communicate("go\n", timeout=200) for worker in workers]
    assert said == [("done\n", "")] * 3
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT status, executions, count(*) FROM run GROUP BY 1, 2").fetchall() == [("completed", 1, 3)]
    raw.close()
