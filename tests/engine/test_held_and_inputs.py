"""What an earlier life may have done is asked about, and one key never goes out with two inputs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, ApprovalRequired, RunContext
from pydantic_ai.capabilities import AbstractCapability

from perdure import Budget, EffectCall, NotDone, Retry, RunFailed, StillWaiting, approve, current_run, effect
from perdure.core.effect import EffectState
from perdure.testing.models import ScriptedModel, call, calls, say


class Declined(Exception):
    """Nothing happened."""


async def asked(run: Any, seconds: float = 30) -> list[Any]:
    """The run's open requests, once it waits."""
    with pytest.raises(StillWaiting):
        await run.result(timeout=seconds)
    return await run.requests()


def test_what_failed_for_certain_holds_nobody(sim: Any) -> None:
    """A full retry asks about what may have happened, not about what did not."""
    outcomes: list[Any] = [Declined("no"), None]
    deeds: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([call("refund", order="7"), call("refund", order="7")]), name="shop")

        @agent.tool_plain(metadata=effect(certain=(Declined,)))
        async def refund(order: str) -> str:
            if (error := outcomes.pop(0)) is not None:
                raise error
            deeds.append(order)
            return "ok"

        engine = sim.engine()
        shop = engine.agent(agent, budget=Budget(max_steps=1, on_limit="fail"))
        async with engine:
            run = await shop.start({})
            with pytest.raises(RunFailed):
                await run.result()
            await run.retry("full")
            with pytest.raises(RunFailed):
                await run.result(timeout=60)
            assert deeds == ["7"]

    sim.run(main)


def test_of_several_earlier_lives_the_one_that_is_done_is_reused(sim: Any) -> None:
    """A failure in the first life does not hide the deed of the second."""
    outcomes: list[Any] = [Declined("no"), "receipt 2"]

    async def main() -> None:
        agent = Agent(ScriptedModel([call("refund", order="7"), say("done")]), name="shop")

        @agent.tool_plain(metadata=effect(certain=(Declined,)))
        async def refund(order: str) -> str:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        engine = sim.engine()
        shop = engine.agent(agent, effects="reuse", budget=Budget(max_steps=1, on_limit="fail"))
        async with engine:
            run = await shop.start({})
            for _ in range(2):
                with pytest.raises(RunFailed):
                    await run.result(timeout=60)
                await run.retry("full")
            with pytest.raises(RunFailed):
                await run.result(timeout=60)
            effects = await engine.effects(run_id=run.id, state=None)
            assert [(each.generation, str(each.state), each.row.result) for each in effects] == [
                (1, "failed", None),
                (2, "done", "receipt 2"),
                (3, "done", "receipt 2"),
            ]
            assert outcomes == []

    sim.run(main)


def test_a_fork_holds_a_call_that_is_still_open_in_its_ancestor(sim: Any) -> None:
    """The ancestor waits for an approval of the same call; the fork asks before it does it too, and there is nothing to reuse."""
    deeds: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([call("refund", order="7"), say("done")]), name="shop")

        @agent.tool_plain(metadata=effect() | approve())
        async def refund(order: str) -> str:
            deeds.append(current_run().id)
            return "ok"

        engine = sim.engine()
        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            [original] = await asked(run)
            fork = await engine.fork(run.id)
            [approval] = await asked(fork)
            await approval.approve(by="eva")
            [held] = await asked(fork)
            assert held.wait.row.data["state"] == "planned"
            assert held.wait.row.data["decisions"] == ["run", "block"]
            assert deeds == []
            await held.answer("block", by="eva")
            assert await fork.result() == "done"
            await original.approve(by="kim")
            assert await run.result() == "done"
            assert deeds == [run.id]

    sim.run(main)


def test_a_forks_own_calls_are_not_held_for_what_was_open_in_its_ancestor(sim: Any) -> None:
    """Only the calls that came with the fork are open in the ancestor too."""
    deeds: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([call("look"), call("refund", order="7"), say("done")]), name="shop")

        @agent.tool_plain
        async def look() -> str:
            return "found"

        @agent.tool_plain(metadata=effect() | approve())
        async def refund(order: str) -> str:
            deeds.append(order)
            return "ok"

        engine = sim.engine()
        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            await asked(run)
            fork = await engine.fork(run.id, 1)
            [approval] = await asked(fork)
            await approval.approve(by="eva")
            assert await fork.result() == "done"
            assert deeds == ["7"]

    sim.run(main)


def test_an_edit_after_the_held_question_asks_it_again(sim: Any) -> None:
    """The body asks for an approval, the edit makes another earlier deed of the call: a person is asked about that one too."""
    deeds: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([calls(call("refund", order="7"), call("refund", order="8")), say("done")]), name="shop")

        @agent.tool(metadata=effect())
        async def refund(ctx: RunContext[None], order: str) -> str:
            if current_run().generation == 2 and not ctx.tool_call_approved:
                raise ApprovalRequired
            deeds.append(order)
            return "ok"

        engine = sim.engine()
        shop = engine.agent(agent, budget=Budget(max_steps=1, on_limit="fail"))
        async with engine:
            run = await shop.start({})
            with pytest.raises(RunFailed):
                await run.result()
            assert deeds == ["7", "8"]
            await run.retry("full")
            [held] = await asked(run)
            assert held.input == {"order": "7"}
            await held.answer("run", by="eva")
            [approval] = await asked(run)
            await approval.approve(by="eva", input={"order": "8"})
            [again] = await asked(run)
            assert (again.wait.row.data.get("held"), again.input) == (True, {"order": "8"})
            assert deeds == ["7", "8"]

    sim.run(main)


class OtherEachTime(AbstractCapability[None]):
    """A hook that makes another input of the same call in each execution."""

    def __init__(self, *inputs: str) -> None:
        self.inputs = list(inputs)

    async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: dict[str, Any]) -> dict[str, Any]:
        return {"order": self.inputs.pop(0)}


def paying(hook: OtherEachTime, bodies: list[str], **rule: Any) -> Agent[None, str]:
    """One effect, whose first try fails."""
    agent = Agent(ScriptedModel([call("pay", order="as asked"), say("done")]), name="shop", capabilities=[hook])

    @agent.tool_plain(metadata=effect(**rule, retries=Retry(attempts=3, backoff=timedelta(hours=1))))
    async def pay(order: str) -> str:
        bodies.append(order)
        if len(bodies) == 1:
            raise Declined("not now")
        return "paid"

    return agent


@pytest.mark.parametrize("second", ["a", "b"])
def test_a_second_try_with_another_input_does_not_go_out(sim: Any, second: str) -> None:
    """The first try went out and failed for certain; the next execution makes another input of it: the model is told, and may issue the call anew."""
    bodies: list[str] = []

    async def main() -> None:
        agent = paying(OtherEachTime("a", second), bodies, certain=(Declined,))
        first = sim.engine()
        shop = first.agent(agent)
        async with first:
            run = await shop.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=60)
        after = sim.engine()
        after.agent(agent)
        async with after:
            assert await after.handle(run.id).result(timeout=7_200) == "done"
            [row] = await after.effects(run_id=run.id, state=None)
            assert (bodies, row.state) == ((["a", "a"], EffectState.DONE) if second == "a" else (["a"], EffectState.FAILED))
            assert second == "a" or "no longer the one" in str(await after.handle(run.id).messages())

    sim.run(main)


def test_a_declared_retry_with_another_input_asks_a_person(sim: Any) -> None:
    """The key may have gone out with one input; with another it does not go out by itself."""
    bodies: list[str] = []

    async def main() -> None:
        agent = paying(OtherEachTime("a", "b"), bodies, unknown="retry")
        first = sim.engine()
        shop = first.agent(agent)
        async with first:
            run = await shop.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=60)
        after = sim.engine()
        after.agent(agent)
        async with after:
            [unknown] = await asked(after.handle(run.id), 7_200)
            assert (unknown.kind, unknown.input, bodies) == ("effect", {"order": "a"}, ["a"])

    sim.run(main)


def test_verify_is_asked_about_the_input_that_went_out(sim: Any) -> None:
    """Not about the one that a hook would make of the call by now."""
    bodies: list[str] = []
    about: list[Any] = []

    async def main() -> None:
        asked_once = asyncio.Event()

        async def look_up(call: EffectCall) -> NotDone:
            about.append(call.input)
            if len(about) == 1:
                asked_once.set()
                await asyncio.Event().wait()
            return NotDone()

        agent = paying(OtherEachTime("a", "b", "b", "b"), bodies, unknown=look_up)
        first = sim.engine()
        shop = first.agent(agent)
        async with first:
            run = await shop.start({})
            await asked_once.wait()
        after = sim.engine()
        after.agent(agent)
        async with after:
            assert await after.handle(run.id).result(timeout=7_200) == "done"
            assert about == [{"order": "a"}] * 2
            assert "b" not in bodies

    sim.run(main)
