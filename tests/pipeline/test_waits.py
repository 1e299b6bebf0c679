"""Pauses: for a person, for a time, for a decision, and by an operator."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pipeline_worlds import START, Open, World

from perdure.core.errors import UnserializableError
from perdure.pipeline import (
    Answer,
    Approval,
    Done,
    JobConflictError,
    JobNotFoundError,
    Next,
    PhaseContext,
    PhaseResult,
    Wait,
    explain,
    pause_job,
    phase,
    recover,
    resume_job,
)


@dataclass
class Draft:
    text: str = ""


entered: list[tuple[str, str, Answer | None]] = []
asked: list[Wait[Draft]] = []


@phase
async def review(ctx: PhaseContext[Draft]) -> PhaseResult[Draft]:
    entered.append(("review", ctx.state.text, ctx.answer))
    if ctx.answer is None:
        return asked[-1]
    return Done("sent" if ctx.answer.approved else "kept")


@phase
async def archive(ctx: PhaseContext[Draft]) -> PhaseResult[Draft]:
    entered.append(("archive", ctx.state.text, ctx.answer))
    return Done()


@pytest.fixture(autouse=True)
def _clean() -> None:
    entered.clear()
    asked[:] = [Wait(approval=Approval("Send it?", {"to": "eva"}))]


async def begin(world: World) -> None:
    world.use(review, archive)
    await world.start("j", Draft("hello"))
    assert await world.drain() == []
    assert (await world.job("j")).status == "paused"


async def resume(world: World, **how: Any) -> None:
    await resume_job("j", world.storage, world.scheduler, runtime=world.clock, **how)


async def test_an_approval_pauses_until_a_person_decides(world_of: Open) -> None:
    """The question is stored with its data and deadline; the same phase is entered with the answer."""
    async with world_of() as world:
        await begin(world)
        job = await world.job("j")
        assert job.checkpoint is not None and job.checkpoint.wait is not None
        wait = job.checkpoint.wait
        assert (wait.kind, wait.question, wait.data, wait.until) == ("approval", "Send it?", {"to": "eva"}, START + timedelta(days=7))
        assert await world.said("j") == ["Paused: Send it?"]
        await resume(world, approved=True, value={"edit": 1}, by="eva", reason="fine")
        await world.drain()
        assert [each[:2] for each in entered] == [("review", "hello"), ("review", "hello")]
        assert entered[1][2] == Answer("person", True, {"edit": 1}, "fine", "eva", START)
        assert (await world.job("j")).status == "complete"


async def test_a_decision_needs_a_decision(world_of: Open) -> None:
    """A plain resume of an approval is refused; so is one that can't be stored."""
    async with world_of() as world:
        await begin(world)
        with pytest.raises(JobConflictError, match="Approve or deny it"):
            await resume(world)
        with pytest.raises(UnserializableError):
            await resume(world, approved=True, value=object())
        assert (await world.job("j")).status == "paused"


async def test_the_first_answer_wins(world_of: Open) -> None:
    """The same again changes nothing, another one learns who won."""
    async with world_of() as world:
        await begin(world)
        await resume(world, approved=False, by="eva")
        await resume(world, approved=False, by="ben")
        with pytest.raises(JobConflictError, match="by eva"):
            await resume(world, approved=True, by="ben")
        await world.drain()
        assert entered[1][2] is not None and entered[1][2].by == "eva"


async def test_twenty_answers_at_once_make_one_resume(full_world_of: Open) -> None:
    """Ten say yes and ten say no: one kind wins, the other is refused, the phase is entered once."""
    async with full_world_of() as world:
        await begin(world)
        results = await asyncio.gather(*(resume(world, approved=bool(n % 2)) for n in range(20)), return_exceptions=True)
        assert sum(each is None for each in results) == 10
        assert sum(isinstance(each, JobConflictError) for each in results) == 10
        await world.drain()
        assert len(entered) == 2


async def test_silence_approves_nothing(world_of: Open) -> None:
    """At the deadline the job goes on by itself, with an answer that says: expired, by nobody."""
    async with world_of() as world:
        asked.append(Wait(approval=Approval("Send it?", within=timedelta(hours=1))))
        await begin(world)
        world.clock.advance(3599)
        await world.drain()
        assert len(entered) == 1
        world.clock.advance(1)
        with pytest.raises(JobConflictError, match="lapsed"):
            await resume(world, approved=True)
        await world.drain()
        answer = entered[1][2]
        assert answer is not None and (answer.kind, answer.approved, answer.by) == ("expired", False, None)
        assert "Nobody decided in time: Send it?" in await world.said("j")


async def test_an_approval_may_have_no_deadline(world_of: Open) -> None:
    """Years later it is still open."""
    async with world_of() as world:
        asked.append(Wait(approval=Approval("Send it?", within=None)))
        await begin(world)
        world.clock.advance(10 * 365 * 86400)
        await world.drain()
        await resume(world, approved=True)
        await world.drain()
        assert (await world.job("j")).status == "complete"


async def test_a_wait_until_a_time_goes_on_by_itself(world_of: Open) -> None:
    """Not before, whatever advances come early; and then in the phase that was named, with its state."""
    async with world_of() as world:
        asked.append(Wait("archive", Draft("for later"), until=START + timedelta(hours=2)))
        await begin(world)
        for _ in range(3):
            assert await world.advance("j") == "early"
        world.clock.advance(7200)
        await world.drain()
        [_, (name, text, answer)] = entered
        assert (name, text) == ("archive", "for later")
        assert answer is not None and answer.kind == "timer"


async def test_a_wait_until_a_time_can_be_ended_by_a_person(world_of: Open) -> None:
    """Whoever does not want to wait resumes it."""
    async with world_of() as world:
        asked.append(Wait(archive, until=timedelta(days=2), reason="cooling off"))
        await begin(world)
        await resume(world, by="eva")
        await world.drain()
        assert entered[1][0] == "archive" and entered[1][2] is not None and entered[1][2].by == "eva"
        world.clock.advance(3 * 86400)
        await world.drain()
        assert len(entered) == 2


async def test_a_plain_wait_lasts_until_it_is_resumed(world_of: Open) -> None:
    """No time ends it."""
    async with world_of() as world:
        asked.append(Wait(reason="somebody has to look"))
        await begin(world)
        world.clock.advance(1e8)
        await world.drain()
        assert (await world.job("j")).status == "paused"
        await resume(world)
        await world.drain()
        assert (await world.job("j")).status == "complete"


async def test_an_operators_pause_takes_effect_between_phases(world_of: Open) -> None:
    """The phase at work finishes and is kept; the next one waits for the resume."""
    started, gate = asyncio.Event(), asyncio.Event()

    @phase
    async def slow(ctx: PhaseContext[Draft]) -> PhaseResult[Draft]:
        started.set()
        await gate.wait()
        return Next(archive, Draft("kept"))

    async with world_of() as world:
        world.use(slow, archive)
        await world.start("j", Draft())
        task = asyncio.ensure_future(world.advance("j"))
        await started.wait()
        await pause_job("j", world.storage, world.scheduler)
        await pause_job("j", world.storage, world.scheduler)
        gate.set()
        await task
        await world.drain()
        job = await world.job("j")
        assert job.status == "paused" and entered == []
        assert job.checkpoint is not None and job.checkpoint.next_phase == "archive"
        await resume(world)
        await world.drain()
        assert entered == [("archive", "kept", None)] and (await world.job("j")).status == "complete"


async def test_a_resume_while_the_paused_phase_is_still_at_work_runs_nothing_twice(full_world_of: Open) -> None:
    """Pause and resume in the middle of a phase are as if neither had been."""
    started, gate = asyncio.Event(), asyncio.Event()

    @phase
    async def slow(ctx: PhaseContext[Draft]) -> PhaseResult[Draft]:
        entered.append(("slow", "", None))
        started.set()
        await gate.wait()
        return Next(archive, Draft())

    async with full_world_of() as world:
        world.use(slow, archive)
        await world.start("j", Draft())
        task = asyncio.ensure_future(world.advance("j"))
        await started.wait()
        await pause_job("j", world.storage, world.scheduler)
        await resume(world)
        assert await world.advance("j") == "busy"
        gate.set()
        await task
        await world.drain_all()
        assert [each[0] for each in entered] == ["slow", "archive"]


async def test_pause_and_resume_refuse_what_makes_no_sense(world_of: Open) -> None:
    """Unknown jobs, and jobs in another status."""
    async with world_of() as world:
        world.use(archive)
        for act in (pause_job, resume_job):
            with pytest.raises(JobNotFoundError):
                await act("nobody", world.storage, world.scheduler)
        await world.start("j", Draft())
        with pytest.raises(JobConflictError):
            await resume(world)
        await world.drain()
        for act in (pause_job, resume_job):
            with pytest.raises(JobConflictError):
                await act("j", world.storage, world.scheduler)


async def test_a_lost_timer_is_set_again_by_recover(full_world_of: Open) -> None:
    """A paused job that waits for a time, in a scheduler that forgot it."""
    async with full_world_of() as world:
        asked.append(Wait(archive, until=timedelta(hours=1)))
        await begin(world)
        await _forget(world)
        assert await recover(world.storage, world.scheduler) == ["j"]
        assert await recover(world.storage, world.scheduler) == []
        world.clock.advance(3600)
        await world.drain()
        assert (await world.job("j")).status == "complete"


async def _forget(world: World) -> None:
    if world.kind == "memory-queue":
        world.storage._advances.clear()
    elif world.kind.endswith("queue"):
        world.clock.advance(3600)
        [taken] = await world.storage.take_advances(limit=1, hold=timedelta(0))
        world.clock.advance(-3600)
        await world.storage.drop_advance(taken)
    else:
        world.scheduler._due.clear()


# case O8
async def test_a_paused_job_says_what_it_waits_for(world_of: Open) -> None:
    """The question, and what to do."""
    async with world_of() as world:
        await begin(world)
        said = explain(await world.job("j"))
        assert (said.state, said.phase, said.text) == ("paused", "review", "Send it?")
        assert said.next_step == "Approve or deny it. It goes on by itself at 2031-05-08 12:00 UTC."
