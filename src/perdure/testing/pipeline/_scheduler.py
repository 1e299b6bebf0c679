"""What every scheduler promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from perdure.pipeline import MemoryStorage, advance_phase, run_pipeline
from perdure.testing.conformance import Conformance
from perdure.testing.pipeline._storage import Count, Runs, entered

NOW = timedelta(0)
PATIENCE = 10.0
"""Seconds of real time that a scheduler has for what is due."""

Advance = Callable[[str], Awaitable[object]]
OpenScheduler = Callable[[Advance], Any]


class SchedulerConformance(Conformance):
    """Every promise of a scheduler. Give it a fixture `open_scheduler`: called with what advances a job, it answers a scheduler that works by itself.

    A scheduler that has to be told to work (like `MemoryScheduler`) gets it through `settle`.
    """

    async def settle(self, scheduler: Any) -> None:
        """Have the scheduler do what is due, if it does not do so by itself."""

    @asynccontextmanager
    async def opened(self, open_scheduler: OpenScheduler, advance: Advance) -> AsyncGenerator[Any]:
        self._moved = asyncio.Event()

        async def told(job_id: str) -> None:
            try:
                await advance(job_id)
            finally:
                self._moved.set()

        async with entered(open_scheduler(told)) as scheduler:
            yield scheduler

    async def until(self, scheduler: Any, done: Callable[[], bool]) -> None:
        """Wait until `done`, which each advance may make true."""
        async with asyncio.timeout(PATIENCE):
            while not done():
                self._moved.clear()
                await self.settle(scheduler)
                if not done():
                    await self._moved.wait()

    async def test_what_is_scheduled_is_advanced(self, open_scheduler: OpenScheduler) -> None:
        """Each job, by its id, at least once."""
        seen: list[str] = []

        async def advance(job_id: str) -> None:
            seen.append(job_id)

        async with self.opened(open_scheduler, advance) as scheduler:
            for n in range(10):
                await scheduler.schedule_advance(f"job {n}", NOW)
            await self.until(scheduler, lambda: len(set(seen)) == 10)

    async def test_scheduling_runs_nothing_before_it_returns(self, open_scheduler: OpenScheduler) -> None:
        """An advance that schedules the next one must not end inside itself."""
        depth = 0
        deepest: list[int] = []

        async with self.opened(open_scheduler, lambda job_id: advance(job_id)) as scheduler:

            async def advance(job_id: str) -> None:
                nonlocal depth
                depth += 1
                deepest.append(depth)
                if len(deepest) < 50:
                    await scheduler.schedule_advance(job_id, NOW)
                depth -= 1

            await scheduler.schedule_advance("j", NOW)
            await self.until(scheduler, lambda: len(deepest) >= 50)
            assert max(deepest) == 1

    async def test_an_advance_that_raises_takes_no_other_with_it(self, open_scheduler: OpenScheduler) -> None:
        """The scheduler goes on."""
        seen: list[str] = []

        async def advance(job_id: str) -> None:
            seen.append(job_id)
            if job_id == "bad":
                raise RuntimeError("bad")

        async with self.opened(open_scheduler, advance) as scheduler:
            await scheduler.schedule_advance("bad", NOW)
            await scheduler.schedule_advance("good", NOW)

            def done() -> bool:
                return "good" in seen

            try:
                await self.until(scheduler, done)
            except RuntimeError:
                # A scheduler that is drained by hand may show the error to whoever drains it, once.
                await self.until(scheduler, done)

    async def test_a_delay_is_not_a_loss(self, open_scheduler: OpenScheduler) -> None:
        """A short one comes, sooner or later."""
        seen: list[str] = []

        async def advance(job_id: str) -> None:
            seen.append(job_id)

        async with self.opened(open_scheduler, advance) as scheduler:
            await scheduler.schedule_advance("soon", timedelta(milliseconds=5))
            await self.until(scheduler, lambda: seen == ["soon"])

    async def test_a_pipeline_finishes_on_it(self, open_scheduler: OpenScheduler) -> None:
        """Five jobs of three phases, each phase once."""
        runs, storage = Runs(), MemoryStorage()
        phases = runs.phases()
        async with self.opened(open_scheduler, lambda job_id: advance_phase(job_id, phases, storage, scheduler)) as scheduler:
            for n in range(5):
                await run_pipeline(f"j{n}", phases, storage, scheduler, Count(0))
                await scheduler.schedule_advance(f"j{n}", NOW)
            await self.until(scheduler, lambda: all(each.job.status == "complete" for each in storage.inspect().values()))
        assert sorted(runs.seen) == ["first"] * 5 + ["second"] * 5 + ["third"] * 5
