"""The way in for callers that can't await: whoever comes first opens the engine, the others are guests on its loop, and the last one's answer closes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, TypeVar

from perdure.core.errors import ConfigurationError
from perdure.core.runtime import run_in_new_loop

T = TypeVar("T")


class SyncDoor:
    """The synchronous callers of one engine, from any number of threads.

    Args:
        engine: What is opened where it is not open.
        loop: The event loop that the engine is open on, or None.
    """

    def __init__(self, engine: AbstractAsyncContextManager[Any], loop: Callable[[], asyncio.AbstractEventLoop | None]) -> None:
        self._engine, self._loop = engine, loop
        self._changed = threading.Condition()
        self._state: Literal["closed", "opening", "open", "leaving"] = "closed"
        """Of an engine that was opened here. One that `async with` opened is nobody's to close."""
        self._guests = 0
        self._alone: asyncio.Event | None = None

    def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine to its end, and block until then.

        Raises:
            ConfigurationError: Called on the engine's own event loop, which it would block for ever; or the engine was left meanwhile.
        """
        here = _running_loop()
        with self._changed:
            while self._state in ("opening", "leaving"):
                self._changed.wait()
            loop = self._loop()
            if loop is None:
                self._state = "opening"
            elif loop is here:
                raise ConfigurationError(
                    "run_sync() was called on the engine's own event loop, which it would block. Use `await agent.run(…)` there."
                )
            else:
                self._guests += 1
        if loop is not None:
            return self._as_guest(loop, call)

        async def host() -> T:
            return await self._as_host(call)

        return asyncio.run(host()) if here is None else run_in_new_loop(host)

    async def _as_host(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with self._engine:
                self._alone = asyncio.Event()
                self._become("open")
                try:
                    return await call()
                finally:
                    await self._until_alone()
        finally:
            self._become("closed")

    async def _until_alone(self) -> None:
        """Wait for the guests; not when the program is being stopped."""
        assert self._alone is not None
        task = asyncio.current_task()
        while True:
            with self._changed:
                if not self._guests or (task is not None and task.cancelling()):
                    # Under one lock with the count: whoever asks from now on waits for the end, and opens the engine anew.
                    self._state = "leaving"
                    return
                self._alone.clear()
            await self._alone.wait()

    def _as_guest(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[T]]) -> T:
        answer = asyncio.run_coroutine_threadsafe(_coroutine(call), loop)
        try:
            return answer.result()
        except Exception:
            if answer.cancelled():
                raise ConfigurationError(
                    "The engine was left while run_sync() waited in another thread. What was started goes on when it is open."
                ) from None
            raise
        finally:
            with self._changed:
                self._guests -= 1
                if not self._guests and self._alone is not None and self._state == "open":
                    loop.call_soon_threadsafe(self._alone.set)

    def _become(self, state: Literal["open", "closed"]) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()


async def _coroutine(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
