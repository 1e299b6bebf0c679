"""The shapes that are stored, and the scheduler in memory."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pipeline_worlds import ManualClock
from pydantic_ai.messages import ModelMessage

from perdure.pipeline import (
    AgentTurn,
    Answer,
    Checkpoint,
    Done,
    Error,
    JobRecord,
    LogEntry,
    MemoryScheduler,
    MemoryStorage,
    PendingToolCall,
    PhaseContext,
    PhaseError,
    PhaseResult,
    Progress,
    WaitRecord,
    advance_phase,
    phase,
    run_pipeline,
)

NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)
WHOLE = Checkpoint(
    "draft", {"n": 1}, NOW, "life", 3, 2, NOW + timedelta(seconds=5),
    WaitRecord("w", "approval", "Go on?", NOW + timedelta(days=1), {"x": 1}, Answer("person", True, {"y": 2}, "fine", "eva", NOW)),
)  # fmt: skip
ENTRY = LogEntry(NOW, "hello", "draft", "warn")


@pytest.mark.parametrize(
    "shape", [JobRecord("running", WHOLE, None, {"out": 1}), ENTRY, WHOLE, WHOLE.wait, PendingToolCall("c1", "pay", {"cents": 9}), Progress(1, 2)]
)
def test_shapes_are_frozen(shape: Any) -> None:
    """No field can be set."""
    for each in fields(shape):
        with pytest.raises(FrozenInstanceError):
            setattr(shape, each.name, None)


def test_shapes_take_what_they_need_in_this_order() -> None:
    """Positions and defaults are part of the contract: a level that is not given is `info`."""
    assert LogEntry(NOW, "hello").level == "info" and LogEntry(NOW, "hello").phase is None
    assert [each.name for each in fields(JobRecord)][:4] == ["status", "checkpoint", "error", "output"]
    assert [each.name for each in fields(LogEntry)] == ["timestamp", "message", "phase", "level"]
    assert [each.name for each in fields(Checkpoint)][:3] == ["next_phase", "state", "created_at"]
    assert [each.name for each in fields(PendingToolCall)] == ["id", "name", "args"]
    assert AgentTurn == ModelMessage


@pytest.mark.parametrize("shape", [WHOLE, replace(WHOLE, wait=None, not_before=None), ENTRY, WHOLE.wait], ids=["whole", "bare", "entry", "wait"])
def test_the_json_form_has_every_field_and_comes_back(shape: Any) -> None:
    """Nothing is lost on the way through a storage; what a storage dropped takes its default."""
    data = shape.to_json()
    assert set(data) == {each.name for each in fields(shape)}
    assert type(shape).from_json(json.loads(json.dumps(data))) == shape
    if isinstance(shape, Checkpoint):
        assert Checkpoint.from_json({"next_phase": "a", "state": 1, "created_at": NOW.isoformat()}) == Checkpoint("a", 1, NOW)


@dataclass
class Count:
    n: int = 0


@phase
async def odd(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
    await ctx.log("here")
    if ctx.state.n == 2:
        raise ValueError("two")
    return Error("one") if ctx.state.n == 1 else Done(ctx.state.n)


async def test_a_scheduler_that_is_bound_to_nothing_does_nothing() -> None:
    """The job is stored; nobody advances it."""
    storage, scheduler = MemoryStorage(), MemoryScheduler()
    await run_pipeline("j", [odd], storage, scheduler, Count())
    assert (scheduler.bound, scheduler.pending, await scheduler.drain()) == (False, [], [])
    assert storage.inspect()["j"].job.status == "running"


async def test_drain_runs_what_is_due_and_answers_the_failures() -> None:
    """Soonest first; what is due later stays, or is waited for; a failed phase stops no other job."""
    clock = ManualClock()
    storage, scheduler = MemoryStorage(runtime=clock), MemoryScheduler(runtime=clock)
    scheduler.bind(lambda job_id: advance_phase(job_id, [odd], storage, scheduler, runtime=clock))
    for n in range(3):
        await run_pipeline(f"j{n}", [odd], storage, scheduler, Count(n), runtime=clock)
    await scheduler.schedule_advance("j0", timedelta(minutes=5))
    await scheduler.schedule_advance("soon", timedelta(seconds=-1))
    assert scheduler.pending == ["soon", "j0", "j1", "j2", "j0"]
    assert await scheduler.is_pending("j1") and not await scheduler.is_pending("j9")
    failures = await scheduler.drain()
    assert [(type(each), each.job_id, each.phase, each.recoverable) for each in failures] == [(PhaseError, "j2", "odd", True)]
    assert {job_id: seen.job.status for job_id, seen in storage.inspect().items()} == {"j0": "complete", "j1": "error", "j2": "error"}
    assert [entry.message for entry in storage.inspect()["j2"].log] == ["here", 'Phase "odd" threw: ValueError: two']
    assert scheduler.pending == ["j0"]
    clock.advance(300)
    await scheduler.drain()
    assert scheduler.pending == []


async def test_what_is_no_failure_of_a_phase_is_raised_by_drain() -> None:
    """A mistake of the program is not swallowed."""
    scheduler = MemoryScheduler()

    async def broken(job_id: str) -> None:
        raise LookupError(job_id)

    scheduler.bind(broken)
    await scheduler.schedule_advance("j")
    with pytest.raises(LookupError):
        await scheduler.drain()
