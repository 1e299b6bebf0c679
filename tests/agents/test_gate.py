"""The gate at the write, and the check that a strict provider makes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from perdure.agents._gate import GateError, call_ids, check, complete, outcome_of, refusals, request, response, retried
from perdure.agents._messages import decode, encode

ASK = ModelRequest(parts=[UserPromptPart("Go.")])


def calling(*ids: str) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart("pay", {"n": 1}, tool_call_id=each) for each in ids])


def returning(*ids: str, more: Sequence[ModelRequestPart] = ()) -> ModelRequest:
    return ModelRequest(parts=[*(ToolReturnPart("pay", "ok", tool_call_id=each) for each in ids), *more])


SAID = ModelResponse(parts=[TextPart("Done.")])


@pytest.mark.parametrize(
    "history",
    [
        [ASK],
        [ASK, SAID],
        [ASK, calling("a", "b")],
        [ASK, calling("a", "b"), returning("a", "b")],
        [ASK, calling("a"), returning("a", more=[UserPromptPart("And?")]), SAID],
        [ASK, SAID, ASK, calling("a"), returning("a"), SAID],
        [ASK, ModelResponse(parts=[ThinkingPart("", signature="s", provider_name="p"), TextPart("x")])],
        [ASK, SAID, ModelRequest(parts=[RetryFeedbackPart("Again.", retry=RetryInfo(cause="no_output"))]), SAID],
    ],
)
def test_a_history_that_a_provider_takes_passes(history: list[ModelMessage]) -> None:
    """Open calls may end it: somebody will answer them."""
    check(history)


@pytest.mark.parametrize(
    ("history", "wrong"),
    [
        ([ASK, calling("a", "b"), returning("a")], "calls without a result"),
        ([ASK, calling("a"), returning("a", "b")], "results without a call"),
        ([ASK, returning("a")], "results without a call"),
        ([ASK, calling("a", "b"), returning("b", "a")], "out of order"),
        ([ASK, calling("a"), ModelRequest(parts=[UserPromptPart("x"), *returning("a").parts])], "stands before a tool result"),
        ([ASK, calling("a"), returning("a"), calling("a"), returning("a")], "was used before"),
        ([ASK, calling("a", "a")], "was used before"),
        ([ASK, calling("")], "without an id"),
        ([ASK, SAID, SAID], "a response follows a response"),
        ([SAID], "a response follows nothing"),
        ([ASK, calling("a"), ASK], "calls without a result"),
        ([ASK, ModelResponse(parts=[])], "no parts"),
        ([ModelRequest(parts=[])], "no parts"),
        ([ASK, ModelResponse(parts=[TextPart("")])], "an empty text part"),
        ([ASK, ModelResponse(parts=[ThinkingPart(""), TextPart("x")])], "an empty thinking part"),
        ([ModelRequest(parts=[UserPromptPart("")])], "an empty user-prompt part"),
        ([ModelRequest(parts=[UserPromptPart([])])], "an empty user-prompt part"),
        ([ModelRequest(parts=[SystemPromptPart(""), UserPromptPart("x")])], "an empty system-prompt part"),
        ([ASK, ModelResponse(parts=[TextPart("x\x00")])], "NUL"),
        ([ASK, ModelResponse(parts=[ToolCallPart("pay", {"deep": [{"x": "\ud800"}]}, tool_call_id="a")])], "deep"),
        ([ASK, ModelResponse(parts=[ToolCallPart("pay", {"n": float("nan")}, tool_call_id="a")])], "NaN"),
        ([ASK, calling("a"), ModelRequest(parts=[ToolReturnPart("pay", {"x": float("inf")}, tool_call_id="a")])], "infinity"),
        ([ASK, ModelResponse(parts=[TextPart("x")], state="interrupted")], "interrupted"),
        ([ASK, calling("a"), ModelRequest(parts=[ToolReturnPart("other", "ok", tool_call_id="a")])], "calls without a result"),
    ],
)
def test_what_a_strict_provider_refuses_is_named(history: list[ModelMessage], wrong: str) -> None:
    """Each with its place, so that a failing test says what to look at."""
    with pytest.raises(GateError, match=wrong) as refused:
        check(history)
    assert "message " in str(refused.value)


def test_open_calls_can_be_refused_too() -> None:
    """On the wire, nothing may be open."""
    with pytest.raises(GateError, match="without results"):
        check([ASK, calling("a")], open_calls=False)


TEXT = st.text(st.characters(codec=None, categories=["L", "N", "Cc", "Cs", "Zs", "P"]), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGS = st.none() | st.dictionaries(TEXT, JSON, max_size=3) | st.dictionaries(TEXT, JSON, max_size=3).map(json.dumps) | TEXT
RESPONSE_PARTS: st.SearchStrategy[ModelResponsePart] = st.one_of(
    TEXT.map(TextPart),
    TEXT.map(ThinkingPart),
    st.builds(lambda text, signature: ThinkingPart(text, signature=signature, provider_name="p"), TEXT, TEXT),
    st.builds(
        lambda name, args, call_id: ToolCallPart(name or "t", args, tool_call_id=call_id), TEXT, ARGS, st.sampled_from(["", "1", "2", "x\x00"]) | TEXT
    ),
)
REQUEST_EXTRAS: st.SearchStrategy[ModelRequestPart] = st.one_of(
    TEXT.map(UserPromptPart), st.lists(TEXT, max_size=3).map(UserPromptPart), TEXT.map(SystemPromptPart), TEXT.map(lambda text: RetryFeedbackPart(text, retry=RetryInfo(cause="no_output")))
)  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[list[ModelResponsePart], list[Any], list[ModelRequestPart]]]:
    """Turns as a careless provider and careless tools make them: response parts, a result for some calls, other parts."""
    turn = st.tuples(st.lists(RESPONSE_PARTS, max_size=4), st.lists(JSON, max_size=4), st.lists(REQUEST_EXTRAS, max_size=2))
    return draw(st.lists(turn, max_size=4))


@given(conversations())
def test_whatever_comes_in_what_is_stored_passes_the_check(turns: list[tuple[list[ModelResponsePart], list[Any], list[ModelRequestPart]]]) -> None:
    """Any parts, any ids, any order of results, any text: the stored history is one that providers and stores take, and it survives the bytes."""
    history: list[ModelMessage] = [ASK]
    for parts, results, extras in turns:
        said = response(ModelResponse(parts=list(parts)), call_ids(history), len(history))
        if not said.parts:
            continue  # an empty response is not stored
        history.append(said)
        calls = [part for part in said.parts if isinstance(part, ToolCallPart)]
        given = [ToolReturnPart(each.tool_name, value, tool_call_id=each.tool_call_id) for each, value in zip(reversed(calls), results, strict=False)]
        rest: list[ModelRequestPart] = [*extras, UserPromptPart("Go on.")]
        history.append(request(ModelRequest(parts=complete([*rest, *given], said))))
        check(history)
    again = [decode(encode(message)) for message in history]
    assert again == history
    check(again)


@given(ARGS)
def test_arguments_that_are_clean_stay_byte_for_byte(args: Any) -> None:
    """Only what the rule changes is changed, and once is enough."""
    once = response(ModelResponse(parts=[ToolCallPart("t", args, tool_call_id="1")]), (), 1)
    twice = response(once, (), 1)
    assert twice.parts == once.parts
    if isinstance(args, str) and args.isascii() and "\\u" not in args and "\x00" not in args and "NaN" not in args and "Infinity" not in args:
        assert once.parts[0].args == args  # type: ignore[union-attr]


def test_escapes_inside_arguments_count_as_what_they_stand_for() -> None:
    """A JSON escape of NUL is NUL; six literal characters are text."""  # case E1
    kept = response(ModelResponse(parts=[ToolCallPart("t", '{"a": "\\u0000", "b": "\\\\u0000", "c": NaN}', tool_call_id="1")]), (), 1)
    (part,) = kept.parts
    assert json.loads(part.args) == {"a": "␀", "b": "\\u0000", "c": "NaN"}  # type: ignore[union-attr]


def test_the_gate_stamps_its_own_time() -> None:
    """So that a simulated run is the same each time."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    assert response(SAID, (), 1, now).timestamp == now
    stamped = request(returning("a"), now)
    assert stamped.timestamp == now
    assert stamped.parts[0].timestamp == now  # type: ignore[union-attr]


def test_a_request_of_nothing_is_refused() -> None:
    """There would be nothing to tell the model."""
    with pytest.raises(GateError):
        request(ModelRequest(parts=[UserPromptPart("")]))


def test_counts_come_from_the_history() -> None:
    """Retries in a row by tool, refusals over all."""

    def told(*results: tuple[str, str]) -> ModelRequest:
        return ModelRequest(parts=[ToolReturnPart(name, "x", tool_call_id="i", outcome=outcome) for name, outcome in results])  # type: ignore[arg-type]

    history = [told(("a", "retried"), ("b", "success")), told(("a", "retried"), ("b", "retried")), told(("b", "failed"))]
    assert retried(history) == {"a": 2, "b": 0}
    assert retried([*history, told(("a", "success"))]) == {"a": 0, "b": 0}
    feedback = ModelRequest(parts=[RetryFeedbackPart("x", retry=RetryInfo(cause="no_output"))])
    assert refusals([*history, feedback, told(("final_result", "retried"))], {"final_result"}) == 2


def test_every_outcome_has_its_word() -> None:
    """What Pydantic AI says about a call, as we say it."""
    words = {"success": "success", "failed": "failed", "denied": "denied", "retried": "retry", "interrupted": "failed"}
    for theirs, ours in words.items():
        assert outcome_of(ToolReturnPart("t", "x", tool_call_id="1", outcome=theirs)) == ours  # type: ignore[arg-type]
    assert outcome_of(ToolReturnPart("t", "Tool not executed - a final result was already processed.", tool_call_id="1")) == "skipped"
