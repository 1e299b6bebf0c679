"""Every way to ask: what the agent declares itself, its own handlers, rules by name. Each waits durably, and none answers for another."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.capabilities import HandleDeferredToolCalls, RequestInput
from pydantic_ai.external_events import wait_for_external_event
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.toolsets import ApprovalRequiredToolset

from perdure import RunFailed, RunStatus, StillWaiting, approve, effect
from perdure.testing.models import Reply, ScriptedModel, call, say


class Counter:
    """An agent with a payment, and what was really paid."""

    def __init__(self, *script: Reply, **options: Any) -> None:
        self.paid: list[int] = []
        self.script, self.options = script or (call("pay", cents=900), say("done")), options
        self.tokens: list[str] = []
        self.asked: list[list[str]] = []

    async def hand_out(self, context: Any, requests: DeferredToolRequests, token: str) -> None:
        """Tell somebody, who will answer some day."""
        self.tokens.append(token)
        self.asked.append([part.tool_name for part in (*requests.approvals, *requests.calls)])

    def agent(self) -> Agent[None, str]:
        agent = Agent(ScriptedModel(self.script), name="counter", **self.options)

        @agent.tool_plain(requires_approval=True, metadata=effect())
        async def pay(cents: int) -> str:
            self.paid.append(cents)
            return "paid"

        @agent.tool_plain(metadata=effect() | approve(within=timedelta(days=20)))
        async def ruled(cents: int) -> str:
            self.paid.append(cents)
            return "paid"

        return agent


def patient(sim: Any) -> Any:
    return sim.engine(tick=timedelta(hours=1), poll=timedelta(hours=1), lease=timedelta(hours=1))


async def waiting(run: Any) -> list[Any]:
    with pytest.raises(StillWaiting):
        await run.result(timeout=30)
    assert await run.status() is RunStatus.WAITING
    return await run.requests()


def approved(call_id: str, **input: Any) -> dict[str, Any]:
    """What Pydantic AI's own answer looks like."""
    return {"approvals": {call_id: {"kind": "tool-approved", **({"override_args": input} if input else {})}}}


def test_an_agents_own_way_to_ask_waits_durably(sim: Any) -> None:
    """`RequestInput`: nothing is held, other processes go on under the same token, one answer is one call, and an answer that comes first is not lost."""

    async def main() -> None:
        counter = Counter()
        counter.options["capabilities"] = [RequestInput(counter.hand_out)]
        first = patient(sim)
        durable = first.agent(counter.agent())
        async with first:
            run = await durable.start({})
            [request] = await waiting(run)
            assert (request.kind, counter.asked, first.worker.idle) == ("event", [["pay"]], True)
        await sim.runtime.sleep(timedelta(days=30).total_seconds())
        later = patient(sim)
        later.agent(counter.agent())
        async with later:
            [token] = set(counter.tokens)
            assert await later.resolve_external(token, approved("call-0-0", cents=400))
            assert not await later.resolve_external(token, approved("call-0-0"))
            assert await later.handle(run.id).result() == "done"
            assert counter.paid == [400]
            [row] = await later.effects(run_id=run.id, state=None)
            assert row.row.input == {"cents": 400}

    sim.run(main)


def test_an_agents_own_way_to_ask_runs_out(sim: Any) -> None:
    """The model is told, and nothing was paid."""

    async def main() -> None:
        counter = Counter()
        counter.options["capabilities"] = [RequestInput(counter.hand_out, timeout=timedelta(days=2))]
        engine = patient(sim)
        durable = engine.agent(counter.agent())
        async with engine:
            run = await durable.start({})
            await waiting(run)
            await sim.runtime.sleep(timedelta(days=3).total_seconds())
            assert await run.result() == "done"
            assert counter.paid == [] and "in time" in str((await run.messages())[2])

    sim.run(main)


@pytest.mark.parametrize("tool", ["pay", "ruled"])
def test_nothing_of_the_agents_own_approves_what_a_rule_gates(sim: Any, tool: str) -> None:
    """Its handler approves everything, and nobody was asked: the call fails and says what to change, and nothing is paid."""

    async def approve_all(context: Any, requests: DeferredToolRequests) -> DeferredToolResults:
        return requests.build_results(approve_all=True)

    async def main() -> None:
        counter = Counter(call(tool, cents=900), say("done"))
        counter.options["capabilities"] = [HandleDeferredToolCalls(handler=approve_all)]
        engine = patient(sim)
        durable = engine.agent(counter.agent(), tools={"pay": approve(quorum=2)})
        async with engine:
            run = await durable.start({})
            assert await run.result(timeout=30) == "done"
            assert counter.paid == [] and "asks people" in str((await run.messages())[2])

    sim.run(main)


@pytest.mark.parametrize("how", ["toolset", "name", "metadata"])
def test_a_toolset_can_be_made_to_ask(sim: Any, how: str) -> None:
    """By Pydantic AI's own wrapper with a predicate, by a rule for the tool's name, beside the function; the edit is what runs."""
    paid: list[int] = []

    async def pay_out(cents: int) -> str:
        paid.append(cents)
        return "paid"

    async def main() -> None:
        toolset: Any = FunctionToolset()
        toolset.add_function(pay_out, metadata=effect() | (approve(when=lambda each: each.input["cents"] > 500) if how == "metadata" else {}))
        if how == "toolset":
            toolset = ApprovalRequiredToolset(toolset, lambda context, tool, input: input["cents"] > 500)
        rules = {"pay_*": approve(when=lambda each: each.input["cents"] > 500)} if how == "name" else {}
        agent = Agent(ScriptedModel([call("pay_out", cents=100), call("pay_out", cents=900), say("done")]), name="counter", toolsets=[toolset])
        engine = patient(sim)
        durable = engine.agent(agent, tools=rules)
        async with engine:
            run = await durable.start({})
            [request] = await waiting(run)
            assert (request.kind, request.input, paid) == ("approval", {"cents": 900}, [100])
            await request.approve(by="eva", input={"cents": 400})
            assert await run.result() == "done"
            assert paid == [100, 400]

    sim.run(main)


def test_an_output_can_not_wait(sim: Any) -> None:
    """It is the end of the run; the error names where one can."""

    async def main() -> None:
        agent = Agent(ScriptedModel([say("done")]), name="ends")

        @agent.output_validator
        async def check(text: str) -> str:
            return str(await wait_for_external_event("review", ask=lambda token: None))

        engine = patient(sim)
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            with pytest.raises(RunFailed, match="nowhere else"):
                await run.result(timeout=30)

    sim.run(main)
