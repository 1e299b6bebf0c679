"""A model that follows a script, and a provider that refuses what a strict one would refuse.

The script is read by place: the reply to a history with three responses in it is the fourth, whoever asks, in whatever process. So a run that
crashes and goes on elsewhere meets the same story.

    model = ScriptedModel([call("refund", order="7"), say("Refunded.")])
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

from pydantic_ai import RunContext
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelUnavailableError,
)
from pydantic_ai.messages import (
    FinishReason,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    ThinkingPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from perdure.agents._gate import GateError, check
from perdure.core.runtime import RealRuntime, Runtime

Fault = Literal["cut", "reset"]


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One tool call of a reply. `raw` is the argument text as it goes over the wire, where it must not be JSON of `args`."""

    tool: str
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str | None = None
    raw: str | None = None

    @property
    def wire(self) -> str:
        return json.dumps(dict(self.args), ensure_ascii=False) if self.raw is None else self.raw


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of the script: thinking, then text, then calls, ended by `finish`.

    `fault` ends the stream before its finish part: `cut` cleanly, `reset` with a connection error. `error` is raised instead of a reply. `seconds`
    pass before each piece. `cost` is in US dollars, None for a price that nobody knows.
    """

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    thinking: str | None = None
    signature: str | None = None
    finish: FinishReason = "stop"
    fault: Fault | None = None
    error: ModelAPIError | None = None
    input_tokens: int = 10
    output_tokens: int = 5
    cost: Decimal | None = None
    seconds: float = 0.0

    @property
    def leaves_no_response(self) -> bool:
        """True where the history stays as it was, so that the next request finds the script at the same place: failures, cuts, and replies without text or calls."""
        return self.error is not None or self.fault is not None or not (self.text.strip() or self.calls)


def say(text: str, *, thinking: str | None = None, signature: str | None = None, **more: Any) -> Reply:
    """A reply of text alone."""
    return Reply(text=text, thinking=thinking, signature=signature, **more)


def call(tool: str, /, _id: str | None = None, _raw: str | None = None, **args: Any) -> Reply:
    """A reply of one tool call. `_raw` puts that text on the wire in place of the arguments' JSON."""
    return Reply(calls=(ScriptedCall(tool, args, _id, _raw),), finish="tool_call")


def calls(*replies: Reply, text: str = "", thinking: str | None = None, signature: str | None = None, **more: Any) -> Reply:
    """A reply with the calls of several, in order: `calls(call("a"), call("b"))`."""
    merged = tuple(each for reply in replies for each in reply.calls)
    return Reply(text=text, calls=merged, thinking=thinking, signature=signature, finish="tool_call", **more)


def empty(finish: FinishReason = "stop") -> Reply:
    """A reply with nothing in it."""
    return Reply(finish=finish)


def filtered(text: str = "") -> Reply:
    """A reply that the provider's content filter ended."""
    return Reply(text=text, finish="content_filter")


def cut(reply: Reply | str = "") -> Reply:
    """The stream of `reply` ends cleanly, without the provider's finish part."""
    return replace(say(reply) if isinstance(reply, str) else reply, fault="cut")


def reset(reply: Reply | str = "") -> Reply:
    """The connection breaks after the pieces of `reply`."""
    return replace(say(reply) if isinstance(reply, str) else reply, fault="reset")


def length(reply: Reply | str) -> Reply:
    """`reply` is ended by the token limit."""
    return replace(say(reply) if isinstance(reply, str) else reply, finish="length")


def fail(status: int = 429, *, retry_after: float | str | None = None, headers: Mapping[str, str] | None = None, body: object = None) -> Reply:
    """The provider answers with an HTTP error. `retry_after` goes into the header as it is: seconds, a date, or nonsense."""
    sent = {**({} if retry_after is None else {"retry-after": str(retry_after)}), **(headers or {})}
    category = CATEGORIES.get(status, ModelServerError if status >= 500 else None)
    return Reply(
        error=ModelHTTPError.for_category(category, status_code=status, model_name="scripted", body=body or {"error": f"HTTP {status}"}, headers=sent)
    )


CATEGORIES: Final[dict[int, Any]] = {
    400: ModelRequestRejectedError,
    401: ModelAuthenticationError,
    402: ModelQuotaExceededError,
    403: ModelAuthenticationError,
    404: ModelNotFoundError,
    422: ModelRequestRejectedError,
    429: ModelRateLimitError,
    503: ModelUnavailableError,
    529: ModelOverloadedError,
}
"""What Pydantic AI makes of an HTTP status."""

Script = Sequence[Reply] | Callable[[list[ModelMessage]], Reply]


class ScriptEnded(Exception):
    """The model was asked more often than the script has replies."""


class ScriptedModel(Model):
    """A model that gives the replies of `script`, in order.

    A reply that leaves no response in the history (a failure, a cut, an empty one) is given once per model object, then the next one in the script
    takes its place. A script may also be a function of the history.

    Args:
        script: The replies.
        runtime: Where `seconds` pass.
        on_request: Called with the messages of each request, before the reply: to count outside, to check, or to fail.
        piece: How many characters one piece of the stream has.
        profile: The profile of the model that it plays.
    """

    requests: list[list[ModelMessage]]
    """What was sent, request by request."""

    def __init__(
        self,
        script: Script,
        *,
        runtime: Runtime | None = None,
        on_request: Callable[[list[ModelMessage]], None] | None = None,
        piece: int = 8,
        name: str = "scripted",
        profile: ModelProfile | None = None,
        settings: ModelSettings | None = None,
    ) -> None:
        super().__init__(settings=settings, profile=profile or ModelProfile(supports_json_schema_output=True, supports_json_object_output=True))
        self._script = script
        self._places = [] if callable(script) else _places(script)
        self._given: dict[int, int] = {}
        self._runtime = runtime or RealRuntime()
        self._on_request = on_request
        self._piece = piece
        self._name = name
        self.requests = []
        self.settings_seen: list[ModelSettings | None] = []
        self.parameters_seen: list[ModelRequestParameters] = []

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def system(self) -> str:
        return "scripted"

    def _reply(self, messages: list[ModelMessage]) -> tuple[Reply, int]:
        place = sum(isinstance(each, ModelResponse) for each in messages)
        if callable(self._script):
            return self._script(messages), place
        if place >= len(self._places):
            raise ScriptEnded(f"The script has {len(self._places)} replies and the history already holds {place} responses.")
        tries = self._places[place]
        given = self._given.get(place, 0)
        self._given[place] = given + 1
        return tries[min(given, len(tries) - 1)], place

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
    ) -> AsyncGenerator[StreamedResponse]:
        model_settings, model_request_parameters = self.prepare_request(model_settings, model_request_parameters)
        self.requests.append(list(messages))
        self.settings_seen.append(model_settings)
        self.parameters_seen.append(model_request_parameters)
        if self._on_request is not None:
            self._on_request(messages)
        reply, place = self._reply(messages)
        if reply.error is not None:
            if reply.seconds:
                await self._runtime.sleep(reply.seconds)
            raise reply.error
        yield _ScriptedStream(
            model_request_parameters=model_request_parameters,
            reply=reply,
            place=place,
            piece=self._piece,
            runtime=self._runtime,
            name=self._name,
            provider=self.system,
            began=self._runtime.now(),
        )


def _places(script: Iterable[Reply]) -> list[list[Reply]]:
    places: list[list[Reply]] = []
    tries: list[Reply] = []
    for reply in script:
        tries.append(reply)
        if not reply.leaves_no_response:
            places.append(tries)
            tries = []
    return [*places, tries] if tries else places


def _pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@dataclass
class _ScriptedStream(StreamedResponse):
    reply: Reply
    place: int
    piece: int
    runtime: Runtime
    name: str
    provider: str
    began: datetime

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        reply = self.reply
        for piece in _pieces(reply.thinking or "", self.piece):
            await self._pass_time()
            for event in self._parts_manager.handle_thinking_delta(vendor_part_id="thinking", content=piece):
                yield event
        if reply.signature is not None:
            for event in self._parts_manager.handle_thinking_delta(vendor_part_id="thinking", signature=reply.signature, provider_name=self.provider):
                yield event
        for piece in _pieces(reply.text, self.piece):
            await self._pass_time()
            for event in self._parts_manager.handle_text_delta(vendor_part_id="text", content=piece):
                yield event
        for at, each in enumerate(reply.calls):
            await self._pass_time()
            key = f"call-{at}"
            for event in self._parts_manager.handle_tool_call_delta_events(
                vendor_part_id=key, tool_name=each.tool, args="", tool_call_id=each.id or f"call-{self.place}-{at}"
            ):
                yield event
            for piece in _pieces(each.wire, self.piece):
                for event in self._parts_manager.handle_tool_call_delta_events(vendor_part_id=key, args=piece):
                    yield event
        if reply.fault == "reset":
            raise ModelConnectionError("scripted", "The connection was reset.", phase="read")
        self._usage = RequestUsage(input_tokens=reply.input_tokens, output_tokens=reply.output_tokens, cost=reply.cost)
        if reply.fault is None:
            self.finish_reason = reply.finish
            self.provider_details = {"finish_reason": reply.finish}

    async def _pass_time(self) -> None:
        if self.reply.seconds:
            await self.runtime.sleep(self.reply.seconds)

    async def close_stream(self) -> None:
        pass

    @property
    def model_name(self) -> str:
        return self.name

    @property
    def provider_name(self) -> str | None:
        return self.provider

    @property
    def provider_url(self) -> str | None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self.began


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a strict provider refused a request."""

    request: int
    reason: str


class StrictProvider(WrapperModel):
    """A model behind a provider that refuses what a strict one refuses, with HTTP 400, and remembers why.

    Refused are calls without a result and results without a call, results out of place, an id that was used before, empty content, text that is no Unicode, numbers
    that are no JSON, and a signed thinking block that is not what this provider signed.

        strict = StrictProvider(ScriptedModel([...]))
        ...
        assert not strict.refusals
    """

    refusals: list[Refusal]

    def __init__(self, wrapped: Model) -> None:
        super().__init__(wrapped)
        self.refusals = []
        self.requests = 0
        self._signed: dict[str, str] = {}

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        self._examine(messages)
        async with super().request_stream(messages, model_settings, model_request_parameters, run_context) as stream:
            yield stream
        self._sign(stream.get())

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> ModelResponse:
        self._examine(messages)
        response = await super().request(messages, model_settings, model_request_parameters)
        self._sign(response)
        return response

    def _sign(self, response: ModelResponse) -> None:
        for part in response.parts:
            if isinstance(part, ThinkingPart) and part.signature is not None:
                self._signed[part.signature] = part.content

    def _examine(self, messages: list[ModelMessage]) -> None:
        self.requests += 1
        try:
            check(messages, open_calls=False)
            if not isinstance(messages[-1], ModelRequest):
                raise GateError("the last message is a response: there is nothing to answer")
            self._check_signatures(messages)
        except GateError as error:
            self.refusals.append(Refusal(self.requests, str(error)))
            raise ModelHTTPError.for_category(ModelRequestRejectedError, status_code=400, model_name=self.model_name, body=str(error)) from error

    def _check_signatures(self, messages: list[ModelMessage]) -> None:
        for at, message in enumerate(messages):
            for part in message.parts:
                if isinstance(part, ThinkingPart) and part.signature is not None and self._signed.get(part.signature) != part.content:
                    raise GateError(f"message {at}: invalid signature in a thinking block")


__all__ = [
    "Refusal",
    "Reply",
    "Script",
    "ScriptEnded",
    "ScriptedCall",
    "ScriptedModel",
    "StrictProvider",
    "call",
    "calls",
    "cut",
    "empty",
    "fail",
    "filtered",
    "length",
    "reset",
    "say",
]
