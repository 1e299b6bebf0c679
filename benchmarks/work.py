"""The work that every system does: an agent loop of N steps.

Each step is one instant scripted model call (about 200 B of text and one tool call with 200 B of arguments) and one trivial tool (1 KB result). The user
prompt is 1 KB; the last step answers with text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic_ai import Agent, ModelRequestNode, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseStreamEvent
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage, UsageLimits
from pydantic_graph import End

PROMPT = "p" * 1_000
TEXT = "t" * 200
ARGUMENT = "a" * 180
RESULT = "r" * 1_000


@dataclass
class InstantStream(StreamedResponse):
    """One text part and one call, each in one piece."""

    call: int | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for event in self._parts_manager.handle_text_delta(vendor_part_id="text", content=TEXT):
            yield event
        if self.call is not None:
            arguments = f'{{"argument": "{ARGUMENT}{self.call:06d}"}}'
            event = self._parts_manager.handle_tool_call_delta(
                vendor_part_id="call", tool_name="work", args=arguments, tool_call_id=f"call_{self.call}"
            )
            if event is not None:
                yield event
        self._usage += RequestUsage(input_tokens=100, output_tokens=50)
        self.finish_reason = "tool_call" if self.call is not None else "stop"

    @property
    def model_name(self) -> str:
        return "instant"

    @property
    def provider_name(self) -> str:
        return "instant"

    @property
    def provider_url(self) -> str | None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self.at


class InstantModel(Model):
    """Answers by place: the n-th response asks for the n-th call, the last one ends. No tokens are estimated."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    @property
    def model_name(self) -> str:
        return "instant"

    @property
    def system(self) -> str:
        return "instant"

    @property
    def base_url(self) -> str | None:
        return None

    async def request(
        self, messages: list[ModelMessage], model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> ModelResponse:
        raise NotImplementedError("the benchmark streams")

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        done = len(messages) // 2
        yield InstantStream(model_request_parameters, call=done if done < self._steps - 1 else None)


def agent_of(steps: int) -> Agent[None, str]:
    """An agent whose loop takes `steps` model calls."""
    agent = Agent(InstantModel(steps), name="bench")

    @agent.tool_plain
    async def work(argument: str) -> str:
        return RESULT

    return agent


async def bare(steps: int, agent: Agent[None, str] | None = None, after_each: Callable[[], Awaitable[None]] | None = None) -> None:
    """The loop alone, streaming as ours always does, nothing durable. `after_each` is awaited after each response and after each step's tools."""
    agent = agent or agent_of(steps)
    async with agent.iter(PROMPT, usage_limits=UsageLimits(request_limit=None)) as run:
        node = run.next_node
        while not isinstance(node, End):
            if isinstance(node, ModelRequestNode):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        pass
                if after_each is not None:
                    await after_each()
            node = await run.next(node)
            if after_each is not None and isinstance(node, ModelRequestNode):
                await after_each()
