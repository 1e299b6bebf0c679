"""Code that changes under runs that wait."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset, RunContext, Tool

from perdure import StillWaiting, Usage, approve, effect
from perdure.core.event import Event
from perdure.testing.models import Reply, ScriptedModel, call, calls, say


def gated(done: list[str], *, tool: str = "refund", more: bool = False) -> Agent[Any, str]:
    agent: Agent[Any, str] = Agent(ScriptedModel([calls(call("refund", order="7"), call("look")), say("done")]), name="shop")

    async def refund(order: str) -> str:
        done.append(order)
        return "ok"

    async def look() -> str:
        return "found"

    agent.tool_plain(refund, name=tool, metadata=effect() | approve())
    agent.tool_plain(look)
    if more:
        agent.tool_plain(look, name="look_again")
    return agent


async def parked(sim: Any, done: list[str], **options: Any) -> Any:
    """A run that waits for an approval, its engine gone."""
    engine = sim.engine()
    agent = engine.agent(gated(done), version="1", **options)
    async with engine:
        run = await agent.start({"n": 1})
        with pytest.raises(StillWaiting):
            await run.result(timeout=30)
        events = await engine.store.events(run.id)
        assert [event.type for event in events].count("run.settled") == 0
        # Beside a call that waits, no request goes to the model, and the free call's answer is a row of its own. # case B19
        assert [step.kind for step in await run.steps()] == ["llm", "tool"]
        return run


async def resumed(sim: Any, agent: Agent[Any, str], run_id: str, **options: Any) -> tuple[str, list[Event]]:
    """What the run comes to on another version, once it is answered there."""
    engine = sim.engine()
    engine.agent(agent, **options)
    async with engine:
        [request] = await engine.requests(run_id=run_id)
        await request.approve(by="eva")
        result = await engine.handle(run_id).result(timeout=60)
        return result, list(await engine.store.events(run_id))


def test_a_waiting_run_is_answered_on_the_next_version(sim: Any) -> None:
    """Parked on one deploy, resumed on another: no error reaches the approver, an event says what changed. # case B17, # case L2, # case B15"""
    done: list[str] = []

    async def main() -> None:
        run = await parked(sim, done)
        await sim.runtime.sleep(timedelta(hours=30).total_seconds())
        result, events = await resumed(sim, gated(done), run.id, version="2")
        assert (result, done) == ("done", ["7"])
        [changed] = [event.data for event in events if event.type == "version.changed"]
        assert changed == {"from": "1", "to": "2", "tools": False}

    sim.run(main)


def test_a_changed_tool_list_is_reported(sim: Any) -> None:
    """The checkpoint carries a hash of the tools; the run goes on. # case L3, # case L4"""
    done: list[str] = []

    async def main() -> None:
        run = await parked(sim, done)
        result, events = await resumed(sim, gated(done, more=True), run.id, version="1")
        assert (result, done) == ("done", ["7"])
        [changed] = [event.data for event in events if event.type == "version.changed"]
        assert changed == {"tools": True}

    sim.run(main)


@pytest.mark.parametrize(
    ("version", "tool", "told"), [("1", "look", None), ("2", "look", {"from": "1", "to": "2", "tools": False}), ("1", "find", {"tools": True})]
)
def test_a_thread_that_another_configuration_goes_on_with_says_so(sim: Any, version: str, tool: str, told: dict[str, Any] | None) -> None:
    """The same thread, another version or other tools: the turn goes on, and an event names the run whose history it was. # case L4"""

    def talker(name: str) -> Agent[Any, str]:
        agent: Agent[Any, str] = Agent(ScriptedModel(lambda messages: say(f"turn {len(messages)}")), name="talker")
        agent.tool_plain(lambda: "seen", name=name)
        return agent

    async def main() -> None:
        first = sim.engine()
        async with first:
            run = await first.agent(talker("look"), version="1", history="thread").start({}, thread="t")
            assert await run.result() == "turn 1"
        second = sim.engine()
        async with second:
            turn = await second.agent(talker(tool), version=version, history="thread").start({}, thread="t")
            assert await turn.result() == "turn 3"
            events = await second.store.events(turn.id)
            changed = [event.data for event in events if event.type == "version.changed"]
            assert changed == ([] if told is None else [{**told, "thread": run.id}])

    sim.run(main)


def test_an_approved_call_whose_tool_is_gone_needs_an_operator(sim: Any) -> None:
    """It is not answered with "unknown tool", and the approval is not lost: the next deploy has the tool again."""
    done: list[str] = []

    async def main() -> None:
        run = await parked(sim, done)
        engine = sim.engine()
        engine.agent(gated(done, tool="refund_v2"))
        async with engine:
            [request] = await engine.requests(run_id=run.id)
            await request.approve(by="eva")
            with pytest.raises(StillWaiting):
                await engine.handle(run.id).result(timeout=60)
            [attention] = await engine.requests(run_id=run.id)
            assert attention.kind == "attention"
        again = sim.engine()
        again.agent(gated(done))
        async with again:
            [attention] = await again.requests(run_id=run.id)
            await attention.answer("resume", by="ops")
            assert await again.handle(run.id).result(timeout=60) == "done"
        assert done == ["7"]

    sim.run(main)


def test_an_approval_is_honoured_with_other_dependencies(sim: Any) -> None:
    """Deps are made anew for each execution; the decision is the store's. # case B8, # case E8"""
    done: list[str] = []

    async def main() -> None:
        run = await parked(sim, done, deps={"bank": "first"})
        result, _ = await resumed(sim, gated(done), run.id, deps={"bank": "second"})
        assert (result, done) == ("done", ["7"])

    sim.run(main)


class OrderV1(BaseModel):
    number: str
    note: str = ""


class OrderV2(BaseModel):
    number: int
    urgent: bool = False


def test_a_payload_type_may_move_and_change(sim: Any) -> None:
    """No module path is stored: fields come and go, and a value that no longer fits fails with its field, not for ever. # case E6"""

    async def main() -> None:
        engine = sim.engine(workers=0)
        agent = engine.agent(Agent(ScriptedModel([say("ok")]), name="orders"), input=OrderV1)
        async with engine:
            good = await agent.start(OrderV1(number="7", note="old field"))
            bad = await agent.start(OrderV1(number="seven"))
            stored = await good.run()
            assert stored.trigger.payload == {"number": "7", "note": "old field"}
        later = sim.engine()
        later.agent(Agent(ScriptedModel([say("ok")]), name="orders"), input=OrderV2)
        async with later:
            assert await later.handle(good.id).result() == "ok"
            failed = await later.settled(bad.id)
            assert failed.error is not None
            assert failed.error.code == "invalid_trigger"
            assert "number" in failed.error.message

    sim.run(main)


def test_numbers_that_json_has_no_word_for_are_stored_by_one_rule(sim: Any) -> None:
    """NaN and infinities become strings, in results of effects too; nothing fails after the deed. # case E3"""

    async def main() -> None:
        agent = Agent(ScriptedModel([call("measure"), say("done")]), name="measures")

        @agent.tool_plain(metadata=effect())
        async def measure() -> dict[str, Any]:
            return {"x": float("nan"), "y": [float("inf"), -float("inf")], "text": "a\x00b\ud800", "literal": "\\u0000"}

        engine = sim.engine()
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            assert await run.result() == "done"
            [row] = await engine.effects(run_id=run.id, state=None)
            assert row.row.result == {"x": "NaN", "y": ["Infinity", "-Infinity"], "text": "a\u2400b\ufffd", "literal": "\\u0000"}

    sim.run(main)


def test_cached_tokens_are_counted_once() -> None:
    """Providers count them inside the input: the cap is not reached early. # case K7"""
    usage = Usage(input_tokens=1_000, output_tokens=100, cache_read_tokens=900)
    assert usage.total_tokens == 1_100


def found(sim: Any, done: list[str], *names: str, script: list[Reply] | None = None) -> Agent[Any, str]:
    """An agent whose tools show themselves only when it runs. Each of them takes ten seconds."""
    agent: Agent[Any, str] = Agent(ScriptedModel(script or [calls(call("pack"), call("ship")), say("done")]), name="found")

    @agent.toolset
    def tools(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        return FunctionToolset([Tool(_slow(sim, done, name), name=name, sequential=True) for name in names])

    return agent


def _slow(sim: Any, done: list[str], name: str) -> Any:
    async def tool() -> str:
        done.append(name)
        await sim.runtime.sleep(10)
        return name

    return tool


def dies_in(sim: Any, agent: Agent[Any, str], seconds: float, **options: Any) -> Any:
    """Start a run on a machine that dies so many seconds later."""

    async def main() -> str:
        first = sim.other("first", lease=timedelta(seconds=10))
        durable = first.agent(agent, **options)
        started: list[str] = []

        async def life() -> None:
            async with first:
                started.append((await durable.start({})).id)
                await asyncio.Event().wait()

        sim.on("first", life())
        await sim.runtime.sleep(seconds)
        sim.replicas["first"].kill()
        return started[0]

    return main()


def test_an_open_call_whose_tool_is_gone_needs_an_operator(sim: Any) -> None:
    """The worker died in the first of two calls; the toolset of the next one has not the second. No body runs, and the model is told no lie. # case L3"""
    done: list[str] = []

    async def main() -> None:
        run_id = await dies_in(sim, found(sim, done, "pack", "ship"), 5)
        assert done == ["pack"]
        engine = sim.engine()
        engine.agent(found(sim, done, "pack"))
        async with engine:
            with pytest.raises(StillWaiting):
                await engine.handle(run_id).result(timeout=100)
            [attention] = await engine.requests(run_id=run_id)
            assert (attention.kind, attention.wait.row.data["why"], done) == ("attention", "tool_gone", ["pack"])
        again = sim.engine()
        again.agent(found(sim, done, "pack", "ship"))
        async with again:
            [attention] = await again.requests(run_id=run_id)
            await attention.answer("resume", by="ops")
            assert await again.handle(run_id).result(timeout=100) == "done"
        assert done == ["pack", "pack", "ship"]

    sim.run(main)


def test_a_call_whose_tool_never_was_is_answered_after_a_crash_too(sim: Any) -> None:
    """The model made the name up: that is no deploy's doing, and the model hears of it. # case L3"""
    done: list[str] = []
    script = [calls(call("pack"), call("teleport")), say("done")]

    async def main() -> None:
        run_id = await dies_in(sim, found(sim, done, "pack", script=script), 5)
        engine = sim.engine()
        engine.agent(found(sim, done, "pack", script=script))
        async with engine:
            assert await engine.handle(run_id).result(timeout=100) == "done"
            assert "teleport" in str((await engine.handle(run_id).messages())[2])
        assert done == ["pack", "pack"]

    sim.run(main)


@pytest.mark.parametrize("declared", [effect("retry"), effect("ask")])
def test_an_effect_of_unknown_outcome_whose_tool_is_gone_is_not_answered_for(sim: Any, declared: dict[str, Any]) -> None:
    """Neither "no such tool" nor "failed" would be true. # case L3"""
    done: list[str] = []
    script = [call("ship"), say("done")]

    async def main() -> None:
        run_id = await dies_in(sim, found(sim, done, "ship", script=script), 5, tools={"ship": declared})
        assert done == ["ship"]
        engine = sim.engine()
        engine.agent(found(sim, done, "pack", script=script), tools={"ship": declared})
        async with engine:
            with pytest.raises(StillWaiting):
                await engine.handle(run_id).result(timeout=100)
            [request] = await engine.requests(run_id=run_id)
            if request.kind == "effect":
                await request.answer("run", by="eva")
                with pytest.raises(StillWaiting):
                    await engine.handle(run_id).result(timeout=100)
                [request] = await engine.requests(run_id=run_id)
            assert request.kind == "attention"
            [row] = await engine.effects(run_id=run_id, state=None)
            assert row.state in ("unknown", "planned")
        assert done == ["ship"]

    sim.run(main)
