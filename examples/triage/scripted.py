"""A model without a key: it streams like one, and decides by `rules`.

It stands where a provider stands. What it knows, it reads from the messages that it is sent, so a run that is resumed in another process goes
on from there, as with a real model.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ModelResponseStreamEvent, ToolReturnPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from mail import Email
from rules import Act, decide

NAME = "scripted-triage"


class ScriptedModel(Model):
    """Args:
    pace: Seconds between two pieces of a stream.
    """

    def __init__(self, *, pace: float = 0.02) -> None:
        super().__init__()
        self.pace = pace

    @property
    def provider(self) -> None:
        return None

    @property
    def model_name(self) -> str:
        return NAME

    @property
    def system(self) -> str:
        return "scripted"

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> ModelResponse:
        async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
            async for _ in stream:
                pass
            return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        _, parameters = self.prepare_request(model_settings, model_request_parameters)
        act = decide(email_in(messages), answers_in(messages))
        read = sum(len(str(part)) for message in messages for part in message.parts) // 4
        yield _Stream(model_request_parameters=parameters, act=act, turn=_turn(messages), read=read, pace=self.pace)


@dataclass(kw_only=True)
class _Stream(StreamedResponse):
    act: Act
    turn: int
    read: int
    pace: float

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        self._usage = RequestUsage(input_tokens=self.read, cost=Decimal(0))
        first = "(scripted model) " if self.turn == 0 else ""
        async for piece in self._pieces(first + self.act.say):
            for event in self._parts_manager.handle_text_delta(vendor_part_id="text", content=piece):
                yield event
        name, args = self._call()
        # An id made of the turn alone comes back in every run, as those of some providers do.
        started = self._parts_manager.handle_tool_call_delta_events(vendor_part_id="call", tool_name=name, args="", tool_call_id=f"call-{self.turn}")
        for event in started:
            yield event
        async for piece in self._pieces(json.dumps(args, ensure_ascii=False)):
            for event in self._parts_manager.handle_tool_call_delta_events(vendor_part_id="call", args=piece):
                yield event
        self.finish_reason = "tool_call"

    def _call(self) -> tuple[str, dict[str, Any]]:
        if self.act.ticket is None:
            assert self.act.tool is not None
            return self.act.tool, self.act.args
        return self.model_request_parameters.output_tools[0].name, self.act.ticket

    async def _pieces(self, text: str) -> AsyncIterator[str]:
        for piece in re.findall(r"\s*\S+\s*(?:\S+\s*)?", text):
            await asyncio.sleep(self.pace)
            self._usage += RequestUsage(output_tokens=max(1, len(piece) // 4))
            yield piece

    @property
    def model_name(self) -> str:
        return NAME

    @property
    def provider_name(self) -> str:
        return "scripted"

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return datetime.now(UTC)

    async def close_stream(self) -> None:
        """Nothing to close: there is no connection."""


def email_in(messages: list[ModelMessage]) -> Email:
    """The e-mail in the first prompt: a fenced JSON block, alone or as the `payload` of a trigger.

    Raises:
        ValueError: There is none, or it is no e-mail.
    """
    for message in messages:
        for part in message.parts:
            if isinstance(part, UserPromptPart):
                content = part.content if isinstance(part.content, str) else "\n".join(each for each in part.content if isinstance(each, str))
                if block := re.search(r"^```json\n(.*?)\n```$", content, re.DOTALL | re.MULTILINE):
                    data = json.loads(block.group(1))
                    return Email.model_validate(data.get("payload", data))
    raise ValueError("The scripted model triages e-mails: it needs one as a fenced JSON block in the first message.")


def answers_in(messages: list[ModelMessage]) -> dict[str, Any]:
    """What each tool answered last: a dict, or a text."""
    found: dict[str, Any] = {}
    for message in messages:
        if isinstance(message, ModelRequest):
            for part in message.parts:
                if isinstance(part, ToolReturnPart):
                    found[part.tool_name] = _plain(part)
    return found


def _plain(part: ToolReturnPart) -> Any:
    text = part.model_response_str()
    try:
        return json.loads(text)
    except ValueError:
        return text


def _turn(messages: list[ModelMessage]) -> int:
    return sum(isinstance(message, ModelResponse) for message in messages)
