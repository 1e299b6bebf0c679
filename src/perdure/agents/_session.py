"""One agent loop over one history: Pydantic AI's `iter`, kept open over the steps of an execution and driven node by node.

The history here is the one that is stored: what comes from Pydantic AI passes the gate first, and goes back into its loop as it was stored, so that the
next request of this execution and the first one of the next say the same. When a model call fails, the loop is thrown away and opened anew from the
history before the call: nothing of a broken response is ever kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar, cast

from pydantic_ai import Agent, AgentRun, ModelRequestNode, RunContext, capture_run_messages
from pydantic_ai.exceptions import AgentRunError, OutputTokenLimitExceeded, UnexpectedModelBehavior
from pydantic_ai.external_events import ExternalEventWaiter, external_event_scope
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import KnownModelName, Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import UsageLimits
from pydantic_graph import End

from perdure.agents import _gate as gate
from perdure.agents._capability import Link, hooks_of
from perdure.agents._faults import StreamCut, describe, innermost, is_quota, is_transient, refuses_thinking, retry_after
from perdure.agents._files import Files, common
from perdure.agents._kinds import kind_of
from perdure.agents._messages import text_of
from perdure.agents._model import Heard
from perdure.agents._turn import Answered, Call, CutOff, Finished, Host, ModelFailed, Reply, Result
from perdure.agents._usage import usage_of, usage_of_failure
from perdure.agents._values import Shelf, keep, shelved
from perdure.agents._waiter import DECIDING
from perdure.core.budget import Usage
from perdure.core.codec import clean
from perdure.core.errors import ExecutionError, PerdureError
from perdure.core.runtime import Runtime

T = TypeVar("T")


@asynccontextmanager
async def open_session(
    agent: Agent[Any, Any],
    *,
    history: Sequence[ModelMessage],
    host: Host,
    runtime: Runtime,
    run_id: str,
    conversation_id: str | None = None,
    deps: Any = None,
    prompt: str | Sequence[UserContent] | None = None,
    toolsets: Sequence[AbstractToolset[Any]] = (),
    model: Model | KnownModelName | str | None = None,
    since: int = 0,
    waiter: ExternalEventWaiter | None = None,
    artifacts: Shelf | None = None,
) -> AsyncGenerator[AgentSession]:
    """A session over `history`; see `perdure.agents._turn.Session`.

    Tools, hooks and factories run in the context of whoever opens it. What is asked of it is asked by the task that opened it: Pydantic AI's `iter` holds
    context variables and cancel scopes, which must be left in the task that entered them. A request that is cancelled has stopped when it raises.

    Args:
        history: The stored messages. It may end on a response (its calls or output are processed first) or on a request (the model is asked next).
        run_id: Part of Pydantic AI's own run id, which is another one each time that the loop is opened.
        conversation_id: Pydantic AI's conversation id, the run's thread for example; absent: `run_id`.
        deps: The agent's dependencies, as they are.
        prompt: What starts a new run: it becomes the last request of `messages` at once, with the agent's system prompts where `history` is empty.
        toolsets: Further toolsets, for this session alone.
        model: In place of the agent's own model.
        since: Where this run's own messages begin in `history`. What lies before (a thread) counts for no retries.
        waiter: What `wait_for_external_event` waits through inside tools.
        artifacts: Where files and large results go, and come from. Without it they stay in the messages.
    """
    session = AgentSession(agent, list(history), host, runtime, run_id, conversation_id, deps, prompt, toolsets, model, since, waiter, artifacts)
    try:
        if prompt is not None:
            await session.begin()
        yield session
    finally:
        await session.end()


@dataclass(eq=False)
class AgentSession:
    """Made by `open_session`; see `perdure.agents._turn.Session` for what its methods promise."""

    agent: Agent[Any, Any]
    history: list[ModelMessage]
    host: Host
    runtime: Runtime
    run_id: str
    conversation_id: str | None
    deps: Any
    prompt: str | Sequence[UserContent] | None
    toolsets: Sequence[AbstractToolset[Any]]
    model: Model | KnownModelName | str | None
    since: int
    waiter: ExternalEventWaiter | None
    artifacts: Shelf | None

    def __post_init__(self) -> None:
        self._files = Files(self.artifacts)
        self._ids = gate.call_ids(self.history)
        self._retried = gate.retried(self.history[self.since :])
        self._stack: AsyncExitStack | None = None
        self._run: AgentRun[Any, Any] | None = None
        self._node: Any = None
        self._link = self._new_link(None)
        # The loop's own objects, one for each message of the history; and the last response as the loop has it and as it is stored.
        self._live: list[ModelMessage] = []
        self._accepted: tuple[ModelResponse, ModelResponse] | None = None
        self._tries = 0
        self.cut_off: CutOff | None = None

    def _new_link(self, stored: ModelResponse | None) -> Link:
        return Link(self.host, accept=self._accept, keep=lambda value: keep(value, self.artifacts), restore=self._files.restore, stored=stored)

    @property
    def messages(self) -> list[ModelMessage]:
        return list(self.history)

    @property
    def tools(self) -> dict[str, dict[str, Any]]:
        return {name: tool.schema for name, tool in self._link.tools.items()}

    async def begin(self) -> None:
        """Build the start message."""
        await self._ready()

    async def calls(self) -> tuple[Call, ...]:
        return await _heeding(self._calls())

    async def ask(self) -> Reply:
        return await _heeding(self._ask())

    async def answer(self) -> Answered | Finished:
        return await _heeding(self._answer())

    def reissue(self, text: str) -> Answered:
        response = self._last_response()
        calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
        parts = [
            ToolReturnPart(
                part.tool_name, text, tool_call_id=part.tool_call_id, tool_kind=part.tool_kind, outcome="failed", timestamp=self.runtime.now()
            )
            for part in calls
        ]
        said = RetryFeedbackPart(content=text, retry=RetryInfo(cause="no_output"), timestamp=self.runtime.now())
        request = ModelRequest(parts=parts or [said], timestamp=self.runtime.now())
        self.history.append(request)
        self._retried = gate.retried([request], self._retried)
        self._node = None
        return Answered(request, self._results(request, response))

    def drop(self) -> None:
        self._last_response()
        self.history.pop()
        self._node = None

    async def end(self) -> None:
        """Close the loop, whatever state it is in."""
        await self._close()

    # -- the loop ---------------------------------------------------------------------------------------------------------------------------------

    async def _ready(self) -> None:
        """Have the loop open, standing where the history ends."""
        if self._node is None:
            await self._close()
            await self._open()

    async def _open(self) -> None:
        history, stored = self.history, None
        if self.prompt is None and history and isinstance(last := history[-1], ModelResponse):
            # Pydantic AI is handed the request before it and gets the response in place of a model call: one way for every ending.
            history, stored = history[:-1], last
        await self._files.fetch(self.history)
        replayed = await self._replayed(stored)
        link = self._link = self._new_link(replayed)
        stack = AsyncExitStack()
        prompt, self.prompt = self.prompt, None
        try:
            run = await self._enter(stack, prompt, history, link)
            node = await _next(run, run.next_node)
            if replayed is not None:
                node = await _next(run, node)
        except BaseException as error:
            await _leave(stack, error)
            if isinstance(error, PerdureError) or not isinstance(error, Exception):
                raise
            raise ExecutionError(f"The agent could not be set up: {describe(error)}", code="setup_failed") from error
        self._stack, self._run, self._node = stack, run, node
        if prompt is not None:
            await self._begun(run, node)
            return
        self._live = [*history, *([replayed] if replayed is not None else [])]
        standing = [node.request] if isinstance(node, ModelRequestNode) and stored is None else []
        await self._follow([*run.all_messages(), *standing])

    async def _enter(self, stack: AsyncExitStack, prompt: Any, history: Sequence[ModelMessage], link: Link) -> AgentRun[Any, Any]:
        if self.waiter is not None:
            stack.enter_context(external_event_scope(self.waiter))
        # Its own list of messages, whatever the program around captures.
        stack.enter_context(capture_run_messages())
        return await stack.enter_async_context(
            self.agent.iter(
                prompt,
                message_history=history,
                run_id=f"{self.run_id}:{self.runtime.new_id()}",
                conversation_id=self.conversation_id or self.run_id,
                model=self.model,
                deps=self.deps,
                model_settings=without_sdk_retries,
                usage_limits=UsageLimits(request_limit=None),
                toolsets=list(self.toolsets),
                capabilities=hooks_of(self.agent, link),
            )
        )

    async def _replayed(self, stored: ModelResponse | None) -> ModelResponse | None:
        """A copy for the loop, which writes on its messages, with the bytes of its files."""
        if stored is None:
            return None
        restored = (await self._files.restore([stored]))[0]
        assert isinstance(restored, ModelResponse)
        return replace(restored)

    async def _begun(self, run: AgentRun[Any, Any], node: Any) -> None:
        """The start message, as the loop built it: system prompts where there is no history, then the prompt."""
        assert isinstance(node, ModelRequestNode)
        start = await self._stored(node.request)
        await self._files.fetch([start])
        if self.history and isinstance(last := self.history[-1], ModelRequest):
            # A history that ends on the results of an output tool: providers want one request there, not two.
            self.history[-1] = replace(last, parts=[*last.parts, *start.parts])
            self._node = None
            return
        self._live = [*run.all_messages(), node.request]
        self.history.append(start)
        if len(self._live) != len(self.history):
            self._node = None

    async def _close(self, error: BaseException | None = None) -> None:
        stack, self._stack, self._run, self._node = self._stack, None, None, None
        self._live, self._accepted = [], None
        if stack is not None:
            await _leave(stack, error)

    # -- a model call -----------------------------------------------------------------------------------------------------------------------------

    async def _ask(self) -> Reply:
        await self._ready()
        run, node = self._run, self._node
        assert run is not None
        assert isinstance(node, ModelRequestNode), "the history ends on a response: answer it first"
        self.cut_off = None
        started = self.runtime.now()
        heard = self._link.heard = Heard(self.host.delta, self._try_begins)
        try:
            after = await _next(run, node)
        except Exception as error:
            failure = self._failure(error, heard, started)
            if isinstance(failure, ModelFailed) and refuses_thinking(error):
                # Once: the next try has nothing of it left that could be refused again.
                failure.retryable = self._forget_thinking()
            await self._close(error)
            raise failure from (None if failure is error else error)
        except BaseException as error:
            if any(each.parts or each.usage.has_values() for each in heard.partial):
                self.cut_off = CutOff(heard.text, _usage_of_failures(heard.partial))
            await self._close(error)
            raise
        self._tries, self._link.heard = 0, None
        self._node = after
        await self._follow(run.all_messages())
        if not self.history or not isinstance(self.history[-1], ModelResponse):
            raise ExecutionError("A hook asked for another model call without a response.", code="model_error")
        return self._reply(self.history[-1], started)

    def _try_begins(self) -> None:
        self._tries += 1
        self.host.try_begins(self._tries)

    def _reply(self, response: ModelResponse, started: datetime) -> Reply:
        link = self._link
        link.positions = _positions(response)
        calls = tuple(link.call(part, _arguments(part)) for part in response.parts if isinstance(part, ToolCallPart))
        return Reply(
            kind=kind_of(response, calls, output_type=self.agent.output_type),
            message=response,
            text=text_of(response),
            calls=calls,
            usage=usage_of(response),
            finish_reason=response.finish_reason,
            started_at=started,
            finished_at=self.runtime.now(),
        )

    def _failure(self, error: Exception, heard: Heard, started: datetime) -> Exception:
        if isinstance(error, PerdureError):
            return error
        partial = heard.partial
        model = getattr(error, "model_name", None) or (partial[-1].model_name if partial else None)
        cut = isinstance(error, StreamCut)
        return ModelFailed(
            describe(error) if not cut else str(error),
            code="incomplete_response" if cut else "quota" if is_quota(error) else "model_error",
            text=heard.text,
            usage=_usage_of_failures(partial),
            retryable=is_transient(error),
            retry_after=retry_after(error, self.runtime.now()),
            started_at=started,
            model=model,
        )

    def _forget_thinking(self) -> bool:
        """Leave the thinking out of the history from here on. False: there was none."""
        had = any(isinstance(part, ThinkingPart) for message in self.history for part in message.parts)
        self.history = [
            gate.without_thinking(message)
            if isinstance(message, ModelResponse) and any(isinstance(part, ThinkingPart) for part in message.parts)
            else message
            for message in self.history
        ]
        return had

    # -- its calls, or its output -----------------------------------------------------------------------------------------------------------------

    async def _calls(self) -> tuple[Call, ...]:
        if not self.history or not isinstance(response := self.history[-1], ModelResponse):
            return ()
        await self._ready()
        self._link.positions = _positions(response)
        return tuple(self._link.call(part, _arguments(part)) for part in response.parts if isinstance(part, ToolCallPart))

    async def _answer(self) -> Answered | Finished:
        response = self._last_response()
        DECIDING.set(False)
        await self._ready()
        run, node, link = self._run, self._node, self._link
        assert run is not None
        if isinstance(node, ModelRequestNode):
            # A hook of the user's refused the response already; what it said goes to the model.
            return await self._answered(node, response)
        link.positions, link.valid, link.deferred, link.late, link.edits = _positions(response), {}, {}, {}, {}
        link.retried = self._retried
        unknown = [
            part
            for part in response.parts
            if isinstance(part, ToolCallPart) and part.tool_name not in link.tools and part.tool_name not in link.outputs
        ]
        try:
            after = await self._process(run, node, response, unknown)
        except (UnexpectedModelBehavior, OutputTokenLimitExceeded) as error:
            await self._close(error)
            code = "length_cut" if isinstance(error, OutputTokenLimitExceeded) else "invalid_output"
            raise ExecutionError(describe(error), code=code) from error
        except BaseException as error:
            await self._close(error)
            if isinstance(error, AgentRunError):
                raise ExecutionError(describe(error), code="internal") from error
            raise
        if link.parked is not None:
            parked = link.parked
            await self._close(parked)
            raise parked
        self._node = after
        late = await self._late_results()
        if isinstance(after, ModelRequestNode):
            after.request.parts = [late.get(_id_of(part), part) for part in after.request.parts]
            return await self._answered(after, response)
        if link.deferred:
            # An output tool would end the run over a call that waits: the host says whether it may.
            await self.host.decide(tuple(link.deferred.values()))
        return await self._finished(run, response, after.data.output)

    async def _process(self, run: AgentRun[Any, Any], node: Any, response: ModelResponse, unknown: Sequence[ToolCallPart]) -> Any:
        if not unknown:
            return await _next(run, node)
        # Pydantic AI counts unknown names in memory and gives up on the second. Each gets its result here instead, and the others run.
        gone = {part.tool_call_id for part in unknown}
        known: list[Any] = [part for part in node.model_response.parts if not (isinstance(part, ToolCallPart) and part.tool_call_id in gone)]
        after: Any = None
        if any(isinstance(part, ToolCallPart) for part in known):
            # Only the loop's object: what is stored while the bodies run has every call.
            parts, node.model_response.parts = node.model_response.parts, known
            try:
                after = await _next(run, node)
            finally:
                node.model_response.parts = parts
        if isinstance(after, End):
            return cast("Any", after)
        listed = ", ".join(repr(name) for name in sorted(self._link.tools)) or "none"
        said = [
            ToolReturnPart(
                part.tool_name, f"Unknown tool name: {part.tool_name!r}. Available tools: {listed}.", tool_call_id=part.tool_call_id, outcome="failed"
            )
            for part in unknown
        ]
        if after is None:
            return ModelRequestNode[Any, Any](ModelRequest(parts=said))
        after.request.parts = [*after.request.parts, *said]
        return after

    async def _late_results(self) -> dict[str, ToolReturnPart]:
        """The results of calls that were approved and then had to wait."""
        late = self._link.late
        decisions = await self.host.decide(tuple(late.values())) if late else {}
        results: dict[str, ToolReturnPart] = {}
        for call_id, call in late.items():
            decision = decisions[call_id]
            if decision.answered:
                results[call_id] = ToolReturnPart(call.name, await self._link.result(decision.result), tool_call_id=call_id)
            elif not decision.approved:
                results[call_id] = ToolReturnPart(call.name, decision.message or "The call was denied.", tool_call_id=call_id, outcome="denied")
            else:
                text = "The tool asked for approval again although the call was approved."
                results[call_id] = ToolReturnPart(call.name, text, tool_call_id=call_id, outcome="failed")
        return results

    async def _answered(self, node: Any, response: ModelResponse) -> Answered:
        node.request.parts = gate.complete(node.request.parts, response)
        told = [self._link.edits[part.tool_call_id] for part in response.tool_calls if part.tool_call_id in self._link.edits]
        if told:
            node.request.parts = [*node.request.parts, UserPromptPart("\n".join(told))]
        request = await self._stored(node.request)
        self._live.append(node.request)
        self.history.append(request)
        self._retried = gate.retried([request], self._retried)
        results = self._results(request, response)
        refused = any(isinstance(part, RetryFeedbackPart) for part in request.parts) or any(
            each.call.output and each.outcome == "retry" for each in results
        )
        limit = self._link.output_retries
        if refused and limit is not None and gate.refusals(self.history[self.since :], self._link.outputs) > limit:
            raise ExecutionError(f"The output was refused {limit + 1} times: {_feedback(request)}", code="invalid_output")
        return Answered(request, results, refused)

    async def _finished(self, run: AgentRun[Any, Any], response: ModelResponse, output: Any) -> Finished:
        messages = run.all_messages()
        results: tuple[Result, ...] = ()
        if isinstance(last := messages[-1], ModelRequest) and any(isinstance(part, ToolCallPart) for part in response.parts):
            last.parts = gate.complete(last.parts, response)
            request = await self._stored(last)
            self._live.append(last)
            self.history.append(request)
            results = self._results(request, response)
        return Finished(output, await output_json(output, self.artifacts), results)

    def _results(self, request: ModelRequest, response: ModelResponse) -> tuple[Result, ...]:
        link = self._link
        link.positions = _positions(response)
        calls = {part.tool_call_id: link.call(part, _arguments(part)) for part in response.parts if isinstance(part, ToolCallPart)}
        return tuple(
            Result(calls[part.tool_call_id], gate.outcome_of(part), part.content)
            for part in request.parts
            if isinstance(part, ToolReturnPart) and part.tool_call_id in calls
        )

    # -- what is stored -----------------------------------------------------------------------------------------------------------------------------

    def _last_response(self) -> ModelResponse:
        assert self.history and isinstance(self.history[-1], ModelResponse), "the history ends on a request: ask first"
        return self.history[-1]

    async def _accept(self, response: ModelResponse) -> ModelResponse:
        """The gate for a response. The loop goes on with what is stored, save for the bytes of files."""
        accepted = gate.response(response, self._ids, len(self.history), self.runtime.now())
        stored = await self._files.without_bytes(accepted)
        assert isinstance(stored, ModelResponse)
        self._accepted = (accepted, stored)
        return accepted

    async def _stored(self, raw: ModelRequest) -> ModelRequest:
        """The gate for a request. The loop goes on with the same parts."""
        stored = await self._files.without_bytes(gate.request(raw, self.runtime.now()))
        assert isinstance(stored, ModelRequest)
        raw.parts = stored.parts
        return stored

    async def _follow(self, live: list[ModelMessage]) -> None:
        """Take over what the loop made of the history: a new response, or a history that the agent's own hooks rewrote.

        Messages that the loop left alone stay the objects that they were: whoever stores them sees by that what is new.
        """
        same = common(live, self._live)
        by_identity = {id(one): stored for one, stored in zip(self._live[same:], self.history[same:], strict=False)}
        followed = self.history[:same]
        for message in live[same:]:
            at = len(followed)
            before = self.history[at] if at < len(self.history) else None
            if self._accepted is not None and message is self._accepted[0]:
                followed.append(self._finished_response(*self._accepted))
            elif (known := by_identity.get(id(message))) is not None:
                followed.append(known)
            elif before is not None and before.kind == message.kind and before.parts == message.parts:
                followed.append(before)
            elif isinstance(message, ModelRequest):
                followed.append(await self._stored(message))
            else:
                followed.append(await self._files.without_bytes(message))
        await self._requests_grown(live, followed, same)
        # A list of our own: theirs grows by itself, and what we added to it would be sent twice.
        self.history, self._live = followed, list(live)
        if followed and isinstance(last := followed[-1], ModelResponse):
            self._ids |= gate.call_ids([last])

    async def _requests_grown(self, live: Sequence[ModelMessage], followed: list[ModelMessage], same: int) -> None:
        """The loop may add parts to the request that it sends (tools that became available, for example): they belong to the history."""
        if 0 < same < len(live) and isinstance(sent := live[same - 1], ModelRequest) and list(sent.parts) != list(followed[same - 1].parts):
            followed[same - 1] = await self._stored(sent)

    @staticmethod
    def _finished_response(accepted: ModelResponse, stored: ModelResponse) -> ModelResponse:
        # The loop has put its ids and the cost on its object by now. Never that object itself: the loop goes on to change it.
        return replace(accepted, parts=stored.parts)


async def output_json(output: Any, artifacts: Shelf | None) -> Any:
    """A run's output as it is stored: plain JSON, a file as a reference."""
    return clean(await shelved(output, artifacts), path="$output")


async def _heeding(work: Coroutine[Any, Any, T]) -> T:
    """Carry out `work`; a cancellation that something in it swallowed holds all the same."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    result = await work
    if task.cancelling() > before:
        raise asyncio.CancelledError
    return result


async def _next(run: AgentRun[Any, Any], node: Any) -> Any:
    return await run.next(node)


async def _leave(stack: AsyncExitStack, error: BaseException | None) -> None:
    """Close the loop. What closing says about the error that is on its way already adds nothing."""
    try:
        await stack.__aexit__(*((type(error), error, error.__traceback__) if error is not None else (None, None, None)))
    except BaseException as closing:
        if closing is not error and not isinstance(closing, Exception):
            raise


def without_sdk_retries(ctx: RunContext[Any]) -> ModelSettings:
    """Settings that turn off the retries of the provider's client library, for models that know the setting.

    Public in Pydantic AI (`ModelSettings.max_retries`): it sends the request through a copy of the client, the user's own is untouched. Models without the
    setting (Bedrock, whose retries are botocore's) are left as they are.
    """
    model: Any = innermost(ctx.model)
    members: list[Any] = [innermost(each) for each in getattr(model, "models", None) or [model]]
    ignored = all("max_retries" in getattr(each, "unsupported_settings", ()) for each in members)
    return ModelSettings() if ignored else ModelSettings(max_retries=0)


def _usage_of_failures(partial: Sequence[ModelResponse]) -> Usage:
    """What one call cost, although it failed: one request, however many streams it took."""
    each = [usage_of_failure(response) for response in partial] or [usage_of_failure(None)]
    return replace(sum(each[1:], each[0]), requests=1)


def _positions(response: ModelMessage) -> dict[str, int]:
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    return {part.tool_call_id: at for at, part in enumerate(calls)}


def _arguments(part: ToolCallPart) -> dict[str, Any] | None:
    try:
        return part.args_as_dict(raise_if_invalid=True)
    except Exception:
        return None


def _id_of(part: object) -> str:
    return part.tool_call_id if isinstance(part, ToolReturnPart) else ""


def _feedback(request: ModelRequest) -> str:
    said = [part.content for part in request.parts if isinstance(part, (RetryFeedbackPart, ToolReturnPart))]
    return str(said[-1]) if said else "refused"
