"""A run that waits outlives every process, a deploy and a month: one answer, one tool call."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure.stores.postgres import PostgresStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.postgres import PostgresServer

BEFORE = '''
"""The program as it was when the run was asked for."""
import asyncio
import os
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

engine = Engine(os.environ["STORE"])
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
import os
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

engine = Engine(os.environ["STORE"])
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


CROWD = '''
"""Twenty-five people at one desk, who answer at once."""
import asyncio
import json
import os
import sys
from perdure import Engine

async def main(request: str, desk: str) -> None:
    async with Engine(os.environ["STORE"], workers=0) as engine:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        answers = [
            engine.approve(request, by=f"{desk}-{n}") if n % 2 else engine.deny(request, by=f"{desk}-{n}", reason="no") for n in range(25)
        ]
        said = await asyncio.gather(*answers)
        print(json.dumps([[str(each.outcome), each.wait.resolution.by, each.wait.resolution.decision] for each in said]))

asyncio.run(main(*sys.argv[1:]))
'''

PLACES = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """Where the processes of one test meet: a folder, and the address of a store."""

    folder: Path
    store: str

    def run(self, *command: str) -> list[str]:
        """One process from its start to its end."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        done = subprocess.run(
            [sys.executable, *command], cwd=self.folder, env={**kept, "STORE": self.store}, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def open(self, *command: str) -> subprocess.Popen[str]:
        """A process that goes on beside this one; it says when it is ready."""
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env={**os.environ, "STORE": self.store},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    def release(self, program: str) -> None:
        """Deploy this program in the place of the one before."""
        (self.folder / "app.py").write_text(program)

    def later(self, by: timedelta) -> None:
        """Move the store's clock, the only one that deadlines are judged by."""

        async def move() -> None:
            async with PostgresStore(self.store) if self.store.startswith("postgresql:") else SqliteStore(self.folder / "runs.db") as store:
                await store.move_clock(by)

        asyncio.run(move())

    @property
    def calls(self) -> list[str]:
        """What the tools of all programs did."""
        return (self.folder / "calls.txt").read_text().splitlines()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty one."""
    if request.param == "sqlite":
        return Place(tmp_path, "sqlite:///runs.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    database = f"two_processes_{next(PLACES)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    return Place(tmp_path, server.dsn.replace("/postgres?", f"/{database}?"))


@pytest.mark.parametrize("door", ["python", "command line"])
def test_an_answer_a_month_and_a_release_later_starts_one_tool_call(place: Place, door: str) -> None:
    """By the request's id alone; what ran before the wait is not run again. # case B8, # case B15, # case B17"""
    place.release(BEFORE)
    run_id, request = place.run("app.py")
    place.release(AFTER)
    place.later(timedelta(days=30))
    if door == "command line":
        edited = '{"order": "7", "cents": 400}'
        [told] = place.run("-m", "perdure.cli", "approvals", "approve", request, "--input", edited, "--by", "eva", "--store", place.store)
        assert "approve" in told
    [line] = place.run("app.py", run_id, request if door == "python" else "")
    said: Any = json.loads(line)
    assert said["outcomes"] == (["resolved", "already", "conflict"] if door == "python" else [])
    assert (said["output"], said["refusals"]) == ("Paid back.", 0)
    assert place.calls == ["look", "refund 7 400 fresh"]
    assert said["events"].count("run.claimed") == 2 and said["events"].count("run.settled") == 1
    [line] = place.run("app.py", run_id, "")
    assert place.calls == ["look", "refund 7 400 fresh"], "whoever looks again starts nothing"


def test_an_answer_after_the_deadline_pays_nothing(place: Place) -> None:
    """The month passed the deadline: the late answer is told so, and the model that the request lapsed. # case B2"""
    place.release(BEFORE)
    run_id, request = place.run("app.py")
    place.release(AFTER)
    place.later(timedelta(days=61))
    [line] = place.run("app.py", run_id, request)
    said: Any = json.loads(line)
    assert set(said["outcomes"]) == {"expired"}
    assert said["output"] == "Paid back."  # the script's words; nothing was paid
    assert place.calls == ["look"]


def test_of_fifty_answers_from_two_processes_one_wins(place: Place) -> None:
    """Everybody learns the same winner; one row says who decided, and the run is resumed once. # case B1"""
    place.release(BEFORE)
    run_id, request = place.run("app.py")
    (place.folder / "crowd.py").write_text(CROWD)
    desks = [place.open("crowd.py", request, name) for name in ("left", "right")]
    for desk in desks:
        assert desk.stdin is not None
        desk.stdin.write("go\n")
        desk.stdin.flush()
    told = [each for desk in desks for each in json.loads(desk.communicate(timeout=120)[0])]
    outcomes = Counter(outcome for outcome, _, _ in told)
    assert (outcomes["resolved"], outcomes.total()) == (1, 50) and set(outcomes) <= {"resolved", "already", "conflict"}
    assert len({(by, decision) for _, by, decision in told}) == 1, "the rest learn who won"
    [(_, winner, decision)] = [each for each in told if each[0] == "resolved"]
    assert int(winner.split("-")[1]) % 2 == (decision == "approve")
    place.release(AFTER)
    [line] = place.run("app.py", run_id, "")
    said: Any = json.loads(line)
    assert (said["output"], said["events"].count("wait.resolved"), said["events"].count("run.claimed")) == ("Paid back.", 1, 2)
    assert place.calls == ["look", *(["refund 7 900 fresh"] if decision == "approve" else [])]
