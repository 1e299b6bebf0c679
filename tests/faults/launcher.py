"""Starts workers as real processes, quickly: everything is imported once, each `start` on standard input forks a worker and prints its pid.
`stop PID` stops one, and answers once all of its threads stand still.

python launcher.py DATABASE LOG LEASE_SECONDS
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

from pydantic_ai import Agent

from perdure import Engine, current_run, plain
from perdure.testing.models import ScriptedModel, call, calls, say

TOOL_SECONDS = 0.05


def note(log: Path, **fields: object) -> None:
    """One line, whole, whoever else writes."""
    line = json.dumps({**fields, "at": time.monotonic_ns()}) + "\n"
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)


def engine_of(database: str, log: Path, lease: float) -> Engine:
    """The engine that every worker and the test itself have."""
    errors: list[BaseException] = []

    def report(error: BaseException) -> None:
        errors.append(error)
        note(log, kind="error", pid=os.getpid(), error=f"{type(error).__name__}: {error}")

    # Workers die here without the runs' fault: none is poison.
    engine = Engine(
        f"sqlite:///{database}", lease=timedelta(seconds=lease), workers=8, tick=timedelta(seconds=lease / 4), deaths_max=10_000, on_error=report
    )
    agent = Agent(ScriptedModel([calls(call("work"), call("work")), call("work"), say("done")]), name="worked")

    @agent.tool_plain(metadata=plain())
    async def work() -> str:
        run = current_run()
        note(log, kind="start", run=run.id, epoch=run.epoch, pid=os.getpid())
        await asyncio.sleep(TOOL_SECONDS)
        note(log, kind="end", run=run.id, epoch=run.epoch, pid=os.getpid())
        return "ok"

    engine.agent(agent)
    return engine


async def live(engine: Engine) -> None:
    async with engine:
        await asyncio.Event().wait()


def main() -> None:
    database, log, lease = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are not waited for
    print("ready", flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "stop":
            stopped = int(arguments[0])
            os.kill(stopped, signal.SIGSTOP)
            os.waitid(os.P_PID, stopped, os.WSTOPPED)
            print(stopped, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            sys.stdin.close()
            try:
                asyncio.run(live(engine_of(database, log, lease)))
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
