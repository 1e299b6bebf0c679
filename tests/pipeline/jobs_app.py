"""A program with a pipeline, for the command line's tests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from perdure.pipeline import Approval, Done, Next, PhaseContext, PhaseResult, Pipeline, PostgresStorage, SqliteStorage, Wait, phase


@dataclass
class Note:
    text: str = ""


@phase
async def write(ctx: PhaseContext[Note]) -> PhaseResult[Note]:
    await ctx.log("writing")
    return Next("check", Note("hello"))


@phase
async def check(ctx: PhaseContext[Note]) -> PhaseResult[Note]:
    if os.environ.get("JOBS_BROKEN"):
        raise ValueError("the ink is dry")
    return Next("ask", ctx.state)


@phase
async def ask(ctx: PhaseContext[Note]) -> PhaseResult[Note]:
    if ctx.answer is None:
        return Wait(approval=Approval("Send it?", within=None))
    return Done({"text": ctx.state.text, "approved": ctx.answer.approved, "value": ctx.answer.value, "by": ctx.answer.by})


def storage() -> Any:
    """In a file here, or in the Postgres that the environment names."""
    dsn = os.environ.get("JOBS_DSN")
    return PostgresStorage(dsn, prefix=os.environ["JOBS_PREFIX"]) if dsn else SqliteStorage("jobs.db", prefix=os.environ["JOBS_PREFIX"])


pipeline: Pipeline[Any] = Pipeline([write, check, ask], storage())
