"""Anthropic messages: `POST /v1/messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from perdure.testing._wire_script import Answer, Stage, Stamp, WireEvent, pieces
from perdure.testing._wire_strict import Block, Json, Refused, Turn, items, merged

FINISH = {"stop": "end_turn", "tool_call": "tool_use", "length": "max_tokens", "content_filter": "refusal", "error": "end_turn"}
ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip


class AnthropicWire:
    """How a messages server reads, speaks and complains."""

    name = "anthropic"
    path = "/v1/messages"
    signs = True
    prefix = b"event: content_block_delta\n"

    def conversation(self, body: Json) -> list[Turn]:
        """The messages as turns; the system prompt is no part of them."""
        if not isinstance(body.get("max_tokens"), int):
            raise Refused("max_tokens: Field required")
        return merged([Turn(_role(message), tuple(_content(message.get("content")))) for message in items(body.get("messages"))])

    def error(self, status: int, message: str) -> Json:
        return {"type": "error", "error": {"type": ERROR_TYPES.get(status, "api_error"), "message": message}, "request_id": None}

    def error_event(self, kind: str) -> bytes:
        return _event({"type": "error", "error": {"type": kind, "message": f"The server reports: {kind}"}})

    def headers(self, number: int) -> dict[str, str]:
        return {"request-id": f"req_{number}"}

    def events(self, answer: Answer, stamp: Stamp, signature: str | None) -> Iterator[WireEvent]:
        reply = answer.reply
        usage = {"input_tokens": reply.input_tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
        message: Json = {"id": f"msg_{stamp.place}", "type": "message", "role": "assistant", "model": stamp.model, "content": [], "usage": usage}
        yield _say("open", "message_start", message={**message, "stop_reason": None, "stop_sequence": None})
        yield _say("open", "ping")
        at = 0
        if reply.thinking is not None:
            deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(reply.thinking)]
            signed: Json = {"type": "signature_delta", "signature": signature or ""}
            yield from _block(at, {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed])
            at += 1
        if reply.text:
            yield from _block(at, {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(reply.text)])
            at += 1
        for place, call in enumerate(reply.calls):
            block: Json = {"type": "tool_use", "id": call.id or f"toolu_{stamp.place}_{place}", "name": call.tool, "input": {}}
            yield from _block(at + place, block, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(call.wire)])
        delta: Json = {"stop_reason": FINISH.get(answer.finish or reply.finish, answer.finish), "stop_sequence": None}
        yield _say("finish", "message_delta", delta=delta, usage={"output_tokens": reply.output_tokens})
        yield _say("end", "message_stop")


def _block(index: int, block: Json, deltas: list[Json]) -> Iterator[WireEvent]:
    yield _say("open", "content_block_start", index=index, content_block=block)
    for delta in deltas:
        yield _say("piece", "content_block_delta", index=index, delta=delta)
    yield _say("close", "content_block_stop", index=index)


def _say(stage: Stage, kind: str, **rest: Any) -> WireEvent:
    return WireEvent(_event({"type": kind, **rest}), stage)


def _event(data: Json) -> bytes:
    return f"event: {data['type']}\n".encode() + b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _role(message: Json) -> Any:
    if (role := message.get("role")) not in {"user", "assistant"}:
        raise Refused(f"messages: Unexpected role {role!r}. Allowed roles are 'user' and 'assistant'.")
    return role


def _content(content: Any) -> Iterator[Block]:
    if isinstance(content, str):
        yield Block("text", content)
        return
    for part in items(content):
        match part.get("type"):
            case "text":
                yield Block("text", part["text"])
            case "tool_use":
                yield Block("call", json.dumps(part["input"], sort_keys=True), part["id"], part["name"])
            case "tool_result":
                yield Block("result", "".join(each.text for each in _content(part.get("content"))), part["tool_use_id"])
            case "thinking":
                yield Block("thinking", part["thinking"], signature=part.get("signature"))
            case "redacted_thinking":
                yield Block("thinking", "", signature=part.get("data"))
            case other:
                yield Block("file", str(other))
