"""A job that goes on stays with its worker: one write a phase, nobody starved, nothing lost when the worker dies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from pipeline_worlds import QUEUES, ManualClock, OpenKind, World
from pydantic import AfterValidator

from perdure.core.limits import LEASE_DEFAULT
from perdure.pipeline import Checkpoint, Done, Next, Outcome, Phase, PhaseContext, PhaseResult, PipelineWorker, RetryPolicy, phase
from perdure.pipeline._worker import CHAIN

FAR = 3 * CHAIN


@dataclass
class Left:
    count: int


class Counted:
    """A storage that counts what it is asked."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.calls = inner, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return found(*args, **options)

        setattr(self, name, call)
        return call


def down(ran: list[str], clock: ManualClock) -> Phase[Left]:
    @phase(name="down")
    async def step(ctx: PhaseContext[Left]) -> PhaseResult[Left]:
        ran.append(ctx.job_id)
        clock.advance(0.001)
        return Next("down", Left(ctx.state.count - 1)) if ctx.state.count > 1 else Done()

    return step


async def start(world: World, *jobs: str) -> list[str]:
    ran: list[str] = []
    world.use(down(ran, world.clock))
    for job in jobs:
        await world.start(job, Left(FAR))
    return ran


@pytest.mark.parametrize("kind", QUEUES)
async def test_a_job_costs_one_write_a_phase_while_there_is_room(kind: str, tmp_path: Path, open_kind: OpenKind) -> None:
    """It is claimed once; each outcome claims the next phase; nothing is read back."""
    async with open_kind(kind, tmp_path) as world:
        ran = await start(world, "j")
        storage: Any = Counted(world.storage)
        await PipelineWorker(world.phases, storage, runtime=world.clock).run_until_idle()
        assert len(ran) == FAR
        assert (storage.calls["claim_job"], storage.calls["commit_and_claim"], storage.calls["commit_outcome"]) == (1, FAR - 1, 1)
        assert (storage.calls["get_job"], storage.calls["put_advance"], storage.calls["drop_advance"]) == (0, 0, 0)


@pytest.mark.parametrize("kind", QUEUES)
async def test_a_full_worker_lets_others_have_their_turn(kind: str, tmp_path: Path, open_kind: OpenKind) -> None:
    """With room for one job, three jobs take turns: none has more than a bounded number of phases in a row."""
    async with open_kind(kind, tmp_path) as world:
        ran = await start(world, "a", "b", "c")
        await PipelineWorker(world.phases, world.storage, runtime=world.clock, concurrency=1).run_until_idle()
        assert Counter(ran) == {"a": FAR, "b": FAR, "c": FAR}
        turns = [ran[at : at + CHAIN] for at in range(0, len(ran), CHAIN)]
        assert [set(turn) for turn in turns] == [{"a"}, {"b"}, {"c"}] * 3


@pytest.mark.parametrize("kind", QUEUES)
async def test_a_job_that_is_started_meanwhile_does_not_wait_for_one_that_goes_on(kind: str, tmp_path: Path, open_kind: OpenKind) -> None:
    """A phase starts another job; the worker has room, so that one runs beside the first."""
    ran: list[str] = []

    @phase
    async def first(ctx: PhaseContext[Left]) -> PhaseResult[Left]:
        ran.append(ctx.job_id)
        if ctx.state.count == FAR:
            await world.start("other", Left(1))
        if "other" in ran:
            return Done()
        return Next("first", Left(ctx.state.count - 1))

    async with open_kind(kind, tmp_path) as world:
        world.use(first)
        await world.start("j", Left(FAR))
        await PipelineWorker(world.phases, world.storage, runtime=world.clock).run_until_idle()
        assert ran.count("other") == 1
        assert (await world.job("j")).status == (await world.job("other")).status == "complete"


@pytest.mark.parametrize("kind", QUEUES)
@pytest.mark.parametrize("steps", [1, 5])
async def test_what_a_dead_worker_kept_comes_due_again(kind: str, steps: int, tmp_path: Path, open_kind: OpenKind) -> None:
    """It had moved and claimed the job again; another worker goes on from there when the lease is over, by itself."""
    async with open_kind(kind, tmp_path) as world:
        ran = await start(world, "j")
        [taken] = await world.storage.take_advances(limit=1, hold=LEASE_DEFAULT)
        claim = await world.storage.claim_job(taken.job_id, LEASE_DEFAULT)
        for n in range(steps):
            world.clock.advance(LEASE_DEFAULT.total_seconds() * 0.4)
            at = Checkpoint("down", {"count": FAR - n - 1}, world.clock.now())
            step = Outcome("j", claim.job.version, checkpoint=at, entered=True, advance=timedelta(0))
            claim = await world.storage.commit_and_claim(step, LEASE_DEFAULT)
            assert claim is not None and claim.taken
        due = await world.storage.next_advance("j")
        assert due is not None and due <= LEASE_DEFAULT, "nobody would come for it"
        await world.drain()
        assert ran == [], "its lease is live"
        world.clock.advance(LEASE_DEFAULT.total_seconds())
        await world.drain_all(step=LEASE_DEFAULT.total_seconds())
        assert len(ran) == FAR - steps
        assert (await world.job("j")).status == "complete"


@pytest.mark.parametrize("kind", QUEUES)
async def test_a_pause_between_two_phases_of_a_kept_job_is_heard(kind: str, tmp_path: Path, open_kind: OpenKind) -> None:
    """The outcome stands, the job is given back, and nothing of it runs until it is resumed."""
    async with open_kind(kind, tmp_path) as world:
        ran: list[int] = []

        @phase(name="down")
        async def step(ctx: PhaseContext[Left]) -> PhaseResult[Left]:
            ran.append(ctx.state.count)
            if ctx.state.count == FAR - 3:
                await world.storage.commit_outcome(Outcome("j", (await world.job("j")).version, status="paused", hold=True))
            return Next("down", Left(ctx.state.count - 1)) if ctx.state.count > 1 else Done()

        world.use(step)
        await world.start("j", Left(FAR))
        await world.drain()
        job = await world.job("j")
        assert (job.status, job.lease_left, ran[-1]) == ("paused", None, FAR - 3)
        assert job.checkpoint is not None and job.checkpoint.state == {"count": FAR - 4}


async def test_a_state_is_read_once_on_its_way_from_phase_to_phase(tmp_path: Path, open_kind: OpenKind) -> None:
    """What was written was read back to check it; the next phase, entered at once, gets that. A try more gets what is stored, not what a phase made of it."""
    read: list[int] = []
    seen: list[list[int]] = []

    def noted(rows: list[int]) -> list[int]:
        read.append(len(rows))
        return rows

    Rows = Annotated[list[int], AfterValidator(noted)]

    async def run(ctx: PhaseContext[Any]) -> PhaseResult[Any]:
        seen.append(list(ctx.state))
        at = len(ctx.state)
        ctx.state.append(99)  # its own copy, to spoil as it likes
        if at == 3 and ctx.attempt == 1:
            raise ConnectionError
        return Next("grow", [*range(at + 1)]) if at < 5 else Done()

    async with open_kind("sqlite-queue", tmp_path) as world:
        world.use(Phase("grow", run, state=Rows, retry=RetryPolicy(attempts=2)))
        await world.start("j", [])
        await world.drain_all(step=5)
        assert seen == [[*range(at)] for at in (0, 1, 2, 3, 3, 4, 5)]
        # Twice: the first, which another process had started, and the one whose second try came from the queue.
        assert read == [0, 0, 1, 2, 3, 3, 4, 5]
