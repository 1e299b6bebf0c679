"""What decides is the engine's own record of what it asked: never what an answer claims."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import Engine, RunStatus, StillWaiting, approve, effect
from perdure.core.commit import ResolveOutcome
from perdure.core.errors import InvalidTrigger, WaitNotFoundError
from perdure.testing.models import Reply, ScriptedModel, call, calls, say


class Desk:
    """An agent with a gated refund, and what was really paid."""

    def __init__(self, sim: Any, *script: Reply) -> None:
        self.paid: list[tuple[str, int]] = []
        self.engine: Engine = sim.engine(tick=timedelta(minutes=5), poll=timedelta(minutes=5), lease=timedelta(minutes=5))
        agent = Agent(ScriptedModel(script), name="desk")

        @agent.tool_plain(metadata=effect() | approve())
        async def refund(order: str, cents: int) -> str:
            self.paid.append((order, cents))
            return "refunded"

        self.agent = self.engine.agent(agent)


async def waiting(run: Any) -> list[Any]:
    with pytest.raises(StillWaiting):
        await run.result(timeout=30)
    return await run.requests()


def test_an_answer_to_what_was_never_asked_pays_nothing(sim: Any) -> None:
    """A made-up request, a run's or a call's id in its place, another input's hash, a word that is no decision about it. # case B13"""
    desk = Desk(sim, call("refund", order="7", cents=900), say("done"))

    async def main() -> None:
        engine = desk.engine
        async with engine:
            run = await desk.agent.start({})
            [request] = await waiting(run)
            for forged in ("w-made-up", run.id, str(request.wait.row.tool_call_id), f"{run.id}:1:1:0"):
                with pytest.raises(WaitNotFoundError):
                    await engine.approve(forged, by="mallory")
                with pytest.raises(WaitNotFoundError):
                    await engine.approve(forged, by="mallory", input={"order": "7", "cents": 1})
            with pytest.raises(InvalidTrigger, match="wait_id"):
                await engine.approve("", by="mallory")
            other = await engine.resolve(request.id, "approve", by="mallory", input_hash="0" * 64)
            assert other.outcome is ResolveOutcome.CONFLICT
            assert (desk.paid, await run.status()) == ([], RunStatus.WAITING)
            seen = await engine.resolve(request.id, "approve", by="eva", input_hash=request.wait.row.input_hash)
            assert seen.outcome is ResolveOutcome.RESOLVED
            assert await run.result() == "done"
            assert desk.paid == [("7", 900)]

    sim.run(main)


def test_the_same_call_asked_twice_is_two_requests_that_can_be_told_apart(sim: Any) -> None:
    """Twins of one response share input and hash and differ in call and place; each is decided alone, and looking again opens no third. # case B20"""
    twin = call("refund", order="7", cents=900)
    desk = Desk(sim, calls(twin, twin), say("done"))

    async def main() -> None:
        async with desk.engine as engine:
            run = await desk.agent.start({})
            one, two = await waiting(run)
            assert one.wait.row.input_hash == two.wait.row.input_hash
            assert (one.wait.row.position, two.wait.row.position) == (0, 1)
            assert one.wait.row.tool_call_id != two.wait.row.tool_call_id
            await two.deny(by="eva", reason="it is the same one")
            for _ in range(3):
                await engine.tick()
                assert [request.id for request in await run.requests()] == [one.id]
            await one.approve(by="eva")
            assert await run.result() == "done"
            assert desk.paid == [("7", 900)]

    sim.run(main)


def test_an_approval_is_not_good_for_the_same_call_in_a_later_step(sim: Any) -> None:
    """The model repeats itself: somebody is asked again. # case B20"""
    desk = Desk(sim, call("refund", order="7", cents=900), call("refund", order="7", cents=900), say("done"))

    async def main() -> None:
        async with desk.engine:
            run = await desk.agent.start({})
            [first] = await waiting(run)
            await first.approve(by="eva")
            [second] = await waiting(run)
            assert second.id != first.id and desk.paid == [("7", 900)]
            await second.deny(by="eva")
            assert await run.result() == "done"
            assert desk.paid == [("7", 900)]

    sim.run(main)
