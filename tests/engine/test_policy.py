"""What a tool is: what was declared beside it, what the agent's rules say, what its MCP server says, and what nobody said."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset

from perdure import Retry, StillWaiting, approve, current_run, effect, plain
from perdure.core.effect import EffectState
from perdure.engine._policy import policy_of
from perdure.testing.models import ScriptedModel, call, say


async def look_up(call: Any) -> Any:
    """A verify callback, which is never called here."""


def hints(**said: bool | None) -> dict[str, Any]:
    """A tool's metadata as an MCP server's annotations make it."""
    return {"annotations": said}


@pytest.mark.parametrize(
    ("metadata", "unknown"),
    [
        (hints(destructiveHint=True), "ask"),
        (hints(idempotentHint=True), "retry"),
        (hints(destructiveHint=True, idempotentHint=True), "retry"),
        (hints(readOnlyHint=True), None),
        (hints(readOnlyHint=True, destructiveHint=True), None),
        (hints(destructiveHint=False), "ask"),
        (hints(readOnlyHint=False), "ask"),
        (hints(idempotentHint=False), "ask"),
        (hints(readOnlyHint=False, destructiveHint=False, idempotentHint=True), "retry"),
        (hints(destructiveHint=None, idempotentHint=None, readOnlyHint=None), None),
        (hints(), None),
        (None, None),
        (effect(), "ask"),
        (effect("retry"), "retry"),
        (effect(look_up), "verify"),
        (plain(), None),
        ({**hints(destructiveHint=True), **plain()}, None),
        ({**hints(destructiveHint=True), **effect("retry")}, "retry"),
    ],
)
def test_a_tool_is_what_it_is_declared_to_be(metadata: dict[str, Any] | None, unknown: str | None) -> None:
    """Read-only is plain, idempotent retries, everything else that changes something asks; what was declared here is heard before what a server says."""
    rule = policy_of("tool", metadata, {}).effect
    assert (rule.unknown if rule else None) == unknown


@pytest.mark.parametrize(
    ("metadata", "unknown"),
    [
        (None, "ask"),
        (hints(), "ask"),
        (hints(destructiveHint=None), "ask"),
        (approve(), "ask"),
        (plain(), None),
        (hints(readOnlyHint=True), None),
        (hints(destructiveHint=False), "ask"),
        (effect("retry"), "retry"),
    ],
)
def test_with_a_star_what_nobody_declared_is_an_effect_that_asks(metadata: dict[str, Any] | None, unknown: str | None) -> None:
    """An approval says nothing about what a tool does; a hint that the server leaves open declares nothing."""
    rule = policy_of("tool", metadata, {}, "*").effect
    assert (rule.unknown if rule else None) == unknown


@pytest.mark.parametrize("one", ["ask", "retry", look_up])
@pytest.mark.parametrize("other", ["ask", "retry", look_up])
def test_of_two_declarations_the_stricter_wins(one: Any, other: Any) -> None:
    """Whichever of them stands beside the tool."""
    strictness = {"retry": 0, look_up: 1, "ask": 2}
    words = {0: "retry", 1: "verify", 2: "ask"}
    rule = policy_of("pay_now", effect(one), {"pay_*": effect(other)}).effect
    assert rule is not None
    assert rule.unknown == words[max(strictness[one], strictness[other])]


def test_rules_fit_by_pattern() -> None:
    """A rule whose pattern does not fit says nothing."""
    rules = {"pay_*": effect(), "look": plain()}
    assert policy_of("pay_now", None, rules).effect is not None
    assert policy_of("repay", None, rules).effect is None
    assert policy_of("look", None, rules, "*").effect is None


def two_tools() -> FunctionToolset[None]:
    """Tools with a server's annotations, and one without."""
    toolset: FunctionToolset[None] = FunctionToolset()

    @toolset.tool_plain(metadata=hints(destructiveHint=True))
    async def wipe() -> str:
        raise ConnectionError("read timed out")

    @toolset.tool_plain
    async def mystery() -> str:
        return "?"

    return toolset


def test_undeclared_tools_are_listed_once_and_loudly(sim: Any, caplog: pytest.LogCaptureFixture) -> None:
    """By name, with what to do; those that somebody declared are not in the list, and `effects="*"` has nothing to list."""
    caplog.set_level(logging.WARNING, "perdure")
    agent = Agent(ScriptedModel([say("done")]), name="shop", toolsets=[two_tools()])
    sim.engine().agent(agent)
    [warning] = [record.getMessage() for record in caplog.records if "nobody declared" in record.getMessage()]
    assert "mystery" in warning
    assert "wipe" not in warning
    assert "effects='*'" in warning
    caplog.clear()
    sim.engine().agent(agent, effects="*")
    sim.engine().agent(agent, tools={"mystery": plain()})
    assert caplog.records == []


@pytest.mark.parametrize(("tool", "effects", "asked"), [("wipe", "ask", True), ("mystery", "ask", False), ("mystery", "*", True)])
def test_the_engine_treats_a_tool_as_its_policy_says(sim: Any, tool: str, effects: Any, asked: bool) -> None:
    """A destructive one, and an undeclared one under a star, have a record; a plain one has none."""

    async def main() -> None:
        agent = Agent(ScriptedModel([call(tool), say("done")]), name="shop", toolsets=[two_tools()])
        engine = sim.engine()
        shop = engine.agent(agent, effects=effects)
        async with engine:
            run = await shop.start({})
            if tool == "wipe":
                with pytest.raises(StillWaiting):
                    await run.result(timeout=60)
            else:
                assert await run.result() == "done"
            states = [row.state for row in await engine.effects(run_id=run.id, state=None)]
            assert states == ([EffectState.UNKNOWN if tool == "wipe" else EffectState.DONE] if asked else [])

    sim.run(main)


@pytest.mark.parametrize(
    ("before", "after", "again"),
    [("ask", "retry", False), ("retry", "ask", False), ("retry", "retry", True), ("ask", "ask", False), (None, None, True)],
)
def test_the_declaration_is_kept_with_the_call_and_the_stricter_one_wins(sim: Any, before: Any, after: Any, again: bool) -> None:
    """The process dies inside the deed, the next one is a release with another declaration: unsafe stays unsafe, safe may become unsafe. # case A2"""
    deeds: list[str | None] = []

    def agent(declared: Any) -> Agent[None, str]:
        agent = Agent(ScriptedModel([call("pay"), say("done")]), name="payer")

        async def pay() -> str:
            deeds.append(current_run().key)
            if len(deeds) == 1:
                await sim.runtime.sleep(10_000)
            return "paid"

        agent.tool_plain(pay, metadata=plain() if declared is None else effect(declared))
        return agent

    async def main() -> None:
        engine = sim.other("first")
        first = engine.agent(agent(before))

        async def life() -> None:
            async with engine:
                await first.run({}, key="once")

        sim.on("first", life())
        while not deeds:
            await sim.runtime.sleep(0.01)
        sim.replicas["first"].kill()
        second = sim.engine()
        payer = second.agent(agent(after))
        async with second:
            run = await payer.start({}, key="once")
            if again:
                assert await run.result(timeout=600) == "done"
            else:
                with pytest.raises(StillWaiting):
                    await run.result(timeout=600)
                [request] = await run.requests()
                assert request.kind == "effect"
                [unknown] = await second.effects()
                card = request.wait.row
                assert unknown.started_at is not None
                assert (card.tool, card.effect_key) == ("pay", deeds[0])
                assert (card.data["worker"], card.data["started_at"]) == (unknown.worker, unknown.started_at.isoformat())
                heard = await second.last_heard(unknown)
                assert heard is not None
                assert unknown.started_at <= heard < await second.store.now() - timedelta(seconds=1)
                await request.answer("done", "paid", by="eva")
                assert await run.result(timeout=600) == "done"
        assert len(deeds) == (2 if again else 1)
        assert len(set(deeds)) == 1

    sim.run(main)


def test_a_crash_is_not_a_try(sim: Any) -> None:
    """Two processes die inside a safe tool that may be tried twice: the third still runs it, under the same key. # case A2"""
    deeds: list[str | None] = []

    def agent() -> Agent[None, str]:
        agent = Agent(ScriptedModel([call("pay"), say("done")]), name="payer")

        @agent.tool_plain(metadata=effect("retry", retries=Retry(attempts=2)))
        async def pay() -> str:
            deeds.append(current_run().key)
            if len(deeds) < 4:
                await sim.runtime.sleep(10_000)
            return "paid"

        return agent

    async def main() -> None:
        for number in range(3):
            engine = sim.other(f"life-{number}")
            payer = engine.agent(agent())

            async def life(engine: Any = engine, payer: Any = payer) -> None:
                async with engine:
                    await payer.run({}, key="once")

            sim.on(f"life-{number}", life())
            for _ in range(600):
                if len(deeds) > number:
                    break
                await sim.runtime.sleep(0.5)
            assert len(deeds) == number + 1
            sim.replicas[f"life-{number}"].kill()
        last = sim.engine()
        payer = last.agent(agent())
        async with last:
            assert await (await payer.start({}, key="once")).result(timeout=600) == "done"
        assert len(deeds) == 4
        assert len(set(deeds)) == 1

    sim.run(main)
