"""What one response comes to: pure, from the response alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import pydantic_core
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart

from perdure.agents._turn import Call, ReplyKind


def kind_of(response: ModelResponse, calls: Sequence[Call], *, output_type: Any = str) -> ReplyKind:
    """See `ReplyKind`. A response whose last call's arguments break off in the middle is cut, whatever reason the provider gave."""
    if response.finish_reason == "content_filter":
        return "filtered"
    if calls:
        if response.finish_reason == "length" or any(_breaks_off(part) for part in response.parts):
            return "cut"
        return "final" if all(call.output for call in calls) else "calls"
    if all(isinstance(part, (TextPart, ThinkingPart)) and not (isinstance(part, TextPart) and part.content.strip()) for part in response.parts):
        return "final" if _allows_none(output_type) and response.finish_reason != "length" else "empty"
    return "final"


def _breaks_off(part: object) -> bool:
    if not isinstance(part, ToolCallPart) or not isinstance(part.args, str) or not part.args.strip():
        return False
    try:
        pydantic_core.from_json(part.args)
    except ValueError as error:
        # Half an escape ends with its own words; malformed JSON that is whole is the model's mistake, and it gets a retry.
        return "EOF" in str(error) or _half_escape(part.args)
    return False


def _half_escape(text: str) -> bool:
    slash = text.rfind("\\")
    return slash >= 0 and (text[slash:] == "\\" or (text[slash + 1] == "u" and len(text) - slash < 6))


def _allows_none(output_type: Any) -> bool:
    if output_type is None or output_type is NoneType:
        return True
    if isinstance(output_type, (list, tuple)):
        return any(_allows_none(each) for each in output_type)  # pyright: ignore[reportUnknownVariableType]
    if get_origin(output_type) in (Union, UnionType):
        return any(_allows_none(each) for each in get_args(output_type))
    return False
