"""A history with one thing changed, for a fork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart

from perdure.core import given
from perdure.core.codec import clean
from perdure.core.errors import InvalidTrigger


def edited(messages: Sequence[ModelMessage], *, message: str | None, results: Mapping[str, Any] | None) -> list[ModelMessage]:
    """The history with `message` as its last word of the user, and the results of some tool calls replaced.

    A message takes the place of the user's last one where the history ends on it, and is added to the last request otherwise.

    Raises:
        InvalidTrigger: No result in the history answers a call of that id, or there is nothing to add the message to.
    """
    changed = list(messages)
    for call_id, value in (results or {}).items():
        at = next(
            (at for at, each in enumerate(changed) if isinstance(each, ModelRequest) and any(_answers(part, call_id) for part in each.parts)), None
        )
        if at is None:
            raise InvalidTrigger(f"results: no tool call {call_id!r} is answered in this history.", field="results")
        request = changed[at]
        assert isinstance(request, ModelRequest)
        parts = [
            replace(part, content=given.plain(f"results.{call_id}", value), outcome="success")
            if isinstance(part, ToolReturnPart) and _answers(part, call_id)
            else part
            for part in request.parts
        ]
        changed[at] = replace(request, parts=parts)
    if message is not None:
        last = changed[-1] if changed else None
        said = UserPromptPart(clean(message))
        if isinstance(last, ModelRequest):
            kept = [part for part in last.parts if not isinstance(part, UserPromptPart)]
            changed[-1] = replace(last, parts=[*kept, said])
        elif last is not None and not last.tool_calls:
            changed.append(ModelRequest(parts=[said]))
        else:
            raise InvalidTrigger("message: this step's calls are not answered yet; fork from another step.", field="message")
    return changed


def _answers(part: object, call_id: str) -> bool:
    return isinstance(part, ToolReturnPart) and part.tool_call_id == call_id
