"""One owner, whatever pauses: leases, recovery, drains, poison."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import Engine, LeaseLostError, RunFailed, RunStatus
from perdure.testing.models import ScriptedModel, call, calls, say

SECONDS = timedelta(seconds=1)


def sleeping(sim: Any, seconds: float, log: list[str], who: str) -> Agent[None, str]:
    """An agent whose one tool takes this long, and says who began and who ended it."""
    agent = Agent(ScriptedModel([call("work"), say("done")]), name="sleeper")

    @agent.tool_plain
    async def work() -> str:
        log.append(f"{who} begins")
        await sim.runtime.sleep(seconds)
        log.append(f"{who} ends")
        return "ok"

    return agent


async def live(engine: Engine, stop: asyncio.Event) -> None:
    """An engine's whole life on its machine."""
    async with engine:
        await stop.wait()


def test_a_tool_of_ten_leases_runs_once(sim: Any) -> None:
    """Renewal keeps what was claimed; the other worker gets nothing. # case H2, # case A11"""
    log: list[str] = []

    async def main() -> None:
        stop = asyncio.Event()
        mine = sim.engine(lease=30 * SECONDS)
        agent = mine.agent(sleeping(sim, 300, log, "a"))
        other = sim.other("b", lease=30 * SECONDS)
        other.agent(sleeping(sim, 300, log, "b"))
        async with mine:
            run = await agent.start({})
            await sim.runtime.sleep(1)
            beside = sim.on("b", live(other, stop))
            assert await run.result() == "done"
            stored = await run.run()
            assert (stored.executions, stored.deaths) == (1, 0)
            stop.set()
            await beside

    sim.run(main)
    assert log == ["a begins", "a ends"]


def test_a_stopped_worker_is_told_that_it_lost(sim: Any) -> None:
    """Paused past its lease: somebody else finishes, its own writes are refused, `on_error` hears of it. # case H1"""
    log: list[str] = []

    async def main() -> None:
        stop = asyncio.Event()
        first = sim.other("first", lease=10 * SECONDS)
        first.agent(sleeping(sim, 5, log, "first"))
        second = sim.engine(lease=10 * SECONDS)
        agent = second.agent(sleeping(sim, 5, log, "second"))
        starter = Engine(sim.store, runtime=sim.runtime, workers=0)
        starter.agent(sleeping(sim, 5, log, "nobody"))
        beside = sim.on("first", live(first, stop))
        async with starter:
            run = await starter.start("sleeper", {})
        await sim.runtime.sleep(3)
        assert log == ["first begins"]
        sim.replicas["first"].pause(60)
        async with second:
            assert await agent._engine.handle(run.id).result() == "done"
            await sim.runtime.sleep(120)
            stored = await second.run(run.id)
            assert (stored.status, stored.epoch, stored.deaths) == (RunStatus.COMPLETED, 2, 0)
        stop.set()
        await beside

    sim.run(main)
    assert log[:2] == ["first begins", "second begins"]
    assert log.count("second ends") == 1
    assert any(isinstance(error, LeaseLostError) for error in sim.errors)


def test_a_dead_workers_runs_move_within_one_lease(sim: Any) -> None:
    """No operator, no restart of anything else. # case H9, # case A10"""
    log: list[str] = []

    async def main() -> None:
        stop = asyncio.Event()
        first = sim.other("first", lease=10 * SECONDS)
        agent = first.agent(sleeping(sim, 5, log, "first"))
        sim.on("first", live(first, stop))
        starter = Engine(sim.store, runtime=sim.runtime, workers=0)
        starter.agent(sleeping(sim, 5, log, "nobody"))
        async with starter:
            runs = [await starter.start("sleeper", {"n": n}) for n in range(5)]
        await sim.runtime.sleep(3)
        sim.replicas["first"].kill()
        second = sim.engine(lease=10 * SECONDS)
        second.agent(sleeping(sim, 5, log, "second"))
        assert agent is not None
        began = sim.runtime.monotonic()
        async with second:
            for run in runs:
                assert await second.handle(run.id).result() == "done"
        assert sim.runtime.monotonic() - began < 10 + 5 + 3

    sim.run(main)
    assert log.count("second ends") == 5


def test_a_drain_hands_runs_back(sim: Any) -> None:
    """Interrupted and claimable at once, never cancelled or failed; no step finished is repeated. # case G1"""
    log: list[str] = []

    async def main() -> None:
        first = sim.engine()
        agent = first.agent(sleeping(sim, 30, log, "first"))
        async with first:
            run = await agent.start({})
            await sim.runtime.sleep(3)
            began = sim.runtime.monotonic()
            await first.drain(timedelta(seconds=1))
            assert sim.runtime.monotonic() - began < 5
            stored = await run.run()
            assert (stored.status, stored.deaths, stored.usage.requests) == (RunStatus.INTERRUPTED, 0, 1)
        second = sim.engine()
        second.agent(sleeping(sim, 3, log, "second"))
        async with second:
            assert await second.handle(run.id).result() == "done"
            assert (await second.run(run.id)).usage.requests == 2

    sim.run(main)
    assert log == ["first begins", "second begins", "second ends"]


def test_a_drain_lets_a_short_step_finish(sim: Any) -> None:
    """Within its grace; then no further model call starts."""
    log: list[str] = []

    async def main() -> None:
        engine = sim.engine()
        agent = engine.agent(sleeping(sim, 5, log, "first"))
        async with engine:
            run = await agent.start({})
            await sim.runtime.sleep(3)
            await engine.drain(timedelta(seconds=20))
            stored = await run.run()
            assert (stored.status, stored.usage.requests) == (RunStatus.INTERRUPTED, 1)
            assert [step.kind for step in await run.steps()] == ["llm", "tool"]

    sim.run(main)
    assert log == ["first begins", "first ends"]


def test_a_poison_run_is_quarantined(sim: Any) -> None:
    """It kills its worker each time: failed after five deaths, with its last activity; its neighbours finish. # case H11"""

    async def main() -> None:
        watcher = sim.engine(workers=0)
        agent = Agent(ScriptedModel([say("x")]), name="poison")
        poison = watcher.agent(agent)
        async with watcher:
            run = await poison.start({})
            for n in range(7):
                name = f"worker-{n}"
                sim.replicas[name] = sim.loop.replica(name)
                sim.on(name, life_of(sim, name))
                await sim.runtime.sleep(30)
            with pytest.raises(RunFailed) as failed:
                await run.result()
            assert failed.value.code == "poisoned"
            assert (await run.run()).deaths == 5
            assert "work" in str((await run.run()).error)

    sim.run(main)


async def life_of(sim: Any, name: str) -> None:
    """A worker that dies in the tool."""
    from perdure.testing.simulation._runtime import SimRuntime

    runtime = SimRuntime(sim.loop, sim.replicas[name])
    engine = Engine(sim.store, runtime=runtime, lease=10 * SECONDS)
    agent = Agent(ScriptedModel([call("work"), say("done")]), name="poison")

    @agent.tool_plain
    async def work() -> str:
        await runtime.sleep(5)
        sim.replicas[name].kill()
        await runtime.sleep(1)
        return "never"

    engine.agent(agent)
    async with engine:
        await asyncio.Event().wait()


def test_many_recovered_runs_finish_with_the_collector_at_work(sim: Any) -> None:
    """No task hangs by a weak reference alone. # case H8, # case N3"""

    async def main() -> None:
        agent = Agent(ScriptedModel([calls(call("work"), call("work")), say("done")]), name="many")

        @agent.tool_plain
        async def work() -> str:
            gc.collect()
            await sim.runtime.sleep(1)
            return "ok"

        engine = sim.engine(workers=8)
        durable = engine.agent(agent)
        async with engine:
            runs = [await durable.start({"n": n}) for n in range(40)]
            gc.collect()
            for run in runs:
                assert await run.result() == "done"

    sim.run(main)


def test_a_permanent_error_on_the_way_in_fails_the_run(sim: Any) -> None:
    """It is not reported as still waiting, and not tried for ever. # case L5, # case K12"""

    async def main() -> None:
        def deps() -> None:
            raise RuntimeError("no such database")

        engine = sim.engine()
        agent = engine.agent(Agent(ScriptedModel([say("x")]), name="setup"), deps=deps)
        async with engine:
            run = await agent.start({})
            with pytest.raises(RunFailed, match="no such database") as failed:
                await run.result()
            assert failed.value.code == "setup_failed"
            settled = [event for event in await engine.store.events(run.id) if event.type == "run.settled"]
            assert len(settled) == 1

    sim.run(main)


def test_runs_of_one_concurrency_key_take_turns(sim: Any) -> None:
    """In order of admission; a limit of the agent holds over all workers. # case C14"""
    at_once: list[int] = []
    order: list[int] = []
    active: set[int] = set()

    async def main() -> None:
        def busy(name: str) -> Agent[None, str]:
            agent = Agent(ScriptedModel([call("work"), say("done")]), name=name)

            @agent.tool_plain
            async def work() -> str:
                from perdure import current_run

                number = current_run().input["n"]
                order.append(number)
                active.add(number)
                at_once.append(len(active))
                await sim.runtime.sleep(5)
                active.discard(number)
                return "ok"

            return agent

        engine = sim.engine()
        keyed = engine.agent(busy("keyed"))
        limited = engine.agent(busy("limited"), limit=2)
        async with engine:
            for run in [await keyed.start({"n": n}, concurrency_key="one") for n in range(4)]:
                await run.result()
            assert (order, max(at_once)) == ([0, 1, 2, 3], 1)
            at_once.clear()
            for run in [await limited.start({"n": n}) for n in range(6)]:
                await run.result()
            assert max(at_once) == 2

    sim.run(main)
