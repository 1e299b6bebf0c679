"""Runs that start runs, runs that go another way, and tools that wait in the middle."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.external_events import ExternalEventError, wait_for_external_event

from perdure import InvalidTrigger, RunCancelled, RunFailed, RunStatus, StillWaiting, Wait, approve, current_run, effect
from perdure.testing.models import ScriptedModel, call, calls, say


def family(sim: Any, done: list[str]) -> tuple[Any, Any, Any]:
    """An engine with a parent whose tool starts a child and waits for it; the child has two effects and a gated one."""
    engine = sim.engine()
    script = [calls(call("deed", name="a"), call("deed", name="b")), call("gated", name="c"), say("child done")]
    child = Agent(ScriptedModel(script), name="child")

    @child.tool_plain(metadata=effect())
    async def deed(name: str) -> str:
        done.append(name)
        return "ok"

    @child.tool_plain(metadata=effect() | approve())
    async def gated(name: str) -> str:
        done.append(name)
        return "ok"

    parent = Agent(ScriptedModel([call("delegate"), say("parent done")]), name="parent")

    @parent.tool_plain
    async def delegate() -> str:
        raise Wait.run(await current_run().start("child", {"from": "parent"}))

    engine.agent(child)
    return engine, engine.agent(parent), child


def test_a_parent_waits_for_its_child_and_gets_its_outcome(sim: Any) -> None:
    """Each effect of the child once, however often either resumes; the parent holds nothing meanwhile. # case A3"""
    done: list[str] = []

    async def main() -> None:
        engine, parent, _ = family(sim, done)
        async with engine:
            run = await parent.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=30)
            assert engine.worker.idle
            [request] = await engine.requests(kind="approval")
            await request.approve(by="eva")
            assert await run.result() == "parent done"
            assert done == ["a", "b", "c"]
            assert "child done" in str((await run.messages())[2])
            assert len(await engine.runs()) == 2

    sim.run(main)


def test_a_cancel_reaches_the_children(sim: Any) -> None:
    """Depth does not matter; nothing of them goes on. # case G2"""
    done: list[str] = []

    async def main() -> None:
        engine, parent, _ = family(sim, done)
        async with engine:
            run = await parent.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=30)
            await run.cancel(by="eva")
            with pytest.raises(RunCancelled):
                await run.result()
            assert [each.status for each in await engine.runs()] == [RunStatus.CANCELLED] * 2
            assert done == ["a", "b"]

    sim.run(main)


def test_a_cancelled_child_is_a_result_of_its_parent(sim: Any) -> None:
    """The parent's own history is intact, and it goes on. # case C16"""
    done: list[str] = []

    async def main() -> None:
        engine, parent, _ = family(sim, done)
        async with engine:
            run = await parent.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=30)
            child = next(each for each in await engine.runs() if each.agent == "child")
            await engine.cancel(child.id)
            assert await run.result() == "parent done"
            assert "cancelled" in str((await run.messages())[2])

    sim.run(main)


def test_a_fork_goes_on_from_a_step_with_another_result(sim: Any) -> None:
    """The original stays as it is; the fork's model sees the changed result."""

    async def main() -> None:
        agent = Agent(ScriptedModel([call("look", order="1"), say("first")]), name="shop")

        @agent.tool_plain
        async def look(order: str) -> str:
            return "found"

        engine = sim.engine()
        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            assert await run.result() == "first"
            before = await run.messages()
            fork = await engine.fork(run.id, 1, results={"call-0-0": "lost"})
            assert await fork.result() == "first"
            assert "lost" in str((await fork.messages())[2])
            assert await run.messages() == before
            talk = await engine.fork(run.id, message="And now?")
            assert len(await talk.messages()) == 5
            with pytest.raises(InvalidTrigger):
                await engine.fork(run.id, 9)
            with pytest.raises(InvalidTrigger):
                await engine.fork(run.id, 1, results={"nobody": 1})

    sim.run(main)


def test_a_fork_holds_what_its_ancestor_may_have_done(sim: Any) -> None:
    """The same effect again is a question, not a deed."""
    deeds: list[str] = []

    async def main() -> None:
        script = [call("look"), call("refund", order="7"), say("done")]
        agent = Agent(ScriptedModel(script), name="shop")

        @agent.tool_plain
        async def look() -> str:
            return "found"

        @agent.tool_plain(metadata=effect())
        async def refund(order: str) -> str:
            deeds.append(order)
            return "ok"

        engine = sim.engine()
        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            assert await run.result() == "done"
            fork = await engine.fork(run.id, 1)
            with pytest.raises(StillWaiting):
                await fork.result(timeout=30)
            [request] = await fork.requests()
            assert request.wait.row.data["held"]
            await request.answer("run", by="eva")
            assert await fork.result() == "done"
            assert deeds == ["7", "7"]

    sim.run(main)


def test_an_external_event_waits_durably_inside_a_plain_tool(sim: Any) -> None:
    """The token stays the same, an answer that comes first is not lost, a failure and a time-out are raised in the tool."""
    asked: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([call("ask"), say("done")]), name="asks")

        @agent.tool_plain
        async def ask() -> str:
            async def hand_out(token: str) -> None:
                asked.append(token)

            try:
                return str(await wait_for_external_event("review", ask=hand_out, timeout=timedelta(hours=1)))
            except ExternalEventError as error:
                return f"no: {error}"

        engine = sim.engine()
        durable = engine.agent(agent)
        async with engine:
            for outcome in ("payload", "error", "time"):
                run = await durable.start({"outcome": outcome})
                with pytest.raises(StillWaiting):
                    await run.result(timeout=10)
                if outcome == "payload":
                    assert await engine.resolve_external(asked[-1], {"ok": 1})
                    assert not await engine.resolve_external(asked[-1], {"ok": 2})
                elif outcome == "error":
                    await engine.resolve_external(asked[-1], error="nobody there")
                else:
                    await sim.runtime.sleep(4000)
                assert await run.result() == "done"
                said = str((await run.messages())[2])
                assert {"payload": "{'ok': 1}", "error": "nobody there", "time": "in time"}[outcome] in said
            with pytest.raises(InvalidTrigger):
                await engine.resolve_external("nonsense")

    sim.run(main)


def test_waiting_inside_an_effect_is_refused(sim: Any) -> None:
    """Its first lines would run again."""

    async def main() -> None:
        agent = Agent(ScriptedModel([call("ask"), say("done")]), name="asks")

        @agent.tool_plain(metadata=effect())
        async def ask() -> str:
            async def hand_out(token: str) -> None:
                raise AssertionError("never asked")

            return str(await wait_for_external_event("review", ask=hand_out))

        engine = sim.engine()
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            try:
                await run.result(timeout=30)
            except (StillWaiting, RunFailed):
                pass
            [row] = await engine.effects(run_id=run.id, state=None)
            assert "Wait.event" in str(row.row.error)

    sim.run(main)
