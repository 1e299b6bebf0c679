"""The simulated side of the only door: one `SimRuntime` for each replica."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from perdure.core.runtime import uuid7
from perdure.testing.simulation._loop import EPOCH, Replica, SimLoop, Strand, current_strand

T = TypeVar("T")

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""What the wall clocks show when a simulation begins."""


class SimLane:
    """A thread that runs what it is given: a strand whose callbacks are the work."""

    def __init__(self, loop: SimLoop, strand: Strand) -> None:
        self._loop, self._strand = loop, strand

    def post(self, work: Callable[[], None]) -> None:
        self._loop.call_soon(work, context=self._strand.context)

    def close(self) -> None:
        # The real one joins its thread, so all that was posted has run when this returns.
        self._loop.drain(self._strand)


class SimSide:
    """A coroutine on a strand of its own: it goes on while the main strand is blocked."""

    def __init__(self, loop: SimLoop, strand: Strand, work: Callable[[], Awaitable[None]], name: str) -> None:
        async def main() -> None:
            await work()

        self._loop, self._strand = loop, strand
        self._task = loop.create_task(main(), name=name, context=strand.context.copy())

    def stop(self) -> None:
        self._task.cancel()
        # The real one joins its thread. Whatever still waits for time or for the store after this ends a little later.
        self._loop.drain(self._strand)


class SimRuntime:
    """Time, chance, ids, tasks and threads of one replica, all from the seed.

    `skew` is how far its wall clock is off, in seconds; `jump` moves it. The monotonic clock is the simulation's own.
    """

    def __init__(self, loop: SimLoop, replica: Replica, *, seed: int | str = 0, skew: float = 0.0) -> None:
        self.loop, self.replica, self.skew = loop, replica, skew
        self._chance = random.Random(f"runtime/{seed}/{replica.name}")

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative: a clock that was corrected."""
        self.skew += seconds

    def now(self) -> datetime:
        return START + timedelta(seconds=self.loop.time() - EPOCH + self.skew)

    def monotonic(self) -> float:
        return self.loop.time()

    def new_id(self) -> str:
        milliseconds = int(self.now().timestamp() * 1000)
        return uuid7(milliseconds, self._chance.getrandbits(74))

    def new_token(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"

    def random(self) -> float:
        return self._chance.random()

    def host(self) -> str:
        return "simulated"

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return self.loop.create_task(work, name=name)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await self.loop.run_in_executor(None, contextvars.copy_context().run, work)

    def lane(self, name: str) -> SimLane:
        return SimLane(self.loop, self.replica.strand(name))

    def beside(self, work: Callable[[], Awaitable[None]], *, name: str) -> SimSide:
        return SimSide(self.loop, self.replica.strand(name), work, name)


async def block(seconds: float) -> None:
    """Hold this thread as a blocking call would: nothing else of it runs until `seconds` have passed. For tools in scenarios."""
    strand = current_strand()
    if strand is None:
        raise RuntimeError("block() stands for a blocking call inside a simulation; there is none here.")
    strand.replica.woke_at = asyncio.get_running_loop().time() + seconds
    strand.paused_until = max(strand.paused_until, strand.replica.woke_at)
    await asyncio.sleep(0)


async def die() -> None:
    """End this replica here and now, as `os._exit` in a tool would. Never returns."""
    strand = current_strand()
    if strand is None:
        raise RuntimeError("die() stands for the end of a process inside a simulation; there is none here.")
    strand.replica.kill()
    await asyncio.get_running_loop().create_future()
