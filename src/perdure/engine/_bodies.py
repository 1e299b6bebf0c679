"""One tool body and what is made of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from perdure.agents import ToolFailed, describe
from perdure.context import Wait
from perdure.core.effect import EffectState, EffectWrite
from perdure.core.errors import NotFound, PerdureError, StoreUnavailable
from perdure.core.runtime import Runtime
from perdure.engine._execution import Execution
from perdure.engine._facts import Known
from perdure.engine._journal import WriteRefused

Body = Callable[[], Awaitable[Any]]


async def bounded(runtime: Runtime, body: Body, limit: float | None) -> Any:
    """Run a body for at most `limit` seconds. Raises `TimeoutError` where it takes longer; the body may then still be at it."""
    if limit is None:
        return await body()
    work = runtime.spawn(_run(body), name="tool body")
    try:
        ended, _ = await asyncio.wait({work}, timeout=limit)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if ended:
        return work.result()
    # Not awaited: a body that swallows cancellation, or a thread, would hold the run beyond its limit.
    work.add_done_callback(_forget)
    work.cancel()
    raise TimeoutError(f"longer than {limit:g} s")


def really_waiting(execution: Execution, body: Body) -> Body:
    """The body, whose wait for another run is one that can end: the run is there, and is another one."""

    async def run() -> Any:
        try:
            return await body()
        except Wait as wait:
            if wait.child is None:
                raise
            if wait.child == execution.run.id:
                raise ToolFailed(
                    "This tool waits for its own run, which can't end before it: raise Wait.run(…) with the id that start() gave."
                ) from None
            try:
                await execution.engine.run(wait.child)
            except NotFound as missing:
                raise ToolFailed(f"This tool waits for a run that is not there: {missing.message}") from None
            except StoreUnavailable as error:
                raise WriteRefused(error) from error
            raise

    return run


def done(row: EffectWrite, known: Known) -> EffectWrite:
    """The record of a deed that happened, whatever its result looks like."""
    if known.outcome == "success":
        return replace(row, state=EffectState.DONE, result=known.content, error=None)
    return replace(row, state=EffectState.DONE, result=None, error={"message": known.content})


def not_sent(row: EffectWrite) -> EffectWrite:
    """Planned again by who knows that nothing went out. After a first try that is true of its input too; an earlier try may have sent it."""
    planned = replace(row, state=EffectState.PLANNED)
    return planned if row.try_no > 1 else replace(planned, input=None, input_hash=None)


def reason(error: Exception) -> str:
    """An error's words for the model."""
    return error.message if isinstance(error, PerdureError) else describe(error)


async def _run(body: Body) -> Any:
    return await body()


def _forget(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
