"""Sessions over a stored history, whatever it ends on."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.messages import ModelMessage, SystemPromptPart, UserPromptPart
from session_host import Host, Parked, session, step, to_the_end

from perdure.agents import Answered, Decision, Finished, ModelFailed, decode, encode
from perdure.agents._gate import check
from perdure.core.errors import ExecutionError
from perdure.testing.models import ScriptedModel, StrictProvider, call, calls, empty, fail, length, say

pytestmark = pytest.mark.usefixtures("company")


class Answer(BaseModel):
    value: int


def stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    """What a store gives back."""
    return [decode(encode(message)) for message in messages]


async def history_of(agent: Agent[Any, Any], steps: float, host: Host | None = None) -> list[ModelMessage]:
    """The history after so many steps; a half means that the response is not answered."""
    async with session(agent, host or Host()) as opened:
        for _ in range(int(steps)):
            await step(opened)
        if steps % 1:
            await opened.ask()
        return stored(opened.messages)


@pytest.mark.parametrize("instructions", [None, "Be brief."])
async def test_a_history_that_ends_on_a_text_is_settled_without_a_model_call(instructions: str | None) -> None:
    """A fork or an old checkpoint: the output is processed again, nobody is asked, nothing is added."""
    model = ScriptedModel([say("The answer.")])
    agent = Agent(model, instructions=instructions)
    history = await history_of(agent, 0.5)
    asked = len(model.requests)
    host = Host()
    async with session(agent, host, history) as opened:
        assert await opened.calls() == ()
        finished = await opened.answer()
        assert opened.messages == history
    assert isinstance(finished, Finished)
    assert finished.output == "The answer."
    assert len(model.requests) == asked
    assert not host.tries


async def test_a_stored_text_whose_output_is_refused_asks_the_model() -> None:
    """The validator changed its mind meanwhile: the refusal is answered, and the model is asked next."""
    model = StrictProvider(ScriptedModel([say("short"), say("a longer answer")]))
    agent = Agent(model)
    history = await history_of(agent, 0.5)

    @agent.output_validator
    def longer(text: str) -> str:
        if len(text) < 10:
            raise ModelRetry("Longer.")
        return text

    async with session(agent, Host(), history) as opened:
        answered = await opened.answer()
        assert isinstance(answered, Answered)
        assert answered.refused
        assert answered.results == ()
        assert (await to_the_end(opened)).output == "a longer answer"
    assert not model.refusals


async def test_a_history_that_ends_on_calls_runs_them_without_a_model_call() -> None:
    """All of them, through the host; the ones whose answer is known are not made again."""
    model = StrictProvider(ScriptedModel([calls(call("pay", n=1), call("pay", n=2)), say("Done.")]))
    agent = Agent(model, instructions="Be brief.", system_prompt="Be kind.")
    paid: list[int] = []
    agent.tool_plain(lambda n: paid.append(n), name="pay")
    history = await history_of(agent, 0.5)
    host = Host(known={0: "paid before"})
    async with session(agent, host, history) as opened:
        assert [(each.position, each.name, each.args, each.known) for each in await opened.calls()] == [
            (0, "pay", {"n": 1}, True),
            (1, "pay", {"n": 2}, True),
        ]
        assert not paid
        answered = await opened.answer()
        assert [each.content for each in answered.results] == ["paid before", "(nothing)"]
        assert opened.messages[: len(history)] == history
        assert (await to_the_end(opened)).output == "Done."
        check(opened.messages)
    assert paid == [2]
    assert model.requests == 2
    assert not model.refusals


async def test_the_calls_of_a_stored_response_say_which_tools_are_gone() -> None:
    """An open call whose tool is gone is somebody's decision, not a result."""
    agent = Agent(ScriptedModel([calls(call("old"), call("final_result", value=1))]), output_type=Answer)
    agent.tool_plain(lambda: "x", name="old")
    history = await history_of(agent, 0.5)
    after = Agent(ScriptedModel([]), output_type=Answer)
    async with session(after, Host(), history) as opened:
        assert [(each.name, each.known, each.output) for each in await opened.calls()] == [("old", False, False), ("final_result", True, True)]


async def test_a_history_that_ends_on_results_asks_the_model_and_adds_nothing() -> None:
    """The next request is the one that was stored, instructions anew."""
    model = StrictProvider(ScriptedModel([call("look"), say("Done.")]))
    agent = Agent(model, instructions="Be brief.")
    agent.tool_plain(lambda: "seen", name="look")
    history = await history_of(agent, 1)
    async with session(agent, Host(), history) as opened:
        assert await opened.calls() == ()
        assert opened.messages == history
        assert (await to_the_end(opened)).output == "Done."
        assert opened.messages[:-1] == history
    assert not model.refusals


async def test_an_output_tool_is_processed_again_from_a_stored_response() -> None:
    """Its history ends on the result that says so; the output is the same."""
    agent = Agent(ScriptedModel([call("final_result", value=4)]), output_type=Answer)
    history = await history_of(agent, 0.5)
    async with session(agent, Host(), history) as opened:
        finished = await opened.answer()
        assert isinstance(finished, Finished)
        assert (finished.output, finished.output_json) == (Answer(value=4), {"value": 4})
        assert [each.outcome for each in finished.results] == ["success"]
        assert len(opened.messages) == len(history) + 1
        check(opened.messages)


async def test_stored_messages_stay_the_objects_that_they_were() -> None:
    """Whoever stores the history sees by identity what a step added; nothing is written twice."""
    agent = Agent(ScriptedModel([call("look") for _ in range(4)] + [say("Done.")]), instructions="Be brief.", system_prompt="Be kind.")
    agent.tool_plain(lambda: "seen", name="look")
    seen: list[ModelMessage] = []
    written: list[bytes] = []
    async with session(agent, Host()) as opened:

        def look() -> None:
            now = opened.messages
            assert all(new is old for new, old in zip(now, seen, strict=False))
            seen[:] = now
            assert [encode(each) for each in now[: len(written)]] == written, "what was stored is never changed in place"
            written[:] = [encode(each) for each in now]

        for _ in range(5):
            await opened.ask()
            look()
            await opened.answer()
            look()
    assert len(written) == 10


async def test_a_new_session_over_a_history_keeps_its_messages_too() -> None:
    """Opening, asking and answering add to it, and that is all."""
    agent = Agent(ScriptedModel([call("look"), call("look"), say("Done.")]), system_prompt="Be kind.")
    agent.tool_plain(lambda: "seen", name="look")
    for steps in (0.5, 1, 1.5, 2):
        history = await history_of(agent, steps)
        async with session(agent, Host(), history) as opened:
            if steps % 1:
                await opened.answer()
            await opened.ask()
            now = opened.messages
            assert all(new is old for new, old in zip(now, history, strict=False))


async def test_a_history_that_the_agents_own_hook_rewrites_is_taken_over() -> None:
    """Compaction by the agent: the history is what it made of it, and a new base is written from the first difference on."""

    class Compacts(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            if len(ctx.messages) >= 5:
                kept = [ctx.messages[0], *ctx.messages[-2:]]
                ctx.messages[:] = kept
                request_context.messages = list(kept)
            return request_context

    model = StrictProvider(ScriptedModel(lambda messages: say("Done.") if len(messages) >= 5 else call("look")))
    agent = Agent(model, capabilities=[Compacts(), ProcessHistory(lambda messages: messages)])
    agent.tool_plain(lambda: "seen", name="look")
    lengths = []
    async with session(agent, Host()) as opened:
        for _ in range(4):
            await step(opened)
            lengths.append(len(opened.messages))
            check(opened.messages)
    assert lengths == [3, 5, 5, 5]
    assert not model.refusals


async def test_repeated_call_ids_of_a_provider_become_ours() -> None:
    """In the call and in its result, in one response and over the run; ours stay as they are over a resume."""  # case C3
    model = StrictProvider(ScriptedModel([calls(call("pay", _id="1", n=1), call("pay", _id="1", n=2)), call("pay", _id="1", n=3), say("Done.")]))
    agent = Agent(model)
    paid: list[int] = []
    agent.tool_plain(lambda n: paid.append(n), name="pay")
    async with session(agent, Host()) as opened:
        first = (await step(opened))[0]
        await opened.ask()
        history = stored(opened.messages)
    assert [each.id for each in first.calls] == ["1", "call_1_1"]
    async with session(agent, Host(), history) as opened:
        assert [each.id for each in await opened.calls()] == ["call_3_0"]
        answered = await opened.answer()
        assert [part.tool_call_id for part in answered.request.parts] == ["call_3_0"]
        await to_the_end(opened)
        check(opened.messages)
    assert sorted(paid) == [1, 2, 3]
    assert not model.refusals


async def test_signed_thinking_goes_back_byte_for_byte() -> None:
    """Through checkpoint and resume; a block that could not be stored so is dropped whole, and the turn stays valid."""  # case C8
    script = [
        calls(call("look"), thinking="Ünï — codé  \n", signature="sig-1"),
        calls(call("look"), thinking="broken \x00", signature="sig-2"),
        say("Done."),
    ]
    model = StrictProvider(ScriptedModel(script))
    agent = Agent(model)
    agent.tool_plain(lambda: "seen", name="look")
    history = await history_of(agent, 1)
    async with session(agent, Host(), history) as opened:
        await step(opened)
        assert (await to_the_end(opened)).output == "Done."
        kept = [part.content for message in opened.messages for part in message.parts if part.part_kind == "thinking"]
    assert kept == ["Ünï — codé  \n"]
    assert not model.refusals


async def test_thinking_that_a_provider_refuses_is_dropped_whole_and_the_request_goes_out_once_more() -> None:
    """Not the same body again: one clean recovery, and the history is rid of the blocks."""  # case C8
    script = [calls(call("look"), thinking="Of another key.", signature="theirs"), say("Done.")]
    agent = Agent(ScriptedModel(script))
    agent.tool_plain(lambda: "seen", name="look")
    history = await history_of(agent, 1)
    strict = StrictProvider(ScriptedModel(script))
    async with session(agent, Host(), history, model=strict) as opened:
        with pytest.raises(ModelFailed) as refused:
            await opened.ask()
        assert refused.value.retryable
        assert not any(part.part_kind == "thinking" for message in opened.messages for part in message.parts)
        assert (await to_the_end(opened)).output == "Done."
        check(opened.messages)
    assert (strict.requests, len(strict.refusals)) == (2, 1)


async def test_a_refusal_for_another_reason_is_not_tried_again() -> None:
    """Nor one about thinking where there is none to drop."""
    agent = Agent(ScriptedModel([fail(400, body={"error": "thinking.signature: invalid"}), say("x")]))
    async with session(agent, Host()) as opened:
        with pytest.raises(ModelFailed) as refused:
            await opened.ask()
    assert not refused.value.retryable


async def test_nul_in_a_models_text_and_arguments_follows_the_rule() -> None:
    """What is stored is what is sent next; the six literal characters stay."""  # case E1
    model = StrictProvider(ScriptedModel([calls(call("note", text="a\x00b", literal="\\u0000"), text="Say \x00 and \ud800."), say("Done.")]))
    agent = Agent(model)
    noted: list[tuple[str, str]] = []
    agent.tool_plain(lambda text, literal: noted.append((text, literal)), name="note")
    async with session(agent, Host()) as opened:
        reply, _ = await step(opened)
        await to_the_end(opened)
        check(opened.messages)
    assert reply.text == "Say ␀ and �."
    assert noted == [("a␀b", "\\u0000")]
    assert not model.refusals


async def test_a_thread_that_ends_on_an_output_tools_result_takes_a_new_prompt() -> None:
    """Providers want one request there, not two; the thread's messages stay, and the system prompt is not said again."""
    model = StrictProvider(ScriptedModel([call("final_result", value=1), call("final_result", value=2)]))
    agent = Agent(model, output_type=Answer, system_prompt="Be kind.")
    thread = await history_of(agent, 1)
    async with session(agent, Host(), thread, prompt="And now?", since=len(thread)) as opened:
        start = opened.messages
        assert start[: len(thread) - 1] == thread[:-1]
        assert isinstance(start[-1].parts[-1], UserPromptPart)
        assert (await to_the_end(opened)).output == Answer(value=2)
        check(opened.messages)
        assert sum(isinstance(part, SystemPromptPart) for message in opened.messages for part in message.parts) == 1
    assert not model.refusals


async def test_what_lies_before_the_run_counts_for_no_retries() -> None:
    """A thread's old refusals are not this run's."""
    agent = Agent(ScriptedModel([say("bad"), say("good enough"), say("bad"), say("good enough")]), retries={"output": 1})

    @agent.output_validator
    def longer(text: str) -> str:
        if len(text) < 5:
            raise ModelRetry("Longer.")
        return text

    async with session(agent, Host()) as opened:
        await to_the_end(opened)
        thread = opened.messages
    async with session(agent, Host(), thread, prompt="Again.", since=len(thread)) as opened:
        assert (await to_the_end(opened)).output == "good enough"


async def test_a_pending_call_of_a_loaded_history_is_left_alone_by_every_repair() -> None:
    """An approval still waits for it."""  # case C10
    agent = Agent(ScriptedModel([call("refund"), say("Done.")]))
    agent.tool_plain(lambda: "refunded", name="refund", requires_approval=True)
    history = await history_of(agent, 0.5)
    for _ in range(3):
        async with session(agent, Host(), history) as opened:
            with pytest.raises(Parked):
                await opened.answer()
            assert opened.messages == history
    async with session(agent, Host({"refund": Decision(True)}), history) as opened:
        assert (await opened.answer()).results[0].content == "refunded"


async def test_a_native_output_that_was_cut_fails_with_the_limits_code() -> None:
    """Asking again with the same limit would only run into it again."""
    agent = Agent(ScriptedModel([length('{"value": 1')]), output_type=NativeOutput(Answer))
    async with session(agent, Host()) as opened:
        assert (await opened.ask()).kind == "final"
        with pytest.raises(ExecutionError) as failed:
            await opened.answer()
    assert failed.value.code == "length_cut"


async def test_an_empty_answer_is_final_where_the_output_may_be_nothing() -> None:
    """`str | None`: having nothing to say is an output."""
    agent: Agent[None, str | None] = Agent(ScriptedModel([call("look"), empty()]), output_type=str | None)  # type: ignore[arg-type]
    agent.tool_plain(lambda: "seen", name="look")
    async with session(agent, Host()) as opened:
        await step(opened)
        reply = await opened.ask()
        assert reply.kind == "final"
