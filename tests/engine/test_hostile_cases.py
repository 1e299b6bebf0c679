"""Slow stores, the garbage collector, odd characters, Python's own strictness: what people met elsewhere must not be met here."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent

from perdure import Engine, RunStatus, Wait, approve, current_run, effect, plain
from perdure.errors import RunFailed
from perdure.testing.models import ScriptedModel, call, calls, say

SECONDS = timedelta(seconds=1)
READS = {"load", "get", "checkpoint", "waits", "effects", "steps", "events", "get_artifact", "now"}


class Through:
    """A store with something done before each call."""

    def __init__(self, store: Any, before: Any) -> None:
        self._store, self._before = store, before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found) or name.startswith("_"):
            return found

        async def through(*args: Any, **options: Any) -> Any:
            await self._before(name)
            return await found(*args, **options)

        return through

    async def __aenter__(self) -> Any:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._store.__aexit__(*exc)


def test_a_store_whose_reads_take_three_leases_loses_no_run(sim: Any) -> None:
    """The lease is renewed from the moment of the claim, not from the first step; the worker beside gets nothing. # case A11"""
    ran: list[str] = []

    async def slow(name: str) -> None:
        if name in READS:
            await sim.runtime.sleep(30)

    def shop(who: str) -> Agent[None, str]:
        agent = Agent(ScriptedModel([call("work"), say("done")]), name="shop")

        @agent.tool_plain(metadata=effect())
        async def work() -> str:
            ran.append(who)
            return "ok"

        return agent

    async def main() -> None:
        mine = sim.engine(store=Through(sim.store, slow), lease=10 * SECONDS)
        other = sim.other("b", lease=10 * SECONDS)
        other.agent(shop("b"))
        durable = mine.agent(shop("a"))
        stop = asyncio.Event()

        async def beside() -> None:
            async with other:
                await stop.wait()

        async with mine:
            run = await durable.start({})
            await sim.runtime.sleep(1)
            there = sim.on("b", beside())
            assert await run.result(2_000) == "done"
            stored = await run.run()
            assert (stored.executions, stored.deaths) == (1, 0)
            stop.set()
            await there

    sim.run(main)
    assert ran == ["a"]


def test_runs_finish_with_the_collector_at_every_call(sim: Any) -> None:
    """What is held by a weak reference alone is gone at once; a queue of one at a time moves on. # case N3"""
    collected: list[int] = []

    async def collect(_name: str) -> None:
        collected.append(gc.collect(0 if len(collected) % 25 else 2))

    agent = Agent(ScriptedModel([calls(call("work"), call("work")), say("done")]), name="many")

    @agent.tool_plain(metadata=plain())
    async def work() -> str:
        await sim.runtime.sleep(5)
        return "ok"

    async def main() -> None:
        engine = sim.engine(store=Through(sim.store, collect), workers=8)
        durable = engine.agent(agent)
        async with engine:
            runs = [await durable.start({"n": n}, concurrency_key="one" if n % 4 == 0 else None) for n in range(40)]
            for run in runs:
                assert await run.result(3_000) == "done"

    sim.run(main)
    assert len(collected) > 200


def test_runs_of_a_dead_worker_finish_with_the_collector_at_every_call(sim: Any) -> None:
    """Sixteen at work when it dies: each is taken over once its lease is over, and none sits between two steps. # case H8, # case H9"""
    began: list[int] = []

    async def collect(_name: str) -> None:
        gc.collect(1)

    def many(who: int) -> Agent[None, str]:
        agent = Agent(ScriptedModel([call("work"), say("done")]), name="many")

        @agent.tool_plain(metadata=plain())
        async def work() -> str:
            began.append(who)
            await sim.runtime.sleep(5)
            return "ok"

        return agent

    async def main() -> None:
        first = sim.other("first", lease=10 * SECONDS, workers=16)
        first.agent(many(1))
        second = sim.engine(store=Through(sim.store, collect), lease=10 * SECONDS, workers=4)
        durable = second.agent(many(2))

        async def life() -> None:
            async with first:
                await asyncio.Event().wait()

        async with sim.engine(workers=0) as starter:
            starter.agent(many(0), name="many")
            runs = [await starter.start("many", {"n": n}) for n in range(16)]
        sim.on("first", life())
        await sim.runtime.sleep(3)
        assert began == [1] * 16
        sim.replicas["first"].kill()
        gc.collect()
        async with second:
            for run in runs:
                assert await second.handle(run.id).result(3_000) == "done"
                stored = await second.run(run.id)
                assert (stored.executions, stored.status) == (2, RunStatus.COMPLETED)
        assert durable.name == "many"

    sim.run(main)


# ── characters ─────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/perdure.db"


ODD = "a\x00b \ud800 \\u0000 \U0001f4e6"
KEPT = "a\u2400b \ufffd \\u0000 \U0001f4e6"


async def test_odd_characters_come_back_by_one_rule_wherever_they_are(address: str) -> None:
    """Payload, keys, thread, labels, model text, tool input, result, error, log line, signal, answer, reason; the literal escape stays as it is. # case E1"""
    engine = Engine(address)
    script = [call("note", text=ODD), call("fail"), call("wait"), call("ask", text=ODD), say(ODD)]
    agent = Agent(ScriptedModel(script), name="odd")
    got: list[str] = []

    @agent.tool_plain(metadata=effect())
    def note(text: str) -> dict[str, str]:
        got.append(text)
        current_run().log(ODD, more=ODD)
        return {ODD: ODD}

    @agent.tool_plain(metadata=plain())
    def fail() -> str:
        raise ValueError(ODD)

    @agent.tool_plain(metadata=plain())
    def wait() -> str:
        raise Wait.event(ODD)

    @agent.tool_plain(metadata=plain() | approve())
    def ask(text: str) -> str:
        got.append(text)
        return text

    shop = engine.agent(agent)
    async with engine:
        run = await shop.start({ODD: [ODD]}, key=ODD, thread=ODD, labels={ODD: ODD}, concurrency_key=ODD)
        again = await shop.start({ODD: [ODD]}, key=ODD, thread=ODD)
        assert (again.id, again.created) == (run.id, False)
        await run.signal(ODD, ODD, id=ODD)
        asked = 0
        while not (await run.status()).final:
            for request in await run.requests():
                if request.kind == "approval" and not asked:
                    asked += 1
                    await request.approve(by=ODD, input={"text": ODD}, reason=ODD)
            await engine.settled(run.id, 0.05)
        stored = await run.run()
        assert (stored.status, stored.output) == (RunStatus.COMPLETED, KEPT)
        assert (stored.trigger.payload, stored.trigger.key, stored.trigger.thread, stored.labels) == ({KEPT: [KEPT]}, KEPT, KEPT, {KEPT: KEPT})
        steps = {step.row.name: step.row for step in await run.steps() if step.kind == "tool"}
        assert set(steps) == {"note", "fail", "wait", "ask"}
        assert got == [KEPT, KEPT]
        [row] = await engine.effects(run_id=run.id, state=None)
        assert (row.row.input, row.row.result) == ({"text": KEPT}, {KEPT: KEPT})
        messages = await run.messages()
        assert messages[-1].parts[-1].content == KEPT
        assert not any("\x00" in repr(part) or "\\x00" in repr(part) or "ud800" in repr(part) for message in messages for part in message.parts)
        logs = [event.data for event in await engine.store.events(run.id, after=0) if event.type == "log"]
        assert logs == [{"level": "info", "message": KEPT, "data": {"more": KEPT}}]


async def test_a_run_that_fails_with_odd_words_tells_them(address: str) -> None:
    """In its error, and in what the caller catches. # case E1"""
    engine = Engine(address)

    def broken(_run: Any) -> None:
        raise RuntimeError(ODD)

    shop = engine.agent(Agent(ScriptedModel([say("x")]), name="odd"), deps=broken)
    async with engine:
        with pytest.raises(RunFailed) as caught:
            await (await shop.start({})).result(120)
        assert KEPT in str(caught.value)


# ── what is stored is data ─────────────────────────────────────────────────────────────────────────────────
class SecretlyNamedOrder(BaseModel):
    number: int


@dataclass
class SecretlyNamedReceipt:
    number: int


async def test_no_name_of_a_class_or_module_is_stored(tmp_path: Path) -> None:
    """Whoever moves or renames a class reads old runs all the same. # case E6, # case E7"""
    engine = Engine(f"sqlite:///{tmp_path}/perdure.db")
    agent = Agent(ScriptedModel([call("book", order={"number": 7}), call("final_result", number=8)]), name="shop", output_type=SecretlyNamedOrder)

    @agent.tool_plain(metadata=effect())
    def book(order: SecretlyNamedOrder) -> SecretlyNamedReceipt:
        return SecretlyNamedReceipt(order.number)

    shop = engine.agent(agent, input=SecretlyNamedOrder)
    async with engine:
        assert (await shop.run(SecretlyNamedOrder(number=6), timeout=120)).number == 8
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())  # noqa: ASYNC240 - the engine is left
    assert b"number" in stored
    for name in ("SecretlyNamedReceipt", __name__, "pydantic_ai.messages", "builtins"):
        assert name.encode() not in stored, name


# ── Python's own strictness ────────────────────────────────────────────────────────────────────────────────
STRICT = """
import asyncio, gc, sys
from contextlib import asynccontextmanager
from datetime import timedelta
from pydantic_ai import Agent
from perdure import Engine, Wait, approve, effect, plain
from perdure.testing.models import ScriptedModel, call, calls, say

agent = Agent(ScriptedModel([calls(call("quick"), call("slow")), call("wait"), call("pay"), say("done")]), name="shop")

@agent.tool_plain(metadata=plain())
async def quick() -> str:
    return "ok"

@agent.tool_plain(metadata=plain())
def slow() -> str:
    return "ok"

@agent.tool_plain(metadata=plain())
def wait() -> str:
    raise Wait.until(timedelta(0))

@agent.tool_plain(metadata=effect() | approve())
def pay() -> str:
    raise ValueError("who knows")

@asynccontextmanager
async def deps(run):
    yield None

engine = Engine(sys.argv[1])
shop = engine.agent(agent, deps=deps)

async def main():
    async with engine:
        run = await shop.start({})
        async for event in run.events():
            for request in getattr(event, "waits", ()):
                if request.kind == "approval":
                    await request.approve()
                elif request.kind == "effect":
                    await request.answer("done", "paid")
        assert await run.result() == "done"
        left = await shop.start({}, delay=timedelta(hours=1))
        await left.cancel()

asyncio.run(main())
gc.collect()
print("whole")
"""


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_python_in_its_development_mode_finds_nothing(tmp_path: Path, store: str) -> None:
    """No coroutine forgotten, no file left open, no call from the wrong thread, no slow callback taken for an error: with warnings as errors, nothing is said. # case N4"""
    address = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/perdure.db"
    command = [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning", "-c", STRICT, address]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env={**os.environ, "PYDANTIC_AI_NO_BANNER": "1"})
    lines = [line for line in said.stderr.splitlines() if not line.startswith("Executing <")]
    assert (said.returncode, said.stdout, lines) == (0, "whole\n", [])
