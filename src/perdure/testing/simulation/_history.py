"""What a strict provider would refuse: a reading of histories that shares no code with the engine's own gate."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)


def responses(messages: Sequence[ModelMessage]) -> int:
    """How many responses a history holds: the place that the next one takes, from 0."""
    return sum(isinstance(each, ModelResponse) for each in messages)


def refused(messages: Sequence[ModelMessage], *, to_send: bool) -> list[str]:
    """Why a strict provider would refuse this history: nothing means that it would not.

    `to_send` asks for more: a history that goes to the model ends on a request, with every call answered. A stored one may end on a response.
    """
    if not messages:
        return ["the history is empty"]
    faults: list[str] = []
    if not isinstance(messages[0], ModelRequest):
        faults.append("it does not begin with a request")
    open_calls: list[str] = []
    seen: set[str] = set()
    for place, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            if open_calls:
                faults.append(f"message {place}: a response while {open_calls} are not answered")
            if not message.parts:
                faults.append(f"message {place}: an empty response")
            if message.state != "complete":
                faults.append(f"message {place}: a response that is {message.state}")
            faults += [f"message {place}: an empty text" for part in message.parts if isinstance(part, TextPart) and not part.content]
            open_calls = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
            faults += [f"message {place}: call id {each!r} was used before" for each in open_calls if each in seen or open_calls.count(each) > 1]
            seen.update(open_calls)
        else:
            faults += _answers(place, message, open_calls)
            open_calls = []
    if to_send and (isinstance(messages[-1], ModelResponse) or open_calls):
        faults.append("it ends on a response")
    return faults


def _answers(place: int, request: ModelRequest, open_calls: list[str]) -> list[str]:
    """Every open call is answered exactly once, before anything else is said; nothing else is answered."""
    answers = [part.tool_call_id for part in request.parts if isinstance(part, ToolReturnPart)]
    faults = [f"message {place}: an answer to {each!r}, which is not open" for each in answers if each not in open_calls]
    faults += [f"message {place}: no answer to {each!r}" for each in open_calls if each not in answers]
    faults += [f"message {place}: {each!r} is answered twice" for each in sorted(set(answers)) if answers.count(each) > 1]
    if not request.parts and not request.instructions:
        faults.append(f"message {place}: an empty request")
    if any(isinstance(part, UserPromptPart) and not part.content for part in request.parts):
        faults.append(f"message {place}: an empty prompt")
    return faults
