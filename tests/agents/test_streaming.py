"""The response streams next to the model; where the agent's own capabilities listen, it streams through the loop. Either way text is told once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import RetryModelRequest
from pydantic_ai.messages import AgentStreamEvent, FunctionToolCallEvent, PartStartEvent, TextPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from session_host import Host, session, to_the_end

from perdure.agents import ModelFailed
from perdure.testing.models import Reply, ScriptedModel, call, calls, cut, reset, say

pytestmark = pytest.mark.usefixtures("company")


class Watching(AbstractCapability[Any]):
    """Sees every event of the run."""

    def __init__(self) -> None:
        self.seen: list[AgentStreamEvent] = []

    async def on_event(self, ctx: Any, *, event: AgentStreamEvent) -> None:
        self.seen.append(event)


class Shouting(AbstractCapability[Any]):
    """Rewrites text as it passes."""

    async def wrap_run_event_stream(self, ctx: Any, *, stream: AsyncIterable[AgentStreamEvent]) -> AsyncIterator[AgentStreamEvent]:
        async for event in stream:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                event = replace(event, part=replace(event.part, content=event.part.content.upper()))
            yield event


def told(host: Host, kind: str = "text") -> str:
    return "".join(text for each, text in host.deltas if each == kind)


def talking(*capabilities: Callable[[], AbstractCapability[Any]], script: list[Any] | None = None) -> Agent[None, str]:
    agent = Agent(
        ScriptedModel(script or [calls(call("look"), text="Looking. "), say("Seen.", thinking="Hm.")], piece=1_000),
        capabilities=[each() for each in capabilities],
    )
    agent.tool_plain(lambda: "a cat", name="look")
    return agent


@pytest.mark.parametrize("capabilities", [(), (Watching,), (Watching, Watching)], ids=["nobody listens", "one listens", "two listen"])
async def test_text_is_told_once_whoever_listens(capabilities: tuple[Any, ...]) -> None:
    host = Host()
    async with session(talking(*capabilities), host) as opened:
        await to_the_end(opened)
    assert (told(host), told(host, "reasoning")) == ("Looking. Seen.", "Hm.")


async def test_a_capability_that_listens_hears_the_text_and_the_calls() -> None:
    watching = Watching()
    async with session(talking(lambda: watching), Host()) as opened:
        await to_the_end(opened)
    texts = [event.part.content for event in watching.seen if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart)]
    assert texts == ["Looking. ", "Seen."]
    assert [event.part.tool_name for event in watching.seen if isinstance(event, FunctionToolCallEvent)] == ["look"]


async def test_people_see_what_a_capability_makes_of_the_events() -> None:
    """They would see it without us, too."""
    host = Host()
    async with session(talking(Shouting), host) as opened:
        await to_the_end(opened)
    assert told(host) == "LOOKING. SEEN."


@pytest.mark.parametrize("capabilities", [(), (Watching,)], ids=["nobody listens", "one listens"])
@pytest.mark.parametrize("broken", [cut, reset])
async def test_what_a_broken_stream_had_said_is_known(capabilities: tuple[Any, ...], broken: Callable[..., Reply]) -> None:
    host = Host()
    async with session(talking(*capabilities, script=[broken("Half an ans"), say("All of it.")]), host) as opened:
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
        assert (failed.value.text, failed.value.retryable, failed.value.usage.requests) == ("Half an ans", True, 1)
        assert (await opened.ask()).text == "All of it."
    assert host.tries == [1, 2]


async def test_an_attempt_that_a_hook_asks_for_is_a_try_of_its_own() -> None:
    """What the first one had said is void: whoever follows is told so before the second one speaks."""

    class AskingAgain(AbstractCapability[Any]):
        async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> Any:
            raise RetryModelRequest from error

    host = Host()
    async with session(talking(AskingAgain, script=[reset("Half an ans"), say("All of it.")]), host) as opened:
        reply = await opened.ask()
    assert (reply.text, told(host), host.tries) == ("All of it.", "Half an ansAll of it.", [1, 2])


async def never(messages: Any, info: Any) -> AsyncIterator[str]:
    await asyncio.Event().wait()
    yield "too late"


@pytest.mark.parametrize("capabilities", [(), (Watching,)], ids=["nobody listens", "one listens"])
async def test_a_stream_must_begin_within_its_first_event_timeout(capabilities: tuple[Any, ...]) -> None:
    agent = Agent(FunctionModel(stream_function=never), model_settings={"first_event_timeout": 0.01}, capabilities=[each() for each in capabilities])
    async with session(agent, Host()) as opened:
        with pytest.raises(ModelFailed, match="without producing any output") as failed:
            await opened.ask()
    assert failed.value.retryable


async def test_a_stream_that_has_begun_may_take_its_time() -> None:
    """The limit is for the first event alone; the next one comes after it would have run out."""

    async def slow(messages: Any, info: Any) -> AsyncIterator[str]:
        yield "First, "
        loop = asyncio.get_running_loop()
        later: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.03, later.set_result, None)
        await later
        yield "then the rest."

    agent = Agent(FunctionModel(stream_function=slow), model_settings={"first_event_timeout": 0.02})
    async with session(agent, Host()) as opened:
        assert (await opened.ask()).text == "First, then the rest."


async def test_a_fallback_model_keeps_the_limit_for_each_of_its_models() -> None:
    """The second one has its whole time, although the first one used its own up."""
    agent = Agent(
        FallbackModel(FunctionModel(stream_function=never), ScriptedModel([say("From the second.")])), model_settings={"first_event_timeout": 0.01}
    )
    async with session(agent, Host()) as opened:
        assert (await opened.ask()).text == "From the second."
