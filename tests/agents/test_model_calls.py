"""One model call: what streams, what is answered, and what a failure leaves behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, SystemPromptPart, TextPart, UserPromptPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from session_host import RUNTIME, Host, session, step, to_the_end

from perdure.agents import Answered, Finished, ModelFailed, encode
from perdure.agents._faults import retry_after
from perdure.core.errors import ExecutionError
from perdure.testing.models import ScriptedModel, StrictProvider, call, calls, cut, empty, fail, filtered, length, reset, say

pytestmark = pytest.mark.usefixtures("company")


async def test_text_and_reasoning_stream_to_the_host_while_they_come() -> None:
    """Every piece of text and of thinking is a delta of its kind, and together they are the response."""
    host = Host()
    agent = Agent(ScriptedModel([say("Nine planets, then eight.", thinking="Let me count.")], piece=4))
    async with session(agent, host) as opened:
        reply = await opened.ask()
    assert reply.kind == "final"
    assert reply.text == "Nine planets, then eight." == "".join(text for kind, text in host.deltas if kind == "text")
    assert "".join(text for kind, text in host.deltas if kind == "reasoning") == "Let me count."
    assert len(host.deltas) > 4


async def test_a_new_run_starts_with_the_system_prompt_and_the_prompt() -> None:
    """The start message is there before the model was asked anything."""
    model = ScriptedModel([say("Hello.")])
    agent = Agent(model, system_prompt="Be kind.", instructions="Be brief.")
    async with session(agent, Host(), prompt="Hi.") as opened:
        (start,) = opened.messages
        assert [type(part) for part in start.parts] == [SystemPromptPart, UserPromptPart]
        assert not model.requests
        before = encode(start)
        await opened.ask()
        assert opened.messages[0] is start
        assert encode(start) == before, "what was stored does not change behind the store's back"


async def test_a_failed_call_leaves_the_history_as_it_was_and_the_next_try_asks_the_same() -> None:
    """Errors before and inside the stream are told with all that is known, and then the same request goes out again."""
    model = ScriptedModel([fail(429, retry_after=7), reset("Half an ans"), cut("Half an answer"), fail(503), say("All of it.")])
    host = Host()
    async with session(Agent(model), host) as opened:
        start = opened.messages
        failures = []
        for _ in range(4):
            with pytest.raises(ModelFailed) as failed:
                await opened.ask()
            failures.append(failed.value)
            assert opened.messages == start
        reply = await opened.ask()
    assert [each.retryable for each in failures] == [True] * 4
    assert [each.code for each in failures] == ["model_error", "model_error", "incomplete_response", "model_error"]
    assert [each.retry_after for each in failures] == [timedelta(seconds=7), None, None, None]
    assert [each.text for each in failures] == ["", "Half an ans", "Half an answer", ""]
    assert reply.text == "All of it."
    assert host.tries == [1, 2, 3, 4, 5]
    assert [[part for message in sent for part in message.parts] for sent in model.requests] == [list(start[0].parts)] * 5


async def test_tries_are_counted_anew_for_each_model_call() -> None:
    """`try_begins` counts within one call."""
    host = Host()
    agent = Agent(ScriptedModel([fail(500), call("look"), fail(500), say("Done.")]))
    agent.tool_plain(lambda: "seen", name="look")
    async with session(agent, host) as opened:
        for _ in range(2):
            with pytest.raises(ModelFailed):
                await opened.ask()
            await step(opened)
    assert host.tries == [1, 2, 1, 2]


async def test_an_interrupted_response_never_enters_the_history() -> None:
    """A stream that broke off with a call in it leaves nothing that a resume would run."""
    agent = Agent(ScriptedModel([reset(calls(call("pay", amount=5), text="Paying")), say("No.")]))
    agent.tool_plain(lambda amount: "paid", name="pay")
    host = Host()
    async with session(agent, host) as opened:
        with pytest.raises(ModelFailed):
            await opened.ask()
        await to_the_end(opened)
        assert all(getattr(message, "state", "complete") == "complete" for message in opened.messages)
    assert not host.ran


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_an_error_that_repeats_itself_is_not_retryable(status: int) -> None:
    """The provider said no, not later."""
    async with session(Agent(ScriptedModel([fail(status), say("x")])), Host()) as opened:
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
    assert not failed.value.retryable


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_a_transient_error_is_retryable(status: int) -> None:
    """429, 5xx and the like may pass."""
    async with session(Agent(ScriptedModel([fail(status), say("x")])), Host()) as opened:
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
    assert failed.value.retryable


async def test_the_providers_own_word_about_retrying_counts_first() -> None:
    """`x-should-retry` is what the client libraries follow, too."""
    script = [fail(500, headers={"x-should-retry": "false"}), fail(400, headers={"x-should-retry": "true"}), say("x")]
    async with session(Agent(ScriptedModel(script)), Host()) as opened:
        told = []
        for _ in range(2):
            with pytest.raises(ModelFailed) as failed:
                await opened.ask()
            told.append(failed.value.retryable)
    assert told == [False, True]


NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "7"}, timedelta(seconds=7)),
        ({"Retry-After": "0"}, timedelta(0)),
        ({"retry-after-ms": "1500"}, timedelta(seconds=1.5)),
        ({"retry-after-ms": "250", "retry-after": "60"}, timedelta(seconds=0.25)),
        ({"retry-after": format_datetime(NOW + timedelta(minutes=3), usegmt=True)}, timedelta(minutes=3)),
        ({"retry-after": format_datetime(NOW - timedelta(minutes=3), usegmt=True)}, timedelta(0)),
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "99999999999"}, None),
        ({"retry-after-ms": "nan"}, None),
    ],
)
def test_the_wish_of_a_provider_is_read_in_all_its_forms(headers: dict[str, str], expected: timedelta | None) -> None:
    """Seconds, milliseconds, a date by our clock, nothing, nonsense."""  # case K4
    error = ModelHTTPError.for_category(None, status_code=429, model_name="m", headers=headers)
    assert retry_after(error, NOW) == expected


async def test_a_used_up_quota_has_its_own_code() -> None:
    """Waiting a while will not bring credits back."""
    async with session(Agent(ScriptedModel([fail(402), say("x")])), Host()) as opened:
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
    assert failed.value.code == "quota"
    assert not failed.value.retryable


async def test_what_a_failed_call_cost_is_told_as_far_as_it_is_known() -> None:
    """Nothing before the first piece; unknown, not 0, where text had come and no usage; what the provider said otherwise."""
    model = ScriptedModel([fail(500), reset("Half"), cut(say("Half", input_tokens=11, output_tokens=3, cost=Decimal("0.5"))), say("x")])
    async with session(Agent(model), Host()) as opened:
        usages = []
        for _ in range(3):
            with pytest.raises(ModelFailed) as failed:
                await opened.ask()
            usages.append(failed.value.usage)
    assert [usage.requests for usage in usages] == [1, 1, 1]
    assert [usage.cost for usage in usages] == [0, None, Decimal("0.5")]
    assert usages[2].input_tokens == 11


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (say("Hello."), "final"),
        (call("look", at="x"), "calls"),
        (calls(call("look", at="x"), text="Looking."), "calls"),
        (length(call("look", at="x")), "cut"),
        (length(call("look", _raw='{"at": "x')), "cut"),
        (call("look", _raw='{"at": "x'), "cut"),
        (call("look", _raw='{"at": "caf\\u00'), "cut"),
        (call("look", _raw='{"at": nope}'), "calls"),
        (length("Half a sen"), "final"),
        (empty(), "empty"),
        (say("", thinking="Hm."), "empty"),
        (filtered("I w"), "filtered"),
        (filtered(), "filtered"),
    ],
)
async def test_what_one_response_comes_to(reply: Any, kind: str) -> None:
    """Cut arguments count as cut whatever reason the provider gave; malformed ones are the model's mistake."""  # case C4, C6
    agent = Agent(ScriptedModel([reply, say("Done.")]))
    agent.tool_plain(lambda at: "seen", name="look")
    async with session(agent, Host()) as opened:
        assert (await opened.ask()).kind == kind


async def test_no_call_of_a_cut_response_runs_when_it_is_reissued() -> None:
    """Each gets the same answer, the history stays valid, and the model is asked again."""  # case C4
    model = StrictProvider(ScriptedModel([length(calls(call("pay", amount=1), call("pay", amount=2))), say("Then not.")]))
    agent = Agent(model)
    agent.tool_plain(lambda amount: "paid", name="pay")
    host = Host()
    async with session(agent, host) as opened:
        await opened.ask()
        answered = opened.reissue("Issue it again.")
        assert [(each.call.position, each.outcome, each.content) for each in answered.results] == [
            (0, "failed", "Issue it again."),
            (1, "failed", "Issue it again."),
        ]
        assert (await to_the_end(opened)).output == "Then not."
    assert not host.ran
    assert not model.refusals


async def test_an_empty_response_can_be_dropped_and_asked_again() -> None:
    """It leaves no trace in the history, and none on the wire."""
    model = StrictProvider(ScriptedModel([empty(), empty(), say("Now.")]))
    async with session(Agent(model), Host()) as opened:
        for _ in range(2):
            assert (await opened.ask()).kind == "empty"
            opened.drop()
            assert len(opened.messages) == 1
        assert (await to_the_end(opened)).output == "Now."
    assert not model.refusals


async def test_models_without_a_wire_need_no_finish_part() -> None:
    """FunctionModel and TestModel never give a reason; what they say is whole."""

    async def said(messages: Any, info: Any) -> Any:
        yield "From a function."

    for model, text in ((FunctionModel(stream_function=said), "From a function."), (TestModel(custom_output_text="From a test."), "From a test.")):
        async with session(Agent(model), Host()) as opened:
            assert (await to_the_end(opened)).output == text


async def test_a_fallback_model_that_failed_altogether_is_one_failure() -> None:
    """Retryable if any of its models is, and the earliest wish counts."""
    model = FallbackModel(ScriptedModel([fail(429, retry_after=30), say("x")]), ScriptedModel([fail(503, retry_after=5), say("y")]))
    async with session(Agent(model), Host()) as opened:
        with pytest.raises(ModelFailed) as failed:
            await opened.ask()
    assert failed.value.retryable
    assert failed.value.retry_after == timedelta(seconds=5)


async def test_a_response_that_a_hook_refuses_goes_back_to_the_model() -> None:
    """A guardrail of the user's may ask for another response; that is a refused answer like any other."""

    class Guard(AbstractCapability[Any]):
        async def after_model_request(self, ctx: Any, *, request_context: Any, response: ModelResponse) -> ModelResponse:
            if any(isinstance(part, TextPart) and "secret" in part.content for part in response.parts):
                raise ModelRetry("Leave the secret out.")
            return response

    model = StrictProvider(ScriptedModel([say("The secret is 7."), say("I can't say.")]))
    async with session(Agent(model, capabilities=[Guard()]), Host()) as opened:
        reply, answered = await step(opened)
        assert reply.text == "The secret is 7."
        assert isinstance(answered, Answered)
        assert answered.refused
        assert (await to_the_end(opened)).output == "I can't say."
    assert not model.refusals


async def test_instructions_and_toolsets_that_raise_fail_the_set_up() -> None:
    """Not a model error: asking again would not help."""

    class Broken(AbstractCapability[Any]):
        async def for_run(self, ctx: Any) -> Any:
            raise ValueError("no such tenant")

    with pytest.raises(ExecutionError, match="no such tenant") as failed:
        async with session(Agent(ScriptedModel([]), capabilities=[Broken()]), Host()):
            pass
    assert failed.value.code == "setup_failed"


async def test_the_client_librarys_retries_are_off_for_models_that_know_the_setting() -> None:
    """Behind wrappers and fallbacks too; a model without the setting is not told, so it does not warn."""

    class Deaf(ScriptedModel):
        unsupported_settings = frozenset({"max_retries"})

    known, deaf = ScriptedModel([say("x")]), Deaf([say("x")])
    for model in (
        known,
        WrapperModel(ScriptedModel([say("x")])),
        FallbackModel(ScriptedModel([say("x")]), Deaf([say("x")])),
        deaf,
        WrapperModel(deaf),
    ):
        async with session(Agent(model), Host()) as opened:
            await opened.ask()
    assert known.settings_seen == [{"max_retries": 0}]
    assert all("max_retries" not in (each or {}) for each in deaf.settings_seen)


async def test_no_request_limit_of_pydantic_ai_ends_a_run() -> None:
    """Its default would, after fifty requests."""
    agent = Agent(ScriptedModel(lambda messages: say("Done.") if len(messages) > 120 else call("look")))
    agent.tool_plain(lambda: "seen", name="look")
    async with session(agent, Host()) as opened:
        finished = await to_the_end(opened, most=80)
    assert isinstance(finished, Finished)
    assert RUNTIME.now() is not None
