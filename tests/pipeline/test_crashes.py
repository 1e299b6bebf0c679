"""A job whose process dies at any call of an adapter is finished by `recover` or a retry, with at most one phase entered again."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from pipeline_worlds import FULL, KINDS, OpenKind, World

from perdure.pipeline import (
    Approval,
    Done,
    MemoryScheduler,
    Next,
    Phase,
    PhaseContext,
    PhaseResult,
    RetryPolicy,
    StorageScheduler,
    Wait,
    recover,
    resume_job,
)
from perdure.testing.pipeline import Crash, Dying, Fuse, dying


@dataclass
class Item:
    pages: list[int] = field(default_factory=list)
    note: str = ""


class Story:
    """Reads in two steps with a save between, goes round once, asks a person, stumbles once, finishes."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.deeds: Counter[str] = Counter()
        self.stumbled = False

        async def read(ctx: PhaseContext[Item]) -> PhaseResult[Item]:
            self.entered.append("read")
            if not ctx.state.pages:
                await ctx.log("page 1")
                await ctx.save_state(Item([1]))
            await ctx.log("page 2")
            return Next("loop", Item([1, 2]))

        async def loop(ctx: PhaseContext[Item]) -> PhaseResult[Item]:
            self.entered.append(f"loop {len(ctx.state.pages)}")
            if len(ctx.state.pages) == 2:
                return Next("loop", Item([1, 2, 3]))
            return Next("ask", ctx.state)

        async def ask(ctx: PhaseContext[Item]) -> PhaseResult[Item]:
            self.entered.append(f"ask {ctx.answer is not None}")
            if ctx.answer is None:
                return Wait(approval=Approval("Go on?"))
            return Next("pay", Item(ctx.state.pages, str(ctx.answer.value)))

        async def pay(ctx: PhaseContext[Item]) -> PhaseResult[Item]:
            self.entered.append("pay")
            if not self.stumbled:
                self.stumbled = True
                raise ConnectionError("the bank is closed")
            self.deeds[ctx.key] += 1
            return Done({"pages": ctx.state.pages, "note": ctx.state.note})

        self.phases = [
            Phase("read", read, state=Item),
            Phase("loop", loop, state=Item),
            Phase("ask", ask, state=Item),
            Phase("pay", pay, state=Item, retry=RetryPolicy(attempts=4)),
        ]


@asynccontextmanager
async def dying_world(open_kind: OpenKind, kind: str, folder: Path, fuse: Fuse) -> AsyncGenerator[World]:
    """A world whose adapters die together. A memory scheduler forgets with its process, a queue does not."""
    async with open_kind(kind, folder) as world:
        storage = dying(world.storage, fuse)
        queue = not isinstance(world.scheduler, MemoryScheduler)
        yield World(kind, world.clock, storage, StorageScheduler(storage) if queue else dying(world.scheduler, fuse))


async def drive(world: World, story: Story) -> None:
    """What operators and people do until the job is complete: start, recover, drain, answer, retry."""
    scheduler = world.scheduler
    inner = scheduler.inner if isinstance(scheduler, Dying) else None
    if isinstance(inner, MemoryScheduler):
        inner.bind(world.advance)
    world.phases = story.phases
    for _ in range(12):
        job = await world.storage.get_job("j")
        if job is None or job.status == "idle":
            await world.start("j", Item())
        elif job.status == "complete":
            return
        elif job.status == "paused":
            await resume_job("j", world.storage, scheduler, approved=True, value="yes", runtime=world.clock)
        elif job.status == "error" or job.checkpoint is None or not hasattr(world.storage, "list_running"):
            await world.start("j", Item(), "resume")
        if hasattr(world.storage, "list_running"):
            await recover(world.storage, scheduler)
        if isinstance(inner, MemoryScheduler):
            await inner.drain()
        else:
            await world.drain()
        world.clock.advance(31)
    raise AssertionError("it did not finish")


@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_crash_the_story_is_told_once(kind: str, tmp_path: Path, open_kind: OpenKind) -> None:
    """What each phase does when nothing goes wrong but the stumble."""
    async with dying_world(open_kind, kind, tmp_path, Fuse()) as world:
        story = Story()
        await drive(world, story)
        assert story.entered == ["read", "loop 2", "loop 3", "ask False", "ask True", "pay", "pay"]
        assert list(story.deeds.values()) == [1]


@pytest.mark.parametrize("after", [False, True], ids=["before", "reply-lost"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_crash_at_any_adapter_call_leaves_a_job_that_is_finished(kind: str, after: bool, tmp_path: Path, open_kind: OpenKind) -> None:
    """For every call k: die there, start a new process on what is stored, finish. At most one phase is entered again."""
    probe = Fuse()
    async with dying_world(open_kind, kind, tmp_path, probe) as world:
        await drive(world, Story())
    points = len(probe.calls)
    assert points > 20
    once = Counter(["read", "loop 2", "loop 3", "ask False", "ask True", "pay", "pay"])
    for k in range(1, points + 1):
        folder = tmp_path / f"{k}"
        folder.mkdir()
        fuse, story = Fuse(k, after), Story()
        async with dying_world(open_kind, kind, folder, fuse) as world:
            with pytest.raises(Crash):
                await drive(world, story)
            # A new process: what was in memory is gone, what was stored is there, time has passed.
            fuse.renew()
            if isinstance(world.scheduler, Dying):
                world.scheduler = dying(MemoryScheduler(runtime=world.clock), fuse)
            world.clock.advance(31)
            await drive(world, story)
            where = f"{probe.calls[k - 1]} (call {k})"
            again = Counter(story.entered) - once
            assert sum(again.values()) <= 1, f"died at {where}: entered again {dict(again)}"
            assert not once - Counter(story.entered), f"died at {where}: never entered {dict(once - Counter(story.entered))}"
            assert len(story.deeds) == 1, f"died at {where}: {story.deeds}"
            job = await world.job("j")
            assert job.status == "complete" and (kind not in FULL or (job.error, job.checkpoint) == (None, None))
            if kind != "plain":
                assert job.output == {"pages": [1, 2, 3], "note": "yes"}


async def test_the_pause_between_tries_outlives_the_process(tmp_path: Path, open_kind: OpenKind) -> None:
    """The back-off is stored: a new process that comes early waits for the rest of it."""
    async with dying_world(open_kind, "sqlite", tmp_path, Fuse()) as world:
        runs: list[float] = []

        async def run(ctx: PhaseContext[Item]) -> PhaseResult[Item]:
            runs.append(world.clock.monotonic())
            raise ConnectionError

        world.phases = [Phase("x", run, state=Item, retry=RetryPolicy(attempts=3, backoff=timedelta(minutes=10)))]
        await world.start("j", Item())
        await world.advance("j")
        world.clock.advance(60)
        scheduler = MemoryScheduler(runtime=world.clock)
        world.scheduler = scheduler
        scheduler.bind(world.advance)
        await recover(world.storage, scheduler)
        await scheduler.drain()
        assert runs == [0.0]
        world.clock.advance(540)
        await scheduler.drain()
        assert runs == [0.0, 600.0]
