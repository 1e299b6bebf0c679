"""`perdure worker`: executes what comes, drains at the first signal, stops hard at the second."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from shop_cli import APP, Cli, start, until_in_a_tool

from perdure.cli._exit import STOPPED
from perdure.cli._signals import stop_on_signals

SMALL = ("run", APP, "complaints", '{"order": "7", "cents": 1}', "--no-follow")


def status(here: Cli) -> str:
    return json.loads(here("runs", "show", "last", "--app", APP, "--json", code=0).out)["status"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(tmp_path: Path, here: Cli, number: signal.Signals) -> None:
    """What a worker can't finish within its grace is handed back, interrupted; the worker ends with 0."""
    here(*SMALL, code=0)
    process = start(tmp_path, "worker", APP, "--grace", "0")
    until_in_a_tool(tmp_path)
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, out) == (0, ""), err
    assert "agents: broken, complaints, hello" in err and "draining: 1 run" in err and "interrupted" not in err.splitlines()[0]
    assert status(here) == "interrupted"


def test_a_second_signal_stops_hard_and_nothing_is_lost(tmp_path: Path, here: Cli) -> None:
    """The run keeps its lease until it runs out; then somebody goes on with it."""
    here(*SMALL, code=0)
    process = start(tmp_path, "worker", APP, "--grace", "600")
    until_in_a_tool(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    while "draining" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == STOPPED
    assert status(here) == "running"
    (tmp_path / "hold").unlink()
    assert here("continue", APP, "last").code == 4


HANGING = """
import asyncio, threading
from pydantic_ai import Agent
from perdure import Engine, current_run, plain
from perdure.testing.models import ScriptedModel, call, calls, say

agent = Agent(ScriptedModel([calls(call("stuck"), call("deaf")), say("done")]))

@agent.tool_plain(metadata=plain())
def stuck() -> str:
    current_run().log("in the tool")
    threading.Event().wait()
    return "never"

@agent.tool_plain(metadata=plain())
async def deaf() -> str:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

engine = Engine("sqlite:///shop.db")
engine.agent(agent, name="hanging")
"""


def test_a_worker_whose_tools_never_come_back_ends_all_the_same(tmp_path: Path, here: Cli) -> None:
    """A thread that can't be stopped and a task that swallows cancellation keep no process; it waits for them without spinning."""
    # case G7
    (tmp_path / "app.py").write_text(HANGING)
    here("run", "app.py", "hanging", "null", "--no-follow", code=0)
    process = start(tmp_path, "worker", "app.py", "--grace", "2")
    until_in_a_tool(tmp_path)
    spent = cpu_seconds(process.pid)
    process.send_signal(signal.SIGTERM)
    _, status_word, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status_word) == 0
    assert used.ru_utime + used.ru_stime - spent < 1.5
    process.returncode = 0
    assert process.stdout is not None and process.stderr is not None
    assert "stopped" in process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    assert json.loads(here("runs", "show", "last", "--store", "sqlite:///shop.db", "--json", code=0).out)["status"] == "interrupted"


def cpu_seconds(pid: int) -> float:
    """What a process has spent so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_with_json_a_worker_tells_events(tmp_path: Path, here: Cli) -> None:
    """One line of JSON for each, as they are committed."""
    here(*SMALL, code=0)
    process = start(tmp_path, "worker", APP, "--grace", "0", "--json")
    until_in_a_tool(tmp_path)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    kinds = [json.loads(line)["type"] for line in out.splitlines()]
    assert kinds[0] == "run.claimed" and "log" in kinds


def test_a_program_without_agents_is_refused(tmp_path: Path, here: Cli) -> None:
    """A worker that could execute nothing would wait for ever."""
    (tmp_path / "empty_app.py").write_text("from perdure import Engine\nengine = Engine()\n")
    assert "registers no agent" in here("worker", "empty_app.py", code=2).complaint


def test_outside_the_main_thread_no_handler_is_installed() -> None:
    """Python allows none there; the rest works."""
    # case N5
    found: list[str] = []

    async def main() -> None:
        with stop_on_signals(lambda: found.append("asked")):
            found.append("entered")

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert found == ["entered"]
    assert signal.getsignal(signal.SIGTERM) is before


async def test_handlers_are_given_back() -> None:
    """Whoever had them before has them again."""
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with stop_on_signals(lambda: None):
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
