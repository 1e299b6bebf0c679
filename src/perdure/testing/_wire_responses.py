"""OpenAI Responses: `POST /v1/responses`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from perdure.testing._wire_script import Answer, Stage, Stamp, WireEvent, pieces
from perdure.testing._wire_strict import Block, Json, Refused, Turn, items, merged

ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "invalid_request_error", 429: "rate_limit_error"}
THOUGHT = "after_rs_"
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesWire:
    """How a Responses server reads, speaks and complains."""

    name = "openai-responses"
    path = "/v1/responses"
    signs = True
    prefix = b"event: response.output_text.delta\n"

    def conversation(self, body: Json) -> list[Turn]:
        """The input items as turns; instructions, system and developer messages are no part of them."""
        given = body.get("input")
        said = [{"role": "user", "content": given}] if isinstance(given, str) else items(given)
        _refuse_doubled_items(said)
        _refuse_lone_reasoning(said)
        _refuse_items_without_reasoning(said)
        return merged([turn for item in said if (turn := _turn(item)) is not None])

    def error(self, status: int, message: str) -> Json:
        return {"error": {"message": message, "type": ERROR_TYPES.get(status, "server_error"), "param": None, "code": None}}

    def error_event(self, kind: str) -> bytes:
        return _event({"type": "error", "code": kind, "message": f"The server reports: {kind}", "param": None, "sequence_number": 0})

    def headers(self, number: int) -> dict[str, str]:
        return {"x-request-id": f"req_{number}", "openai-processing-ms": "1"}

    def events(self, answer: Answer, stamp: Stamp, signature: str | None) -> Iterator[WireEvent]:
        return _Speech(answer, stamp, signature).events()


class _Speech:
    """One response as it is spoken: its items so far, and the number of the next event."""

    def __init__(self, answer: Answer, stamp: Stamp, signature: str | None) -> None:
        self._answer, self._stamp, self._signature = answer, stamp, signature
        self._items: list[Json] = []
        self._number = 0
        # An item that was said after reasoning tells so in its id: it may not come back without it.
        self._name = f"{THOUGHT if answer.reply.thinking is not None else ''}{stamp.place}"

    def events(self) -> Iterator[WireEvent]:
        reply = self._answer.reply
        yield self._event("open", "response.created", response=self._response("in_progress"))
        yield self._event("open", "response.in_progress", response=self._response("in_progress"))
        if reply.thinking is not None:
            yield from self._reasoning(reply.thinking)
        if reply.text:
            yield from self._message(reply.text)
        for at, call in enumerate(reply.calls):
            yield from self._call(call.id or f"call_{self._stamp.place}_{at}", call.tool, call.wire)
        status = "incomplete" if self._word() in INCOMPLETE.values() else "completed"
        yield self._event("finish", f"response.{status}", response=self._response(status))

    def _word(self) -> str:
        return INCOMPLETE.get(self._answer.finish or self._answer.reply.finish, "completed")

    def _response(self, status: str) -> Json:
        reply, stamp = self._answer.reply, self._stamp
        over = status != "in_progress"
        used = {
            "input_tokens": reply.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": reply.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.input_tokens + reply.output_tokens,
        }
        return {
            "id": f"resp_{stamp.place}", "object": "response", "created_at": stamp.created, "status": status, "model": stamp.model, "error": None,
            "incomplete_details": {"reason": self._word()} if status == "incomplete" else None, "instructions": None, "metadata": {},
            "output": list(self._items) if over else [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "temperature": None, "top_p": None, "usage": used if over else None,
        }  # fmt: skip

    def _reasoning(self, thinking: str) -> Iterator[WireEvent]:
        item: Json = {"id": f"rs_{self._stamp.place}", "type": "reasoning", "summary": []}
        at = {"item_id": item["id"], "output_index": len(self._items), "summary_index": 0}
        yield self._event("open", "response.output_item.added", output_index=at["output_index"], item=item)
        yield self._event("open", "response.reasoning_summary_part.added", **at, part={"type": "summary_text", "text": ""})
        for piece in pieces(thinking):
            yield self._event("piece", "response.reasoning_summary_text.delta", **at, delta=piece)
        yield self._event("close", "response.reasoning_summary_text.done", **at, text=thinking)
        yield self._event("close", "response.reasoning_summary_part.done", **at, part={"type": "summary_text", "text": thinking})
        yield self._done({**item, "summary": [{"type": "summary_text", "text": thinking}], "encrypted_content": self._signature})

    def _message(self, text: str) -> Iterator[WireEvent]:
        item: Json = {"id": f"msg_{self._name}", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        at = {"item_id": item["id"], "output_index": len(self._items), "content_index": 0}
        part: Json = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
        yield self._event("open", "response.output_item.added", output_index=at["output_index"], item=item)
        yield self._event("open", "response.content_part.added", **at, part=part)
        for piece in pieces(text):
            yield self._event("piece", "response.output_text.delta", **at, delta=piece, logprobs=[])
        yield self._event("close", "response.output_text.done", **at, text=text, logprobs=[])
        yield self._event("close", "response.content_part.done", **at, part={**part, "text": text})
        yield self._done({**item, "status": "completed", "content": [{**part, "text": text}]})

    def _call(self, call_id: str, name: str, arguments: str) -> Iterator[WireEvent]:
        number = len(self._items)
        item: Json = {"id": f"fc_{self._name}_{number}", "type": "function_call", "status": "in_progress", "call_id": call_id, "name": name}
        yield self._event("open", "response.output_item.added", output_index=number, item={**item, "arguments": ""})
        for piece in pieces(arguments):
            yield self._event("piece", "response.function_call_arguments.delta", item_id=item["id"], output_index=number, delta=piece)
        whole = {"item_id": item["id"], "output_index": number, "name": name, "arguments": arguments}
        yield self._event("close", "response.function_call_arguments.done", **whole)
        yield self._done({**item, "status": "completed", "arguments": arguments})

    def _done(self, item: Json) -> WireEvent:
        self._items.append(item)
        return self._event("close", "response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _event(self, stage: Stage, kind: str, **rest: Any) -> WireEvent:
        number, self._number = self._number, self._number + 1
        return WireEvent(_event({"type": kind, "sequence_number": number, **rest}), stage)


def _event(data: Json) -> bytes:
    return f"event: {data['type']}\n".encode() + b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _turn(item: Json) -> Turn | None:
    match item.get("type") or "message", item.get("role"):
        case "message", "user" | "assistant" as role:
            return Turn(role, tuple(_content(item.get("content"))))
        case "message", _:
            return None
        case "function_call", _:
            return Turn("assistant", (Block("call", item["arguments"], item["call_id"], item["name"]),))
        case "function_call_output", _:
            return Turn("user", (Block("result", "".join(each.text for each in _content(item["output"])), item["call_id"]),))
        case "reasoning", _:
            text = "\n\n".join(each["text"] for each in items(item.get("summary")))
            return Turn("assistant", (Block("thinking", text, item.get("id") or "", signature=item.get("encrypted_content")),))
        case other, _:
            raise Refused(f"Invalid value: {other!r}. This server knows messages, reasoning, function calls and their outputs.")


def _content(content: Any) -> Iterator[Block]:
    if isinstance(content, str):
        yield Block("text", content)
        return
    for part in items(content):
        yield Block("text", part["text"]) if "text" in part else Block("file", part.get("type", ""))


def _refuse_doubled_items(said: list[Json]) -> None:
    seen: set[str] = set()
    for item in said:
        if (name := item.get("id")) is None:
            continue
        if name in seen:
            raise Refused(f"Duplicate item found with id {name}. Remove duplicate items from your input and try again.")
        seen.add(name)


def _refuse_lone_reasoning(said: list[Json]) -> None:
    for item, after in zip(said, [*said[1:], {}], strict=True):
        follows = after.get("type") in {"function_call", "reasoning"} or after.get("role") == "assistant"
        if item.get("type") == "reasoning" and not follows:
            raise Refused(f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item.")


def _refuse_items_without_reasoning(said: list[Json]) -> None:
    thought = False
    for item in said:
        if item.get("type") == "reasoning":
            thought = True
        elif item.get("type") == "function_call_output" or item.get("role") in {"user", "system", "developer"}:
            thought = False
        elif THOUGHT in (item.get("id") or "") and not thought:
            raise Refused(f"Item '{item['id']}' of type '{item.get('type')}' was provided without its required 'reasoning' item.")
