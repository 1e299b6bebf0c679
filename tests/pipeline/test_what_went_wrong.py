"""A job that stopped says why, where and what to do; the first thing to do is the cheap one; every view of it says the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from pipeline_worlds import Open, World

from perdure.pipeline import (
    Approval,
    Done,
    Error,
    JobNotDoneError,
    Next,
    Phase,
    PhaseContext,
    PhaseError,
    Pipeline,
    Retry,
    RetryPolicy,
    Wait,
    explain,
    get_output,
    retry_job,
)
from perdure.pipeline._failures import _SIGNS


@dataclass
class Count:
    n: int = 0


class Five:
    """Phases a to e; those in `broken` raise."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken = {"d"}
        self.phases = [self._one(name, after) for name, after in zip("abcde", [*"bcde", ""], strict=True)]

    def _one(self, name: str, after: str) -> Phase[Count]:
        async def run(ctx: PhaseContext[Count]) -> Any:
            self.ran.append(name)
            if name in self.broken:
                raise RuntimeError("no")
            return Next(after, Count(ctx.state.n + 1)) if after else Done(ctx.state.n)

        return Phase(name, run, state=Count)


# case O2
async def test_the_first_retry_is_a_resume_however_often_it_failed(world_of: Open) -> None:
    """Fail, retry, fail again, retry: with nothing else said, only the failed phase runs; what it advises is a resume too."""
    async with world_of() as world:
        five = Five()
        world.use(*five.phases)
        await world.start("j", Count())
        await world.drain()
        assert five.ran == ["a", "b", "c", "d"]
        for _ in range(3):
            five.ran.clear()
            said = explain(await world.job("j"))
            assert said.next_step == "Fix what it says, then retry: the phase is entered again, those before it are not."
            await retry_job("j", world.phases, world.storage, world.scheduler, runtime=world.clock)
            await world.drain()
            assert five.ran == ["d"]
        five.broken.clear()
        await retry_job("j", world.phases, world.storage, world.scheduler, runtime=world.clock)
        await world.drain()
        assert five.ran == ["d", "d", "e"] and (await world.job("j")).status == "complete"


# case O2
async def test_the_retry_of_a_pipeline_object_is_a_resume_too(full_world_of: Open) -> None:
    """`Pipeline.retry(job)` says no mode either."""
    async with full_world_of() as world:
        if not hasattr(world.storage, "put_advance"):
            return
        five = Five()
        pipeline = Pipeline(five.phases, world.storage, runtime=world.clock)
        await pipeline.start("j", Count())
        await pipeline.worker().run_until_idle()
        five.ran.clear()
        await pipeline.retry("j")
        await pipeline.worker().run_until_idle()
        assert five.ran == ["d"]


async def never(ctx: PhaseContext[Count]) -> Any:
    await asyncio.Event().wait()


def gives(result: Any) -> Phase[Count]:
    async def run(ctx: PhaseContext[Count]) -> Any:
        if isinstance(result, Exception):
            raise result
        return result

    return Phase("bad", run, state=Count)


async def _an_old_phase(world: World) -> None:
    await _change(world, next_phase="gone")


async def _an_old_state(world: World) -> None:
    await _change(world, state={"n": "many"})


async def _many_deaths(world: World) -> None:
    for _ in range(5):
        await world.storage.claim_job("j", timedelta(seconds=30))
        world.clock.advance(31)


async def _change(world: World, **changes: Any) -> None:
    job = await world.job("j")
    assert job.checkpoint is not None
    await world.storage.set_checkpoint("j", replace(job.checkpoint, **changes))


Spoil = Callable[[World], Awaitable[None]]
FAILURES: dict[str, tuple[Phase[Any], Spoil | None, str, str, int]] = {
    "it raised": (gives(ValueError("the ink is dry")), None, "phase_error", "ValueError: the ink is dry", 1),
    "it said so": (gives(Error("nothing to add")), None, "phase_error", "nothing to add", 1),
    "it took too long": (Phase("bad", never, state=Count, timeout=0.01), None, "timeout", "longer than its 0.01 s", 1),
    "it returned nothing": (gives(None), None, "invalid_result", "returned nothing", 1),
    "it named no phase": (gives(Next("nowhere", Count())), None, "unknown_phase", '"nowhere"; known: bad', 1),
    "its phase is gone": (gives(Done()), _an_old_phase, "unknown_phase", 'Unknown phase "gone"; known: bad', 1),
    "its state does not fit": (gives(Next("bad", {"n": "x"})), None, "invalid_state", 'State for phase "bad" is not valid at $.n', 1),
    "the stored state does not fit": (gives(Done()), _an_old_state, "invalid_state", 'State for phase "bad" is not valid at $.n', 1),
    "its output can't be kept": (gives(Done(object())), None, "unserializable", "can't be stored", 1),
    "it was never ready": (gives(Retry(0)), None, "not_ready", "was not ready after 3 tries", 3),
    "it takes its process down": (gives(Done()), _many_deaths, "poisoned", "took its process down 5 times", 1),
}


QUIET = ("it said so", "it was never ready", "its phase is gone", "it takes its process down")
"""Failures that raise nothing: the phase said so itself, or was not entered at all."""


# case O8
@pytest.mark.parametrize("failure", FAILURES)
async def test_each_failure_has_a_code_a_text_a_place_a_try_and_something_to_do(world_of: Open, failure: str) -> None:
    """In the record, in the log, and in `explain`."""
    phase, spoil, code, text, attempt = FAILURES[failure]
    if failure == "it was never ready":
        phase.retry = RetryPolicy(attempts=3)
    async with world_of() as world:
        if spoil is _many_deaths and not world.full:
            return  # deaths are counted by leases
        world.use(phase)
        await world.start("j", Count())
        if spoil is not None:
            await spoil(world)
        failures = await world.drain_all()
        job = await world.job("j")
        said = explain(job)
        assert (job.status, said.state, said.code, said.attempt) == ("error", "error", code, attempt)
        assert text in (said.text or "") and said.text == job.error
        assert said.phase == ("gone" if spoil is _an_old_phase else "bad") and said.next_step
        assert [type(each) for each in failures] == ([] if failure in QUIET else [PhaseError])
        last = (await world.log("j"))[-1]
        assert (last.level, last.phase) == ("error", said.phase)


def test_no_kind_of_failure_is_left_out() -> None:
    """Every code that `explain` knows is reached by a real failure above."""
    assert {code for _, code, _ in _SIGNS} == {code for _, _, code, _, _ in FAILURES.values()}


# case O6
@pytest.mark.parametrize(
    ("phase", "status"), [(gives(Done(7)), "complete"), (gives(Error("no")), "error"), (gives(Wait(approval=Approval("Go on?"))), "paused")]
)
async def test_every_view_of_a_job_that_rests_says_the_same(full_world_of: Open, phase: Phase[Any], status: str) -> None:
    """The record, the lists by status, `explain` and the output agree as soon as the phase has ended; nobody holds it."""
    async with full_world_of() as world:
        world.use(phase)
        await world.start("j", Count())
        await world.drain()
        job = await world.job("j")
        assert (job.status, explain(job).state, job.lease_left, job.progress) == (status, status, None, None)
        for each in ("idle", "running", "paused", "complete", "error"):
            assert [job_id for job_id, _ in await world.storage.list_jobs(status=each)] == (["j"] if each == status else [])
        assert list(await world.storage.list_running()) == []
        if status == "complete":
            assert (job.error, job.checkpoint, await get_output("j", world.storage)) == (None, None, 7)
        else:
            assert (job.error is not None) == (status == "error") and job.output is None
            with pytest.raises(JobNotDoneError):
                await get_output("j", world.storage)


# case O6
async def test_running_and_at_work_has_a_live_lease(full_world_of: Open) -> None:
    """Seen from inside the phase, as somebody who looks meanwhile sees it."""
    seen: list[tuple[str, str, bool]] = []
    async with full_world_of() as world:

        async def look(ctx: PhaseContext[Count]) -> Any:
            job = await world.job("j")
            seen.append((job.status, explain(job).state, job.lease_left is not None and job.lease_left > timedelta(0)))
            return Next("look", Count(ctx.state.n + 1)) if ctx.state.n < 2 else Done()

        world.use(Phase("look", look, state=Count))
        await world.start("j", Count())
        await world.drain()
        assert seen == [("running", "working", True)] * 3
