"""What we rely on in Pydantic AI, one line a test: when the library moves, the failing one says what moved.

Streams that break off, retries of client libraries and provider errors are in `test_provider_wire.py`: they need a real wire.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, CallToolsNode, ModelRequestNode, ModelRetry, RunContext, ToolOutput, UsageLimits
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, ProcessHistory
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ToolFailed,
    ToolRetryError,
    UnexpectedModelBehavior,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.external_events import ExternalEventWaiter, external_event_scope, wait_for_external_event
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    FunctionToolResultEvent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    RetryFeedbackPart,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.toolsets import FunctionToolset, WrapperToolset
from pydantic_graph import End

from perdure.testing.models import Reply, ScriptedModel, call, calls, fail, reset, say

Args = dict[str, Any]


class Hooks(AbstractCapability[Any]):
    """A capability of one run."""

    def __init__(self, **hooks: Any) -> None:
        for name, hook in hooks.items():
            setattr(self, name, hook)


class Answer(BaseModel):
    value: int


def agent_of(*replies: Reply, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(list(replies)), **options)


async def drive(agent: Agent[Any, Any], prompt: str | None = "Go.", **options: Any) -> Any:
    """Node by node, streaming, as our sessions do."""
    async with agent.iter(prompt, **options) as run:
        node: Any = run.next_node
        while not isinstance(node, End):
            if isinstance(node, ModelRequestNode):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        pass
            node = await run.next(node)
    return run


async def history_of(agent: Agent[Any, Any], **options: Any) -> list[ModelMessage]:
    return (await drive(agent, **options)).all_messages()


# ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_capability_of_one_run_leaves_the_agent_alone() -> None:
    """`iter(capabilities=[…])` intercepts this run and no other."""
    seen: list[str] = []

    class Watches(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            seen.append("asked")
            return request_context

    agent = agent_of(say("One."))
    before = (list(agent.toolsets), agent.model, agent.model_settings)
    await drive(agent, capabilities=[Watches()])
    await drive(agent)
    assert seen == ["asked"]
    assert (list(agent.toolsets), agent.model, agent.model_settings) == before


async def test_the_results_of_a_step_are_in_the_next_nodes_request_until_that_node_runs() -> None:
    """So a checkpoint after the tools is `all_messages()` and that request."""
    agent = agent_of(call("look"), say("Done."))
    agent.tool_plain(lambda: "seen", name="look")
    async with agent.iter("Go.") as run:
        node: Any = await run.next(await run.next(run.next_node))
        assert isinstance(node, CallToolsNode)
        after = await run.next(node)
        assert isinstance(after, ModelRequestNode)
        assert [type(message) for message in run.all_messages()] == [ModelRequest, ModelResponse]
        assert isinstance(after.request.parts[0], ToolReturnPart)
        await run.next(after)
        assert run.all_messages()[2] is after.request, "the very object: what we put into it is what is sent"


async def test_a_response_that_a_wrap_returns_takes_the_place_of_the_models() -> None:
    """Without a call: this is how a stored response is processed again, also where the agent has instructions."""
    model = ScriptedModel([say("Never asked.")])
    agent = Agent(model, instructions="Be brief.")

    class Replays(AbstractCapability[Any]):
        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> ModelResponse:
            return ModelResponse(parts=[TextPart("Stored.")])

    run = await drive(agent, None, message_history=[ModelRequest(parts=[UserPromptPart("Go.")])], capabilities=[Replays()])
    assert run.result.output == "Stored."
    assert not model.requests


async def test_a_response_changed_in_a_wrap_is_the_one_in_the_history() -> None:
    """The very object: the gate's version is what the loop goes on with."""
    made = ModelResponse(parts=[TextPart("Changed.")], finish_reason="stop")

    class Changes(AbstractCapability[Any]):
        async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> ModelResponse:
            await handler(request_context)
            return made

    run = await drive(agent_of(say("Streamed.")), capabilities=[Changes()])
    assert run.all_messages()[-1] is made
    assert run.result.output == "Changed."


async def test_outermost_and_innermost_are_what_they_say() -> None:
    """Ours sit at both ends, whatever the user's capabilities do."""
    order: list[str] = []

    class Says(AbstractCapability[Any]):
        def __init__(self, name: str, position: Any) -> None:
            self.name, self.position = name, position

        def get_ordering(self) -> CapabilityOrdering | None:
            return CapabilityOrdering(position=self.position) if self.position else None

        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Args, handler: Any) -> Any:
            order.append(self.name)
            return await handler(args)

    agent = agent_of(call("look"), say("Done."), capabilities=[Says("user", None)])
    agent.tool_plain(lambda: "seen", name="look")
    await drive(agent, capabilities=[Says("inner", "innermost"), Says("outer", "outermost")])
    assert order == ["outer", "user", "inner"]


async def test_a_plain_exception_in_a_tool_ends_the_run_cancels_its_siblings_and_says_nothing() -> None:
    """This is why every exception becomes a result."""
    agent = agent_of(calls(call("raises"), call("hangs")), say("Done."))
    started, cancelled = asyncio.Event(), []

    @agent.tool_plain
    async def hangs() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)
        return "never"

    @agent.tool_plain
    async def raises() -> str:
        await started.wait()
        raise KeyError("x")

    events: list[Any] = []
    with pytest.raises(KeyError):
        async with agent.iter("Go.") as run:
            node: Any = await run.next(await run.next(run.next_node))
            async with node.stream(run.ctx) as stream:
                async for event in stream:
                    events.append(event)
    assert cancelled == [True]
    assert not any(isinstance(event, FunctionToolResultEvent) for event in events)


async def test_tool_failed_from_a_wrap_is_a_failed_result() -> None:
    """And the siblings go on."""

    class Converts(AbstractCapability[Any]):
        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Args, handler: Any) -> Any:
            try:
                return await handler(args)
            except ZeroDivisionError as error:
                raise ToolFailed("ZeroDivisionError") from error

    agent = agent_of(calls(call("raises"), call("fine")), say("Done."), capabilities=[Converts()])
    agent.tool_plain(lambda: 1 / 0, name="raises")
    agent.tool_plain(lambda: "ok", name="fine")
    results = (await history_of(agent))[2].parts
    assert [(part.outcome, part.content) for part in results if isinstance(part, ToolReturnPart)] == [
        ("failed", "ZeroDivisionError"),
        ("success", "ok"),
    ]


async def test_text_streams_as_a_start_and_deltas_and_the_stored_text_is_their_sum() -> None:
    """`response.text` puts blank lines between texts that something stands between, so it is not what streamed."""
    agent = agent_of(say("One two three four."))
    heard: list[str] = []
    async with agent.iter("Go.") as run:
        node: Any = await run.next(run.next_node)
        async with node.stream(run.ctx) as stream:
            async for event in stream:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    heard.append(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    heard.append(event.delta.content_delta)
    assert "".join(heard) == "One two three four."
    assert ModelResponse(parts=[TextPart("a"), ToolCallPart("t", {}), TextPart("b")]).text == "a\n\nb"


async def test_an_error_in_the_middle_of_a_stream_leaves_an_interrupted_response() -> None:
    """With its calls and its text: never to be resumed from."""
    agent = agent_of(reset(calls(call("pay", amount=5), text="Paying")))
    with pytest.raises(Exception, match="reset"):
        async with agent.iter("Go.") as run:
            node: Any = await run.next(run.next_node)
            async with node.stream(run.ctx) as stream:
                async for _ in stream:
                    pass
    last = run.all_messages()[-1]
    assert isinstance(last, ModelResponse)
    assert last.state == "interrupted"
    assert last.tool_calls


async def test_an_error_before_the_first_piece_leaves_an_interrupted_response_too() -> None:
    """One with nothing in it."""
    with pytest.raises(Exception, match="429"):
        async with agent_of(fail(429)).iter("Go.") as run:
            node: Any = await run.next(run.next_node)
            async with node.stream(run.ctx) as stream:
                async for _ in stream:
                    pass
    last = run.all_messages()[-1]
    assert isinstance(last, ModelResponse)
    assert (last.state, list(last.parts)) == ("interrupted", [])


# ── resuming ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_history_that_ends_on_a_request_asks_the_model_and_adds_nothing() -> None:
    """Instructions are made anew."""
    model = ScriptedModel([say("Done.")])
    asked: list[int] = []
    agent = Agent(model)

    @agent.instructions
    def counted() -> str:
        asked.append(1)
        return f"Time {len(asked)}."

    history: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("Go.")], instructions="Old.")]
    run = await drive(agent, None, message_history=history)
    assert len(run.all_messages()) == 2
    assert list(model.requests[0][0].parts) == list(history[0].parts)
    assert model.parameters_seen[0].instruction_parts[0].content == "Time 1."


async def test_a_history_that_ends_on_calls_goes_straight_to_all_of_the_tools() -> None:
    """Done before or not: a ledger must answer for those that are."""
    agent = agent_of(calls(call("pay", n=1), call("pay", n=2)), say("Done."))
    paid: list[int] = []
    agent.tool_plain(lambda n: paid.append(n), name="pay")
    history = (await history_of(agent))[:2]
    paid.clear()
    await drive(agent, None, message_history=history)
    assert sorted(paid) == [1, 2]


async def test_a_history_that_ends_on_a_text_is_sent_again_with_an_empty_request() -> None:
    """Where the agent has instructions: one more model call than anybody wants."""
    model = ScriptedModel([say("Done."), say("Done twice.")])
    agent = Agent(model, instructions="Be brief.")
    history = await history_of(agent)
    await drive(agent, None, message_history=history)
    assert len(model.requests) == 2
    assert model.requests[1][-1].parts == []


async def test_a_run_id_may_not_be_in_the_history_already() -> None:
    """So each opening of the loop has its own."""
    agent = agent_of(say("One."), say("Two."))
    history = await history_of(agent, run_id="r1")
    with pytest.raises(UserError, match="r1"):
        await drive(agent, "Again.", message_history=history, run_id="r1")
    again = await drive(agent, "Again.", message_history=history, run_id="r2", conversation_id="c")
    assert again.conversation_id == "c"


async def test_a_system_prompt_is_said_only_where_there_is_no_history() -> None:
    """So the start message must be built by the loop itself."""
    agent = agent_of(say("x"), say("y"), system_prompt="Be kind.")
    history = await history_of(agent)
    assert isinstance(history[0].parts[0], SystemPromptPart)
    again = await history_of(agent, prompt="More.", message_history=history)
    assert sum(isinstance(part, SystemPromptPart) for message in again for part in message.parts) == 1
    bare = await drive(agent, None, message_history=[ModelRequest(parts=[UserPromptPart("Go.")])])
    assert not any(isinstance(part, SystemPromptPart) for message in bare.all_messages() for part in message.parts)


async def test_a_dynamic_system_prompt_rewrites_the_first_message_on_a_resume() -> None:
    """A history that we have to take over from there on."""
    agent = agent_of(call("look"), say("Done."), say("Again."))
    agent.tool_plain(lambda: "seen", name="look")
    told = iter(["first", "second"])

    @agent.system_prompt(dynamic=True)
    def prompt() -> str:
        return next(told)

    history = (await history_of(agent))[:3]
    again = await drive(agent, None, message_history=history)
    assert [message.parts[0].content for message in (history[0], again.all_messages()[0])] == ["first", "second"]  # type: ignore[union-attr]


async def test_retry_counters_and_the_step_number_are_lost_on_a_resume() -> None:
    """Ours come from the history."""
    agent = agent_of(call("flaky"), call("flaky"), say("Done."))
    seen: list[tuple[int, int]] = []

    @agent.tool(retries=5)
    def flaky(ctx: RunContext[None]) -> str:
        seen.append((ctx.retry, ctx.run_step))
        raise ModelRetry("again")

    async with agent.iter("Go.") as run:
        node: Any = run.next_node
        for _ in range(5):
            node = await run.next(node)
        history = run.all_messages()
    assert seen == [(0, 1), (1, 2)]
    async with agent.iter(message_history=history) as run:
        await run.next(await run.next(run.next_node))
    assert seen[2] == (0, 0)


async def test_a_partial_tail_gets_invented_results() -> None:
    """Which is why a stored tail never answers only some of the calls."""
    model = ScriptedModel([calls(call("a"), call("b")), say("Done.")])
    agent = Agent(model)
    ran: list[str] = []
    for name in ("a", "b"):
        agent.tool_plain(lambda name=name: ran.append(name) or name, name=name)
    history = await history_of(agent)
    ran.clear()
    request = ModelRequest(parts=list(history[2].parts)[:1])  # type: ignore[arg-type]
    await drive(agent, None, message_history=[*history[:2], request])
    assert not ran, "b is never run"
    sent = [part for part in model.requests[-1][-1].parts if isinstance(part, ToolReturnPart)]
    assert [(part.tool_name, part.outcome) for part in sent][1:] == [("b", "interrupted")]


async def test_appending_keeps_the_earlier_messages_the_objects_that_they_were() -> None:
    """Comparing by identity finds what a step added."""
    agent = agent_of(call("look"), call("look"), say("Done."))
    agent.tool_plain(lambda: "seen", name="look")
    seen: list[ModelMessage] = []
    async with agent.iter("Go.") as run:
        async for _ in run:
            now = run.all_messages()
            assert all(new is old for new, old in zip(now, seen, strict=False))
            seen = now
    assert len(seen) == 6


async def test_a_history_processor_rewrites_what_is_kept() -> None:
    """Compaction changes the stored history, not only what is sent."""
    agent = agent_of(call("look"), say("Done."), capabilities=[ProcessHistory(lambda messages: messages[-1:] if len(messages) == 3 else messages)])
    agent.tool_plain(lambda: "seen", name="look")
    sent = agent.model.requests  # type: ignore[union-attr]
    try:
        await drive(agent)
    except Exception:
        pass  # the script is read by the number of responses, which the processor took away
    assert len(sent[1]) < 3


async def test_end_strategy_early_answers_for_tools_that_never_ran() -> None:
    """With words, not with a result."""
    agent = agent_of(calls(call("look"), call("final_result", value=1)), output_type=Answer, end_strategy="early")
    ran: list[int] = []
    agent.tool_plain(lambda: ran.append(1), name="look")
    last = (await history_of(agent))[-1]
    assert not ran
    assert {part.tool_name: part.content for part in last.parts if isinstance(part, ToolReturnPart)} == {
        "look": "Tool not executed - a final result was already processed.",
        "final_result": "Final result processed.",
    }


async def test_a_text_answer_can_be_refused_and_costs_another_call() -> None:
    """The feedback is a part of its own, bound to no call."""
    agent = agent_of(say("bad"), say("good"))

    @agent.output_validator
    def check(text: str) -> str:
        if text == "bad":
            raise ModelRetry("Better.")
        return text

    history = await history_of(agent)
    assert isinstance(history[2].parts[0], RetryFeedbackPart)
    assert len(history) == 4


async def test_a_structured_answer_is_a_call_and_its_history_ends_on_its_result() -> None:
    """So a thread's next prompt follows a request."""
    history = await history_of(agent_of(call("final_result", value=1), output_type=Answer))
    (part,) = history[-1].parts
    assert isinstance(part, ToolReturnPart)
    assert part.content == "Final result processed."


def test_file_parts_have_no_filename() -> None:
    """A text part before each names it."""
    for kind in (ImageUrl, DocumentUrl, BinaryContent):
        assert not any("filename" in each.name for each in dataclasses.fields(kind))  # type: ignore[arg-type]


# ── approvals ────────────────────────────────────────────────────────────────────────────────────────────────


def gated(**options: Any) -> Agent[Any, Any]:
    agent = agent_of(calls(call("free"), call("pay", n=1), call("pay", n=2)), say("Done."), **options)
    agent.tool_plain(lambda: "free", name="free")
    agent.tool_plain(lambda n: f"paid {n}", name="pay", requires_approval=True)
    return agent


async def test_deferred_requests_as_an_output_type_at_run_time_are_refused_beside_validators() -> None:
    """Hence our decisions go through the capability's handler."""
    agent = gated()
    agent.output_validator(lambda text: text)
    with pytest.raises(UserError):
        await drive(agent, output_type=[str, DeferredToolRequests])


async def test_a_handler_gets_every_call_that_waits_after_the_others_have_finished() -> None:
    """And may approve, change the arguments, or deny with a message."""
    order: list[str] = []

    class Decides(AbstractCapability[Any]):
        async def handle_deferred_tool_calls(self, ctx: Any, *, requests: DeferredToolRequests) -> DeferredToolResults:
            order.append("asked")
            first, second = requests.approvals
            return DeferredToolResults(
                approvals={first.tool_call_id: ToolApproved(override_args={"n": 10}), second.tool_call_id: ToolDenied("Not this.")}
            )

    class Watches(AbstractCapability[Any]):
        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Args, handler: Any) -> Any:
            order.append(f"{call.tool_name} {args} {ctx.tool_call_approved}")
            return await handler(args)

    agent = gated(capabilities=[Watches(), Decides()])
    agent.output_validator(lambda text: text)
    results = (await history_of(agent))[2].parts
    assert order == ["free {} False", "asked", "pay {'n': 10} True"]
    assert [(part.content, part.outcome) for part in results] == [("free", "success"), ("paid 10", "success"), ("Not this.", "denied")]  # type: ignore[union-attr]


async def test_a_base_exception_from_the_handler_leaves_the_loop_as_it_is() -> None:
    """It is how an execution pauses; nothing swallows it."""

    class Pause(BaseException):
        pass

    class Pauses(AbstractCapability[Any]):
        async def handle_deferred_tool_calls(self, ctx: Any, *, requests: Any) -> Any:
            raise Pause

    with pytest.raises(Pause):
        await drive(gated(), capabilities=[Pauses()])


async def test_a_call_deferred_again_after_its_approval_is_not_asked_about_twice() -> None:
    """Pydantic AI asks once about a step, so our sessions ask about the rest themselves."""
    asked: list[int] = []

    class Approves(AbstractCapability[Any]):
        async def handle_deferred_tool_calls(self, ctx: Any, *, requests: DeferredToolRequests) -> DeferredToolResults:
            asked.append(len(requests.approvals))
            return DeferredToolResults(approvals={each.tool_call_id: True for each in requests.approvals})

    agent = agent_of(call("twice"), say("Done."), capabilities=[Approves()])

    @agent.tool_plain(requires_approval=True)
    def twice() -> str:
        raise CallDeferred

    with pytest.raises(UserError, match="DeferredToolRequests"):
        await drive(agent)
    assert asked == [1]


async def test_the_librarys_own_resume_wants_an_answer_for_every_call() -> None:
    """One short is refused."""
    agent = gated(output_type=[str, DeferredToolRequests])
    run = await drive(agent)
    waiting: DeferredToolRequests = run.result.output
    some = DeferredToolResults(approvals={waiting.approvals[0].tool_call_id: True})
    with pytest.raises(UserError, match="need to be provided for all"):
        await drive(agent, None, message_history=run.all_messages(), deferred_tool_results=some)


async def test_a_call_deferred_beside_an_output_tool_is_dropped_without_a_result() -> None:
    """The final result wins, and the call is not even stubbed: the gate completes it."""
    agent = agent_of(calls(call("later"), call("final_result", value=1)), output_type=Answer)

    @agent.tool_plain
    def later() -> str:
        raise CallDeferred

    last = (await history_of(agent))[-1]
    assert [part.tool_name for part in last.parts if isinstance(part, ToolReturnPart)] == ["final_result"]


# ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_wrap_around_tools_is_not_called_for_what_never_runs() -> None:
    """Unknown names, bad arguments, denied calls; and output functions have a wrap of their own."""
    wrapped: list[str] = []
    outputs: list[Any] = []

    class Watches(AbstractCapability[Any]):
        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Args, handler: Any) -> Any:
            wrapped.append(call.tool_name)
            return await handler(args)

        async def wrap_output_process(self, ctx: Any, *, output_context: Any, output: Any, handler: Any) -> Any:
            outputs.append(output)
            return await handler(output)

        async def handle_deferred_tool_calls(self, ctx: Any, *, requests: DeferredToolRequests) -> DeferredToolResults:
            return DeferredToolResults(approvals={each.tool_call_id: False for each in requests.approvals})

    def finish(value: int) -> int:
        return value * 2

    script = [calls(call("unknown"), call("add", x="many"), call("gated"), call("add", x=1)), call("finish", value=4)]
    agent = agent_of(*script, output_type=ToolOutput(finish, name="finish"), capabilities=[Watches()])

    @agent.tool_plain
    def add(x: int) -> int:
        return x

    agent.tool_plain(lambda: "x", name="gated", requires_approval=True)
    run = await drive(agent)
    assert wrapped == ["add"]
    assert len(outputs) == 1
    assert run.result.output == 8


async def test_unknown_names_end_a_run_at_the_second_time() -> None:
    """So we answer them ourselves."""
    agent = agent_of(call("nope"), call("nope"), call("nope"), say("Done."))
    with pytest.raises(UnexpectedModelBehavior, match="exceeded max retries"):
        await drive(agent)


async def test_a_call_can_be_taken_out_of_a_response_before_its_tools_run() -> None:
    """`CallToolsNode.model_response` is the very object of the history, and its parts can be put back."""
    agent = agent_of(calls(call("nope"), call("look")), say("Done."))
    agent.tool_plain(lambda: "seen", name="look")
    async with agent.iter("Go.") as run:
        node: Any = await run.next(await run.next(run.next_node))
        assert node.model_response is run.all_messages()[-1]
        parts = node.model_response.parts
        node.model_response.parts = [part for part in parts if not (isinstance(part, ToolCallPart) and part.tool_name == "nope")]
        after: Any = await run.next(node)
        node.model_response.parts = parts
        assert [part.tool_name for part in after.request.parts] == ["look"]
        after.request.parts = [ToolReturnPart("nope", "no such tool", tool_call_id=parts[0].tool_call_id), *after.request.parts]
        assert isinstance(await run.next(after), CallToolsNode)


async def test_hooks_may_change_arguments_inside_the_wrap_and_a_toolset_sees_the_final_ones() -> None:
    """So the ledger stands in a toolset, next to the body."""
    seen: dict[str, Any] = {}

    class Looks(WrapperToolset[Any]):
        async def call_tool(self, name: str, tool_args: Args, ctx: Any, tool: Any) -> Any:
            seen["toolset"] = tool_args
            return await super().call_tool(name, tool_args, ctx, tool)

    class Changes(AbstractCapability[Any]):
        async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Args) -> Args:
            return {"n": args["n"] + 1}

        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Args, handler: Any) -> Any:
            seen["wrap"] = args
            return await handler(args)

        def get_wrapper_toolset(self, toolset: Any) -> Any:
            return Looks(toolset)

    agent = agent_of(call("pay", n=1), say("Done."), capabilities=[Changes()])
    agent.tool_plain(lambda n: n, name="pay")
    await drive(agent)
    assert seen == {"wrap": {"n": 1}, "toolset": {"n": 2}}


def raising(error: Exception) -> Callable[[], str]:
    def tool() -> str:
        raise error

    return tool


async def test_what_a_tool_raises_passes_a_toolset_as_it_was_raised() -> None:
    """The wrap sees `ToolRetryError` in place of `ModelRetry`; the toolset sees the tool's own."""
    seen: list[str] = []

    class Looks(WrapperToolset[Any]):
        async def call_tool(self, name: str, tool_args: Args, ctx: Any, tool: Any) -> Any:
            try:
                return await super().call_tool(name, tool_args, ctx, tool)
            except Exception as error:
                seen.append(type(error).__name__)
                raise

    class Wraps(AbstractCapability[Any]):
        def get_wrapper_toolset(self, toolset: Any) -> Any:
            return Looks(toolset)

        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Args, handler: Any) -> Any:
            try:
                return await handler(args)
            except Exception as error:
                seen.append(f"wrap {type(error).__name__}")
                raise

        async def handle_deferred_tool_calls(self, ctx: Any, *, requests: DeferredToolRequests) -> DeferredToolResults:
            return DeferredToolResults(
                approvals={each.tool_call_id: False for each in requests.approvals}, calls={each.tool_call_id: "x" for each in requests.calls}
            )

    for raised, names in (
        (ModelRetry("x"), ["ModelRetry", "wrap ToolRetryError"]),
        (ToolFailed("x"), ["ToolFailed", "wrap ToolFailedError"]),
        (ApprovalRequired(), ["ApprovalRequired", "wrap ApprovalRequired"]),
        (CallDeferred(), ["CallDeferred", "wrap CallDeferred"]),
    ):
        agent = agent_of(call("t"), say("Done."), capabilities=[Wraps()])
        agent.tool_plain(raising(raised), name="t")
        seen.clear()
        await drive(agent)
        assert seen == names


async def test_a_tools_time_limit_reaches_the_wrap_as_a_retry_although_the_deed_goes_on() -> None:
    """An effect would be done twice: the limit is set aside for the run, and the host applies it."""
    entered, release, done = threading.Event(), threading.Event(), threading.Event()
    seen: list[type[Exception]] = []

    class Watches(AbstractCapability[Any]):
        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Args, handler: Any) -> Any:
            try:
                return await handler(args)
            except Exception as error:
                seen.append(type(error))
                raise

    agent = agent_of(call("slow"), say("Done."), capabilities=[Watches()])

    @agent.tool_plain(timeout=0.3)
    def slow() -> str:
        entered.set()
        release.wait(5)
        done.set()
        return "did it"

    await drive(agent)
    assert seen == [ToolRetryError]
    assert entered.is_set()
    release.set()
    assert done.wait(5), "the abandoned thread did the deed"


async def test_a_time_out_of_the_tools_own_is_taken_for_the_limits() -> None:
    """Under any limit, however far away; without one it is the tool's."""
    agent = agent_of(call("limited"), say("Done."))

    @agent.tool_plain(timeout=1000)
    async def limited() -> str:
        raise TimeoutError("the shop did not answer")

    part = (await history_of(agent))[2].parts[0]
    assert isinstance(part, ToolReturnPart)
    assert part.outcome == "retried"
    assert "Timed out after 1000" in str(part.content)


async def test_a_limit_on_a_tool_definition_in_a_toolset_above_is_the_one_that_counts() -> None:
    """Also where the toolset below has a default: that is how ours takes it away."""
    below: FunctionToolset[None] = FunctionToolset(timeout=0.001)
    event = asyncio.Event()

    async def slow() -> str:
        event.set()
        turn = asyncio.Event()
        asyncio.get_running_loop().call_later(0.02, turn.set)
        await turn.wait()
        return "done"

    below.add_function(slow)

    class Lifts(WrapperToolset[Any]):
        async def get_tools(self, ctx: Any) -> Any:
            return {
                name: dataclasses.replace(tool, tool_def=dataclasses.replace(tool.tool_def, timeout=1e9))
                for name, tool in (await super().get_tools(ctx)).items()
            }

    class Wraps(AbstractCapability[Any]):
        def get_wrapper_toolset(self, toolset: Any) -> Any:
            return Lifts(toolset)

    agent = agent_of(call("slow"), say("Done."), toolsets=[below], capabilities=[Wraps()])
    part = (await history_of(agent))[2].parts[0]
    assert part.content == "done"  # type: ignore[union-attr]


VALUE: ContextVar[str] = ContextVar("value", default="unset")


async def test_context_variables_set_around_a_body_reach_its_thread() -> None:
    """And metadata of the run is in its context; deps stay the user's."""

    class Sets(AbstractCapability[Any]):
        async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Args, handler: Any) -> Any:
            VALUE.set("set")
            return await handler(args)

    agent = agent_of(call("look"), say("Done."), capabilities=[Sets()])
    seen: list[Any] = []

    @agent.tool
    def look(ctx: RunContext[Any]) -> str:
        seen.append((VALUE.get(), ctx.metadata, threading.current_thread() is threading.main_thread()))
        return "seen"

    await drive(agent, metadata={"run": "r1"})
    assert seen == [("set", {"run": "r1"}, False)]


async def test_a_base_exception_of_a_sync_tool_crosses_its_thread() -> None:
    """A tool may end with a wait, in a thread too."""

    class Stop(BaseException):
        pass

    agent = agent_of(call("stops"), say("Done."))

    @agent.tool_plain
    def stops() -> str:
        raise Stop

    with pytest.raises(Stop):
        await drive(agent)


async def test_the_default_request_limit_ends_a_run_at_fifty() -> None:
    """So ours is None."""
    agent = Agent(ScriptedModel(lambda messages: call("look")))
    agent.tool_plain(lambda: "seen", name="look")
    assert UsageLimits().request_limit == 50
    with pytest.raises(UsageLimitExceeded):
        await drive(agent)


async def test_cancelling_the_task_lets_a_sync_tools_thread_go_only_under_a_time_limit() -> None:
    """This is why ours have one that never comes."""
    release, entered = threading.Event(), threading.Event()
    agent = agent_of(call("hangs"), say("Done."))

    @agent.tool_plain(timeout=1e9)
    def hangs() -> str:
        entered.set()
        release.wait(5)
        return "late"

    task = asyncio.ensure_future(drive(agent))
    await asyncio.get_running_loop().run_in_executor(None, entered.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 2)
    assert not release.is_set()
    release.set()


# ── messages, settings, events ───────────────────────────────────────────────────────────────────────────────


async def test_what_prepare_model_request_changes_is_sent_and_not_kept() -> None:
    """Files are put in place there, on a new list."""

    class Fills(AbstractCapability[Any]):
        async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:
            filled = [dataclasses.replace(message, parts=[UserPromptPart("filled")]) for message in request_context.messages]
            return dataclasses.replace(request_context, messages=filled)

    model = ScriptedModel([say("Done.")])
    run = await drive(Agent(model, capabilities=[Fills()]))
    assert [part.content for part in model.requests[0][0].parts] == ["filled"]  # type: ignore[union-attr]
    assert [part.content for part in run.all_messages()[0].parts] == ["Go."]


def test_messages_are_json_by_the_librarys_own_adapter() -> None:
    """A list of one, without its brackets, is one message."""
    message = ModelRequest(parts=[UserPromptPart("x")])
    data = ModelMessagesTypeAdapter.dump_json([message])
    assert data[:1] == b"["
    assert data[-1:] == b"]"
    assert ModelMessagesTypeAdapter.validate_json(data) == [message]


def test_retries_of_client_libraries_are_a_model_setting() -> None:
    """Public, and applied to a copy of the client."""
    assert "max_retries" in ModelSettings.__annotations__
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

    for model in (AnthropicModel, OpenAIChatModel, OpenAIResponsesModel):
        assert "max_retries" not in model.unsupported_settings


async def test_costs_are_in_the_usage_of_a_stored_response() -> None:
    """Priced by genai-prices where the model is known, None where not."""
    known = ModelResponse(parts=[TextPart("x")], model_name="gpt-4o", provider_name="openai")
    known.usage.input_tokens = 1_000_000
    assert known.cost().total_price > 0
    run = await drive(agent_of(say("Done.")))
    assert run.all_messages()[-1].usage.cost is None


async def test_waits_inside_tools_can_be_ours() -> None:
    """An `ExternalEventWaiter` in scope gets what `wait_for_external_event` asks."""

    class Ours(ExternalEventWaiter):
        async def wait(self, name: str, *, ask: Callable[[str], Awaitable[Any]], timeout: timedelta | None) -> Any:
            return {"waited_for": name, "asked": await ask("token")}

    agent = agent_of(call("wait"), say("Done."))
    seen: list[Any] = []

    @agent.tool_plain
    async def wait() -> str:
        seen.append(await wait_for_external_event("answer", ask=lambda token: f"said {token}"))
        return "heard"

    with external_event_scope(Ours()):
        await drive(agent)
    assert seen == [{"waited_for": "answer", "asked": "said token"}]


def test_what_a_tools_dict_looks_like_does_not_make_it_a_file() -> None:
    """The library records which of a result's contents are files."""
    data = {
        "kind": "image-url",
        "url": "http://x.test/a.png",
        "force_download": False,
        "vendor_metadata": None,
        "media_type": "image/png",
        "identifier": "i",
    }
    plain = ModelRequest(parts=[ToolReturnPart("t", data, tool_call_id="1")])
    file = ModelRequest(parts=[ToolReturnPart("t", ImageUrl("http://x.test/a.png", media_type="image/png"), tool_call_id="1")])
    again = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json([plain, file]))
    assert isinstance(again[0].parts[0].content, dict)  # type: ignore[union-attr]
    assert isinstance(again[1].parts[0].content, ImageUrl)  # type: ignore[union-attr]
