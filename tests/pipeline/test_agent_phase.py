"""An agent as a phase: one model call and its tools per advance."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pipeline_worlds import Open, World, open_world
from pydantic import BaseModel
from pydantic_ai import Agent, ApprovalRequired, BinaryContent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, SystemPromptPart, ToolReturnPart, UserPromptPart

from perdure.context import Wait as ToolWait
from perdure.context import current_run
from perdure.effects import Happened, effect
from perdure.pipeline import (
    AgentCheckpoint,
    AgentOutcome,
    Done,
    MemoryScheduler,
    Next,
    PendingToolCall,
    Phase,
    PhaseContext,
    PhaseResult,
    build_agent_phase,
    get_output,
    phase,
    recover,
    resume_job,
    run_agent,
)
from perdure.testing.models import Reply, ScriptedModel, call, calls, cut, empty, fail, filtered, length, say


class Crash(BaseException):
    """The process is gone."""


@dataclass
class Desk:
    """An agent, its model, and what its tools did."""

    script: Sequence[Reply]
    did: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    crash_in: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.model = ScriptedModel(list(self.script))
        self.agent = Agent(self.model)

        @self.agent.tool_plain
        async def look(what: str) -> str:
            self.did.append(f"look {what}")
            self.keys.append(current_run().key)
            self._die(f"look {what}")
            return f"seen {what}"

        @self.agent.tool_plain(requires_approval=True)
        async def send(to: str) -> str:
            self.did.append(f"send {to}")
            return f"sent to {to}"

        @self.agent.tool_plain(metadata=effect())
        async def pay(cents: int) -> str:
            self.did.append(f"pay {cents}")
            self.keys.append(current_run().key)
            self._die("pay")
            return "paid"

    def _die(self, where: str) -> None:
        if where in self.crash_in:
            self.crash_in.remove(where)
            raise Crash

    @property
    def asked(self) -> int:
        return len(self.model.requests)


async def outcome(world: World) -> AgentOutcome[Any]:
    return await get_output("j", world.storage, AgentOutcome[Any])


async def begin(world: World, desk: Desk, prompt: str | list[ModelMessage] = "go", **how: Any) -> None:
    world.use(build_agent_phase(desk.agent, runtime=world.clock, **how))
    await world.start("j", AgentCheckpoint.start(prompt))


def keeps_outputs(world: World) -> bool:
    return world.kind != "plain"


async def test_an_agent_loops_over_its_turns_until_it_answers(agent_world_of: Open) -> None:
    """Each advance is one model call and its tools; the outcome has output, messages, usage and turns."""
    async with agent_world_of() as world:
        desk = Desk([call("look", what="a"), calls(call("look", what="b"), call("look", what="c")), say("all seen")])
        await begin(world, desk)
        assert await world.advance("j") == "ran"
        assert (desk.asked, desk.did) == (1, ["look a"])
        await world.drain()
        assert (desk.asked, desk.did, (await world.job("j")).status) == (3, ["look a", "look b", "look c"], "complete")
        assert [entry.message for entry in await world.log("j") if entry.level == "info"] == [
            "agent: turn 1, called look; 10 tokens in, 5 out",
            "agent: turn 2, called look, look; 10 tokens in, 5 out",
            "agent: turn 3, called no tool; 10 tokens in, 5 out",
        ]
        if keeps_outputs(world):
            ended = await outcome(world)
            assert (ended.output, ended.turns, ended.stopped_by) == ("all seen", 3, "answer")
            assert (ended.usage.requests, ended.usage.tool_calls, ended.usage.total_tokens) == (3, 3, 45)
            await Agent(ScriptedModel([say("x")] * 9)).run("and now?", message_history=ended.messages)


async def test_max_turns_makes_exactly_so_many_model_calls(agent_world_of: Open) -> None:
    """Then the job is complete, with a log line, and not failed."""
    async with agent_world_of() as world:
        desk = Desk([call("look", what=str(n)) for n in range(20)])
        await begin(world, desk, max_turns=3)
        await world.drain()
        assert (desk.asked, len(desk.did), (await world.job("j")).status) == (3, 3, "complete")
        assert (await world.said("j"))[-1].startswith("agent: max_turns (3) reached")
        if keeps_outputs(world):
            assert (await outcome(world)).stopped_by == "max_turns"


async def test_no_turns_at_all_calls_no_model(agent_world_of: Open) -> None:
    """`max_turns=0` is a limit, not the lack of one."""
    async with agent_world_of() as world:
        desk = Desk([say("x")])
        await begin(world, desk, max_turns=0)
        await world.drain()
        assert (desk.asked, (await world.job("j")).status) == (0, "complete")


@pytest.mark.parametrize("reply", [length("as far as I g"), length(call("look", what="a"))])
async def test_a_response_cut_at_the_limit_completes_with_a_warning(agent_world_of: Open, reply: Reply) -> None:
    """The turn is saved, none of its calls runs."""
    async with agent_world_of() as world:
        desk = Desk([reply])
        await begin(world, desk)
        await world.drain()
        assert ((await world.job("j")).status, desk.did) == ("complete", [])
        [warning] = [entry for entry in await world.log("j") if entry.level == "warn"]
        assert "truncated" in warning.message
        if keeps_outputs(world):
            ended = await outcome(world)
            assert (ended.stopped_by, ended.turns) == ("length", 1) and isinstance(ended.messages[-1], ModelResponse)


async def test_a_filtered_response_completes_with_a_warning(agent_world_of: Open) -> None:
    """As the provider ended it."""
    async with agent_world_of() as world:
        await begin(world, Desk([filtered("I can")]))
        await world.drain()
        assert (await world.job("j")).status == "complete"
        assert "content filter" in (await world.said("j"))[-1]


async def test_a_response_that_ends_in_an_error_fails_and_is_not_saved(agent_world_of: Open) -> None:
    """A retry asks the model again, from before the turn."""
    async with agent_world_of() as world:
        desk = Desk([Reply(text="half", finish="error")])
        await begin(world, desk)
        await world.drain()
        job = await world.job("j")
        assert job.status == "error" and job.error is not None and job.error.startswith("agent: ")
        assert job.checkpoint is not None and (job.checkpoint.state["turn"], job.checkpoint.state["messages"]) == (0, [])


async def test_a_model_that_is_busy_is_asked_again_after_its_own_wish(agent_world_of: Open) -> None:
    """429 with Retry-After: a durable pause, no worker held; a refusal for good fails at once."""
    async with agent_world_of() as world:
        desk = Desk([fail(429, retry_after=90), say("now")])
        await begin(world, desk)
        await world.drain()
        assert (desk.asked, (await world.job("j")).status) == (1, "running")
        world.clock.advance(89)
        await world.drain()
        assert desk.asked == 1
        world.clock.advance(1)
        await world.drain()
        assert (desk.asked, (await world.job("j")).status) == (2, "complete")


async def test_a_model_that_stays_busy_or_refuses_fails_the_job(agent_world_of: Open) -> None:
    """Four tries in all; none where trying again can't help."""
    async with agent_world_of() as world:
        desk = Desk([fail(503)] * 9)
        await begin(world, desk)
        await world.drain_all()
        assert (desk.asked, (await world.job("j")).status) == (4, "error")
    async with agent_world_of() as world:
        desk = Desk([fail(401)])
        await world.storage.set_checkpoint("j", None)
        world.use(build_agent_phase(desk.agent, runtime=world.clock))
        await world.start("j2", AgentCheckpoint.start("go"))
        await world.drain_all()
        assert (desk.asked, (await world.job("j2")).status) == (1, "error")


async def test_a_stream_that_breaks_off_is_not_a_turn(agent_world_of: Open) -> None:
    """Nothing of it is kept; it is asked again."""
    async with agent_world_of() as world:
        desk = Desk([cut("I was about"), say("whole")])
        await begin(world, desk)
        await world.drain_all()
        assert (await world.job("j")).status == "complete"
        if keeps_outputs(world):
            assert (await outcome(world)).output == "whole" and (await outcome(world)).turns == 1


async def test_a_model_that_says_nothing_is_asked_a_few_times(agent_world_of: Open) -> None:
    """Then the job fails by name."""
    async with agent_world_of() as world:
        await begin(world, Desk([empty(), say("here")]))
        await world.drain()
        assert (await world.job("j")).status == "complete"
        desk = Desk([empty()] * 9)
        world.use(build_agent_phase(desk.agent, runtime=world.clock))
        await world.start("j", AgentCheckpoint.start("go"), "full")
        await world.drain()
        assert (desk.asked, (await world.job("j")).error) == (3, "agent: the model answered with nothing 3 times in a row")


async def test_a_crash_in_a_tool_pays_no_model_call_twice(agent_world_of: Open) -> None:
    """The response was stored before the tool ran: the calls are answered from there, under the same key."""
    async with agent_world_of() as world:
        desk = Desk([call("look", what="a"), say("done")], crash_in={"look a"})
        await begin(world, desk)
        with pytest.raises(Crash):
            await world.drain()
        job = await world.job("j")
        assert job.checkpoint is not None
        assert job.checkpoint.state["pending_tool_calls"] == [{"id": "call-0-0", "name": "look", "args": {"what": "a"}}]
        await _new_process(world)
        await world.drain()
        assert (desk.asked, desk.did, (await world.job("j")).status) == (2, ["look a", "look a"], "complete")
        assert desk.keys[0] == desk.keys[1] and desk.keys[0] is not None


async def _new_process(world: World) -> None:
    world.clock.advance(31)
    if isinstance(world.scheduler, MemoryScheduler):
        world.scheduler = MemoryScheduler(runtime=world.clock)
        world.scheduler.bind(world.advance)
        if world.kind == "plain":
            await world.scheduler.schedule_advance("j")
            return
    await recover(world.storage, world.scheduler)


async def test_tools_as_advances_of_their_own_run_once_each(agent_world_of: Open) -> None:
    """Three calls, three advances; a crash in the second runs neither the first again nor the model."""
    async with agent_world_of() as world:
        desk = Desk([calls(call("look", what="a"), call("look", what="b"), call("look", what="c")), say("done")], crash_in={"look b"})
        await begin(world, desk, tools="phase")
        assert await world.advance("j") == "ran"
        assert (desk.asked, desk.did) == (1, [])
        assert await world.advance("j") == "ran"
        assert desk.did == ["look a"]
        job = await world.job("j")
        assert job.checkpoint is not None
        assert [each["name"] + each["args"]["what"] for each in job.checkpoint.state["pending_tool_calls"]] == ["lookb", "lookc"]
        with pytest.raises(Crash):
            await world.drain()
        await _new_process(world)
        await world.drain()
        assert desk.did == ["look a", "look b", "look b", "look c"]
        assert (desk.asked, (await world.job("j")).status) == (2, "complete")
        assert len(set(desk.keys)) == 3


@pytest.mark.parametrize("tools", ["turn", "phase"])
async def test_an_approval_pauses_the_job_and_other_calls_are_not_run_again(agent_world_of: Open, tools: Any) -> None:
    """The free call runs first and once; the answer decides about the gated one."""
    async with agent_world_of() as world:
        desk = Desk([calls(call("look", what="a"), call("send", to="eva")), say("done")])
        await begin(world, desk, tools=tools)
        await world.drain()
        job = await world.job("j")
        assert job.status == "paused" and desk.did == ["look a"]
        assert job.checkpoint is not None and job.checkpoint.wait is not None
        assert job.checkpoint.wait.question == "Run send?" and job.checkpoint.wait.data["input"] == {"to": "eva"}
        await resume_job("j", world.storage, world.scheduler, approved=True, by="eva", runtime=world.clock)
        await world.drain()
        assert (desk.did, desk.asked, (await world.job("j")).status) == (["look a", "send eva"], 2, "complete")


async def test_an_approval_can_edit_the_input_or_deny(agent_world_of: Open) -> None:
    """The edit reaches the tool; the reason reaches the model."""
    async with agent_world_of() as world:
        desk = Desk([calls(call("send", to="eva"), call("send", to="ben")), say("done")])
        await begin(world, desk)
        await world.drain()
        await resume_job("j", world.storage, world.scheduler, approved=True, value={"to": "ada"}, runtime=world.clock)
        await world.drain()
        await resume_job("j", world.storage, world.scheduler, approved=False, reason="not ben", runtime=world.clock)
        await world.drain()
        assert desk.did == ["send ada"]
        returned = [str(part.content) for part in desk.model.requests[1][-1].parts if isinstance(part, ToolReturnPart)]
        assert returned == ["sent to ada", "not ben"]


async def test_an_approval_that_lapses_runs_nothing_and_tells_the_model(agent_world_of: Open) -> None:
    """Silence is never consent."""
    async with agent_world_of() as world:
        desk = Desk([call("send", to="eva"), say("done")])
        await begin(world, desk)
        await world.drain()
        world.clock.advance(8 * 86400)
        await world.drain()
        assert (desk.did, (await world.job("j")).status) == ([], "complete")
        assert "Nobody decided in time." in str(desk.model.requests[1][-1])


# case A1
async def test_an_effect_whose_outcome_nobody_knows_is_not_run_again_by_itself(agent_world_of: Open) -> None:
    """A crash in the body: the next process asks; each answer does what it says."""
    for answer, did, told in (
        ({"approved": False, "value": "paid after all"}, 1, "paid after all"),
        ({"approved": True}, 2, "paid"),
        ({"approved": False}, 1, "not known"),
    ):
        async with agent_world_of() as world:
            desk = Desk([call("pay", cents=900), say("done")], crash_in={"pay"})
            job_id = f"j-{did}-{told}"
            world.use(build_agent_phase(desk.agent, runtime=world.clock))
            await world.start(job_id, AgentCheckpoint.start("go"))
            with pytest.raises(Crash):
                await world.drain()
            world.clock.advance(31)
            await world.scheduler.schedule_advance(job_id)
            await world.drain()
            assert ((await world.job(job_id)).status, len(desk.did)) == ("paused", 1)
            await resume_job(job_id, world.storage, world.scheduler, runtime=world.clock, **answer)
            await world.drain()
            assert ((await world.job(job_id)).status, len(desk.did), desk.asked) == ("complete", did, 2)
            assert told in str(desk.model.requests[1][-1]) and len(set(desk.keys)) == 1


async def test_an_effect_can_find_out_or_be_safe_to_repeat(agent_world_of: Open) -> None:
    """`verify` and `retry` need no person."""
    async with agent_world_of() as world:
        did: list[str] = []

        async def verify(asked: Any) -> Happened:
            return Happened(f"verified {asked.key == did[0]}")

        agent = Agent(ScriptedModel([calls(call("book"), call("note")), say("done")]))

        @agent.tool_plain(metadata=effect(unknown=verify))
        async def book() -> str:
            did.append(str(current_run().key))
            raise ConnectionError("the line went dead")

        @agent.tool_plain(metadata=effect(unknown="retry"))
        async def note() -> str:
            did.append(str(current_run().key))
            if len(did) == 2:
                raise Crash
            return "noted"

        world.use(build_agent_phase(agent, runtime=world.clock, tools="phase"))
        await world.start("j", AgentCheckpoint.start("go"))
        with pytest.raises(Crash):
            await world.drain()
        await _new_process(world)
        await world.drain()
        assert (await world.job("j")).status == "complete"
        assert len(did) == 3 and did[1] == did[2] != did[0]


async def test_an_effect_that_raises_is_asked_about_in_the_same_process_too(tmp_path: Path) -> None:
    """An exception is no proof that nothing happened, unless its class says so."""
    async with open_world("memory", tmp_path) as world:
        agent = Agent(ScriptedModel([calls(call("book"), call("safe")), say("done")]))

        @agent.tool_plain(metadata=effect())
        async def book() -> str:
            raise ConnectionError("the line went dead")

        @agent.tool_plain(metadata=effect(certain=(ConnectionError,)))
        async def safe() -> str:
            raise ConnectionError("never dialled")

        world.use(build_agent_phase(agent, runtime=world.clock, tools="phase"))
        await world.start("j", AgentCheckpoint.start("go"))
        await world.drain()
        job = await world.job("j")
        assert job.status == "paused" and job.checkpoint is not None and job.checkpoint.wait is not None
        assert job.checkpoint.wait.question.startswith("Nobody knows whether book happened (ConnectionError: the line went dead)")
        await resume_job("j", world.storage, world.scheduler, approved=False, runtime=world.clock)
        await world.drain()
        assert (await world.job("j")).status == "complete"


async def test_run_agent_resumes_without_and_restarts_with_its_messages(agent_world_of: Open) -> None:
    """Resume ignores `initial_messages`; full starts with them at turn 0."""
    async with agent_world_of() as world:
        desk = Desk([call("look", what="a"), Reply(text="x", finish="error")])

        async def run(prompt: str, mode: Any = None) -> None:
            world.phases = [build_agent_phase(desk.agent, runtime=world.clock)]
            await run_agent("j", desk.agent, prompt, world.storage, world.scheduler, retry_mode=mode, runtime=world.clock)
            await world.drain()

        if isinstance(world.scheduler, MemoryScheduler):
            assert not world.scheduler.bound
        await run("first")
        assert (await world.job("j")).status == "error" and desk.asked == 2
        desk.model = desk.agent.model = ScriptedModel([say("-"), say("resumed")])
        await run("second", "resume")
        assert (await world.job("j")).status == "complete" and desk.asked == 1
        assert "first" in str(desk.model.requests[0][0]) and "second" not in str(desk.model.requests)
        desk.model = desk.agent.model = ScriptedModel([say("restarted")])
        await run("third", "full")
        assert "third" in str(desk.model.requests[0]) and "first" not in str(desk.model.requests)
        if keeps_outputs(world):
            assert ((await outcome(world)).output, (await outcome(world)).turns) == ("restarted", 1)


async def test_run_agent_takes_messages_and_a_system_prompt(tmp_path: Path) -> None:
    """A history goes on; the prompt is put before it; usage counts the job's own turns only."""
    async with open_world("memory", tmp_path) as world:
        before: list[ModelMessage] = [
            ModelRequest(parts=[UserPromptPart("hello")]), ModelResponse(parts=[]), ModelRequest(parts=[UserPromptPart("again")]),
        ]  # fmt: skip
        before[1] = (await Agent(ScriptedModel([say("hi")])).run("hello")).all_messages()[1]
        model = ScriptedModel([say("-"), say("there")])
        await run_agent("j", Agent(model), before, world.storage, world.scheduler, system="Be brief.", runtime=world.clock)
        await world.drain()
        first = model.requests[0][0]
        assert isinstance(first, ModelRequest) and isinstance(first.parts[0], SystemPromptPart) and first.parts[0].content == "Be brief."
        ended = await outcome(world)
        assert (ended.output, ended.usage.requests, len(ended.messages)) == ("there", 1, 4)


class Ticket(BaseModel):
    topic: str
    urgent: bool


async def test_a_structured_output_is_validated_and_refusals_go_on(agent_world_of: Open) -> None:
    """The output is of the agent's type; one that its validator refuses costs another turn."""
    async with agent_world_of() as world:
        agent = Agent(
            ScriptedModel([call("final_result", topic="", urgent=True), call("final_result", topic="invoice", urgent=False)]), output_type=Ticket
        )

        @agent.output_validator
        def named(ticket: Ticket) -> Ticket:
            if not ticket.topic:
                raise ModelRetry("a topic, please")
            return ticket

        world.use(build_agent_phase(agent, runtime=world.clock))
        await world.start("j", AgentCheckpoint.start("classify"))
        await world.drain()
        assert (await world.job("j")).status == "complete"
        if keeps_outputs(world):
            ended = await get_output("j", world.storage, AgentOutcome[Ticket])
            assert (ended.output, ended.turns) == (Ticket(topic="invoice", urgent=False), 2)


async def test_files_in_messages_come_back_byte_for_byte(agent_world_of: Open) -> None:
    """The prompt holds a picture; a tool returns one."""
    picture = BinaryContent(bytes(range(256)), media_type="image/png")
    async with agent_world_of() as world:
        model = ScriptedModel([call("draw"), say("nice")])
        agent = Agent(model)

        @agent.tool_plain
        def draw() -> BinaryContent:
            return picture

        world.use(build_agent_phase(agent, runtime=world.clock))
        await world.start("j", AgentCheckpoint.start([ModelRequest(parts=[UserPromptPart(["look", picture])])]))
        await world.drain()
        assert (await world.job("j")).status == "complete"
        sent = model.requests[-1]
        assert isinstance(sent[0].parts[0], UserPromptPart) and sent[0].parts[0].content[1].data == picture.data  # type: ignore[union-attr]
        assert sum(bytes(range(256)) in [getattr(each, "data", b"")] for part in sent[-1].parts for each in _files(part)) == 1


def _files(part: Any) -> list[Any]:
    content = getattr(part, "content", None)
    return content if isinstance(content, list) else [content]


async def test_deps_are_the_users_own(tmp_path: Path) -> None:
    """A value, or a context manager entered for each advance."""
    opened: list[str] = []

    @asynccontextmanager
    async def shop(ctx: PhaseContext[AgentCheckpoint]) -> Any:
        opened.append(ctx.job_id)
        yield 42

    async with open_world("memory", tmp_path) as world:
        for how in ({"deps": 42}, {"open_deps": shop}):
            agent = Agent(ScriptedModel([call("tell"), say("done")]), deps_type=int)

            @agent.tool
            def tell(ctx: RunContext[int]) -> int:
                opened.append(str(ctx.deps))
                return ctx.deps

            world.use(build_agent_phase(agent, runtime=world.clock, **how))
            await world.start("j", AgentCheckpoint.start("go"), None)
            await world.drain()
            assert (await world.job("j")).status == "complete"
    assert opened == ["42", "j", "42", "j"]


@dataclass
class Paper:
    text: str
    topic: str = ""


async def test_an_agent_phase_stands_between_other_phases(agent_world_of: Open) -> None:
    """`carry` goes through it, `then` says where the job goes on."""
    async with agent_world_of() as world:
        classify = build_agent_phase(
            Agent(ScriptedModel([say("invoice")])), name="classify", runtime=world.clock,
            then=lambda outcome, carry: Next("file", Paper(carry["text"], outcome.output)),
        )  # fmt: skip

        @phase
        async def read(ctx: PhaseContext[Paper]) -> PhaseResult[Any]:
            return Next(classify, AgentCheckpoint.start(f"Classify: {ctx.state.text}", carry=ctx.state))

        @phase
        async def file(ctx: PhaseContext[Paper]) -> Done:
            return Done(f"{ctx.state.topic}: {ctx.state.text}")

        world.use(read, classify, file)
        await world.start("j", Paper("pay me"))
        assert await world.drain() == []
        if keeps_outputs(world):
            assert await get_output("j", world.storage) == "invoice: pay me"


async def test_a_tool_may_ask_for_approval_itself(agent_world_of: Open) -> None:
    """`ApprovalRequired` raised in the body: asked, then run with what it is told."""
    async with agent_world_of() as world:
        did: list[bool] = []
        agent = Agent(ScriptedModel([call("wipe"), say("done")]))

        @agent.tool
        def wipe(ctx: RunContext[None]) -> str:
            did.append(ctx.tool_call_approved)
            if not ctx.tool_call_approved:
                raise ApprovalRequired(metadata={"why": "it is large"})
            return "wiped"

        world.use(build_agent_phase(agent, runtime=world.clock))
        await world.start("j", AgentCheckpoint.start("go"))
        await world.drain()
        job = await world.job("j")
        assert job.checkpoint is not None and job.checkpoint.wait is not None and "it is large" in str(job.checkpoint.wait.data)
        await resume_job("j", world.storage, world.scheduler, approved=True, runtime=world.clock)
        await world.drain()
        assert (did, (await world.job("j")).status) == ([False, True], "complete")


async def test_a_tool_may_end_with_a_wait(agent_world_of: Open) -> None:
    """For something that happens elsewhere: whoever resumes the job gives the result. For a time: it goes on by itself."""
    async with agent_world_of() as world:
        did: list[str] = []
        model = ScriptedModel([calls(call("await_payment"), call("nap")), say("done")])
        agent = Agent(model)

        @agent.tool_plain
        def await_payment() -> str:
            did.append("asked the bank")
            raise ToolWait.event("payment")

        @agent.tool_plain
        def nap() -> str:
            did.append("lay down")
            raise ToolWait.until(timedelta(hours=8))

        world.use(build_agent_phase(agent, runtime=world.clock))
        await world.start("j", AgentCheckpoint.start("go"))
        await world.drain()
        await resume_job("j", world.storage, world.scheduler, approved=True, value={"cents": 900}, runtime=world.clock)
        await world.drain()
        assert (await world.job("j")).status == "paused"
        world.clock.advance(8 * 3600)
        await world.drain()
        assert (sorted(did), (await world.job("j")).status) == (["asked the bank", "lay down"], "complete")
        assert [getattr(part, "content", 0) for part in model.requests[1][-1].parts] == [{"cents": 900}, "(nothing)"]


async def test_a_failing_tool_is_a_result_and_its_siblings_go_on(tmp_path: Path) -> None:
    """So is one that takes too long, and one whose result can't be kept."""
    async with open_world("memory", tmp_path) as world:
        model = ScriptedModel([calls(call("bad"), call("slow"), call("odd"), call("good")), say("done")])
        agent = Agent(model)

        @agent.tool_plain
        def bad() -> str:
            raise KeyError("x")

        @agent.tool_plain(timeout=0.01)
        async def slow() -> str:
            await asyncio.Event().wait()
            return ""

        @agent.tool_plain
        def odd() -> object:
            return object()

        @agent.tool_plain
        def good() -> str:
            return "fine"

        world.use(build_agent_phase(agent, runtime=world.clock))
        await world.start("j", AgentCheckpoint.start("go"))
        assert await world.drain() == []
        contents = [str(getattr(part, "content", "")) for part in model.requests[1][-1].parts]
        assert len(contents) == 4 and contents[3] == "fine" and "KeyError" in contents[0] and "too long" in contents[1]


def test_the_state_of_an_agent_has_one_json_form() -> None:
    """What is stored says nothing of classes or modules."""
    phase = build_agent_phase(Agent(ScriptedModel([])))
    state = AgentCheckpoint(pending_tool_calls=[PendingToolCall("1", "look", {"a": 1})], turn=2)
    packed = phase.state.pack(state, "turn")
    assert packed["pending_tool_calls"] == [{"id": "1", "name": "look", "args": {"a": 1}}]
    assert "perdure" not in str(packed) and phase.state.unpack(packed, "turn") == state
    assert isinstance(phase, Phase) and phase.name == "turn"
