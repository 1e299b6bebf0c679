"""Faults that people met with agents in production, through the whole engine."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import Engine, Retry, RunFailed, RunStatus, StillWaiting, Wait, approve, current_run, effect, plain
from perdure.cli._runs import doing
from perdure.core.effect import EffectState
from perdure.core.limits import INLINE_MAX
from perdure.testing.models import ScriptedModel, call, fail, say


@pytest.mark.parametrize("size", [1_000, 1_000_000, 50_000_000])
async def test_a_deed_is_done_however_large_its_result(tmp_path: Path, size: int) -> None:
    """Above the inline limit the result goes to an artifact; the effect is done, the history small, the run completed. # case D4"""
    agent = Agent(ScriptedModel([call("export"), say("done")]), name="exporter")
    agent.tool_plain(lambda: "x" * size, name="export", metadata=effect())
    async with Engine(f"sqlite:///{tmp_path}/runs.db") as engine:
        run = await engine.agent(agent).start({})
        assert await run.result(timeout=60) == "done"
        [row] = await engine.effects(run_id=run.id, state=None)
        assert row.state is EffectState.DONE
        [answer] = [part for part in (await run.messages())[2].parts if part.part_kind == "tool-return"]
        assert len(str(answer.content)) < 2 * INLINE_MAX
        assert (answer.content == "x" * size) == (size <= INLINE_MAX)


def generations(sim: Any, bodies: list[str]) -> Any:
    """A run that waits for a run that waits for a run, whose tool takes long."""
    engine = sim.engine()
    for depth in range(3):
        agent = Agent(ScriptedModel([call("work"), call("work"), say("done")]), name=f"depth-{depth}")

        async def work(depth: int = depth) -> str:
            bodies.append(f"begun {depth}")
            if depth < 2:
                raise Wait.run(await current_run().start(f"depth-{depth + 1}", {}))
            await sim.runtime.sleep(500)
            bodies.append("ended")
            return "ok"

        agent.tool_plain(work, metadata=plain())
        engine.agent(agent)
    return engine


def test_a_cancel_reaches_work_three_runs_deep(sim: Any) -> None:
    """The tool in flight there is stopped, nothing new starts, and every run says cancelled. # case G2"""
    bodies: list[str] = []

    async def main() -> None:
        engine = generations(sim, bodies)
        async with engine:
            run = await engine.start("depth-0", {})
            with pytest.raises(StillWaiting):
                await run.result(timeout=60)
            assert bodies == ["begun 0", "begun 1", "begun 2"]
            await run.cancel(by="eva")
            assert await run.status() is RunStatus.CANCELLED
            for each in await engine.runs():
                assert (await engine.settled(each.id, 120)).status is RunStatus.CANCELLED
            await sim.runtime.sleep(1_000)
            assert bodies == ["begun 0", "begun 1", "begun 2"]
            assert [each.usage.requests for each in await engine.runs()] == [1, 1, 1]

    sim.run(main)


def test_a_run_is_cancelling_until_its_last_deed_has_ended(sim: Any) -> None:
    """Cancel is accepted at once, and the run is not settled while an effect of it still goes on. # case G2"""
    ended: list[float] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([call("pay"), say("never")]), name="payer")

        @agent.tool_plain(metadata=effect())
        async def pay() -> str:
            await sim.runtime.sleep(20)
            ended.append(sim.runtime.monotonic())
            return "paid"

        engine = sim.engine()
        payer = engine.agent(agent)
        async with engine:
            run = await payer.start({})
            await sim.runtime.sleep(5)
            await run.cancel(by="eva")
            await sim.runtime.sleep(5)
            stored = await run.run()
            assert (stored.status, stored.cancel_requested, ended) == (RunStatus.RUNNING, True, [])
            assert (await engine.settled(run.id, 60)).status is RunStatus.CANCELLED
            assert len(ended) == 1
            assert sim.runtime.monotonic() - ended[0] < 5

    sim.run(main)


def test_a_run_that_lives_and_does_not_move_says_since_when(sim: Any) -> None:
    """Renewals go on; what it does stands still, and its status says so. # case H16"""

    async def main() -> None:
        agent = Agent(ScriptedModel([call("hang"), say("never")]), name="hanging")

        @agent.tool_plain(metadata=plain())
        async def hang() -> str:
            await sim.runtime.sleep(100_000)
            return "ok"

        engine = sim.engine()
        hanging = engine.agent(agent)
        async with engine:
            run = await hanging.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=600)
            stored, now = await run.run(), await engine.store.now()
            assert stored.lease_expires_at is not None
            assert stored.lease_expires_at > now
            assert stored.activity is not None
            assert (stored.activity.step, stored.activity.what) == (1, "tool hang")
            assert now - stored.activity.since >= timedelta(seconds=590)
            told = doing(stored, now)
            assert told is not None
            assert told.startswith("step 1: tool hang, nothing new since")
            assert told.endswith("(10 min ago)")
            await run.cancel()

    sim.run(main)


class Declined(Exception):
    """Nothing happened."""


def test_each_part_has_tries_of_its_own(sim: Any) -> None:
    """Ten for a model call, one for an effect: neither takes the other's. # case K10"""
    bodies: list[int] = []

    async def main() -> None:
        script = [*[fail(503)] * 9, call("pay", n=1), call("pay", n=2), say("done")]
        model = ScriptedModel(script)
        agent = Agent(model, name="payer")

        @agent.tool_plain(metadata=effect(certain=(Declined,)))
        async def pay(n: int) -> str:
            bodies.append(n)
            raise Declined("no")

        engine = sim.engine()
        payer = engine.agent(agent, model_tries=10)
        async with engine:
            run = await payer.start({})
            assert await run.result(timeout=3_600) == "done"
            tries = [event.data["try_no"] for event in await engine.store.events(run.id) if event.type == "step.retried"]
            assert tries == list(range(1, 10))
            assert bodies == [1, 2]

    sim.run(main)


def test_a_declared_number_of_tries_is_the_number_of_bodies(sim: Any) -> None:
    """It fails at once each time: five bodies, spaced by the back-off, under one key; then the model is told. # case A9"""
    bodies: list[tuple[str | None, float]] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([call("pay"), say("done")]), name="payer")

        @agent.tool_plain(metadata=effect(certain=(Declined,), retries=Retry(attempts=5, backoff=timedelta(seconds=10))))
        async def pay() -> str:
            bodies.append((current_run().key, sim.runtime.monotonic()))
            raise Declined("no")

        engine = sim.engine()
        payer = engine.agent(agent)
        async with engine:
            run = await payer.start({})
            assert await run.result(timeout=3_600) == "done"
            assert len(bodies) == 5
            assert len({key for key, _ in bodies}) == 1
            gaps = [round(later - earlier) for (_, earlier), (_, later) in pairwise(bodies)]
            assert gaps == [10, 20, 40, 80]
            rows = await engine.effects(run_id=run.id, state=None)
            assert [(row.state, row.row.try_no) for row in rows] == [(EffectState.FAILED, 5)]

    sim.run(main)


@pytest.mark.parametrize(("tries", "status"), [(1, 503), (3, 503), (4, 400)])
def test_a_run_whose_tries_are_used_up_after_a_wait_has_failed_once(sim: Any, tries: int, status: int) -> None:
    """No tries, several, or an error that no try mends: `failed`, with the last error, and neither running nor waiting. # case K12"""

    async def main() -> None:
        agent = Agent(ScriptedModel([call("pay"), *[fail(503)] * (tries - 1), fail(status), say("never")]), name="payer")
        agent.tool_plain(lambda: "paid", name="pay", metadata=effect() | approve())
        engine = sim.engine()
        payer = engine.agent(agent, model_tries=tries)
        async with engine:
            run = await payer.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=60)
            [request] = await run.requests()
            await request.approve(by="eva")
            with pytest.raises(RunFailed) as failed:
                await run.result(timeout=3_600)
            stored = await run.run()
            assert (stored.status, failed.value.code) == (RunStatus.FAILED, "model_error")
            assert str(status) in str(failed.value)
            events = [event.type for event in await engine.store.events(run.id)]
            assert (events.count("run.settled"), events.count("step.retried")) == (1, tries - 1)
            assert await run.requests() == []

    sim.run(main)
