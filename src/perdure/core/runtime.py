"""The only door to clocks, ids, chance, tasks, threads and sleep.

Everything in Perdure takes a `Runtime`; `RealRuntime` is the machine, `perdure.testing` has a simulated one. A test
greps for any other door, because one forgotten `time.time()` makes a simulation lie.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import queue
import random
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
log = logging.getLogger("perdure")


class Lane(Protocol):
    """A thread that runs what it is given, one after the other."""

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` soon, after all that was posted before."""
        ...

    def close(self) -> None:
        """Finish what was posted, then end the thread."""
        ...


class Side(Protocol):
    """A coroutine that runs beside the main loop, on a thread and a loop of its own."""

    def stop(self) -> None:
        """Cancel it and wait until its thread has ended."""
        ...


class Runtime(Protocol):
    """Time, chance, ids, tasks and threads."""

    def now(self) -> datetime:
        """Wall clock, UTC. For people and for stores of one machine; never for the terms of a lease."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that only goes forward."""
        ...

    def new_id(self) -> str:
        """A fresh UUIDv7."""
        ...

    def new_token(self) -> str:
        """128 random bits in hex: for claims and secrets."""
        ...

    def random(self) -> float:
        """A number in [0, 1): for jitter."""
        ...

    def host(self) -> str:
        """The machine's name."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task and hold a reference to it until it ends."""
        ...

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work in a thread, with the caller's context variables."""
        ...

    def lane(self, name: str) -> Lane: ...

    def beside(self, work: Callable[[], Awaitable[None]], *, name: str) -> Side: ...


def uuid7(milliseconds: int, chance: int) -> str:
    """A UUIDv7 (RFC 9562, section 5.7) from a Unix time and 74 random bits."""
    value = (milliseconds & (1 << 48) - 1) << 80 | 0x7 << 76 | (chance >> 62 & 0xFFF) << 64 | 0b10 << 62 | chance & (1 << 62) - 1
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class _ThreadLane:
    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("work on %s raised", self._thread.name)

    def post(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def close(self) -> None:
        self._work.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()


class _ThreadSide:
    def __init__(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            self._task = asyncio.current_task()
            if not self._stopped:
                await work()

        try:
            self._loop.run_until_complete(main())
        except asyncio.CancelledError:
            pass
        except Exception:
            log.exception("%s ended with an error", self._thread.name)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def stop(self) -> None:
        def cancel() -> None:
            self._stopped = True  # the word may come before the work has begun
            if self._task is not None:
                self._task.cancel()

        try:
            self._loop.call_soon_threadsafe(cancel)
        except RuntimeError:
            pass  # the loop has ended by itself
        self._thread.join()


class RealRuntime:
    """The machine's own clocks, threads and chance."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def new_id(self) -> str:
        return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))

    def new_token(self) -> str:
        return secrets.token_hex(16)

    def random(self) -> float:
        return random.random()

    def host(self) -> str:
        return socket.gethostname()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        # asyncio itself keeps only weak references: a task that nobody holds may be collected in mid-air.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def in_thread(self, work: Callable[[], T]) -> T:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(None, context.run, work)

    def lane(self, name: str) -> Lane:
        return _ThreadLane(name)

    def beside(self, work: Callable[[], Awaitable[None]], *, name: str) -> Side:
        return _ThreadSide(work, name)


def run_main(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a program's main coroutine to its end on a loop of this thread, and block until then."""
    return asyncio.run(main())


def run_in_new_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a new loop in a new thread, and block until then: for synchronous callers inside a running loop."""
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((asyncio.run(main()), None))
        except BaseException as error:
            answers.put((None, error))

    thread = threading.Thread(target=run, name="perdure-sync", daemon=True)
    thread.start()
    value, error = answers.get()
    thread.join()
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
