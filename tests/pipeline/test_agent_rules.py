"""What a tool declares with `approve` and `effect` holds in an agent phase, or is refused by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pipeline_worlds import Open, World
from pydantic_ai import Agent
from pydantic_ai.toolsets import FunctionToolset, WrapperToolset

from perdure.approvals import approve
from perdure.core.errors import ConfigurationError
from perdure.effects import effect
from perdure.pipeline import AgentCheckpoint, build_agent_phase, resume_job
from perdure.testing.models import ScriptedModel, call, calls, say


class Office:
    """An agent whose tool `pay` declares this; the tool `look` declares nothing."""

    def __init__(self, metadata: dict[str, Any], *script: Any) -> None:
        self.paid: list[int] = []
        self.looked = 0
        self.model = ScriptedModel([*script, say("done")])
        self.agent = Agent(self.model)

        @self.agent.tool_plain(metadata=metadata)
        async def pay(cents: int) -> str:
            self.paid.append(cents)
            return f"paid {cents}"

        @self.agent.tool_plain
        async def look() -> str:
            self.looked += 1
            return "seen"

    async def begin(self, world: World, **how: Any) -> None:
        world.use(build_agent_phase(self.agent, runtime=world.clock, **how))
        await world.start("j", AgentCheckpoint.start("go"))
        await world.drain()


@pytest.mark.parametrize("tools", ["turn", "phase"])
@pytest.mark.parametrize("metadata", [approve(), effect() | approve()], ids=["approve", "effect and approve"])
async def test_a_tool_that_declares_an_approval_waits_for_it(agent_world_of: Open, tools: Any, metadata: dict[str, Any]) -> None:
    """Nothing runs before the word; then it runs once, with the input that was approved."""
    async with agent_world_of() as world:
        office = Office(metadata, calls(call("look"), call("pay", cents=900)))
        await office.begin(world, tools=tools)
        job = await world.job("j")
        assert (job.status, office.paid, office.looked) == ("paused", [], 1)
        assert job.checkpoint is not None and job.checkpoint.wait is not None and job.checkpoint.wait.data["input"] == {"cents": 900}
        await resume_job("j", world.storage, world.scheduler, approved=True, value={"cents": 400}, by="eva", runtime=world.clock)
        await world.drain()
        assert (office.paid, office.looked, (await world.job("j")).status) == ([400], 1, "complete")


async def test_a_denial_runs_nothing_and_reaches_the_model(agent_world_of: Open) -> None:
    """The reason is what the model is told."""
    async with agent_world_of() as world:
        office = Office(effect() | approve(), call("pay", cents=900))
        await office.begin(world)
        await resume_job("j", world.storage, world.scheduler, approved=False, reason="too dear", runtime=world.clock)
        await world.drain()
        assert office.paid == [] and "too dear" in str(office.model.requests[1][-1])


async def test_the_predicate_sees_the_input_and_decides_once(agent_world_of: Open) -> None:
    """Small sums need nobody; what was found to need a word still does when the predicate has changed its mind."""
    asked: list[int] = []

    def large(call: Any) -> bool:
        asked.append(call.input["cents"])
        return call.input["cents"] > 500 and len(asked) < 3

    async with agent_world_of() as world:
        office = Office(approve(when=large), calls(call("pay", cents=100), call("pay", cents=900)))
        await office.begin(world)
        assert (office.paid, (await world.job("j")).status) == ([100], "paused")
        await resume_job("j", world.storage, world.scheduler, approved=True, runtime=world.clock)
        await world.drain()
        assert (office.paid, asked) == ([100, 900], [100, 900])


@pytest.mark.parametrize(("on_expiry", "status"), [("deny", "complete"), ("fail", "error")])
async def test_a_deadline_and_what_follows_it_are_the_tools_own(agent_world_of: Open, on_expiry: Any, status: str) -> None:
    """After `within`, the model is told or the job fails, as declared; the tool runs in neither case."""
    async with agent_world_of() as world:
        office = Office(approve(within=timedelta(minutes=5), on_expiry=on_expiry), call("pay", cents=900))
        await office.begin(world)
        assert (await world.job("j")).status == "paused"
        world.clock.advance(301)
        await world.drain()
        job = await world.job("j")
        assert (office.paid, job.status) == ([], status)
        assert job.error == (None if status == "complete" else "agent: nobody decided about pay in time")


async def test_an_approval_without_end_does_not_lapse(agent_world_of: Open) -> None:
    """`within="never"` is honoured."""
    async with agent_world_of() as world:
        office = Office(approve(within="never"), call("pay", cents=900))
        await office.begin(world)
        world.clock.advance(400 * 86400)
        await world.drain()
        assert (await world.job("j")).status == "paused"


BEYOND = {
    "approve(approvers=…)": approve(approvers=["eva"]),
    "approve(quorum=…)": approve(quorum=2),
    "approve(not_requester=…)": approve(not_requester=True),
    "effect(key=…)": effect(key="cents", scope="agent"),
    "effect('transaction')": effect("transaction"),
}


@pytest.mark.parametrize("says", BEYOND)
def test_what_a_pipeline_can_not_keep_is_refused_when_the_phase_is_built(says: str) -> None:
    """By the tool's name, before anything runs."""
    with pytest.raises(ConfigurationError) as refused:
        build_agent_phase(Office(BEYOND[says]).agent)
    assert "'pay'" in refused.value.message and says in refused.value.message


@pytest.mark.parametrize("says", BEYOND)
async def test_a_tool_that_appears_later_is_refused_when_it_is_called(agent_world_of: Open, says: str) -> None:
    """Its body does not run."""
    ran: list[int] = []
    tools = FunctionToolset[Any]()

    @tools.tool_plain(metadata=BEYOND[says])
    async def hidden(cents: int) -> str:
        ran.append(cents)
        return "paid"

    async with agent_world_of() as world:
        model = ScriptedModel([call("hidden", cents=1), say("done")])
        world.use(build_agent_phase(Agent(model, toolsets=[WrapperToolset(tools)]), runtime=world.clock))
        await world.start("j", AgentCheckpoint.start("go"))
        await world.drain()
        job = await world.job("j")
        assert ran == []
        assert says in (job.error or "") or says in str(model.requests[-1])
