"""The engine on a real loop, with real threads: what blocks, and what must not be blocked by it."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import Budget, Delta, Engine, current_run
from perdure.testing.models import ScriptedModel, call, calls, say

LEASE = timedelta(seconds=0.6)


def block(seconds: float) -> None:
    """Block this thread, as a careless library would."""
    threading.Event().wait(seconds)


async def test_a_blocked_loop_keeps_its_lease_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Renewal has a thread of its own; the warning names the tool. # case H3"""
    ran: list[str] = []
    begun = threading.Event()
    agent = Agent(ScriptedModel([call("careless"), say("done")]), name="blocker")

    @agent.tool_plain
    async def careless() -> str:
        ran.append("ran")
        begun.set()
        block(5 * LEASE.total_seconds())
        return "ok"

    caplog.set_level(logging.WARNING, "perdure")
    async with Engine(f"sqlite:///{tmp_path}/a.db", lease=LEASE) as engine:
        durable = engine.agent(agent)
        # A second process would see the same file; a second engine stands for it here, on a loop and thread of its own.
        other = Engine(f"sqlite:///{tmp_path}/a.db", lease=LEASE)
        other.agent(agent, name="blocker")
        stop = threading.Event()

        def elsewhere() -> None:
            async def life() -> None:
                async with other:
                    while not stop.is_set():
                        await asyncio.to_thread(stop.wait, 0.05)

            asyncio.run(life())

        thread = threading.Thread(target=elsewhere)
        run = await durable.start({})
        await asyncio.to_thread(begun.wait, 20)
        thread.start()
        assert await run.result(timeout=30) == "done"
        stop.set()
        await asyncio.to_thread(thread.join)
        assert (await run.run()).executions == 1
    assert ran == ["ran"]
    assert any("blocked" in record.message and "careless" in record.message for record in caplog.records)


async def test_sync_tools_run_in_threads_with_the_current_run(tmp_path: Path) -> None:
    """They never block the loop: another run's text keeps flowing; context variables are carried. # case N1"""
    gate, begun = threading.Event(), threading.Event()
    threads: list[tuple[bool, str | None]] = []
    slow = Agent(ScriptedModel([call("wait"), say("slow done")]), name="slow")

    @slow.tool_plain
    def wait() -> str:
        threads.append((threading.current_thread() is threading.main_thread(), current_run().tool))
        current_run().log("from a thread", number=1)
        begun.set()
        assert gate.wait(20)
        return "ok"

    talker = Agent(ScriptedModel([say("a text in several pieces, long enough to stream")]), name="talker")
    async with Engine(f"sqlite:///{tmp_path}/a.db") as engine:
        waiting, talking = engine.agent(slow), engine.agent(talker)
        deltas: list[Delta] = []
        engine.on("run.delta", deltas.append)
        first = await waiting.start({})
        await asyncio.to_thread(begun.wait, 20)
        assert await talking.run({}, timeout=20)
        assert len(deltas) > 3
        gate.set()
        assert await first.result(timeout=20) == "slow done"
        assert threads == [(False, "wait")]
        logs = [event.data for event in await engine.store.events(first.id) if event.type == "log"]
        assert logs == [{"level": "info", "message": "from a thread", "data": {"number": 1}}]


def test_an_engine_works_in_a_thread_that_is_not_the_main_one(tmp_path: Path) -> None:
    """No signal handler is installed behind anybody's back; drain is still there. # case N5"""
    results: list[Any] = []

    def life() -> None:
        async def main() -> None:
            async with Engine(f"sqlite:///{tmp_path}/a.db") as engine:
                agent = engine.agent(Agent(ScriptedModel([say("hello")]), name="a"))
                results.append(await agent.run({}, timeout=20))
                await engine.drain()

        asyncio.run(main())

    thread = threading.Thread(target=life)
    thread.start()
    thread.join(30)
    assert results == ["hello"]


async def test_many_runs_survive_the_collector(tmp_path: Path) -> None:
    """Every background task is held by somebody. # case N3, # case H8"""
    async with Engine(f"sqlite:///{tmp_path}/a.db", workers=50) as engine:
        agent = engine.agent(Agent(ScriptedModel([say("ok")]), name="a"))
        runs = [await agent.start({"n": n}) for n in range(60)]
        for number, run in enumerate(runs):
            if number % 20 == 0:
                gc.collect()
            assert await run.result(timeout=60) == "ok"


async def test_parallel_tools_read_through_the_engine_without_losing_anything(tmp_path: Path) -> None:
    """No shared session: each gets the whole answer. # case I5"""
    agent = Agent(ScriptedModel([calls(*[call("read") for _ in range(20)]), say("done")]), name="reader")
    seen: list[int] = []
    engine = Engine(f"sqlite:///{tmp_path}/a.db")

    @agent.tool_plain
    async def read() -> str:
        run = await engine.run(current_run().id)
        seen.append(len(await engine.store.events(run.id)))
        return "ok"

    durable = engine.agent(agent)
    async with engine:
        assert await durable.run({}, timeout=30) == "done"
    assert len(seen) == 20
    assert min(seen) >= 2


async def test_a_long_run_grows_in_proportion_to_its_steps(tmp_path: Path) -> None:
    """Twice the turns, about twice the bytes, and never much more than the history itself. # case D1"""

    async def stored(turns: int) -> tuple[int, int]:
        agent = Agent(ScriptedModel([call("tool", text="x" * 300 + str(n)) for n in range(turns)] + [say("done")]), name="long")

        @agent.tool_plain
        async def tool(text: str) -> str:
            return "y" * 3_500

        path = tmp_path / f"{turns}.db"
        async with Engine(f"sqlite:///{path}") as engine:
            run = await engine.agent(agent, budget=Budget(max_steps=1_000)).start({})
            await run.result(timeout=120)
            checkpoint = await engine.store.checkpoint(run.id)
            assert checkpoint is not None
            history = sum(len(message) for message in checkpoint.messages)
        return path.stat().st_size, history

    small, history_small = await stored(20)
    large, history_large = await stored(40)
    assert large < 2.2 * small
    assert large < 3 * history_large
    assert small < 3 * history_small + 100_000
