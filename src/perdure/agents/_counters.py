"""How often in a row something happened, computed from what is stored: a crash neither resets nor doubles it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

from perdure.core.limits import REPEATED_CALLS_MAX
from perdure.core.step import ABORTED, Step


def in_a_row(steps: Sequence[Step], reason: str) -> int:
    """How many of the last llm steps, counted back from the newest, ended with this finish reason. Calls that were cut off from here say nothing."""
    count = 0
    for step in reversed(steps):
        if step.row.finish_reason == ABORTED:
            continue
        if step.row.finish_reason != reason:
            break
        count += 1
    return count


def looping(messages: Sequence[ModelMessage], most: int = REPEATED_CALLS_MAX) -> str | None:
    """The name of the repeated call, when the last responses ask for the same again and again (A-A-A or A-B-A-B), else None."""
    rounds: list[list[tuple[str, Any]]] = []
    periods = [1, 2]
    for message in reversed(messages):
        if not isinstance(message, ModelResponse):
            continue
        calls = [(part.tool_name, _arguments(part)) for part in message.parts if isinstance(part, ToolCallPart)]
        if not calls:
            return None
        rounds.append(calls)
        at = len(rounds) - 1
        # Most runs differ within two or three rounds, so the look back ends there.
        periods = [period for period in periods if rounds[at] == rounds[at % period]]
        if not periods:
            return None
        if any(len(rounds) == most * period for period in periods):
            return rounds[0][0][0]
    return None


def _arguments(call: ToolCallPart) -> Any:
    try:
        return call.args_as_dict()
    except Exception:
        return call.args
