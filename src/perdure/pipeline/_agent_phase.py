"""An agent as a phase: one model call and its tools per advance, on the engine's own turn.

The response is stored before any tool runs, so a crash in a tool pays for no model call twice. Effect tools are noted before their body
begins; where nobody knows whether one happened, a person is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse

from perdure.agents import Answered, Finished, ModelFailed, Reply, last_text, open_session
from perdure.agents._usage import usage_of
from perdure.core.budget import Usage
from perdure.core.limits import EMPTY_RESPONSES_MAX, MODEL_TRIES_MAX
from perdure.core.runtime import Runtime
from perdure.pipeline._adapters import SchedulerAdapter, StorageAdapter
from perdure.pipeline._agent_host import CallHost, Parked
from perdure.pipeline._agent_rules import check_agent
from perdure.pipeline._agent_state import AgentCheckpoint, AgentOutcome, Ruling, StoppedBy, pending
from perdure.pipeline._memory import MemoryScheduler
from perdure.pipeline._phase import Done, Error, Next, Phase, PhaseContext, PhaseResult, Retry, RetryPolicy
from perdure.pipeline._records import RetryMode
from perdure.pipeline._runner import REAL, advance_phase
from perdure.pipeline._start import run_pipeline

MAX_TURNS: Final = 10
TURN: Final = "turn"
MODEL_RETRIES: Final = RetryPolicy(attempts=MODEL_TRIES_MAX, backoff=timedelta(seconds=2), on=())
"""A model that is busy is asked again; what a tool or a validator raises is the agent's own affair and fails the job."""

Deps = TypeVar("Deps")
ToolsMode = Literal["turn", "phase"]
Then = Callable[[AgentOutcome[Any], Any], PhaseResult[Any]]


def build_agent_phase(
    agent: Agent[Deps, Any], max_turns: int = MAX_TURNS, *, name: str = TURN, deps: Deps = None,
    open_deps: Callable[[PhaseContext[AgentCheckpoint]], AbstractAsyncContextManager[Deps]] | None = None, tools: ToolsMode = "turn",
    then: Then | None = None, timeout: timedelta | float | None = None, retry: RetryPolicy = MODEL_RETRIES, runtime: Runtime = REAL,
) -> Phase[AgentCheckpoint]:  # fmt: skip
    """A phase that is one turn of the agent, and goes on to itself until the agent has answered.

    Args:
        agent: Used as it is: never wrapped, copied or changed.
        max_turns: Model calls in all. After the last the phase is done with what there is (`stopped_by="max_turns"`).
        name: Of the phase, where a pipeline has several.
        deps: The agent's dependencies; or `open_deps`, a context manager entered for each advance.
        tools: `turn` runs all calls of a response in the advance that asked for them. `phase` runs each in an advance of its own, so that
            a long one outlives a function's time limit and its result is kept whatever becomes of the next.
        then: Where the job goes afterwards: gets the outcome and the `carry` of the state. None: the job is done, its output is the outcome.
        retry: For a model that could not be reached or is busy. Each try is logged.

    The state to enter it with is `AgentCheckpoint.start("…")`.

    Raises:
        ConfigurationError: A tool declares what a pipeline by itself can't keep: who may approve, a key over jobs, a transaction.
    """
    check_agent(agent)
    turn = _Turn(agent, max_turns, name, deps, open_deps, tools, then, retry, runtime)
    return Phase(name, turn.run, state=AgentCheckpoint, timeout=timeout, retry=retry)


async def run_agent(
    job_id: str, agent: Agent[Deps, Any], initial_messages: str | Sequence[ModelMessage], storage: StorageAdapter, scheduler: SchedulerAdapter,
    system: str | None = None, max_turns: int = MAX_TURNS, retry_mode: RetryMode | None = None, *, deps: Deps = None, tools: ToolsMode = "turn",
    runtime: Runtime = REAL,
) -> None:  # fmt: skip
    """Start a job that is one agent. Its turns are advances like others, of `[build_agent_phase(agent)]`; a `MemoryScheduler` that is
    bound to nothing yet is bound to that.

    A resume goes on where it stopped, whatever `initial_messages` say; `full` starts with them at turn 0. Raises what `run_pipeline` raises.
    """
    phases = [build_agent_phase(agent, max_turns, deps=deps, tools=tools, runtime=runtime)]
    if isinstance(scheduler, MemoryScheduler) and not scheduler.bound:
        scheduler.bind(lambda each: advance_phase(each, phases, storage, scheduler, runtime=runtime))
    state = AgentCheckpoint.start(initial_messages, system=system, max_turns=max_turns)
    await run_pipeline(job_id, phases, storage, scheduler, state, retry_mode, runtime=runtime)


@dataclass(frozen=True)
class _Turn:
    agent: Agent[Any, Any]
    max_turns: int
    name: str
    deps: Any
    open_deps: Callable[[PhaseContext[AgentCheckpoint]], AbstractAsyncContextManager[Any]] | None
    tools: ToolsMode
    then: Then | None
    retry: RetryPolicy
    runtime: Runtime

    async def run(self, ctx: PhaseContext[AgentCheckpoint]) -> PhaseResult[AgentCheckpoint]:
        """One advance: ask the model if its last response is answered, then run what it asks for."""
        state = _heard(ctx.state, ctx)
        limit = self.max_turns if state.max_turns is None else state.max_turns
        if not state.answering and state.turn >= limit:
            await ctx.log(f"agent: max_turns ({limit}) reached", "warn")
            return self._done(state, state.messages, last_text(state.messages, state.since), "max_turns")
        if not state.conversation:
            state = replace(state, conversation=self.runtime.new_id())
        async with AsyncExitStack() as stack:
            deps = await stack.enter_async_context(self.open_deps(ctx)) if self.open_deps else self.deps
            host = CallHost(ctx, state, self.name, self.runtime, one_at_a_time=self.tools == "phase")
            session = await stack.enter_async_context(
                open_session(
                    self.agent, history=state.messages, host=host, runtime=self.runtime, run_id=f"{ctx.job_id}:{state.conversation}", deps=deps,
                    prompt=state.prompt, since=state.since, conversation_id=state.conversation,
                )
            )  # fmt: skip
            if not state.answering:
                try:
                    reply = await session.ask()
                except ModelFailed as failed:
                    return self._failed(ctx, failed)
                ended = await self._ended(ctx, host, reply, session.messages)
                if ended is not None:
                    return ended
            elif self.tools == "phase":
                host.see(await session.calls())
            if self.tools == "phase" and not state.answering and host.state.pending_tool_calls:
                return Next(self.name, host.state)
            return await self._answer(session, host)

    async def _answer(self, session: Any, host: CallHost) -> PhaseResult[AgentCheckpoint]:
        try:
            answered: Answered | Finished = await session.answer()
        except Parked as parked:
            return _park(self.name, host.state, parked)
        state = replace(host.state, pending_tool_calls=[], records={}, rulings={}, asking=None, messages=session.messages)
        if isinstance(answered, Finished):
            return self._done(state, session.messages, answered.output, "answer")
        return Next(self.name, state)

    async def _ended(self, ctx: PhaseContext[AgentCheckpoint], host: CallHost, reply: Reply, messages: list[ModelMessage]) -> PhaseResult[Any] | None:
        """Store the response and say whether it ends the phase as it is; None: its calls, or its output, come next."""
        if reply.finish_reason == "error":
            return Error("agent: the model's response ended with an error")
        state = replace(host.state, prompt=None, turn=host.state.turn + 1, empty=0)
        if reply.kind == "empty":
            return await self._empty(ctx, state)
        state = replace(state, messages=messages, pending_tool_calls=pending(reply.calls, {}), records={}, rulings={})
        await ctx.save_state(state, log=_line(state.turn, reply))
        host.state = state
        host.see(reply.calls)
        if reply.kind == "cut" or reply.finish_reason == "length":
            await ctx.log("agent: the response was truncated at the model's token limit", "warn")
            return self._done(state, messages, reply.text, "length")
        if reply.kind == "filtered":
            await ctx.log("agent: the provider's content filter ended the response", "warn")
            return self._done(state, messages, reply.text, "content_filter")
        if reply.kind == "final" and (unknown := _unknown_reason(reply.message)):
            await ctx.log(f"agent: the response ended for a reason nobody knows: {unknown}", "warn")
            return self._done(state, messages, reply.text, "unknown")
        return None

    async def _empty(self, ctx: PhaseContext[AgentCheckpoint], state: AgentCheckpoint) -> PhaseResult[Any]:
        """The model said nothing: asked again, from the same history, a bounded number of times."""
        empty = ctx.state.empty + 1
        if empty > EMPTY_RESPONSES_MAX:
            return Error(f"agent: the model answered with nothing {empty} times in a row")
        await ctx.log("agent: the model answered with nothing", "warn")
        return Next(self.name, replace(state, prompt=ctx.state.prompt, empty=empty))

    def _failed(self, ctx: PhaseContext[AgentCheckpoint], failed: ModelFailed) -> PhaseResult[AgentCheckpoint]:
        """Nothing of the turn is kept. What may pass is tried again, after the provider's wish or the policy's pause."""
        if not failed.retryable or ctx.attempt >= self.retry.attempts:
            tried = f" (try {ctx.attempt} of {self.retry.attempts})" if ctx.attempt > 1 else ""
            return Error(f"agent: {failed.message}{tried}")
        pause = self.retry.delay(ctx.attempt, self.runtime.random())
        return Retry(max(pause, failed.retry_after or timedelta(0)), failed.message)

    def _done(self, state: AgentCheckpoint, messages: list[ModelMessage], output: Any, why: StoppedBy) -> PhaseResult[Any]:
        own = [each for each in messages[state.since :] if isinstance(each, ModelResponse)]
        usage = sum((usage_of(each, tool_calls=len(each.tool_calls)) for each in own), Usage())
        outcome = AgentOutcome[Any](output, messages, usage, state.turn, why)
        return Done(outcome) if self.then is None else self.then(outcome, state.carry)


def _heard(state: AgentCheckpoint, ctx: PhaseContext[AgentCheckpoint]) -> AgentCheckpoint:
    """The answer to what was asked, noted for the call that it is about."""
    answer = ctx.answer
    if state.asking is None or answer is None:
        return state
    reason = answer.reason or ("Nobody decided in time." if answer.kind == "expired" else None)
    ruling = Ruling(bool(answer.approved) or answer.kind == "timer", answer.value, reason, lapsed=answer.kind == "expired")
    return replace(state, asking=None, rulings={**state.rulings, state.asking: ruling})


def _park(name: str, state: AgentCheckpoint, parked: Parked) -> PhaseResult[AgentCheckpoint]:
    if parked.error is not None:
        return Error(parked.error)
    if parked.wait is None:
        return Next(name, state)
    return replace(parked.wait, state=replace(state, asking=parked.key))


def _line(turn: int, reply: Reply) -> str:
    called = ", ".join(call.name for call in reply.calls) or "no tool"
    return f"agent: turn {turn}, called {called}; {reply.usage.input_tokens} tokens in, {reply.usage.output_tokens} out"


def _unknown_reason(response: ModelResponse) -> str | None:
    """What the provider said where Pydantic AI has no word for it. A provider that says nothing at all is the ordinary case of many."""
    raw = (response.provider_details or {}).get("finish_reason")
    return str(raw) if raw and response.finish_reason is None else None
