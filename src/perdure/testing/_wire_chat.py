"""OpenAI chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from perdure.testing._wire_script import Answer, Stage, Stamp, WireEvent, pieces
from perdure.testing._wire_strict import Block, Json, Refused, Turn, items, merged

FINISH = {"stop": "stop", "tool_call": "tool_calls", "length": "length", "content_filter": "content_filter", "error": "stop"}
ERROR_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "invalid_request_error", 429: "rate_limit_error"}


class ChatWire:
    """How a chat completions server reads, speaks and complains."""

    name = "openai-chat"
    path = "/v1/chat/completions"
    signs = False
    prefix = b""

    def conversation(self, body: Json) -> list[Turn]:
        """The messages as turns; system and developer messages are no part of them."""
        return merged([turn for message in items(body.get("messages")) if (turn := _turn(message)) is not None])

    def error(self, status: int, message: str) -> Json:
        return {"error": {"message": message, "type": ERROR_TYPES.get(status, "server_error"), "param": None, "code": None}}

    def error_event(self, kind: str) -> bytes:
        return _data({"error": {"message": f"The server reports: {kind}", "type": kind, "param": None, "code": kind}})

    def headers(self, number: int) -> dict[str, str]:
        return {"x-request-id": f"req_{number}", "openai-processing-ms": "1"}

    def events(self, answer: Answer, stamp: Stamp, signature: str | None) -> Iterator[WireEvent]:
        reply = answer.reply
        base = {"id": f"chatcmpl-{stamp.place}", "object": "chat.completion.chunk", "created": stamp.created, "model": stamp.model}

        def chunk(stage: Stage, delta: Json, finish: str | None = None) -> WireEvent:
            return WireEvent(
                _data({**base, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], "usage": None}), stage
            )

        yield chunk("open", {"role": "assistant", "content": ""})
        for piece in pieces(reply.thinking or ""):
            yield chunk("piece", {"reasoning_content": piece})
        for piece in pieces(reply.text):
            yield chunk("piece", {"content": piece})
        for at, call in enumerate(reply.calls):
            function = {"name": call.tool, "arguments": ""}
            yield chunk(
                "open", {"tool_calls": [{"index": at, "id": call.id or f"call_{stamp.place}_{at}", "type": "function", "function": function}]}
            )
            for piece in pieces(call.wire):
                yield chunk("piece", {"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
        yield chunk("finish", {}, FINISH.get(answer.finish or reply.finish, answer.finish))
        total = reply.input_tokens + reply.output_tokens
        usage = {"prompt_tokens": reply.input_tokens, "completion_tokens": reply.output_tokens, "total_tokens": total}
        yield WireEvent(_data({**base, "choices": [], "usage": usage}), "end")
        yield WireEvent(b"data: [DONE]\n\n", "end")


def _data(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _turn(message: Json) -> Turn | None:
    match message.get("role"):
        case "user":
            return Turn("user", tuple(_content(message.get("content"))))
        case "tool":
            text = "".join(each.text for each in _content(message.get("content")))
            return Turn("user", (Block("result", text, id=message.get("tool_call_id") or ""),))
        case "assistant":
            calls = [
                Block("call", each["function"]["arguments"], each.get("id") or "", each["function"]["name"])
                for each in items(message.get("tool_calls"))
            ]
            return Turn("assistant", (*_content(message.get("content")), *calls))
        case "system" | "developer":
            return None
        case other:
            raise Refused(f"Invalid value: {other!r}. Supported values are: 'system', 'developer', 'assistant', 'user' and 'tool'.")


def _content(content: Any) -> Iterator[Block]:
    if isinstance(content, str):
        yield Block("text", content)
        return
    for part in items(content):
        yield Block("text", part["text"]) if part.get("type") in {"text", "refusal"} else Block("file", part.get("type", ""))
