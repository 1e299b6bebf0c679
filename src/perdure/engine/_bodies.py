"""One tool body and what is made of its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from perdure.agents import describe
from perdure.core.effect import EffectState, EffectWrite
from perdure.core.errors import PerdureError
from perdure.core.runtime import Runtime
from perdure.engine._facts import Known

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
