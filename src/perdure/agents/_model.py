"""The model of one run, as Pydantic AI's loop asks it: whole requests, each of which streams.

The loop can open the stream itself, and does so where a capability of the agent's listens to its events. That takes two tasks and a chain of generators a
request, for consumers that may leave at any event. Nobody here leaves: text is told to the host as it comes, and the response is taken whole. So the stream is
opened here, next to the model, which saves a quarter of what the loop costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelRequestTimeout
from pydantic_ai.messages import ModelMessage, ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta, ThinkingPart, ThinkingPartDelta
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from perdure.agents._faults import innermost

Tell = Callable[[Literal["text", "reasoning"], str], None]


class Heard:
    """What has come of one model call: its text, told of as it comes, and the streams that it came from.

    There is more than one stream where the provider paused and went on, or where a hook of the agent's asked for another attempt; `begins` is called before the
    first attempt and before each of those.
    """

    def __init__(self, tell: Tell, begins: Callable[[], None]) -> None:
        self._tell, self._begins = tell, begins
        self._texts: list[str] = []
        self._streams: list[StreamedResponse] = []
        self._broken = False
        begins()

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def partial(self) -> list[ModelResponse]:
        """Each response as far as it has come, the newest last."""
        return [stream.get() for stream in self._streams]

    @asynccontextmanager
    async def listening(self, stream: StreamedResponse) -> AsyncGenerator[None]:
        """Note what comes of a stream while it is read."""
        if self._broken:
            self._texts, self._broken = [], False
            self._begins()
        self._streams.append(stream)
        try:
            yield
        except BaseException:
            self._broken = True
            raise

    async def passing(self, events: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """The same events, told of as they pass."""
        async for event in events:
            self.event(event)
            yield event

    def event(self, event: object) -> None:
        if isinstance(event, PartDeltaEvent):
            delta = event.delta
            if isinstance(delta, TextPartDelta):
                self._text(delta.content_delta)
            elif isinstance(delta, ThinkingPartDelta) and delta.content_delta:
                self._tell("reasoning", delta.content_delta)
        elif isinstance(event, PartStartEvent):
            part = event.part
            if isinstance(part, TextPart):
                self._text(part.content)
            elif isinstance(part, ThinkingPart) and part.content:
                self._tell("reasoning", part.content)

    def _text(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._tell("text", text)


class HostModel(WrapperModel):
    """A model that streams whichever way it is asked, for one model call. `context` is the call's run context."""

    def __init__(self, wrapped: Model, heard: Heard, context: RunContext[Any] | None) -> None:
        super().__init__(wrapped)
        self._heard, self._context = heard, context

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> ModelResponse:
        async with (
            _first_event_in_time(self.wrapped, model_settings) as began,
            self.request_stream(messages, model_settings, model_request_parameters, self._context) as stream,
        ):
            async for event in stream:
                began()
                self._heard.event(event)
        # After its end: a model may add to it when it is left.
        return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        async with (
            self.wrapped.request_stream(messages, model_settings, model_request_parameters, run_context) as stream,
            self._heard.listening(stream),
        ):
            yield stream


@asynccontextmanager
async def _first_event_in_time(model: Model, settings: ModelSettings | None) -> AsyncGenerator[Callable[[], None]]:
    """Pydantic AI keeps `first_event_timeout` for the streams that it opens. A fallback model keeps it itself, for each model that it tries."""
    seconds = (settings or {}).get("first_event_timeout")
    if seconds is None or hasattr(innermost(model), "models"):
        yield _nothing
        return
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield lambda: limit.reschedule(None)
    except TimeoutError as error:
        if limit.expired():
            raise ModelRequestTimeout(model.model_name, seconds, setting="first_event_timeout") from error
        raise


def _nothing() -> None:
    pass
