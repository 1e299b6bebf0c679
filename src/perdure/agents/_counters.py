"""How often in a row something happened, computed from what is stored: a crash neither resets nor doubles it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

from perdure.core.limits import REPEATED_CALLS_MAX
from perdure.core.step import Step


def in_a_row(steps: Sequence[Step], reason: str) -> int:
    """How many of the last llm steps, counted back from the newest, ended with this finish reason."""
    count = 0
    for step in reversed(steps):
        if step.row.finish_reason != reason:
            break
        count += 1
    return count


def looping(messages: Sequence[ModelMessage], most: int = REPEATED_CALLS_MAX) -> str | None:
    """The name of the repeated call, when the last responses ask for the same again and again (A-A-A or A-B-A-B), else None."""
    rounds: list[str] = []
    name = ""
    for message in reversed(messages):
        if not isinstance(message, ModelResponse):
            continue
        calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
        if not calls or len(rounds) >= 2 * most:
            break
        rounds.append(json.dumps([(call.tool_name, _arguments(call)) for call in calls], sort_keys=True, default=str))
        name = name or calls[0].tool_name
    for period in (1, 2):
        window = rounds[: most * period]
        if len(window) == most * period and all(window[at] == window[at % period] for at in range(len(window))):
            return name
    return None


def _arguments(call: ToolCallPart) -> Any:
    try:
        return call.args_as_dict()
    except Exception:
        return call.args
