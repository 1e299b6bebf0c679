"""A process that dies at one of its adapter calls."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any


class Crash(BaseException):
    """The process is gone. Nothing after it is written."""


@dataclass
class Fuse:
    """Burns down with every adapter call. At zero the process dies: before the call takes effect, or with its reply on the way if `after`."""

    left: int = 10**9
    after: bool = False
    dead: bool = False
    calls: list[str] = field(default_factory=list[str])

    def renew(self) -> None:
        """A new process, which lives."""
        self.left, self.dead = 10**9, False


class Dying:
    """Base of what `dying` makes."""

    def __init__(self, inner: Any, fuse: Fuse) -> None:
        self.inner, self.fuse = inner, fuse

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        fuse = self.fuse
        if fuse.dead:
            raise Crash
        fuse.calls.append(name)
        fuse.left -= 1
        fuse.dead = fuse.left <= 0
        if fuse.dead and not fuse.after:
            raise Crash
        result = await getattr(self.inner, name)(*args, **kwargs)
        if fuse.dead:
            raise Crash
        return result


PLAIN = ("inspect", "close", "aclose", "on_advance", "bind", "drain")
"""Methods that are no adapter calls."""


def dying(inner: Any, fuse: Fuse) -> Any:
    """`inner` as a process sees it that dies with its fuse. It has the same methods, so the runner finds the same capabilities."""

    def asynchronous(name: str) -> Any:
        async def method(self: Dying, *args: Any, **kwargs: Any) -> Any:
            return await self.call(name, *args, **kwargs)

        return method

    def forwarded(name: str) -> Any:
        def method(self: Dying, *args: Any, **kwargs: Any) -> Any:
            return getattr(self.inner, name)(*args, **kwargs)

        return method

    names = [name for name in dir(inner) if not name.startswith("_") and inspect.ismethod(getattr(inner, name))]
    members = {name: forwarded(name) if name in PLAIN else asynchronous(name) for name in names}
    return type(f"Dying{type(inner).__name__}", (Dying,), members)(inner, fuse)
