"""Workers on Postgres as real processes, for the chaos test: imported once, each `start` on standard input forks one and prints its pid.

python chaos_worker.py DSN SCHEMA FOLDER POOLER
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from pydantic_ai import Agent

from perdure import EffectCall, Engine, Happened, NotDone, approve, current_run, effect
from perdure.stores.postgres import PostgresStore
from perdure.testing.models import ScriptedModel, call, say

LEASE = timedelta(seconds=2)
TOOLS = ("pay", "order", "refund")


def append(path: Path, line: str) -> None:
    """One line, whole, whoever else writes: the outside world."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def deeds(folder: Path) -> list[str]:
    """What happened outside: one line a deed, `run tool key`."""
    path = folder / "deeds"
    return path.read_text().splitlines() if path.exists() else []


def happened(folder: Path, key: str) -> bool:
    return any(line.split()[2] == key for line in deeds(folder))


def engine_of(dsn: str, schema: str, folder: Path, *, pooler: bool, workers: int = 8) -> Engine:
    """The engine that every worker and the test itself have."""

    async def ask_the_world(sent: EffectCall) -> Happened | NotDone:
        return Happened("paid") if happened(folder, sent.key) else NotDone()

    def do(tool: str) -> str:
        run = current_run()
        append(folder / "deeds", f"{run.id} {tool} {run.key}")
        return "ok"

    agent = Agent(ScriptedModel([call("pay"), call("order"), call("refund"), say("done")]), name="shop")

    @agent.tool_plain(metadata=effect(ask_the_world, timeout=timedelta(seconds=1)))
    async def pay() -> str:
        """A deed outside that can be asked for."""
        return do("pay")

    @agent.tool_plain(metadata=effect("transaction"))
    async def order() -> str:
        """A deed in the same database."""
        async with current_run().transaction() as connection:
            await connection.execute(f"INSERT INTO orders_{schema} VALUES ('{current_run().id}')".encode())
        return "ok"

    @agent.tool_plain(metadata=effect(timeout=timedelta(seconds=1)) | approve())
    async def refund() -> str:
        """A deed that a person is asked before, and after where nobody knows."""
        return do("refund")

    engine = Engine(
        PostgresStore(dsn, schema=schema, pool_max=3, pooler=pooler), workers=workers, lease=LEASE, tick=LEASE / 4, deaths_max=1_000_000,
        effect_grace=timedelta(seconds=0.5), on_error=lambda error: append(folder / "errors", f"{os.getpid()} {type(error).__name__}: {error}"),
    )  # fmt: skip
    engine.agent(agent)
    return engine


async def live(engine: Engine) -> None:
    async with engine:
        await asyncio.Event().wait()


def main() -> None:
    dsn, schema, folder, pooler = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4] == "pooler"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are not waited for
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "start":
            continue
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            try:
                asyncio.run(live(engine_of(dsn, schema, folder, pooler=pooler)))
            except BaseException as error:
                append(folder / "errors", f"{os.getpid()} ended: {type(error).__name__}: {error}")
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
