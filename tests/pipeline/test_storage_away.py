"""A storage that is away for a moment: nobody's phase has failed by that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pipeline_worlds import Open

from perdure.core.errors import StoreUnavailable
from perdure.pipeline import Done, Phase, PhaseContext, PhaseResult, advance_phase


@dataclass
class Count:
    n: int = 0


class Flaky:
    """A storage whose writes from inside a phase are refused while `away`."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.away = inner, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit_outcome(self, outcome: Any) -> Any:
        if self.away and outcome.hold:
            raise StoreUnavailable("The storage is away.")
        return await self._inner.commit_outcome(outcome)


# case H7
async def test_a_save_that_the_storage_refuses_fails_no_phase(full_world_of: Open) -> None:
    """The caller hears of it, the job stays as it was, and the next advance enters the phase again."""
    async with full_world_of() as world:
        entered: list[int] = []

        async def count(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
            entered.append(ctx.state.n)
            await ctx.save_state(Count(1))
            return Done("counted")

        world.use(Phase("count", count, state=Count))
        await world.start("j", Count())
        flaky: Any = Flaky(world.storage)
        with pytest.raises(StoreUnavailable):
            await advance_phase("j", world.phases, flaky, world.scheduler, runtime=world.clock)
        assert ((await world.job("j")).status, (await world.job("j")).error) == ("running", None)
        world.clock.advance(31)
        assert await world.drain() == []
        assert ((await world.job("j")).status, (await world.job("j")).output, entered) == ("complete", "counted", [0, 0])


async def test_a_phase_may_do_without_a_save(full_world_of: Open) -> None:
    """One that catches the refusal goes on, and its outcome is its own."""
    async with full_world_of() as world:

        async def count(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
            try:
                await ctx.save_state(Count(1))
            except StoreUnavailable:
                return Done("not saved")
            return Done("saved")

        world.use(Phase("count", count, state=Count))
        await world.start("j", Count())
        flaky: Any = Flaky(world.storage)
        assert await advance_phase("j", world.phases, flaky, world.scheduler, runtime=world.clock) == "ran"
        assert (await world.job("j")).output == "not saved"
