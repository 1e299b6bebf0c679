"""Where a session stands inside Pydantic AI's loop: the hooks of one run, and the toolset next to the tool bodies.

`Outer` is the outermost capability: it sees a response after everybody else's hooks, and an error after everybody else had a chance to handle it.
`Inner` is the innermost: it is asked about approvals only when no capability of the user's answered, and its toolset sees the arguments that the body gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, Literal

from pydantic import ValidationError
from pydantic_ai import Agent, RunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    RunCancelled,
    SkipToolExecution,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
)
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.output import OutputContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset

from perdure.agents._faults import StreamCut, contained, describe, is_whole
from perdure.agents._model import Heard, HostModel
from perdure.agents._turn import Call, Decision, Host
from perdure.agents._values import is_envelope, revive
from perdure.agents._waiter import DECIDING
from perdure.core.codec import clean, dump
from perdure.core.errors import Suspend, UnserializableError
from perdure.core.limits import PREVIEW_CHARS

MANY: Final = 1_000_000
"""Pydantic AI's own retry counters are set aside by this: they live in memory, ours come from the history."""

NO_TIME_LIMIT: Final = 1e9
"""Seconds. Not None: with a time limit, however long, Pydantic AI lets a cancelled sync tool's thread go instead of waiting for it. A toolset's default applies
where a tool has none, too, so there is no other way to set that aside."""

PARKED: Final = "perdure.parked"

WORDS_OF_A_TOOL: Final = (ModelRetry, ToolFailed, ToolRetryError, ToolFailedError, ApprovalRequired, CallDeferred, SkipToolExecution, RunCancelled)
"""What Pydantic AI understands from a tool. (A nested run that cancelled itself is `RunCancelled`: it makes a result of it.)"""


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A tool as the agent has it at this step."""

    schema: dict[str, Any]
    metadata: dict[str, Any]
    kind: str
    sequential: bool
    timeout: float | None
    retries: int
    remote: bool


class ToolLeft(Exception):
    """A tool's body ended with what would end more than the tool: `sys.exit()` the whole process, a stray cancellation the execution."""


class RemoteToolError(Exception):
    """A tool of an MCP server reported an error, or the way to it broke.

    Pydantic AI says `ModelRetry` for all of these, time-outs included. None of them proves that nothing happened there.
    """


@dataclass(eq=False)
class Link:
    """What the hooks of one run and its session tell each other.

    `accept` is the gate for a response, `keep` the one for a tool's result, `restore` puts files into a request. `positions` and `retried` are of the response in
    hand, `heard` and `context` of the model call, `tools`, `outputs` and `output_retries` of the step. `valid` is the input of each call as its validation left it, `deferred` are the
    calls that wait, `late` those that do since they were approved, `edits` says of calls that were approved with another input what became of it. `stored` is a response that is processed again instead of asked for. `parked` is why the session ends.
    """

    host: Host
    accept: Callable[[ModelResponse], Awaitable[ModelResponse]]
    keep: Callable[[Any], Awaitable[Any]]
    restore: Callable[[Sequence[ModelMessage]], Awaitable[list[ModelMessage]]]
    heard: Heard | None = None
    context: RunContext[Any] | None = None
    positions: dict[str, int] = field(default_factory=dict[str, int])
    tools: dict[str, KnownTool] = field(default_factory=dict[str, KnownTool])
    outputs: dict[str, ToolDefinition] = field(default_factory=dict[str, ToolDefinition])
    output_retries: int | None = None
    retried: Mapping[str, int] = field(default_factory=dict[str, int])
    stored: ModelResponse | None = None
    valid: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    deferred: dict[str, Call] = field(default_factory=dict[str, Call])
    late: dict[str, Call] = field(default_factory=dict[str, Call])
    edits: dict[str, str] = field(default_factory=dict[str, str])
    parked: BaseException | None = None

    def call(self, part: ToolCallPart, args: dict[str, Any] | None, *, deferred: dict[str, Any] | None = None) -> Call:
        """A tool call as the host sees it."""
        tool = self.tools.get(part.tool_name)
        known = tool is not None or part.tool_name in self.outputs
        metadata = {**(tool.metadata if tool else {}), **({"deferred": deferred} if deferred is not None else {})}
        return Call(
            position=self.positions.get(part.tool_call_id, -1),
            id=part.tool_call_id,
            name=part.tool_name,
            args=args,
            metadata=metadata,
            schema=tool.schema if tool else self.outputs[part.tool_name].parameters_json_schema if known else {},
            output=part.tool_name in self.outputs,
            known=known,
            requires_approval=tool is not None and tool.kind == "unapproved",
            sequential=tool is not None and tool.sequential,
            timeout=tool.timeout if tool else None,
        )

    async def result(self, value: Any) -> Any:
        """What the history is told of a result: kept, whether or not the host did so already."""
        return revive(value if is_envelope(value) else await self.keep(value))

    def asked_about(self, part: ToolCallPart) -> dict[str, Any] | None:
        """The input that somebody is asked about: as validation left it; as the model gave it where validation made objects of it that have no JSON form."""
        try:
            return clean(self.valid[part.tool_call_id])
        except (KeyError, UnserializableError):
            return _parsed(part)

    def exhausted(self, name: str) -> bool:
        """Whether this tool has used its retries, by the history."""
        tool = self.tools.get(name)
        return tool is not None and self.retried.get(name, 0) >= tool.retries


class Deaf(AbstractCapability[Any]):
    """A capability for whose sake nothing needs to be streamed by the loop, and which adds no generator of its own where it is."""

    def __init__(self, link: Link) -> None:
        self.link = link

    @property
    def has_wrap_run_event_stream(self) -> bool:
        return False

    def wrap_run_event_stream(self, ctx: RunContext[Any], *, stream: AsyncIterable[AgentStreamEvent]) -> AsyncIterable[AgentStreamEvent]:
        return stream


class Outer(Deaf):
    """The edge: stored responses in place of model calls, whole responses only, errors as results."""

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="outermost")

    def wrap_run_event_stream(self, ctx: RunContext[Any], *, stream: AsyncIterable[AgentStreamEvent]) -> AsyncIterable[AgentStreamEvent]:
        """Where the loop streams for the agent's own capabilities, what they make of its events is what is told."""
        heard = self.link.heard
        return stream if heard is None else heard.passing(stream)

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[AgentRunResult[Any]]]) -> AgentRunResult[Any]:
        return await contained(handler())

    async def wrap_node_run(self, ctx: RunContext[Any], *, node: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        return await contained(handler(node))

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        link = self.link
        link.outputs = {tool.name: tool for tool in request_context.model_request_parameters.output_tools}
        if (stored := link.stored) is not None:
            # The history ends on this response: it is processed again, not asked for again.
            link.stored = None
            return stored
        response = await contained(handler(request_context))
        if not is_whole(response, request_context.model):
            raise StreamCut("The stream ended without the provider's finish part.")
        return await link.accept(response)

    async def wrap_tool_validate(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: str | dict[str, Any],
        handler: Callable[[str | dict[str, Any]], Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        link = self.link
        try:
            valid = await handler(args)
        except (ValidationError, ModelRetry) as error:
            if link.exhausted(call.tool_name):
                raise ToolFailed(_no_retries(error)) from error
            raise
        except (Exception, SystemExit) as error:
            if type(error).__module__.partition(".")[0] == "pydantic_ai":
                raise  # its own control flow; what a validator of the user's raises is not
            raise ToolFailed(_words(error)) from error
        link.valid[call.tool_call_id] = valid
        link.host.validated(link.call(call, valid))
        return valid

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        try:
            return await handler(args)
        except WORDS_OF_A_TOOL:
            raise
        except (Exception, SystemExit) as error:
            # Left alone, it would end the run and cancel the siblings.
            raise ToolFailed(_words(error)) from error

    async def wrap_output_validate(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        self.link.output_retries = ctx.max_retries
        return await contained(handler(output))

    async def wrap_output_process(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any, handler: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        self.link.output_retries = ctx.max_retries
        if self.link.parked is not None:
            raise self.link.parked
        return await contained(handler(output))

    async def handle_deferred_tool_calls(self, ctx: RunContext[Any], *, requests: DeferredToolRequests) -> DeferredToolResults | None:
        """From here on the agent's own handlers are asked, which may wait; where the session ends anyway, they are not."""
        if self.link.parked is not None:
            raise self.link.parked
        DECIDING.set(True)
        return None


class Inner(Deaf):
    """The heart: tool bodies through the host, decisions from the host."""

    def get_ordering(self) -> CapabilityOrdering:
        return CapabilityOrdering(position="innermost")

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
        return HostToolset(toolset, self.link)

    def get_wrapper_model(self, model: Model) -> Model:
        assert self.link.heard is not None, "only a session asks the model"
        return HostModel(model, self.link.heard, self.link.context)

    async def prepare_output_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        self.link.output_retries = ctx.max_retries
        return tool_defs

    async def prepare_model_request(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> ModelRequestContext:
        self.link.context = ctx
        return replace(request_context, messages=await self.link.restore(request_context.messages))

    async def handle_deferred_tool_calls(self, ctx: RunContext[Any], *, requests: DeferredToolRequests) -> DeferredToolResults | None:
        DECIDING.set(False)
        link = self.link
        parked = {each for each, metadata in requests.metadata.items() if PARKED in metadata}
        calls: dict[str, Call] = {}
        kinds: dict[str, Literal["approval", "external", "question"]] = {}
        for part in (*requests.approvals, *requests.calls):
            if part.tool_call_id not in parked:
                kinds[part.tool_call_id] = kind = requests.kind(part.tool_call_id)
                said = {"kind": kind, **requests.metadata.get(part.tool_call_id, {})}
                calls[part.tool_call_id] = link.call(part, link.asked_about(part), deferred=said)
        decisions = await link.host.decide(tuple(calls.values())) if calls else {}
        if link.parked is not None:
            raise link.parked
        results = DeferredToolResults()
        for call_id, kind in kinds.items():
            decision = decisions.get(call_id)
            if decision is None:
                raise RuntimeError(f"The host decided nothing about call {call_id!r} ({calls[call_id].name}); it must decide about each or suspend.")
            if kind == "approval" and decision.approved and decision.args is not None and decision.args != calls[call_id].args:
                link.edits[call_id] = edit_note(calls[call_id], decision.args)
            result = await link.result(decision.result) if kind != "approval" and (decision.approved or decision.answered) else None
            _decided(results, call_id, kind, decision, result)
        return results


class Both(Outer, Inner):
    """The edge and the heart in one, for an agent that has nothing between the two."""

    def get_ordering(self) -> CapabilityOrdering:
        return Inner.get_ordering(self)

    async def handle_deferred_tool_calls(self, ctx: RunContext[Any], *, requests: DeferredToolRequests) -> DeferredToolResults | None:
        await Outer.handle_deferred_tool_calls(self, ctx, requests=requests)
        return await Inner.handle_deferred_tool_calls(self, ctx, requests=requests)


@cache
def _every_agents() -> frozenset[type]:
    """The capabilities that every agent has. Their hooks look at nothing but the request before it goes out."""
    return frozenset(type(each) for each in Agent().root_capability.capabilities)


def hooks_of(agent: AbstractAgent[Any, Any], link: Link) -> list[Deaf]:
    """The hooks of one run. One capability where one does: Pydantic AI copies the run's context for each of them, some twenty times a step."""
    if _every_agents().issuperset(type(each) for each in agent.root_capability.capabilities):
        return [Both(link)]
    return [Outer(link), Inner(link)]


def edit_note(call: Call, args: dict[str, Any]) -> str:
    """What the model is told of a changed input. The history keeps the call as the model made it: beside that alone, its result would look wrong."""
    before = call.args or {}
    now = {name: value for name, value in args.items() if name not in before or before[name] != value}
    was = {name: value for name, value in before.items() if name not in args or args[name] != value}
    return f"The call of {call.name} was approved with a changed input: {dump(now)} in place of {dump(was)}. Do not repeat it with the first one."


def _decided(results: DeferredToolResults, call_id: str, kind: str, decision: Decision, result: Any) -> None:
    if kind == "approval" and not decision.answered:
        results.approvals[call_id] = (
            ToolApproved(override_args=decision.args) if decision.approved else ToolDenied(decision.message or "The call was denied.")
        )
    elif kind == "approval":
        # Pydantic AI takes no result for an approval: the call is let through, and the host answers it in `run_tool`.
        results.approvals[call_id] = True
    elif decision.approved or decision.answered:
        results.calls[call_id] = result
    else:
        results.calls[call_id] = ToolFailed(decision.message or "The call was denied.")


@dataclass
class HostToolset(WrapperToolset[Any]):
    """The agent's toolsets with the host in front of every body."""

    link: Link = field(repr=False)

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await super().get_tools(ctx)
        self.link.tools = {name: _known(tool) for name, tool in tools.items()}
        return {name: _unlimited(tool) for name, tool in tools.items()}

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]) -> Any:
        link = self.link
        assert ctx.tool_call_id is not None
        call = link.call(ToolCallPart(name, tool_args, tool_call_id=ctx.tool_call_id), tool_args)
        known = link.tools.get(name)
        # What the tool reads as `ctx.retry` is the history's count.
        counted = copy(ctx)
        counted.retry, counted.max_retries = link.retried.get(name, 0), known.retries if known else ctx.max_retries

        async def body() -> Any:
            try:
                return await WrapperToolset[Any].call_tool(self, name, tool_args, counted, tool)
            except ModelRetry as error:
                if isinstance(error.__context__, TimeoutError) and str(NO_TIME_LIMIT) in error.message:
                    # The tool raised it. Under a time limit Pydantic AI takes any TimeoutError for its own and says "again", although a deed may be half done.
                    raise error.__context__ from None
                if known is not None and known.remote:
                    raise RemoteToolError(error.message) from error
                raise
            except ToolFailed as error:
                if known is not None and known.remote:
                    raise RemoteToolError(error.message) from error
                raise
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise ToolLeft(describe(error)) from error
            except (SystemExit, GeneratorExit) as error:
                raise ToolLeft(describe(error)) from error

        try:
            return await link.result(await link.host.run_tool(call, body, approved=ctx.tool_call_approved))
        except (CallDeferred, ApprovalRequired) as waits:
            if ctx.tool_call_approved:
                # Pydantic AI asks once about a step. What waits only now, the session asks about when the step is over.
                link.late[call.id] = replace(call, metadata={**call.metadata, "deferred": {"kind": _kind(waits), **(waits.metadata or {})}})
                raise ToolFailed("It waits.") from None
            if isinstance(waits, CallDeferred):
                link.deferred[call.id] = call
            raise
        except ModelRetry as error:
            if link.exhausted(name):
                raise ToolFailed(_no_retries(error)) from error
            raise
        except Suspend as suspend:
            # The siblings finish first. Deferred, the call produces no result, and the deferral handler raises this when they have.
            link.parked = link.parked or suspend
            if ctx.tool_call_approved:
                # That handler has been asked already; the session raises it once the step is over.
                raise ToolFailed("It rests.") from None
            raise CallDeferred({PARKED: True}) from None


def _unlimited(tool: ToolsetTool[Any]) -> ToolsetTool[Any]:
    """The tool without the limits that are kept here. Copies, not `replace`: every tool passes here in every step, and the latter checks every field anew."""
    tool = copy(tool)
    tool.tool_def, tool.max_retries = copy(tool.tool_def), MANY
    tool.tool_def.timeout = NO_TIME_LIMIT
    return tool


def _kind(waits: CallDeferred | ApprovalRequired) -> str:
    return waits.kind if isinstance(waits, CallDeferred) else "approval"


def _known(tool: ToolsetTool[Any]) -> KnownTool:
    known = tool.tool_def
    return KnownTool(
        schema=known.parameters_json_schema,
        metadata=known.metadata or {},
        kind=known.kind,
        sequential=known.sequential,
        timeout=known.timeout if known.timeout is not None else _default_timeout(tool.toolset),
        retries=tool.max_retries,
        remote=_is_remote(tool.toolset),
    )


def _is_remote(toolset: AbstractToolset[Any]) -> bool:
    while isinstance(toolset, WrapperToolset):
        toolset = toolset.wrapped
    # By name: importing the class would need the `mcp` packages.
    return any(each.__name__ == "MCPToolset" for each in type(toolset).__mro__)


def _default_timeout(toolset: AbstractToolset[Any]) -> float | None:
    while isinstance(toolset, WrapperToolset):
        toolset = toolset.wrapped
    return toolset.timeout if isinstance(toolset, FunctionToolset) else None


def _parsed(part: ToolCallPart) -> dict[str, Any] | None:
    try:
        return part.args_as_dict(raise_if_invalid=True)
    except Exception:
        return None


def _words(error: BaseException) -> str:
    text = describe(error)
    most = 4 * PREVIEW_CHARS
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _no_retries(error: BaseException) -> str:
    return f"{_words(error)}\nThis tool has no retries left."
