"""Text that a store can't hold as it is (NUL, half a surrogate pair), wherever a phase or a person may say it: it is stored by the rule, and nothing hangs on it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pipeline_worlds import Open, World

from perdure.pipeline import Approval, Done, Error, Next, PhaseContext, PhaseResult, Retry, Wait, phase, resume_job

ODD = "a\x00b\ud800c"
PLAIN = "a\N{SYMBOL FOR NULL}b\N{REPLACEMENT CHARACTER}c"


async def status(world: World) -> tuple[str, str | None]:
    job = await world.job("j")
    return job.status, job.error


@pytest.mark.parametrize("how", ["raised", "returned", "retried"])
async def test_an_error_with_odd_text_ends_the_job(world_of: Open, how: str) -> None:
    """It does not leave it running, entered again and again."""  # case E1
    seen: list[str] = []

    @phase
    async def breaks(ctx: PhaseContext[dict[str, int]]) -> PhaseResult[dict[str, int]]:
        seen.append(how)
        if how == "raised":
            raise ValueError(ODD)
        if how == "retried" and len(seen) == 1:
            return Retry(timedelta(0), reason=ODD)
        return Error(ODD)

    async with world_of() as world:
        world.use(breaks)
        await world.start("j", {})
        await world.drain()
        said, error = await status(world)
        assert said == "error" and error is not None and PLAIN in error
        assert len(seen) == (2 if how == "retried" else 1)


async def test_what_a_phase_logs_and_notes_is_kept(world_of: Open) -> None:
    """The phase goes on."""

    @phase
    async def talks(ctx: PhaseContext[dict[str, int]]) -> PhaseResult[dict[str, int]]:
        await ctx.log(ODD)
        await ctx.save_state({"n": 1}, log=ODD)
        return Done("done")

    async with world_of() as world:
        world.use(talks)
        await world.start("j", {})
        assert await world.drain() == []
        assert await status(world) == ("complete", None)
        assert (await world.said("j")).count(PLAIN) == 2


async def test_a_question_and_its_answer_are_kept(world_of: Open) -> None:
    """Reason and name, too."""
    heard: list[tuple[str | None, str | None]] = []

    @phase
    async def asks(ctx: PhaseContext[dict[str, int]]) -> PhaseResult[dict[str, int]]:
        if ctx.answer is None:
            return Wait(approval=Approval(ODD, {"about": ODD}))
        heard.append((ctx.answer.reason, ctx.answer.by))
        return Next("ends", ctx.state)

    @phase
    async def ends(ctx: PhaseContext[dict[str, int]]) -> PhaseResult[dict[str, int]]:
        return Done("done")

    async with world_of() as world:
        world.use(asks, ends)
        await world.start("j", {})
        assert await world.drain() == []
        await resume_job("j", world.storage, world.scheduler, approved=True, reason=ODD, by=ODD, runtime=world.clock)
        assert await world.drain() == []
        assert await status(world) == ("complete", None)
    assert heard == [(PLAIN, PLAIN)]
