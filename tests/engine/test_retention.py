"""Settled runs are forgotten once their time is over, a batch at a time; what others need stays, and keys answer for longer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent

from conftest import Simulated
from perdure import Engine, RunStatus, approve, effect
from perdure.core.errors import ConfigurationError, RunNotFoundError
from perdure.engine._retention import BATCH
from perdure.testing.models import ScriptedModel, call, say

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
RARELY: dict[str, Any] = {"tick": HOUR / 2, "poll": HOUR, "lease": 3 * HOUR}
"""A month has too many seconds to look in each of them."""


def talker(**options: Any) -> Agent[None, str]:
    return Agent(ScriptedModel([say("done")]), name="talker", **options)


async def days(sim: Simulated, count: float) -> None:
    await sim.runtime.sleep(count * DAY.total_seconds())


def test_a_settled_run_is_forgotten_by_its_age_and_status(sim: Simulated) -> None:
    """Completed ones after two days, failed ones never: nobody said so of them."""

    async def main() -> None:
        engine = sim.engine(**RARELY)
        good = engine.agent(talker(), retention={"completed": 2 * DAY})
        bad = engine.agent(Agent(ScriptedModel([]), name="broken"), retention={"completed": 2 * DAY})
        async with engine:
            gone, kept = await good.start({}), await bad.start({})
            await gone.result()
            await engine.settled(kept.id)
            await days(sim, 1.9)
            assert await gone.status() is RunStatus.COMPLETED
            await days(sim, 0.2)
            with pytest.raises(RunNotFoundError):
                await gone.status()
            assert await kept.status() is RunStatus.FAILED

    sim.run(main)


def test_without_retention_everything_is_kept(sim: Simulated) -> None:
    """Forgetting is asked for, agent by agent."""

    async def main() -> None:
        engine = sim.engine(**RARELY)
        kept = engine.agent(talker())
        gone = engine.agent(talker(), name="other", retention=DAY)
        async with engine:
            runs = [await kept.start({}), await gone.start({}), await kept.start({})]
            await days(sim, 2)
            assert [run.agent for run in await engine.runs()] == ["talker", "talker"]
            assert await runs[0].result() == "done"

    sim.run(main)


def test_more_than_a_batch_goes_a_batch_at_a_time(sim: Simulated) -> None:
    """No pass forgets more than its bound, and the next one follows at the next tick."""

    async def main() -> None:
        engine = sim.engine(**RARELY, workers=2 * BATCH)
        agent = engine.agent(talker(), retention=DAY)
        passes: list[int] = []
        prune = sim.store.prune

        async def counted(request: Any) -> Any:
            pruned = await prune(request)
            passes.append(len(pruned.runs))
            return pruned

        sim.store.prune = counted
        async with engine:
            for _ in range(BATCH + 20):
                await agent.start({})
            await days(sim, 1.1)
            assert [count for count in passes if count] == [BATCH, 19]  # the newest run of a store stays, so that numbers are not given twice

    sim.run(main)


def test_a_key_answers_when_its_run_is_gone(sim: Simulated) -> None:
    """With the run's id and how it ended, for its own time; then it starts a new run. # case D3"""

    async def main() -> None:
        engine = sim.engine(**RARELY)
        agent = engine.agent(talker(), retention=DAY, key_retention=4 * DAY)
        async with engine:
            first = await agent.start({"n": 1}, key="k")
            await agent.start({})
            await days(sim, 2)
            again = await agent.start({"n": 1}, key="k")
            assert (again.id, again.created, again.pruned) == (first.id, False, RunStatus.COMPLETED)
            await days(sim, 3)
            new = await agent.start({"n": 1}, key="k")
            assert new.created and new.id != first.id and new.pruned is None

    sim.run(main)


def test_what_waits_is_not_forgotten(sim: Simulated) -> None:
    """However old: it goes on as if nothing had been forgotten. # case D3"""

    async def main() -> None:
        engine = sim.engine(**RARELY)
        agent = Agent(ScriptedModel([call("pay"), say("paid")]), name="payer")

        @agent.tool_plain(metadata=effect() | approve(within=timedelta(days=400)))
        def pay() -> str:
            return "ok"

        payer = engine.agent(agent, retention=DAY)
        async with engine:
            waiting, last = await payer.start({}), await payer.start({})
            await days(sim, 3)
            [request] = await waiting.requests()
            await request.approve()
            assert await waiting.result(HOUR * 3) == "paid"
            assert await last.status() is RunStatus.WAITING

    sim.run(main)


@pytest.mark.parametrize("wrong", [{"running": DAY}, {"completed": 7}, timedelta(days=-1)])
def test_a_retention_that_means_nothing_is_refused(wrong: Any) -> None:
    """Only final statuses, only times."""
    with pytest.raises(ConfigurationError, match="retention="):
        Engine("memory://").agent(talker(), retention=wrong)
