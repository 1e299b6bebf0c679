"""One task that owns what must be opened, driven and closed in the same task.

Pydantic AI's `iter` holds context variables and cancel scopes; both must be left in the task that entered them. The callers of a session may ask from
any task, and may be cancelled: their request is then stopped and waited for, never left half-done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from perdure.core.runtime import Runtime

T = TypeVar("T")


@dataclass(eq=False)
class _Job:
    work: Callable[[], Awaitable[Any]]
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    stopped: bool = False


class Driver:
    """Runs what it is given, one after the other, in its own task, with the context of whoever started it."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._jobs: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._task = runtime.spawn(self._run(), name=name)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` in the driver's task and hand over what comes out. Cancelling the caller stops the work and waits until it has stopped."""
        job = _Job(work)
        self._jobs.put_nowait(job)
        try:
            return cast(T, await asyncio.shield(job.done))
        except asyncio.CancelledError:
            if not job.done.done():
                job.stopped = True
                self._task.cancel()
                await asyncio.wait({job.done})
            _seen(job.done)
            raise

    async def close(self) -> None:
        """End the task after what was asked for."""
        self._jobs.put_nowait(None)
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        while (job := await self._next()) is not None:
            if job.stopped:
                job.done.cancel()
                continue
            try:
                result = await job.work()
            except asyncio.CancelledError:
                self._uncancel()
                job.done.cancel()
            except BaseException as error:
                # Any error belongs to whoever asked, `Suspend` included; the traceback goes with it.
                if not job.done.done():
                    job.done.set_exception(error)
                if job.stopped:
                    _seen(job.done)
                del error
            else:
                if not job.done.done():
                    job.done.set_result(result)
                del result

    async def _next(self) -> _Job | None:
        while True:
            try:
                return await self._jobs.get()
            except asyncio.CancelledError:
                # A stop that came just after its work had ended. A task that the whole program cancels has nothing to wait for and ends.
                if not self._uncancel():
                    raise

    def _uncancel(self) -> bool:
        task = asyncio.current_task()
        assert task is not None
        asked = task.cancelling() > 0
        while task.cancelling():
            task.uncancel()
        return asked


def _seen(future: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody will await, so that it is not reported as forgotten."""
    if future.done() and not future.cancelled():
        future.exception()
