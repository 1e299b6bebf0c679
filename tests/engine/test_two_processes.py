"""A run that waits outlives every process, a deploy and a month: one answer, one tool call."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

BEFORE = '''
"""The program as it was when the run was asked for."""
import asyncio
from datetime import timedelta
from pydantic_ai import Agent
from perdure import Engine, Waiting, approve, effect
from perdure.testing.models import ScriptedModel, call, say

agent = Agent(ScriptedModel([call("look", order="7"), call("refund", order="7", cents=900), say("never said")]), name="desk")

@agent.tool_plain
def look(order: str) -> str:
    """Look an order up."""
    with open("calls.txt", "a") as file:
        file.write("look\\n")
    return "found"

@agent.tool_plain(metadata=effect() | approve(within=timedelta(days=60)))
def refund(order: str, cents: int) -> str:
    """Pay back."""
    raise RuntimeError("the old program must not pay")

engine = Engine("sqlite:///runs.db")
durable = engine.agent(agent, version="1")

async def main() -> None:
    async with engine:
        run = await durable.start({"order": "7"}, key="order-7")
        async for event in run.events():
            if isinstance(event, Waiting):
                print(run.id, event.waits[0].id, sep="\\n")
                return

if __name__ == "__main__":
    asyncio.run(main())
'''

AFTER = '''
"""The next release: other words, another module, one more tool, an optional argument."""
import asyncio
import json
import sys
from pydantic_ai import Agent, RunContext
from perdure import Engine, approve, effect
from perdure.testing.models import ScriptedModel, StrictProvider, call, say

model = StrictProvider(ScriptedModel([say("never asked"), say("never asked"), say("Paid back.")]))
agent = Agent(model, name="desk", instructions="Be brief.", deps_type=str)

@agent.tool_plain
def look(order: str, deep: bool = False) -> str:
    """Look an order up, in the new catalogue."""
    with open("calls.txt", "a") as file:
        file.write("look again\\n")
    return "found"

@agent.tool_plain
def complain(text: str) -> str:
    """New in this release."""
    return text

@agent.tool(metadata=effect() | approve())
def refund(ctx: RunContext[str], order: str, cents: int, note: str = "") -> str:
    """Pay back through the new bank."""
    with open("calls.txt", "a") as file:
        file.write(f"refund {order} {cents} {ctx.deps}\\n")
    return "refunded"

engine = Engine("sqlite:///runs.db")
durable = engine.agent(agent, version="2", deps="fresh")

async def main(run_id: str, answer: str) -> None:
    async with engine:
        if answer:
            said = await engine.approve(answer, by="eva", input={"order": "7", "cents": 400})
            again = await engine.approve(answer, by="eva", input={"order": "7", "cents": 400})
            other = await engine.deny(answer, by="kim")
            outcomes = [str(each.outcome) for each in (said, again, other)]
        else:
            outcomes = []
        output = await engine.handle(run_id).result(timeout=60)
        events = [event.type for event in await engine.store.events(run_id)]
        print(json.dumps({"outcomes": outcomes, "output": output, "events": events, "refusals": len(model.refusals)}))

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
'''


def run(folder: Path, *command: str) -> list[str]:
    """One process from its start to its end."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=kept, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def later(database: Path, by: timedelta) -> None:
    """Move the store's clock, the only one that deadlines are judged by."""
    connection = sqlite3.connect(database)
    with connection:
        connection.execute("UPDATE meta SET value = value + ? WHERE name = 'clock_offset'", (by // timedelta(microseconds=1),))
    connection.close()


@pytest.mark.parametrize("door", ["python", "command line"])
def test_an_answer_a_month_and_a_release_later_starts_one_tool_call(tmp_path: Path, door: str) -> None:
    """By the request's id alone; what ran before the wait is not run again. # case B8, # case B15, # case B17"""
    (tmp_path / "app.py").write_text(BEFORE)
    run_id, request = run(tmp_path, "app.py")
    (tmp_path / "app.py").write_text(AFTER)
    later(tmp_path / "runs.db", timedelta(days=30))
    if door == "command line":
        [told] = run(tmp_path, "-m", "perdure.cli", "approvals", "approve", request, "--input", '{"order": "7", "cents": 400}', "--by", "eva", "--store", "sqlite:///runs.db")  # fmt: skip
        assert "approve" in told
    [line] = run(tmp_path, "app.py", run_id, request if door == "python" else "")
    said: Any = json.loads(line)
    assert said["outcomes"] == (["resolved", "already", "conflict"] if door == "python" else [])
    assert (said["output"], said["refusals"]) == ("Paid back.", 0)
    assert (tmp_path / "calls.txt").read_text().splitlines() == ["look", "refund 7 400 fresh"]
    assert said["events"].count("run.claimed") == 2 and said["events"].count("run.settled") == 1
    [line] = run(tmp_path, "app.py", run_id, "")
    assert (tmp_path / "calls.txt").read_text().splitlines() == ["look", "refund 7 400 fresh"], "whoever looks again starts nothing"


def test_an_answer_after_the_deadline_pays_nothing(tmp_path: Path) -> None:
    """The month passed the deadline: the late answer is told so, and the model that the request lapsed. # case B2"""
    (tmp_path / "app.py").write_text(BEFORE)
    run_id, request = run(tmp_path, "app.py")
    (tmp_path / "app.py").write_text(AFTER)
    later(tmp_path / "runs.db", timedelta(days=61))
    [line] = run(tmp_path, "app.py", run_id, request)
    said: Any = json.loads(line)
    assert set(said["outcomes"]) == {"expired"}
    assert said["output"] == "Paid back."  # the script's words; nothing was paid
    assert (tmp_path / "calls.txt").read_text().splitlines() == ["look"]
