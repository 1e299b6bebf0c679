"""Counts model calls where they leave the process, so that nobody has to believe the engine's own books."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from scripted import email_in


class Witness(WrapperModel):
    """The same model; each request leaves a line in `path`: the e-mail's message id and the step."""

    def __init__(self, wrapped: Model, path: Path) -> None:
        super().__init__(wrapped)
        self.path = path

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        step = 1 + sum(isinstance(message, ModelResponse) for message in messages)
        append(self.path, f"{email_in(messages).message_id}\t{step}\n")
        async with super().request_stream(messages, model_settings, model_request_parameters, run_context) as stream:
            yield stream


def append(path: Path, line: str) -> None:
    """One write with O_APPEND: several processes may do so, and a killed one leaves whole lines."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def model_calls(path: Path) -> Counter[tuple[str, int]]:
    """How often each step of each e-mail was asked of the model."""
    if not path.exists():
        return Counter()
    lines = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return Counter((message_id, int(step)) for message_id, step in lines)
