"""What plain Pydantic AI and the real client libraries make of each fault on each wire: the ground that our sessions stand on.

Where a line here turns red, the library has moved; the session's own tests say whether it matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelOverloadedError,
    ModelRequestRejectedError,
    UnexpectedModelBehavior,
)
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ThinkingPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters

from perdure.core.runtime import RealRuntime
from perdure.testing.models import Reply, call, calls, cut, empty, fail, filtered, length, reset, say
from perdure.testing.provider import WIRES, Answer, ProviderServer, break_off, error_event, finish_as, garble, hold, unfinished

CHAT, RESPONSES, ANTHROPIC = "openai-chat", "openai-responses", "anthropic"
MODELS: dict[str, Callable[[ProviderServer], Model]] = {
    CHAT: lambda server: server.openai_chat_model(),
    RESPONSES: lambda server: server.openai_responses_model(),
    ANTHROPIC: lambda server: server.anthropic_model(),
}
every_wire = pytest.mark.parametrize("wire", MODELS)


@dataclass
class Seen:
    """What came of one agent run over the wire. `ran` is what the tool was called with, in order of its text."""

    output: str | None = None
    error: Exception | None = None
    ran: list[str] = field(default_factory=list)
    responses: list[ModelResponse] = field(default_factory=list)
    text: str = ""


async def drive(model: Model, *, prompt: str | None = "hello", history: Sequence[Any] | None = None) -> Seen:
    """Stream one agent run as the engine does: node by node."""
    seen = Seen()
    agent = Agent(model)

    @agent.tool_plain
    def note(text: str, tag: str = "") -> str:
        seen.ran.append(text)
        return f"noted {text}"

    try:
        async with agent.iter(prompt, message_history=history) as run:
            try:
                async for node in run:
                    if Agent.is_model_request_node(node):
                        async with node.stream(run.ctx) as stream:
                            async for event in stream:
                                seen.text += getattr(getattr(event, "delta", None), "content_delta", None) or ""
            finally:
                seen.responses = [each for each in run.all_messages() if isinstance(each, ModelResponse)]
        assert run.result is not None
        seen.output = run.result.output
    except Exception as error:
        seen.error = error
    seen.ran.sort()
    return seen


async def served(wire: str, *script: Reply | Answer) -> tuple[Seen, ProviderServer]:
    async with ProviderServer(script) as server:
        return await drive(MODELS[wire](server)), server


@every_wire
async def test_a_whole_conversation_passes_with_thinking_text_and_parallel_calls(wire: str) -> None:
    """Text, finish reason, usage, ids and both results arrive, and the strict server refuses nothing."""
    script = [calls(call("note", text="a"), call("note", text="ü 😀"), text="Hm, näher.", thinking="let me see"), say("done", thinking="so")]
    seen, server = await served(wire, *script)
    assert (seen.output, seen.ran, seen.error) == ("done", ["a", "ü 😀"], None)
    assert (len(server.requests), server.refused) == (2, [])
    first, last = seen.responses
    assert [part.content for part in first.parts if isinstance(part, TextPart)] == ["Hm, näher."]
    assert [part.content for part in first.parts if isinstance(part, ThinkingPart)] == ["let me see"]
    assert [part.args_as_dict() for part in first.parts if isinstance(part, ToolCallPart)] == [{"text": "a"}, {"text": "ü 😀"}]
    assert (last.finish_reason, last.state, last.usage.input_tokens, last.usage.output_tokens) == ("stop", "complete", 10, 5)
    assert [each.place for each in server.requests] == [0, 1]


RAW_STOP = {CHAT: "stop", RESPONSES: "completed", ANTHROPIC: "end_turn"}


@every_wire
async def test_a_finish_part_is_known_by_its_raw_word(wire: str) -> None:
    """`provider_details["finish_reason"]` holds the provider's own word: the one sign that the wire really had one."""
    seen, _ = await served(wire, say("done"))
    assert (seen.responses[-1].provider_details or {})["finish_reason"] == RAW_STOP[wire]


CUT = {
    "clean end in the middle of a text": cut("half of a"),
    "clean end before the finish part": break_off("half of a", "cut", "block"),
    "clean end in the middle of an event": break_off("half of a", "cut", "event"),
    "everything but the finish part": unfinished("half of a"),
}


@every_wire
@pytest.mark.parametrize("fault", CUT)
async def test_a_clean_cut_looks_like_an_answer(wire: str, fault: str) -> None:
    """No error is raised on any wire: the half text becomes the output. Chat even makes up `stop`; only the raw word is missing."""
    seen, server = await served(wire, CUT[fault], say("whole"))
    assert (seen.error, len(server.requests)) == (None, 1)
    assert seen.output == "half of a"
    response = seen.responses[-1]
    assert response.state == "complete"
    assert response.finish_reason == ("stop" if wire == CHAT else None)
    assert "finish_reason" not in (response.provider_details or {})


@every_wire
@pytest.mark.parametrize("where", ["piece", "event", "block"])
async def test_a_call_whose_stream_was_cut_is_executed(wire: str, where: Any) -> None:
    """The danger itself: the arguments happen to parse, so Pydantic AI runs the tool of a response that never ended."""
    seen, _ = await served(wire, break_off(call("note", text="a"), "cut", where), say("done"))
    assert seen.ran == ["a"]


@every_wire
async def test_half_an_escape_never_becomes_arguments(wire: str) -> None:
    """Arguments that end inside an escape do not parse, whether the stream was cut, hit the limit or says that all is well."""  # case C6
    half = call("note", _raw='{"text": "caf\\u12')
    for script in ([cut(half), say("done")], [length(half), say("done")], [half, say("done")]):
        seen, _ = await served(wire, *script)
        assert seen.ran == []


BROKEN: dict[str, tuple[Answer | Reply, type[Exception]]] = {
    "reset in the middle": (reset(call("note", text="a")), ModelConnectionError),
    "reset in the middle of an event": (break_off(call("note", text="a"), "reset", "event"), ModelConnectionError),
    "reset before the finish part": (break_off(call("note", text="a"), "reset", "block"), ModelConnectionError),
    "reset after the finish part": (break_off(call("note", text="a"), "reset", "finish"), ModelConnectionError),
    "closed without the end of the body": (break_off(call("note", text="a"), "drop"), ModelConnectionError),
    "a chunk that is no JSON": (garble(call("note", text="a" * 20)), ModelAPIError),
    "a chunk that is no UTF-8": (garble(call("note", text="a" * 20), "utf8"), ModelAPIError),
    "a frame that is no HTTP": (garble(call("note", text="a" * 20), "frame"), ModelConnectionError),
    "an error event": (error_event(call("note", text="a" * 20)), ModelOverloadedError),
}


@every_wire
@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_stream_raises_and_no_tool_runs(wire: str, fault: str) -> None:
    """The client libraries do not retry once a stream has begun: one request, one error of its own kind."""
    answer, kind = BROKEN[fault]
    seen, server = await served(wire, answer, say("done"))
    assert isinstance(seen.error, kind) and seen.ran == [] and len(server.requests) == 1


@every_wire
async def test_a_broken_stream_leaves_an_unfinished_response_in_the_history(wire: str) -> None:
    """Its state says so; a history that ends on it must never be resumed from."""
    seen, _ = await served(wire, reset("some words, then nothing"), say("done"))
    assert seen.text != "" and [each.state for each in seen.responses] in (["incomplete"], ["interrupted"])


@every_wire
async def test_a_clean_end_after_the_finish_part_is_a_whole_response(wire: str) -> None:
    """What follows the finish part (usage, `[DONE]`, `message_stop`) is not needed."""
    seen, server = await served(wire, break_off(call("note", text="a"), "cut", "finish"), say("done"))
    assert (seen.output, seen.ran, len(server.requests)) == ("done", ["a"], 2)


@every_wire
async def test_a_call_cut_at_the_token_limit_is_executed_where_it_parses(wire: str) -> None:
    """Valid JSON that lacks an optional field is not recognised as cut; cut JSON goes back to the model as an invalid call."""  # case C4
    seen, _ = await served(wire, length(call("note", text="a")), say("done"))
    assert seen.ran == ["a"] and seen.responses[0].finish_reason == "length"
    seen, _ = await served(wire, length(call("note", _raw='{"text": "a')), say("done"))
    assert seen.ran == [] and seen.output == "done"


@every_wire
async def test_a_rewritten_finish_reason_hides_the_token_limit(wire: str) -> None:
    """A gateway that says `tool_calls` in place of `length`: nothing in the response tells."""  # case C4
    seen, _ = await served(wire, finish_as(length(call("note", text="a")), "tool_call"), say("done"))
    assert seen.ran == ["a"] and seen.responses[0].finish_reason in {"tool_call", "stop"}


@every_wire
async def test_ids_that_come_again_in_a_later_turn_pass(wire: str) -> None:
    """Two turns with the same call id: both tools run, and both results pair up within their turn."""  # case C3
    seen, server = await served(wire, call("note", "c0", text="a"), call("note", "c0", text="b"), say("done"))
    assert (seen.ran, seen.output, server.refused) == (["a", "b"], "done", [])


@every_wire
async def test_ids_that_come_twice_in_one_turn_end_the_run(wire: str) -> None:
    """Pydantic AI refuses such a response as a whole; no tool runs."""  # case C3
    seen, _ = await served(wire, calls(call("note", "c0", text="a"), call("note", "c0", text="b")), say("done"))
    assert isinstance(seen.error, UnexpectedModelBehavior) and seen.ran == []


@every_wire
@pytest.mark.parametrize("status", [429, 500, 503])
async def test_the_client_libraries_retry_by_themselves(wire: str, status: int) -> None:
    """Twice by default, before any stream has begun; the third error comes through. `max_retries` in the settings turns it off."""  # case K5
    soon = {"retry-after-ms": "1"}
    seen, server = await served(wire, *[fail(status, headers=soon)] * 9, say("done"))
    assert isinstance(seen.error, ModelAPIError) and len(server.requests) == 3
    async with ProviderServer([fail(status, headers=soon), say("done")]) as server:
        model = MODELS[wire](server)
        agent = Agent(model, model_settings={"max_retries": 0})
        with pytest.raises(ModelAPIError):
            async with agent.run_stream("hello") as stream:
                await stream.get_output()
        assert len(server.requests) == 1


@every_wire
async def test_an_http_error_carries_status_headers_and_the_providers_own_words(wire: str) -> None:
    """What the retry policy needs is on the exception, as it came over the wire."""
    headers = {"retry-after": "7", "anthropic-ratelimit-requests-reset": "2030-01-01T00:00:00Z", "x-should-retry": "false"}
    seen, _ = await served(wire, fail(429, headers=headers), say("done"))
    error: Any = seen.error
    assert error.status_code == 429 and {name: error.headers[name] for name in headers} == headers
    assert "rate_limit_error" in str(error.body)


@every_wire
async def test_a_filtered_answer_says_so(wire: str) -> None:
    """The finish reason is `content_filter`; without any text it is an error."""
    seen, _ = await served(wire, filtered("I can"))
    assert seen.responses[-1].finish_reason == "content_filter"
    seen, _ = await served(wire, filtered(), say("done"))
    assert seen.output is None and isinstance(seen.error, UnexpectedModelBehavior)


@every_wire
async def test_an_empty_answer_is_asked_again_without_it(wire: str) -> None:
    """The empty response never goes back over the wire as a turn of its own."""
    seen, server = await served(wire, empty(), say("done"))
    assert [each.place for each in server.requests] == [0, 0] and not server.refused
    assert seen.output == "done" or isinstance(seen.error, UnexpectedModelBehavior)


@every_wire
async def test_a_held_stream_is_closed_when_the_client_goes_away(wire: str) -> None:
    """Cancelling the agent closes the connection: the provider stops speaking, and stops billing."""
    async with ProviderServer([hold("first words and more"), say("done")]) as server:
        task = RealRuntime().spawn(drive(MODELS[wire](server)), name="client")
        await server.until_asked(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until_hung_up(1)


@every_wire
async def test_a_held_stream_goes_on_when_it_is_released(wire: str) -> None:
    """Slow is not broken: the whole text arrives, wherever it stood still."""
    for where in ("piece", "event", "block", "finish"):
        async with ProviderServer([hold("first words and more", where)]) as server:  # type: ignore[arg-type]
            task = RealRuntime().spawn(drive(MODELS[wire](server)), name="client")
            await server.until_asked(1)
            server.release()
            assert (await task).output == "first words and more"


# -- the server's own strictness ------------------------------------------------------------------------------------------------------------------


def ask(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text)])


def told(*ids: str, text: str = "ok") -> ModelRequest:
    return ModelRequest(parts=[ToolReturnPart("note", text, tool_call_id=each) for each in ids])


def called(*ids: str, args: Any = None) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart("note", args or {"text": "a"}, each) for each in ids])


REFUSED = {
    "two results for one call": ([ask("x"), called("c1"), told("c1", "c1")], "two results"),
    "a result without a call": ([ask("x"), ModelResponse(parts=[TextPart("y")]), told("c1")], "answers no tool call"),
    "a call without a result": ([ask("x"), called("c1"), ask("and?")], "without a result"),
    "a result too late": ([ask("x"), called("c1"), ask("wait"), called("c2"), told("c1", "c2")], "without a result"),
    "one id twice in a turn": ([ask("x"), called("c1", "c1"), told("c1")], "there twice"),
    "an empty result": ([ask("x"), called("c1"), told("c1", text=" ")], "must be non-empty"),
    "an empty prompt": ([ask(" ")], "must be non-empty"),
    "the model's turn first": ([called("c1"), told("c1")], "first message must be the user's"),
}


@every_wire
@pytest.mark.parametrize("fault", REFUSED)
async def test_the_server_refuses_what_a_strict_provider_refuses(wire: str, fault: str) -> None:
    """A 400 in the provider's own form, which the library maps to its own class. The history goes in below the agent, which would mend some of it."""
    history, words = REFUSED[fault]
    async with ProviderServer([say("never")] * 3) as server:
        model = MODELS[wire](server)
        with pytest.raises(ModelRequestRejectedError) as caught:
            async with model.request_stream(history, None, ModelRequestParameters()) as stream:
                async for _ in stream:
                    pass
        assert len(server.requests) == len(server.refused) == 1
        assert words in (server.refused[0].refusal or "") and words in str(caught.value.body)


@every_wire
async def test_ids_may_be_asked_to_be_unique_in_the_whole_request(wire: str) -> None:
    """`ids="request"` refuses the id that comes again two turns later."""  # case C3
    history = [ask("x"), called("c1"), told("c1"), called("c1"), told("c1")]
    for ids, refused in (("turn", 0), ("request", 1)):
        async with ProviderServer([say("done")] * 3, ids=ids) as server:  # type: ignore[arg-type]
            await drive(MODELS[wire](server), prompt=None, history=history)
            assert len(server.refused) == refused


SIGNED = (RESPONSES, ANTHROPIC)


@pytest.mark.parametrize("wire", SIGNED)
@pytest.mark.parametrize("change", ["words", "signature", "no signature"])
async def test_a_changed_thinking_block_is_refused(wire: str, change: str) -> None:
    """Other words, another signature or none: a 400; untouched, it passes."""  # case C8
    async with ProviderServer([say("first", thinking="deep thought"), say("second")]) as server:
        model = MODELS[wire](server)
        first = await drive(model)
        response = first.responses[0]
        thinking = next(part for part in response.parts if isinstance(part, ThinkingPart))
        history = [ask("hello"), response]
        assert (await drive(model, prompt="go on", history=history)).output == "second"
        if change == "words":
            thinking.content += "."
        else:
            thinking.signature = "bm90IG91cnM=" if change == "signature" else None
        again = await drive(model, prompt="go on", history=history)
    if change == "no signature":
        # Pydantic AI itself leaves out, or sends as text, thinking that has none: nothing is left to refuse.
        assert again.error is None or server.refused
    else:
        assert isinstance(again.error, ModelRequestRejectedError)
        assert "signature" in (server.refused[-1].refusal or "")


@pytest.mark.parametrize("wire", SIGNED)
async def test_bound_thinking_is_refused_after_another_conversation(wire: str) -> None:
    """With `bind_thinking` the block is good only after the messages that it was thought after."""  # case C8
    async with ProviderServer([say("first", thinking="deep thought"), say("second")], bind_thinking=True) as server:
        model = MODELS[wire](server)
        response = (await drive(model)).responses[0]
        assert (await drive(model, prompt="go on", history=[ask("hello"), response])).output == "second"
        await drive(model, prompt="go on", history=[ask("HELLO"), response])
        assert "bound to a different conversation" in (server.refused[-1].refusal or "")


@every_wire
async def test_the_script_is_read_by_place_for_each_conversation(wire: str) -> None:
    """Two conversations on one server each get the whole story, faults included."""
    async with ProviderServer([reset("brok"), call("note", text="a"), say("done")]) as server:
        model = MODELS[wire](server)
        for prompt in ("one", "two"):
            assert isinstance((await drive(model, prompt=prompt)).error, ModelConnectionError)
        for prompt in ("one", "two"):
            assert (await drive(model, prompt=prompt)).output == "done"
        assert [(each.place, each.try_no) for each in server.requests] == [(0, 1), (0, 1), (0, 2), (1, 1), (0, 2), (1, 1)]


async def test_whatever_is_no_request_gets_an_answer_in_words() -> None:
    """Another path, a body that is no JSON, a request that does not stream."""
    import httpx

    async with ProviderServer([say("x")]) as server, httpx.AsyncClient(base_url=server.base_url) as client:
        assert (await client.get("/v1/models")).status_code == 404
        for wire in WIRES:
            assert "can't be read" in (await client.post(wire.path, content=b"{")).text
            assert "can't be read" in (await client.post(wire.path, content=b"[]")).text
            assert "only streams" in (await client.post(wire.path, json={"messages": []})).text
        assert len(server.refused) == 3 * len(WIRES)
