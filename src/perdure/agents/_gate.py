"""The one strict gate at the write: what is stored is always acceptable to providers and to every store.

Calls and results pair one to one and in order. Ids are unique in a history: where a provider repeats its own, ours takes its place, in the call and in its result. Text
follows the rule of `core.codec` everywhere. A signed thinking block is kept byte for byte or dropped whole. Nothing is empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, cast

from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    RetryFeedbackPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    is_multi_modal_content,
)

from perdure.core.codec import clean, clean_text, dump

SKIPPED: Final = "Tool not executed - a final result was already processed."
NOTHING: Final = "(nothing)"
"""What stands where a tool returned nothing, or a text without a word: some providers refuse empty content."""

_BAD: Final = re.compile("[\x00\ud800-\udfff]")
_ID: Final = re.compile(r"[^\x00-\x20\x7f-\x9f\ud800-\udfff]{1,256}\Z")


class GateError(AssertionError):
    """A history that a strict provider or store would refuse; says where."""


# ── what goes in ─────────────────────────────────────────────────────────────────────────────────────────────


def response(message: ModelResponse, used: Collection[str], place: int, now: datetime | None = None) -> ModelResponse:
    """A model's response as it is stored.

    Args:
        used: Every call id that the history holds already.
        place: The message's place in the history: our ids are made of it.
        now: Its time, where it is not its own.
    """
    if any(isinstance(part, ThinkingPart) and _signed(part) and not _whole(part) for part in message.parts):
        message = without_thinking(message)
    parts: list[ModelResponsePart] = []
    taken: set[str] = set()
    calls = 0
    called = any(isinstance(part, ToolCallPart) for part in message.parts)
    for part in message.parts:
        kept = _response_part(part)
        # Models say a blank line before a call now and then, and some providers refuse to read it again.
        if kept is None or (called and isinstance(kept, TextPart) and not kept.content.strip()):
            continue
        if isinstance(kept, ToolCallPart):
            if kept.tool_call_id in used or kept.tool_call_id in taken or not _ID.match(kept.tool_call_id):
                kept = replace(kept, tool_call_id=_our_id(place, calls, used, taken))
            taken.add(kept.tool_call_id)
            calls += 1
        parts.append(kept)
    changes: dict[str, Any] = {"parts": parts}
    if message.provider_details is not None:
        changes["provider_details"] = clean(message.provider_details)
    if message.metadata is not None:
        changes["metadata"] = clean(message.metadata)
    if now is not None:
        changes["timestamp"] = now
    return replace(message, **changes)


def _our_id(place: int, position: int, used: Collection[str], taken: Collection[str]) -> str:
    made = f"call_{place}_{position}"
    extra = 0
    while made in used or made in taken:
        extra += 1
        made = f"call_{place}_{position}_{extra}"
    return made


def _response_part(part: ModelResponsePart) -> ModelResponsePart | None:
    if isinstance(part, TextPart):
        if not part.content and not part.id and not part.provider_details:
            return None
        return _cleaned(part)
    if isinstance(part, ThinkingPart):
        if _signed(part):
            return part
        if not part.content and not part.id:
            return None
        return _cleaned(part)
    if isinstance(part, ToolCallPart):
        args = _arguments(part.args)
        kept = part if args is part.args else replace(part, args=args)
        return kept if _ok_text(kept.tool_name) else replace(kept, tool_name=clean_text(kept.tool_name))
    if isinstance(part, FilePart):
        return part if part.content.data else None
    return _cleaned(part)


def _signed(part: ThinkingPart) -> bool:
    return part.signature is not None or bool(part.provider_details)


def _whole(part: ThinkingPart) -> bool:
    """Whether a signed block can be kept. It is signed over its bytes: it goes back as it came, or not at all."""
    return _acceptable([part.content, part.signature, part.id, part.provider_details])


def without_thinking(message: ModelResponse) -> ModelResponse:
    """The response without its thinking, and without the provider's ids on the rest: by those, OpenAI asks for the thinking before it."""
    parts: list[ModelResponsePart] = []
    for part in message.parts:
        if isinstance(part, (TextPart, ToolCallPart)):
            parts.append(replace(part, id=None) if part.id else part)
        elif not isinstance(part, ThinkingPart):
            parts.append(part)
    return replace(message, parts=parts or [TextPart(NOTHING)])


def _arguments(args: Any) -> Any:
    """Arguments that parse are clean data, kept as text byte for byte where they are so already; what does not parse is clean text."""
    if args is None:
        return None
    if not isinstance(args, str):
        return clean(args)
    try:
        parsed = json.loads(args, strict=False)
        kept = clean(parsed)
    except (ValueError, RecursionError):
        return clean_text(args)
    return args if kept == parsed and _ok_text(args) else dump(kept)


def request(message: ModelRequest, now: datetime | None = None) -> ModelRequest:
    """A request as it is stored: what goes to the model next.

    Raises:
        UnserializableError: Something in it has no JSON form.
        GateError: Nothing is left of it.
    """
    parts = [kept for part in message.parts if (kept := _request_part(part, now)) is not None]
    if not parts:
        raise GateError("A request without any part: there is nothing to tell the model.")
    changes: dict[str, Any] = {"parts": parts}
    if message.metadata is not None:
        changes["metadata"] = clean(message.metadata)
    if now is not None:
        changes["timestamp"] = now
    return replace(message, **changes)


def _request_part(part: ModelRequestPart, now: datetime | None) -> ModelRequestPart | None:
    stamp: dict[str, Any] = {"timestamp": now} if now is not None and hasattr(part, "timestamp") else {}
    if isinstance(part, ToolReturnPart):
        content = _content(part.content)
        if content is None or (isinstance(content, str) and not content.strip()):
            content = NOTHING if part.outcome == "success" else part.outcome
        metadata = part.metadata if part.metadata is None else clean(part.metadata)
        return replace(part, content=content, metadata=metadata, **stamp)
    if isinstance(part, UserPromptPart):
        if isinstance(part.content, str):
            return replace(part, content=clean_text(part.content), **stamp) if part.content else None
        items = [clean_text(item) if isinstance(item, str) else item for item in part.content if item != ""]
        return replace(part, content=items, **stamp) if items else None
    if isinstance(part, SystemPromptPart):
        return replace(part, content=clean_text(part.content), **stamp) if part.content else None
    if isinstance(part, RetryFeedbackPart):
        content = clean_text(part.content) if isinstance(part.content, str) else clean(part.content)
        return replace(part, content=content or "The response could not be used.", **stamp)
    return part


def _content(value: Any) -> Any:
    """A tool's content: plain data, with file parts left as they are."""
    if is_multi_modal_content(value):
        return value
    if isinstance(value, Mapping):
        return {clean_text(str(name)): _content(each) for name, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_content(each) for each in cast("Sequence[Any]", value)]
    return clean(value)


def _cleaned(part: Any) -> Any:
    """A part whose own text fields follow the rule. Most have nothing to change and stay the object that they are."""
    changes: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, str):
            if not _ok_text(value):
                changes[each.name] = clean_text(value)
        elif isinstance(value, (dict, list)) and not _acceptable(value):
            changes[each.name] = clean(value)
    return replace(part, **changes) if changes else part


def complete(parts: Sequence[ModelRequestPart], answered: ModelResponse) -> list[ModelRequestPart]:
    """The parts with one result for each call, in the order of the calls, and the rest after them."""
    order = [part for part in answered.parts if isinstance(part, ToolCallPart)]
    if not order:
        return list(parts)
    found = {part.tool_call_id: part for part in parts if isinstance(part, ToolReturnPart)}
    results = [found.get(call.tool_call_id) or ToolReturnPart(call.tool_name, SKIPPED, tool_call_id=call.tool_call_id) for call in order]
    return [*results, *(part for part in parts if not isinstance(part, ToolReturnPart))]


# ── what is there ────────────────────────────────────────────────────────────────────────────────────────────


def call_ids(history: Iterable[ModelMessage]) -> set[str]:
    """Every call id in the history."""
    return {
        part.tool_call_id for message in history if isinstance(message, ModelResponse) for part in message.parts if isinstance(part, ToolCallPart)
    }


def outcome_of(part: ToolReturnPart) -> Literal["success", "failed", "denied", "retry", "skipped"]:
    """How a call was answered."""
    if isinstance(part.content, str) and part.content.startswith(("Tool not executed - ", "Output tool not used - ", "Output not used ")):
        return "skipped"
    outcome = part.outcome
    return "retry" if outcome == "retried" else "denied" if outcome == "denied" else "success" if outcome == "success" else "failed"


def retried(history: Iterable[ModelMessage], counts: Mapping[str, int] | None = None) -> dict[str, int]:
    """How many times in a row each tool was told to try again, by the history; `counts` is what the history before it came to."""
    now = dict(counts or {})
    for message in history:
        if not isinstance(message, ModelRequest):
            continue
        results = [part for part in message.parts if isinstance(part, ToolReturnPart)]
        for name in {part.tool_name for part in results}:
            asked = any(part.tool_name == name and part.outcome == "retried" for part in results)
            now[name] = now.get(name, 0) + 1 if asked else 0
    return now


def refusals(history: Iterable[ModelMessage], outputs: Collection[str]) -> int:
    """How often an output was refused, by the history."""
    return sum(
        isinstance(part, RetryFeedbackPart) or (isinstance(part, ToolReturnPart) and part.outcome == "retried" and part.tool_name in outputs)
        for message in history
        if isinstance(message, ModelRequest)
        for part in message.parts
    )


# ── the check ────────────────────────────────────────────────────────────────────────────────────────────────


def check(history: Sequence[ModelMessage], *, open_calls: bool = True) -> None:
    """Read a history as a strict provider does.

    Args:
        open_calls: Whether the last message may be a response whose calls nobody has answered yet.

    Raises:
        GateError: The first thing wrong, and where.
    """
    seen: set[str] = set()
    for at, message in enumerate(history):
        before = history[at - 1] if at else None
        if isinstance(message, ModelResponse):
            if not isinstance(before, ModelRequest):
                raise GateError(f"message {at}: a response follows {'nothing' if before is None else 'a response'}")
            _check_response(at, message, seen)
            if _calls(message) and at + 1 == len(history) and not open_calls:
                raise GateError(f"message {at}: calls without results at the end of the history")
        else:
            _check_request(at, message, _calls(before) if isinstance(before, ModelResponse) else [])
        if not message.parts:
            raise GateError(f"message {at}: it has no parts")
        if getattr(message, "state", "complete") == "interrupted":
            raise GateError(f"message {at}: it was interrupted; it may be cut anywhere")
        for part in message.parts:
            for path, wrong in _wrongs(part, part.part_kind):
                raise GateError(f"message {at}, {path}: {wrong}")


def _calls(message: ModelMessage) -> list[ToolCallPart]:
    return [part for part in message.parts if isinstance(part, ToolCallPart)]


def _check_response(at: int, message: ModelResponse, seen: set[str]) -> None:
    for call in _calls(message):
        if not call.tool_call_id:
            raise GateError(f"message {at}: a call of {call.tool_name!r} without an id")
        if call.tool_call_id in seen:
            raise GateError(f"message {at}: the call id {call.tool_call_id!r} was used before")
        seen.add(call.tool_call_id)
    for part in message.parts:
        if isinstance(part, (TextPart, ThinkingPart)) and not part.content and not part.id and not part.provider_details:
            if isinstance(part, ThinkingPart) and part.signature is not None:
                continue
            raise GateError(f"message {at}: an empty {part.part_kind} part")


def _check_request(at: int, message: ModelRequest, open_calls: Sequence[ToolCallPart]) -> None:
    expected = [(call.tool_call_id, call.tool_name) for call in open_calls]
    results = [part for part in message.parts if isinstance(part, ToolReturnPart)]
    given = [(part.tool_call_id, part.tool_name) for part in results]
    if given != expected:
        missing = [each for each in expected if each not in given]
        orphans = [each for each in given if each not in expected]
        what = (
            f"calls without a result: {missing}" if missing else f"results without a call: {orphans}" if orphans else f"results out of order: {given}"
        )
        raise GateError(f"message {at}: {what}")
    if any(not isinstance(part, ToolReturnPart) for part in message.parts[: len(results)]):
        raise GateError(f"message {at}: something stands before a tool result")
    for part in message.parts:
        empty: tuple[Any, ...] = ("",) if isinstance(part, ToolReturnPart) else ("", [])
        if isinstance(part, (ToolReturnPart, UserPromptPart, SystemPromptPart, RetryFeedbackPart)) and part.content in empty:
            raise GateError(f"message {at}: an empty {part.part_kind} part")


def _ok_text(text: str) -> bool:
    return (text.isascii() and "\x00" not in text) or _BAD.search(text) is None


def _acceptable(value: Any) -> bool:
    return next(_wrongs(value, "$"), None) is None


def _wrongs(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Text and numbers that some store or provider would refuse, with their place."""
    if isinstance(value, str):
        if not _ok_text(value):
            yield path, "NUL or a lone surrogate"
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            yield path, "NaN or an infinity"
    elif isinstance(value, BinaryContent):
        return
    elif isinstance(value, Mapping):
        for name, each in cast("Mapping[Any, Any]", value).items():
            yield from _wrongs(name, path)
            yield from _wrongs(each, f"{path}.{name}")
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(cast("Sequence[Any]", value)):
            yield from _wrongs(each, f"{path}[{at}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _wrongs(getattr(value, each.name), f"{path}.{each.name.lstrip('_')}")
