"""Budgets: what a run may spend, over all its lives, and what happens when nothing is left."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import Budget, RunFailed, StillWaiting
from perdure.core.budget import Usage
from perdure.errors import ConfigurationError
from perdure.testing.models import Reply, ScriptedModel, call, cut, say


class Priced(ScriptedModel):
    """A scripted model that goes by the name of one whose price is known."""

    def __init__(self, *script: Reply) -> None:
        super().__init__(list(script), name="gpt-4o")

    @property
    def system(self) -> str:
        return "openai"


def looking(model: ScriptedModel, output_type: Any = str) -> Agent[None, Any]:
    """An agent that may look as often as it likes."""
    agent = Agent(model, name="looker", output_type=output_type)

    @agent.tool_plain
    async def look(n: int) -> str:
        return f"seen {n}"

    return agent


def looks(count: int, **more: Any) -> list[Reply]:
    """Replies of one call each, 100 tokens each unless told otherwise."""
    tokens = {"input_tokens": 90, "output_tokens": 10, **more}
    return [replace(call("look", n=n), **tokens) for n in range(count)]


CENT = Decimal("0.01")
NEVER = [say("never")]
WORDS = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve."


@pytest.mark.parametrize(
    ("budget", "limit", "requests"),
    [
        (Budget(max_tokens=250), "max_tokens", 3),
        (Budget(max_tokens=300), "max_tokens", 3),
        (Budget(max_tokens=301), "max_tokens", 4),
        (Budget(max_cost=3 * CENT, unknown_price="ignore"), "max_cost", 3),
        (Budget(max_steps=3), "max_steps", 3),
        (Budget(max_tokens=0), "max_tokens", 0),
        (Budget(max_cost=Decimal(0), unknown_price="ignore"), "max_cost", 0),
        (Budget(max_steps=0), "max_steps", 0),
    ],
)
def test_a_limit_leaves_room_for_whole_calls_and_0_for_none(sim: Any, budget: Budget, limit: str, requests: int) -> None:
    """A call that begins below the limit may end above it; the next one does not begin. A text agent completes with what it has."""

    async def main() -> None:
        model = ScriptedModel(looks(6, cost=CENT) + NEVER)
        engine = sim.engine()
        looker = engine.agent(looking(model), budget=budget)
        async with engine:
            run = await looker.start({})
            assert await run.result() == ""
            stored = await run.run()
            assert (stored.finish_reason, stored.usage.requests, len(model.requests)) == (limit, requests, requests)

    sim.run(main)


def test_an_agent_with_a_typed_output_fails_at_its_limit_and_goes_on_with_more(sim: Any) -> None:
    """There is no text to give in its place; a retry with a larger budget takes the next step, and what was spent stays spent."""

    async def main() -> None:
        model = ScriptedModel([*looks(3), call("final_result", response=7)])
        engine = sim.engine()
        looker = engine.agent(looking(model, int), budget=Budget(max_tokens=200))
        async with engine:
            run = await looker.start({})
            with pytest.raises(RunFailed) as failed:
                await run.result()
            assert failed.value.code == "budget_exceeded"
            assert "max_tokens=200" in str(failed.value)
            await run.retry(max_tokens=1_000)
            assert await run.result() == 7
            assert (await run.run()).usage.total_tokens == 315

    sim.run(main)


def test_tokens_count_over_the_life_of_the_run(sim: Any) -> None:
    """A full retry begins the history anew, not the bill."""

    async def main() -> None:
        model = ScriptedModel(looks(9))
        engine = sim.engine()
        looker = engine.agent(looking(model), budget=Budget(max_tokens=200, on_limit="fail"))
        async with engine:
            run = await looker.start({})
            with pytest.raises(RunFailed):
                await run.result()
            await run.retry("full", max_tokens=300)
            with pytest.raises(RunFailed):
                await run.result()
            assert (len(model.requests), (await run.run()).usage.total_tokens) == (3, 300)

    sim.run(main)


def test_the_price_of_a_known_model_is_looked_up(sim: Any) -> None:
    """By name: nobody told a cost, and the cap holds."""

    async def main() -> None:
        model = Priced(*looks(6, input_tokens=100_000, cost=None))
        engine = sim.engine()
        looker = engine.agent(looking(model), budget=Budget(max_cost=Decimal("0.70")))
        async with engine:
            run = await looker.start({})
            await run.result()
            stored = await run.run()
            assert stored.finish_reason == "max_cost"
            assert stored.usage.cost is not None
            each = stored.usage.cost / len(model.requests)
            assert stored.usage.cost >= Decimal("0.70") > stored.usage.cost - each
            assert len(model.requests) > 1

    sim.run(main)


def test_a_cap_on_cost_needs_a_price(sim: Any) -> None:
    """An unknown one is refused when the agent is registered, with what to do; or ignored where that was asked for."""

    async def main() -> None:
        engine = sim.engine()
        with pytest.raises(ConfigurationError, match="unknown_price='ignore'"):
            engine.agent(looking(ScriptedModel([say("a")])), budget=Budget(max_cost=Decimal(1)))
        looker = engine.agent(looking(ScriptedModel([*looks(3, cost=None), say("done")])), budget=Budget(max_cost=CENT, unknown_price="ignore"))
        async with engine:
            run = await looker.start({})
            assert await run.result() == "done"
            assert (await run.run()).usage.cost is None

    sim.run(main)


def test_streams_that_broke_off_are_paid_for_and_lift_no_cap(sim: Any) -> None:
    """A try that failed counts; one whose price nobody knows makes the sum unknown, and the rest of it still counts against the cap."""

    async def main() -> None:
        broken = replace(cut("half of a"), input_tokens=0, output_tokens=0)
        model = ScriptedModel([looks(1, cost=CENT)[0], broken, *looks(4, cost=CENT)])
        engine = sim.engine()
        looker = engine.agent(looking(model), budget=Budget(max_cost=3 * CENT, unknown_price="ignore"))
        async with engine:
            run = await looker.start({})
            await run.result()
            stored = await run.run()
            assert (stored.finish_reason, stored.usage.cost, stored.usage.cost_at_least) == ("max_cost", None, 3 * CENT)
            assert stored.usage.requests == 4
            told = [Usage.from_json(event.data["usage"]) for event in await engine.store.events(run.id) if event.type == "step.retried"]
            rows = [Usage.from_json(step.row.usage) for step in await run.steps() if step.row.usage]
            calls = sum((*told, *rows), Usage())
            assert (calls.requests, calls.total_tokens, calls.cost_at_least) == (4, stored.usage.total_tokens, 3 * CENT)

    sim.run(main)


@pytest.mark.parametrize(("limit", "more"), [("max_tokens", 500), ("max_cost", "0.50"), ("max_steps", 9)])
def test_a_paused_run_goes_on_at_the_same_step_when_it_is_topped_up(sim: Any, limit: str, more: Any) -> None:
    """Any of the limits; nothing is asked again."""
    budgets = {"max_tokens": {"max_tokens": 200}, "max_cost": {"max_cost": 2 * CENT}, "max_steps": {"max_steps": 2}}

    async def main() -> None:
        model = ScriptedModel([*looks(3, cost=CENT), say("done")])
        engine = sim.engine()
        looker = engine.agent(looking(model), budget=Budget(**budgets[limit], on_limit="pause", unknown_price="ignore"))
        async with engine:
            run = await looker.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=3_600)
            [request] = await run.requests()
            assert (request.kind, request.wait.row.data["limit"]) == ("budget", limit)
            await request.answer("top_up", {limit: more}, by="eva")
            assert await run.result() == "done"
            assert len(model.requests) == 4

    sim.run(main)


def test_a_top_up_that_is_too_small_asks_again(sim: Any) -> None:
    """It does not spin, and it does not go over."""

    async def main() -> None:
        model = ScriptedModel([*looks(3), say("done")])
        engine = sim.engine()
        looker = engine.agent(looking(model), budget=Budget(max_tokens=200, on_limit="pause"))
        async with engine:
            run = await looker.start({})
            for enough in (150, 1_000):
                with pytest.raises(StillWaiting):
                    await run.result(timeout=60)
                [request] = await run.requests()
                await request.answer("top_up", {"max_tokens": enough}, by="eva")
            assert await run.result() == "done"
            assert len(model.requests) == 4

    sim.run(main)


def test_a_paused_run_may_be_told_to_stop(sim: Any) -> None:
    """The other answer to the same question."""

    async def main() -> None:
        engine = sim.engine()
        looker = engine.agent(looking(ScriptedModel(looks(3))), budget=Budget(max_steps=1, on_limit="pause"))
        async with engine:
            run = await looker.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=60)
            [request] = await run.requests()
            await request.answer("stop", by="eva")
            assert await run.result() == ""
            assert (await run.run()).finish_reason == "max_steps"

    sim.run(main)


@pytest.mark.parametrize("how", ["cancel", "drain"])
def test_a_stream_that_is_cut_off_counts(sim: Any, how: str) -> None:
    """What its provider has told of its cost by then is spent; its text is in a row of its own, and the call that comes after it is another step."""

    async def main() -> None:
        model = ScriptedModel([replace(say(WORDS), input_tokens=90, output_tokens=10, seconds=10.0)])
        first = sim.engine(drain_grace=timedelta(0))
        talker = first.agent(Agent(model, name="talker"))
        async with first:
            run = await talker.start({})
            await sim.runtime.sleep(25)
            if how == "cancel":
                await run.cancel()
                await first.settled(run.id)
        stored = await sim.store.get(run.id)
        [cut] = await sim.store.steps(run.id)
        assert (cut.kind, cut.row.finish_reason, cut.row.error["code"]) == ("llm", "aborted", "cancelled")
        assert cut.row.text and WORDS.startswith(cut.row.text) and cut.row.text != WORDS
        assert stored.usage == Usage.from_json(cut.row.usage) and stored.usage.requests == 1
        assert stored.usage.total_tokens > 0 or stored.usage.cost is None, "what nobody knows is not 0"
        again = sim.engine()
        again.agent(Agent(model, name="talker"))
        async with again:
            if how == "cancel":
                await again.handle(run.id).retry()
            assert await again.handle(run.id).result() == WORDS
            whole = await again.run(run.id)
            assert (whole.usage.requests, [step.row.index for step in await sim.store.steps(run.id)]) == (2, [1, 2])

    sim.run(main)


def test_a_call_that_said_nothing_before_it_was_cut_off_leaves_no_row(sim: Any) -> None:
    """Nobody knows whether it was ever made."""

    async def main() -> None:
        engine = sim.engine()
        talker = engine.agent(Agent(ScriptedModel([replace(say("One."), seconds=100.0)]), name="talker"))
        async with engine:
            run = await talker.start({})
            await sim.runtime.sleep(5)
            await run.cancel()
            assert (await engine.settled(run.id)).usage == Usage()
            assert await sim.store.steps(run.id) == []

    sim.run(main)
