"""An approval's predicate is asked once about each call; what it said holds, whatever it would say in a later life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import ApprovalCall, StillWaiting, approve
from perdure.testing.models import Reply, ScriptedModel, call, calls, say

Said = Callable[[ApprovalCall], bool]


class World:
    """Two lives of one agent: the first one dies in a body that never comes back, the second has a predicate that says the opposite."""

    def __init__(self, sim: Any, script: Sequence[Reply], *, hangs: str, first: bool, second: Said | bool | None = None, **agent: Any) -> None:
        self.sim, self.script, self.hangs, self.agent_options = sim, script, hangs, agent
        self.says: list[Said | bool | None] = [first, (not first) if second is None else second]
        self.asked: list[tuple[int, Any]] = []
        self.bodies: list[tuple[int, str]] = []

    def agent(self, life: int) -> Agent[None, Any]:
        agent = Agent(ScriptedModel([*self.script]), name="desk", **self.agent_options)

        async def body(name: str) -> str:
            self.bodies.append((life, name))
            if life == 0 and name == self.hangs:
                await self.sim.runtime.sleep(10_000)
            return "ok"

        @agent.tool_plain
        async def look(n: int) -> str:
            return await body("look")

        def when(asked: ApprovalCall) -> bool:
            self.asked.append((life, asked.input))
            says = self.says[life]
            return says(asked) if callable(says) else bool(says)

        @agent.tool_plain(metadata=approve() if self.says[life] == "always" else approve(when=when))
        async def pay(cents: int) -> str:
            return await body("pay")

        return agent

    async def die_in_the_first_life(self) -> str:
        engine = self.sim.other("first")
        desk = engine.agent(self.agent(0))
        ids: list[str] = []

        async def life() -> None:
            async with engine:
                run = await desk.start({}, key="once")
                ids.append(run.id)
                await run.result()

        self.sim.on("first", life())
        while (0, self.hangs) not in self.bodies:
            await self.sim.runtime.sleep(0.01)
        self.sim.replicas["first"].kill()
        return ids[0]


def test_a_call_that_needs_somebodys_word_needs_it_after_a_crash_too(sim: Any) -> None:
    """The process died before the request was written; the next one does not ask the predicate, which says no by now."""
    world = World(sim, [calls(call("look", n=1), call("pay", cents="900")), say("done")], hangs="look", first=True)

    async def main() -> None:
        run_id = await world.die_in_the_first_life()
        engine = sim.engine()
        engine.agent(world.agent(1))
        async with engine:
            run = engine.handle(run_id)
            with pytest.raises(StillWaiting):
                await run.result(timeout=600)
            [request] = await run.requests()
            assert (request.kind, request.tool, request.input) == ("approval", "pay", {"cents": 900})
            await request.approve(by="eva")
            assert await run.result() == "done"
            said = [step.row.output for step in await run.steps() if step.kind == "wait"]
            assert [(each["decision"], each["by"]) for each in said] == [("needed", "the policy"), ("approve", "eva")]
        assert world.asked == [(0, {"cents": 900})], "once, about the validated input"
        assert world.bodies == [(0, "look"), (1, "look"), (1, "pay")]

    sim.run(main)


def test_a_call_that_needed_nobody_needs_nobody_after_a_crash(sim: Any) -> None:
    """Its body had begun: it is a plain tool, and runs again unasked."""
    world = World(sim, [call("pay", cents=1), say("done")], hangs="pay", first=False)

    async def main() -> None:
        run_id = await world.die_in_the_first_life()
        engine = sim.engine()
        engine.agent(world.agent(1))
        async with engine:
            assert await engine.handle(run_id).result(timeout=600) == "done"
        assert world.asked == [(0, {"cents": 1})]
        assert world.bodies == [(0, "pay"), (1, "pay")]

    sim.run(main)


def test_a_verdict_about_a_call_behind_an_output_is_written_before_its_body(sim: Any) -> None:
    """There the response is stored before the call's input is known to be valid: the verdict is in a commit of its own."""
    script = [calls(call("look", n=1), call("final_result", response="no number"), call("pay", cents=1)), call("final_result", response=3)]
    world = World(sim, script, hangs="pay", first=False, output_type=int, end_strategy="graceful")

    async def main() -> None:
        run_id = await world.die_in_the_first_life()
        engine = sim.engine()
        engine.agent(world.agent(1))
        async with engine:
            assert await engine.handle(run_id).result(timeout=600) == 3
        assert world.asked == [(0, {"cents": 1})]

    sim.run(main)


def test_a_declaration_that_became_stricter_is_heard(sim: Any) -> None:
    """The predicate said no, and the next release wants somebody's word always."""
    world = World(sim, [call("pay", cents=1), say("done")], hangs="pay", first=False, second="always")  # type: ignore[arg-type]

    async def main() -> None:
        run_id = await world.die_in_the_first_life()
        engine = sim.engine()
        engine.agent(world.agent(1))
        async with engine:
            run = engine.handle(run_id)
            with pytest.raises(StillWaiting):
                await run.result(timeout=600)
            [request] = await run.requests()
            await request.deny(reason="not today", by="eva")
            assert await run.result() == "done"
        assert world.bodies == [(0, "pay")]

    sim.run(main)


def test_a_predicate_that_raises_lets_nothing_run(sim: Any) -> None:
    """The call fails with its words, its neighbour runs, and the run goes on."""
    bodies: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([calls(call("look"), call("pay", cents=1)), say("done")]), name="desk")

        def broken(asked: ApprovalCall) -> bool:
            raise LookupError("no such limit")

        @agent.tool_plain(metadata=approve(when=broken))
        async def pay(cents: int) -> str:
            bodies.append("pay")
            return "ok"

        @agent.tool_plain
        async def look() -> str:
            bodies.append("look")
            return "ok"

        engine = sim.engine()
        desk = engine.agent(agent)
        async with engine:
            run = await desk.start({})
            assert await run.result(timeout=600) == "done"
            assert bodies == ["look"]
            assert "no such limit" in str(await run.messages())
            assert [step.kind for step in await run.steps() if step.kind == "wait"] == []

    sim.run(main)
