"""The model that follows a script, and the provider that refuses what a strict one refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError, ModelRequestRejectedError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters

from perdure.agents import decode, encode
from perdure.testing.models import ScriptedModel, ScriptEnded, StrictProvider, call, calls, cut, empty, fail, length, say

PARAMETERS = ModelRequestParameters()
ASK = ModelRequest(parts=[UserPromptPart("Go.")])


async def ask(model: Any, history: list[ModelMessage]) -> ModelResponse:
    async with model.request_stream(history, None, PARAMETERS) as stream:
        async for _ in stream:
            pass
    return stream.get()


async def test_the_script_is_read_by_the_responses_in_the_history() -> None:
    """A new model object in a new process gives the same reply to the same history."""
    script = [say("One."), call("look", at=1), say("Three.")]
    first = await ask(ScriptedModel(script), [ASK])
    assert first.parts == [TextPart("One.")]
    for _ in range(2):
        second = await ask(ScriptedModel(script), [ASK, first, ASK])
        assert second.parts == [ToolCallPart("look", '{"at": 1}', tool_call_id="call-1-0")]
        assert second.finish_reason == "tool_call"
    with pytest.raises(ScriptEnded, match="3 replies"):
        await ask(ScriptedModel(script), [ASK, first, ASK, second, ASK, first, ASK])


async def test_a_reply_that_leaves_no_response_is_given_once() -> None:
    """Then comes the next one, for the same place."""
    model = ScriptedModel([fail(503), cut("Half"), empty(), say("Whole.")])
    with pytest.raises(ModelHTTPError):
        await ask(model, [ASK])
    assert (await ask(model, [ASK])).finish_reason is None
    assert (await ask(model, [ASK])).parts == []
    for _ in range(2):
        assert (await ask(model, [ASK])).parts == [TextPart("Whole.")]
    assert len(model.requests) == 5


async def test_a_script_may_be_a_function_and_requests_may_be_counted_outside() -> None:
    """For loops, and for tests that crash."""
    counted: list[int] = []
    model = ScriptedModel(lambda messages: say(f"{len(messages)}"), on_request=lambda messages: counted.append(len(messages)))
    assert (await ask(model, [ASK])).parts == [TextPart("1")]
    assert counted == [1]


async def test_a_whole_agent_run_works_without_streaming_too() -> None:
    """It is a model like any other."""
    model = ScriptedModel([calls(call("look", at=1), text="Looking.", thinking="Hm."), say("Done.", input_tokens=7)])
    agent = Agent(model)
    agent.tool_plain(lambda at: at, name="look")
    result = await agent.run("Go.")
    assert result.output == "Done."
    assert result.usage.input_tokens == 17
    assert [type(part).__name__ for part in result.all_messages()[1].parts] == ["ThinkingPart", "TextPart", "ToolCallPart"]


@pytest.mark.parametrize(
    "bad",
    [
        [ASK, ModelResponse(parts=[ToolCallPart("t", {}, tool_call_id="1")]), ASK],
        [ASK, ModelResponse(parts=[TextPart("x")])],
        [ModelRequest(parts=[UserPromptPart("")])],
        [ModelRequest(parts=[ToolReturnPart("t", "x", tool_call_id="1")])],
    ],
)
async def test_a_strict_provider_refuses_and_remembers_why(bad: list[ModelMessage]) -> None:
    """With the error that a real one's client raises."""
    strict = StrictProvider(ScriptedModel(lambda messages: say("x")))
    with pytest.raises(ModelRequestRejectedError):
        await ask(strict, bad)
    (refusal,) = strict.refusals
    assert refusal.request == 1
    assert refusal.reason


async def test_a_strict_provider_knows_the_thinking_that_it_signed() -> None:
    """Byte for byte, through a store; a changed or a foreign block is refused."""
    strict = StrictProvider(ScriptedModel([say("One.", thinking="Ünï.", signature="s1"), say("Two.")]))
    said = await ask(strict, [ASK])
    stored = [decode(encode(each)) for each in (ASK, said, ASK)]
    assert (await ask(strict, stored)).parts == [TextPart("Two.")]
    changed = ModelResponse(parts=[ThinkingPart("Uni.", signature="s1", provider_name="scripted"), TextPart("One.")])
    with pytest.raises(ModelRequestRejectedError):
        await ask(strict, [ASK, changed, ASK])
    assert "thinking" in strict.refusals[0].reason


async def test_length_and_failures_carry_what_was_asked_for() -> None:
    """The reason, the status, the headers."""
    assert (await ask(ScriptedModel([length("Half a")]), [ASK])).finish_reason == "length"
    with pytest.raises(ModelHTTPError) as failed:
        await ask(ScriptedModel([fail(429, retry_after="soon", headers={"x-should-retry": "true"})]), [ASK])
    assert failed.value.headers == {"retry-after": "soon", "x-should-retry": "true"}
    assert failed.value.retry_after is None
