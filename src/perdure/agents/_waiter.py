"""Pydantic AI's own waiting inside a tool (`RequestInput` and friends), durably on ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final

from pydantic_ai.external_events import ExternalEventError, ExternalEventWaiter

Ask = Callable[[str], Awaitable[Any]]
Outside = Callable[[str, Ask, timedelta | None], Awaitable[Any]]
"""Waits for the payload of a named event of the call at work; raises `NothingCame` where there will be none."""

DECIDING: Final[ContextVar[bool]] = ContextVar("perdure_deciding", default=False)
"""Whether the calls of a step that need somebody's word are being decided: the step may wait then."""


class NothingCame(Exception):
    """The event was declared failed, or its time ran out; the message says which."""


class DurableWaiter(ExternalEventWaiter):
    """Hands every wait to the engine."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    async def wait(self, name: str, *, ask: Ask, timeout: timedelta | None) -> Any:
        try:
            return await self._outside(name, ask, timeout)
        except NothingCame as error:
            raise ExternalEventError(str(error)) from None
