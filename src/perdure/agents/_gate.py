"""The one strict gate at the write: what is stored is always acceptable to providers and to every store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    RetryFeedbackPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import ModelRequestContext


class Files(Protocol):
    """Where bytes go and come from, so that no message holds any."""

    async def fetch(self, history: Sequence[ModelMessage]) -> None: ...

    async def restore(self, request: ModelRequestContext) -> ModelRequestContext: ...

    async def settle(self, value: Any) -> Any: ...


def response(message: ModelResponse, history: Sequence[ModelMessage]) -> ModelResponse:
    return message


def request(message: ModelRequest) -> ModelRequest:
    return replace(message)


def complete(parts: Sequence[ModelRequestPart], answered: ModelResponse) -> list[ModelRequestPart]:
    """The parts with one result for each call, in the order of the calls, and the rest after them."""
    order = [part for part in answered.parts if isinstance(part, ToolCallPart)]
    found = {part.tool_call_id: part for part in parts if isinstance(part, ToolReturnPart)}
    results = [
        found.get(call.tool_call_id)
        or ToolReturnPart(call.tool_name, "Tool not executed - a final result was already processed.", tool_call_id=call.tool_call_id)
        for call in order
    ]
    return [*results, *(part for part in parts if not isinstance(part, ToolReturnPart))] if order else list(parts)


def outcome_of(part: ToolReturnPart) -> Literal["success", "failed", "denied", "retry", "skipped"]:
    if isinstance(part.content, str) and part.content.startswith(("Tool not executed - ", "Output tool not used - ", "Output not used ")):
        return "skipped"
    outcome = part.outcome
    return "retry" if outcome == "retried" else "denied" if outcome == "denied" else "success" if outcome == "success" else "failed"


def retried(history: Sequence[ModelMessage]) -> dict[str, int]:
    """How many times in a row each tool was told to try again, by the history."""
    counts: dict[str, int] = {}
    for message in history:
        if not isinstance(message, ModelRequest):
            continue
        results = [part for part in message.parts if isinstance(part, ToolReturnPart)]
        for name in {part.tool_name for part in results}:
            asked = any(part.tool_name == name and part.outcome == "retried" for part in results)
            counts[name] = counts.get(name, 0) + 1 if asked else 0
    return counts


def refusals(history: Sequence[ModelMessage], outputs: Collection[str]) -> int:
    """How often an output was refused, by the history."""
    return sum(
        isinstance(part, RetryFeedbackPart) or (isinstance(part, ToolReturnPart) and part.outcome == "retried" and part.tool_name in outputs)
        for message in history
        if isinstance(message, ModelRequest)
        for part in message.parts
    )
