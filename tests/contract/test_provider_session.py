"""Every fault of the provider server on all three wires, through a session: no tool of a broken step ever runs, and each error says what it is."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Literal

import pytest
from pydantic_ai import Agent, FunctionToolset, Tool
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model

from perdure.agents._gate import check
from perdure.agents._session import AgentSession, open_session
from perdure.agents._turn import Answered, Call, Decision, Finished, ModelFailed
from perdure.core.runtime import RealRuntime
from perdure.testing.models import Reply, call, calls, cut, empty, fail, filtered, length, reset, say
from perdure.testing.provider import Answer, ProviderServer, break_off, error_event, finish_as, garble, unfinished

MODELS: dict[str, Callable[[ProviderServer], Model]] = {
    "openai-chat": lambda server: server.openai_chat_model(),
    "openai-responses": lambda server: server.openai_responses_model(),
    "anthropic": lambda server: server.anthropic_model(),
}
SIGNED = ("openai-responses", "anthropic")
every_wire = pytest.mark.parametrize("wire", MODELS)


@dataclass
class Watcher:
    """A host that lets everything pass and writes down what it saw."""

    heard: list[str] = field(default_factory=list)
    tries: list[int] = field(default_factory=list)
    ran: list[tuple[str, Any]] = field(default_factory=list)

    def delta(self, kind: Literal["text", "reasoning"], text: str) -> None:
        self.heard.append(text)

    def try_begins(self, try_no: int) -> None:
        self.tries.append(try_no)

    def validated(self, call: Call) -> None:
        pass

    async def run_tool(self, call: Call, body: Callable[[], Awaitable[Any]], *, approved: bool) -> Any:
        assert call.args is not None
        self.ran.append((call.name, call.args.get("text")))
        return await body()

    async def decide(self, calls: Sequence[Call]) -> dict[str, Decision]:
        raise AssertionError("nothing here asks for approval")


def note(text: str, tag: str = "") -> str:
    """Keep a note."""
    return f"noted {text}"


@asynccontextmanager
async def session(
    server: ProviderServer, wire: str, host: Watcher, *, history: Sequence[ModelMessage] = (), prompt: str | None = "hello", **more: Any
):
    model = more.pop("model", None) or MODELS[wire](server)
    agent = Agent(model, tools=[note], **more)
    async with open_session(agent, history=history, host=host, runtime=RealRuntime(), run_id="run-1", prompt=prompt) as opened:
        yield opened


async def to_the_end(opened: AgentSession) -> Finished:
    """Ask and answer until the run is over."""
    while True:
        await opened.ask()
        result = await opened.answer()
        check(opened.messages)
        if isinstance(result, Finished):
            return result


A_CALL = call("note", text="a")
LONG = call("note", text="a" * 30)
BROKEN: dict[str, tuple[Answer | Reply, str]] = {
    "clean end in the middle of a call": (cut(A_CALL), "incomplete_response"),
    "clean end in the middle of an event": (break_off(A_CALL, "cut", "event"), "incomplete_response"),
    "clean end before the finish part": (break_off(A_CALL, "cut", "block"), "incomplete_response"),
    "everything but the finish part": (unfinished(A_CALL), "incomplete_response"),
    "clean end inside an escape": (cut(call("note", _raw='{"text": "caf\\u12')), "incomplete_response"),  # case C6
    "closed without the end of the body": (break_off(A_CALL, "drop"), "model_error"),
    "reset in the middle of a call": (reset(A_CALL), "model_error"),
    "reset in the middle of an event": (break_off(A_CALL, "reset", "event"), "model_error"),
    "reset before the finish part": (break_off(A_CALL, "reset", "block"), "model_error"),
    "reset after the finish part": (break_off(A_CALL, "reset", "finish"), "model_error"),
    "a chunk that is no JSON": (garble(LONG), "model_error"),
    "a chunk that is no UTF-8": (garble(LONG, "utf8"), "model_error"),
    "a frame that is no HTTP": (garble(LONG, "frame"), "model_error"),
    "an error event": (error_event(LONG), "model_error"),
}


@every_wire
@pytest.mark.parametrize("fault", BROKEN)
async def test_no_tool_of_a_broken_step_runs_and_the_same_request_is_tried_anew(wire: str, fault: str) -> None:
    """The call fails as worth another try, the history stays as it was, and the second request is the first, byte for byte."""
    answer, code = BROKEN[fault]
    host = Watcher()
    async with ProviderServer([answer, calls(call("note", text="b"), text="now"), say("done")]) as server, session(server, wire, host) as opened:
        before = opened.messages
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
        assert (failed.value.code, failed.value.retryable, failed.value.retry_after) == (code, True, None)
        assert opened.messages == before and host.ran == []
        finished = await to_the_end(opened)
        assert finished.output == "done"
        assert host.ran == [("note", "b")]
        assert len(server.requests) == 3 and not server.refused
        assert server.requests[0].body == server.requests[1].body
        assert host.tries == [1, 2, 1]


@every_wire
@pytest.mark.parametrize("how", ["cut", "drop", "reset"])
async def test_the_text_so_far_is_kept_with_the_error(wire: str, how: Any) -> None:
    """What had streamed is on the failure, equal to the deltas, and nowhere in the history."""
    host = Watcher()
    async with ProviderServer([break_off("The first half of", how), say("whole")]) as server, session(server, wire, host) as opened:
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
        assert failed.value.text == "".join(host.heard)
        assert how != "cut" or failed.value.text == "The first half of"
        assert (await to_the_end(opened)).output == "whole"


@every_wire
async def test_a_clean_end_after_the_finish_part_is_whole(wire: str) -> None:
    """The finish part came, so the step stands: nothing is asked twice."""
    host = Watcher()
    async with ProviderServer([break_off(A_CALL, "cut", "finish"), say("done")]) as server, session(server, wire, host) as opened:
        assert (await to_the_end(opened)).output == "done"
        assert len(server.requests) == 2 and host.ran == [("note", "a")]


NOW = datetime.now(UTC)
LATER = (NOW + timedelta(hours=1)).replace(microsecond=0)
WISHES: dict[str, tuple[dict[str, str], tuple[float, float] | None]] = {
    "seconds": ({"retry-after": "7"}, (7, 7)),
    "an HTTP date": ({"retry-after": format_datetime(LATER, usegmt=True)}, (3000, 3601)),
    "a date in the past": ({"retry-after": format_datetime(NOW - timedelta(days=1), usegmt=True)}, (0, 0)),
    "milliseconds": ({"retry-after-ms": "1500"}, (1.5, 1.5)),
    "milliseconds and seconds": ({"retry-after-ms": "1500", "retry-after": "2"}, (1.5, 1.5)),
    "absent": ({}, None),
    "words": ({"retry-after": "soon"}, None),
    "negative": ({"retry-after": "-5"}, None),
    "absurd": ({"retry-after": "99999999999"}, None),
    "empty": ({"retry-after": ""}, None),
    "the reset of the limit that is used up": (
        {
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": LATER.isoformat().replace("+00:00", "Z"),
            "anthropic-ratelimit-tokens-remaining": "1000",
            "anthropic-ratelimit-tokens-reset": (LATER + timedelta(hours=5)).isoformat().replace("+00:00", "Z"),
        },
        (3000, 3601),
    ),
    "the reset and a word that counts more": (
        {"retry-after": "3", "anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": LATER.isoformat()},
        (3, 3),
    ),
    "a reset that is no time": ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "tomorrow"}, None),
    "a duration until the reset": (
        {
            "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0.5s",
            "x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "2h",
        },
        (360.5, 360.5),
    ),
}  # fmt: skip


@every_wire
@pytest.mark.parametrize("form", WISHES)
async def test_the_providers_wish_to_wait_is_read_in_all_its_forms(wire: str, form: str) -> None:
    """A 429 is one request (the client library's own retries are off), worth another try, after as long as the provider says."""  # case K4
    headers, expected = WISHES[form]
    host = Watcher()
    async with ProviderServer([fail(429, headers=headers), say("done")]) as server, session(server, wire, host) as opened:
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
        error = failed.value
        assert (error.code, error.retryable, len(server.requests)) == ("model_error", True, 1)
        if expected is None:
            assert error.retry_after is None
        else:
            assert error.retry_after is not None and expected[0] <= error.retry_after.total_seconds() <= expected[1]
        assert (await to_the_end(opened)).output == "done"


STATUS = {
    400: False,
    401: False,
    403: False,
    404: False,
    408: True,
    409: True,
    413: False,
    422: False,
    429: True,
    500: True,
    502: True,
    503: True,
    529: True,
}


@every_wire
@pytest.mark.parametrize("status", STATUS)
async def test_an_http_error_is_asked_once_and_says_whether_to_try_again(wire: str, status: int) -> None:
    """One request on the wire for each `ask`, whatever the client library would do by itself."""  # case K5
    async with ProviderServer([fail(status), say("done")]) as server, session(server, wire, Watcher()) as opened:
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
        assert failed.value.retryable is STATUS[status] and len(server.requests) == 1
        assert str(status) in failed.value.message


@every_wire
async def test_money_that_ran_out_is_a_quota_and_no_rate_limit(wire: str) -> None:
    """A 429 or 400 whose body says so is not worth another try in a minute."""  # case K5
    body: object = {"error": {"type": "insufficient_quota", "code": "insufficient_quota", "message": "You exceeded your current quota."}}
    status = 429
    if wire == "anthropic":
        body, status = {"type": "error", "error": {"type": "billing_error", "message": "Your credit balance is too low."}}, 402
    async with ProviderServer([fail(status, body=body), say("done")]) as server, session(server, wire, Watcher()) as opened:
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
        assert (failed.value.code, failed.value.retryable, len(server.requests)) == ("quota", False, 1)


CUT_AT_LIMIT = {
    "cut JSON": length(call("note", _raw='{"text": "a')),
    "valid JSON without the optional field": length(call("note", text="a")),
    "cut JSON, the reason rewritten": finish_as(length(call("note", _raw='{"text": "a')), "tool_call"),
    "half an escape": length(call("note", _raw='{"text": "caf\\u12')),
    "half an escape, the reason rewritten": finish_as(call("note", _raw='{"text": "caf\\u12'), "tool_call"),
    "one whole call and one cut": length(calls(call("note", text="a"), call("note", _raw='{"text":'))),
}


@every_wire
@pytest.mark.parametrize("fault", CUT_AT_LIMIT)
async def test_nothing_of_a_response_cut_at_the_token_limit_is_executed(wire: str, fault: str) -> None:
    """However well the calls parse: each is answered with the wish to issue it again, and the provider accepts that history."""  # case C4, C6
    host = Watcher()
    async with ProviderServer([CUT_AT_LIMIT[fault], call("note", text="again"), say("done")]) as server, session(server, wire, host) as opened:
        reply = await opened.ask()
        assert reply.kind == "cut" and host.ran == []
        answered = opened.reissue("The response was cut off. Issue this call again.")
        assert len(answered.results) == len(reply.calls)
        check(opened.messages)
        assert (await to_the_end(opened)).output == "done"
        assert host.ran == [("note", "again")]
        assert not server.refused and len(server.requests) == 3


@every_wire
async def test_a_text_cut_at_the_token_limit_says_so(wire: str) -> None:
    """Without calls it is a final text with the finish reason `length`."""
    async with ProviderServer([length("half of")]) as server, session(server, wire, Watcher()) as opened:
        reply = await opened.ask()
        assert (reply.kind, reply.text, reply.finish_reason) == ("final", "half of", "length")


@every_wire
async def test_an_empty_answer_is_dropped_and_asked_for_again(wire: str) -> None:
    """The second request is the first: nothing of the empty turn goes back to the provider."""
    async with ProviderServer([empty(), empty(), say("done")]) as server, session(server, wire, Watcher()) as opened:
        for _ in range(2):
            assert (await opened.ask()).kind == "empty"
            opened.drop()
        assert (await to_the_end(opened)).output == "done"
        assert server.requests[0].body == server.requests[1].body == server.requests[2].body


@every_wire
@pytest.mark.parametrize("text", ["\n\n", " "])
async def test_text_of_white_space_beside_calls_goes_back_in_no_refused_form(wire: str, text: str) -> None:
    """Models do say a blank line before a call; sent back as it is, some providers refuse it."""
    async with ProviderServer([calls(A_CALL, text=text), say("done")]) as server, session(server, wire, Watcher()) as opened:
        assert (await to_the_end(opened)).output == "done"
        assert not server.refused


@every_wire
async def test_a_filtered_answer_is_named(wire: str) -> None:
    """With and without text; it is neither empty nor final."""
    for text in ("I can", ""):
        async with ProviderServer([filtered(text)]) as server, session(server, wire, Watcher()) as opened:
            try:
                assert (await opened.ask()).kind == "filtered"
            except ModelFailed as failed:
                assert not failed.retryable and "filter" in failed.message.lower()


@every_wire
@pytest.mark.parametrize("ids", ["turn", "request"])
async def test_ids_that_a_provider_repeats_become_ours(wire: str, ids: Any) -> None:
    """The same id in three turns: three bodies run, each result pairs up, and even a provider that wants them unique accepts the history."""  # case C3
    host = Watcher()
    script = [call("note", "c0", text="a"), call("note", "c0", text="a"), call("note", "c0", text="b"), say("done")]
    async with ProviderServer(script, ids=ids) as server, session(server, wire, host) as opened:
        assert (await to_the_end(opened)).output == "done"
        assert [text for _, text in host.ran] == ["a", "a", "b"]
        assert not server.refused
        stored = [part.tool_call_id for message in opened.messages for part in message.parts if isinstance(part, ToolCallPart)]
        answered = [part.tool_call_id for message in opened.messages for part in message.parts if isinstance(part, ToolReturnPart)]
        assert len(set(stored)) == 3 and stored == answered


@every_wire
async def test_ids_that_come_twice_in_one_turn_are_told_apart(wire: str) -> None:
    """Both calls run, once each, and both results go back."""  # case C3
    host = Watcher()
    script = [calls(call("note", "c0", text="a"), call("note", "c0", text="b")), say("done")]
    async with ProviderServer(script) as server, session(server, wire, host) as opened:
        assert (await to_the_end(opened)).output == "done"
        assert sorted(text for _, text in host.ran) == ["a", "b"] and not server.refused


class Editor(Watcher):
    """A host whose people change the text."""

    async def decide(self, calls: Sequence[Call]) -> dict[str, Decision]:
        return {call.id: Decision(approved=True, args={"text": "theirs"}) for call in calls}


@every_wire
async def test_a_changed_input_is_told_to_the_model_in_a_form_that_every_provider_takes(wire: str) -> None:
    """The call stays in the history as the model made it; after its result stands what it ran with."""  # case B11
    host = Editor()
    async with (
        ProviderServer([calls(A_CALL, call("gated", text="first")), say("done")]) as server,
        session(server, wire, host, toolsets=[FunctionToolset([Tool(note, name="gated", requires_approval=True)])]) as opened,
    ):
        assert (await to_the_end(opened)).output == "done"
        assert host.ran[1:] == [("gated", "theirs")] and not server.refused
        told = json.dumps(server.requests[-1].body)
        assert "approved with a changed input" in told and "noted theirs" in told


@every_wire
@pytest.mark.parametrize("bad", ['{"text": 1}', '{"nothing": true}', "[1, 2]", '"text"', "no json at all", '{"text": "a"} and more'])
async def test_arguments_that_are_wrong_go_back_as_a_result(wire: str, bad: str) -> None:
    """The body does not run; the model is told, and the provider accepts the history that says so."""
    host = Watcher()
    async with ProviderServer([call("note", _raw=bad), call("note", text="b"), say("done")]) as server, session(server, wire, host) as opened:
        assert (await to_the_end(opened)).output == "done"
        assert host.ran == [("note", "b")]
        assert [each.refusal for each in server.refused] == []


@every_wire
async def test_a_failing_silent_and_unknown_tool_each_get_one_result(wire: str) -> None:
    """One raises without a word, one returns nothing, one blanks, one does not exist: each call has a result, and the next request is accepted."""  # case C1

    def silent() -> None:
        """Return nothing."""

    def blank() -> str:
        """Return an empty text."""
        return ""

    def spaces() -> str:
        """Return white space."""
        return " \n"

    def raises() -> str:
        """Raise without a message."""
        raise RuntimeError

    host = Watcher()
    batch = calls(call("silent"), call("raises"), call("blank"), call("spaces"), call("ghost", x=1), call("note", text="a"))
    async with ProviderServer([batch, say("done")]) as server:
        agent = Agent(MODELS[wire](server), tools=[note, silent, blank, spaces, raises])
        async with open_session(agent, history=[], host=host, runtime=RealRuntime(), run_id="run-1", prompt="hello") as opened:
            await opened.ask()
            answered = await opened.answer()
            assert isinstance(answered, Answered)
            assert [result.call.name for result in answered.results] == ["silent", "raises", "blank", "spaces", "ghost", "note"]
            assert (await to_the_end(opened)).output == "done"
        assert not server.refused


# -- signed thinking ------------------------------------------------------------------------------------------------------------------------------


def stored(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """The history as a checkpoint gives it back."""
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(list(messages)))


def thoughts(messages: Sequence[ModelMessage]) -> list[tuple[str, str | None]]:
    return [(part.content, part.signature) for message in messages for part in message.parts if isinstance(part, ThinkingPart)]


@pytest.mark.parametrize("wire", SIGNED)
@pytest.mark.parametrize("bound", [False, True])
async def test_signed_thinking_survives_a_checkpoint_and_a_resume_byte_for_byte(wire: str, bound: bool) -> None:
    """Resumed after the response and after the answers, by another session: the provider knows each of its blocks again."""  # case C8
    script = [
        calls(call("note", text="ä"), thinking="Erst  denken …\n\n dann"),
        calls(call("note", text="b"), thinking="und noch 1×"),
        say("done", thinking="fin"),
    ]
    async with ProviderServer(script, bind_thinking=bound) as server:
        host = Watcher()
        async with session(server, wire, host) as opened:
            await opened.ask()
            after_response = stored(opened.messages)
            await opened.answer()
            after_answers = stored(opened.messages)
            await to_the_end(opened)
            whole = thoughts(opened.messages)
        assert len(whole) == 3 and all(signature for _, signature in whole)
        for history in (after_response, after_answers):
            async with session(server, wire, host, history=history, prompt=None) as resumed:
                if history is after_response:
                    await resumed.answer()
                assert (await to_the_end(resumed)).output == "done"
                assert thoughts(resumed.messages) == whole
        assert not server.refused


@pytest.mark.parametrize("wire", SIGNED)
async def test_thinking_with_bytes_that_no_store_takes_is_dropped_whole(wire: str) -> None:
    """A NUL inside a signed block can't be mended without breaking the signature: the block goes, the turn stays valid."""  # case C8, E1
    async with (
        ProviderServer([calls(call("note", text="a"), thinking="zero \x00 byte"), say("done")]) as server,
        session(server, wire, Watcher()) as opened,
    ):
        assert (await to_the_end(opened)).output == "done"
        assert not server.refused and all("\x00" not in text for text, _ in thoughts(opened.messages))


@pytest.mark.parametrize("first", SIGNED)
@pytest.mark.parametrize("second", list(MODELS))
async def test_a_model_switch_leaves_a_history_that_the_other_provider_accepts(first: str, second: str) -> None:
    """Blocks that one provider signed never reach another one as its own."""  # case C8
    host = Watcher()
    script = [calls(call("note", text="a"), thinking="deep"), say("one", thinking="deeper")]
    async with ProviderServer(script, secret="one") as one, session(one, first, host) as opened:
        await opened.ask()
        await opened.answer()
        history = stored(opened.messages)
    async with ProviderServer([say("never"), say("two")], secret="two" if first != second else "one") as two:
        async with session(two, second, host, history=history, prompt=None) as switched:
            assert (await to_the_end(switched)).output == "two"
        assert not two.refused


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("wire", SIGNED)
async def test_signed_thinking_and_a_history_that_the_agent_compacts(wire: str, bound: bool) -> None:
    """Blocks that stand on their own go on as they are; where they are good only after the messages that were left out, there is one clean recovery."""  # case C8

    def compacted(messages: list[ModelMessage]) -> list[ModelMessage]:
        return [messages[0], *messages[-2:]] if len(messages) >= 5 else messages

    script = [calls(call("note", text=each), thinking=f"about {each}") for each in "ab"]
    async with ProviderServer(script, bind_thinking=bound) as server:
        async with session(server, wire, Watcher(), capabilities=[ProcessHistory(compacted)]) as opened:
            for _ in "ab":
                await opened.ask()
                await opened.answer()
            try:
                await opened.ask()
            except ModelFailed as refused:
                assert bound and refused.retryable
                await opened.ask()
            assert len(opened.messages) == 4, "the history is what the agent made of it"
            await opened.answer()
            check(opened.messages)
        assert len(server.refused) == (1 if bound else 0)
        assert len(thoughts(opened.messages)) == (1 if bound else 2)


async def test_thinking_that_lost_its_signature_is_not_sent_as_signed(wire: str = "anthropic") -> None:
    """It goes back as words or not at all. (OpenAI Responses would look it up by its id.)"""  # case C8
    async with ProviderServer([calls(call("note", text="a"), thinking="deep"), say("done")]) as server:
        async with session(server, wire, Watcher()) as opened:
            await opened.ask()
            await opened.answer()
            history = stored(opened.messages)
        for message in history:
            for part in message.parts:
                if isinstance(part, ThinkingPart):
                    part.signature = None
        async with session(server, wire, Watcher(), history=history, prompt=None) as resumed:
            assert (await to_the_end(resumed)).output == "done"
        assert not server.refused


@pytest.mark.parametrize("wire", SIGNED)
@pytest.mark.parametrize("change", ["words", "signature"])
async def test_thinking_that_the_provider_does_not_know_is_left_out_and_asked_for_once_more(wire: str, change: str) -> None:
    """One clean recovery: the first request is refused, the second goes without any thinking, and the turn stays valid."""  # case C8
    script = [
        calls(call("note", text="a"), thinking="deep", text="Hm."),
        calls(call("note", text="b"), thinking="deeper"),
        say("done", thinking="deepest"),
    ]
    async with ProviderServer(script) as server:
        async with session(server, wire, Watcher()) as opened:
            await opened.ask()
            await opened.answer()
            history = stored(opened.messages)
        for message in history:
            for part in message.parts:
                if isinstance(part, ThinkingPart) and change == "words":
                    part.content = "shallow"
                elif isinstance(part, ThinkingPart):
                    part.signature = "bm90IG91cnM="
        async with session(server, wire, Watcher(), history=history, prompt=None) as resumed:
            with pytest.raises(ModelFailed) as failed:
                await resumed.ask()
            assert failed.value.retryable and len(server.refused) == 1
            assert thoughts(resumed.messages) == []
            assert (await to_the_end(resumed)).output == "done"
            assert [text for text, _ in thoughts(resumed.messages)] == ["deeper", "deepest"]
        assert len(server.refused) == 1 and len(server.requests) == 4


@every_wire
async def test_a_request_that_is_refused_for_something_else_is_not_tried_again(wire: str) -> None:
    """A 400 about anything else stands, and the thinking stays where it is."""
    async with (
        ProviderServer([calls(call("note", text="a"), thinking="deep"), fail(400), say("done")]) as server,
        session(server, wire, Watcher()) as opened,
    ):
        await opened.ask()
        await opened.answer()
        before = thoughts(opened.messages)
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
        assert not failed.value.retryable and thoughts(opened.messages) == before
