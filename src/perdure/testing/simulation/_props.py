"""What the outside world shows a replica: a model that follows its script and tools that are watched, each with faults at the planned moments.

The model takes the place of the user's by Pydantic AI's own `override`; the tools are watched at the turn's host, between the rules and the body. The user's
agent is not touched.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol, cast

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage

from perdure.agents import Call, Host
from perdure.context import current_run
from perdure.core.runtime import Runtime
from perdure.engine._agents import AgentType
from perdure.testing.models import Reply, Script, ScriptedModel, ScriptEnded, fail
from perdure.testing.simulation._history import responses
from perdure.testing.simulation._loop import current_strand
from perdure.testing.simulation._plan import Fault
from perdure.testing.simulation._runtime import block, die


class Audience(Protocol):
    """Whoever looks on and decides what goes wrong."""

    def asked(self, agent: str, messages: Sequence[ModelMessage]) -> Fault | None:
        """A model call begins."""
        ...

    def began(self, agent: str, call: Call) -> Fault | None:
        """A tool body begins."""
        ...

    def ended(self, agent: str, call: Call, result: Any) -> None:
        """A tool body came to its result."""
        ...

    def pace(self) -> float:
        """Seconds that the next piece of a stream, or a tool, takes."""
        ...


class Teller:
    """Tells each run its script: the reply to a history with three responses in it is the fourth.

    A reply that leaves no response (an error, a cut) is told once to each run, then the next one takes its place. It lives outside of the replicas, as a
    provider does.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._told: dict[tuple[str, int], int] = {}

    def reply(self, run_id: str, messages: list[ModelMessage]) -> Reply:
        if callable(self._script):
            return self._script(messages)
        place = responses(messages)
        tries = self._place(place)
        told = self._told.get((run_id, place), 0)
        self._told[run_id, place] = told + 1
        return tries[min(told, len(tries) - 1)]

    def _place(self, place: int) -> Sequence[Reply]:
        assert not callable(self._script)
        tries: list[Reply] = []
        passed = 0
        for reply in self._script:
            if passed == place:
                tries.append(reply)
            if not reply.leaves_no_response:
                passed += 1
                if passed > place:
                    return tries
        if tries:
            return tries
        raise ScriptEnded(f"The script has {passed} replies, and the history already holds {place} responses.")


def watched_model(agent: str, script: Script, audience: Audience, runtime: Runtime) -> ScriptedModel:
    """A model that tells `script` to every run, shows each request to the audience and fails when told to."""
    teller = Teller(script)

    def reply(messages: list[ModelMessage]) -> Reply:
        fault = audience.asked(agent, messages)
        told = teller.reply(current_run().id, messages)
        told = replace(told, seconds=told.seconds or audience.pace())
        match fault.kind if fault else None:
            case "model_error":
                return fail(500)
            case "model_busy":
                assert fault is not None
                return fail(429, retry_after=fault.seconds)
            case "model_cut":
                return replace(told, fault="cut")
            case "model_slow":
                assert fault is not None
                return replace(told, seconds=fault.seconds / 4)
            case _:
                return told

    return ScriptedModel(reply, runtime=runtime)


class WatchedHost:
    """The host of a session, whose tool bodies are seen by the audience and go wrong when told to. It sits between the rules and the body."""

    def __init__(self, host: Host, agent: str, audience: Audience) -> None:
        self._host, self._agent, self._audience = host, agent, audience

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)  # everything else is between the session and its host

    async def run_tool(self, call: Call, body: Callable[[], Awaitable[Any]], *, approved: bool) -> Any:
        return await self._host.run_tool(call, lambda: self._watched(call, body), approved=approved)

    async def _watched(self, call: Call, body: Callable[[], Awaitable[Any]]) -> Any:
        fault = self._audience.began(self._agent, call)
        if pace := self._audience.pace():
            await asyncio.sleep(pace)
        if fault is not None:
            await _suffer(fault)
        result = await body()
        self._audience.ended(self._agent, call, result)
        strand = current_strand()
        if fault is not None and fault.kind == "tool_dies_after" and strand is not None:
            strand.replica.doomed = True
        return result


def watched(kind: AgentType, audience: Audience) -> AgentType:
    """The same registration, with its tool bodies watched."""
    twin = copy.copy(kind)

    def session(host: Any, *arguments: Any, **options: Any) -> Any:
        return kind.session(cast(Any, WatchedHost(host, kind.name, audience)), *arguments, **options)

    twin.session = session
    return twin


async def _suffer(fault: Fault) -> None:
    match fault.kind:
        case "tool_raises":
            raise RuntimeError("This tool fails, as planned.")
        case "tool_slow":
            await asyncio.sleep(fault.seconds)
        case "tool_blocks":
            await block(fault.seconds)
        case "tool_swallows":
            await _deaf(fault.seconds)
        case "tool_dies":
            await die()
        case _:
            pass


async def _deaf(seconds: float) -> None:
    """Sleep on through cancellation."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


@contextmanager
def staged(agents: Sequence[tuple[str, Agent[Any, Any], Script]], audience: Audience, runtime: Runtime) -> Generator[None]:
    """Every agent with its watched model, for whatever runs in a copy of this context."""
    with ExitStack() as stack:
        stack.enter_context(Agent.using_thread_executor(_INLINE))
        for name, agent, script in agents:
            stack.enter_context(agent.override(model=watched_model(name, script, audience, runtime)))
        yield


_INLINE: Any = type("Inline", (), {"__doc__": "Sync tools go through the loop's `run_in_executor`, which runs them as one callback."})()
