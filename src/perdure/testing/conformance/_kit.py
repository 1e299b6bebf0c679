"""What a store brings to its conformance tests, and what the tests stand on."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from perdure.stores import Store


class Kit(Protocol):
    """One fresh, empty place to store runs, for one test."""

    def open(self) -> Store:
        """A handle on the place, not entered yet. Each call is like another process: all see the same runs."""
        ...

    def advance(self, by: timedelta) -> None:
        """Move the clock of the place, as every handle of it sees it. Only ever forward."""
        ...


@runtime_checkable
class SizedKit(Protocol):
    """A kit that can tell how much is stored; the tests of growth are skipped without."""

    def size(self) -> int:
        """Bytes that the place takes now, as exactly as can be told from outside."""
        ...


class Conformance:
    """Base of the test classes. Each `async def test_…(self, kit)` runs in a fresh event loop, under any pytest setup, without a plugin."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, each in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(each):
                setattr(cls, name, _in_a_loop(each))


def _in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def main() -> None:
            await test(*args, **kwargs)

        asyncio.run(main())

    return run
