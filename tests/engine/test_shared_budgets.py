"""A budget that a run shares with its children: what they spend counts, and nobody finds room that another one has taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.settings import ModelSettings

from perdure import Budget, Engine, RunFailed, RunStatus, StillWaiting, Wait, current_run, plain
from perdure.core.family import Reserve, Reserved, Room
from perdure.core.limits import ROOM_LOOK
from perdure.stores.memory import MemoryStore
from perdure.testing.models import Reply, ScriptedModel, call, calls, say

NEVER = [say("never")]


def hundreds(*replies: Reply, cost: Decimal | None = None, seconds: float = 0.0) -> list[Reply]:
    """The replies, 100 tokens each."""
    return [replace(each, input_tokens=90, output_tokens=10, cost=cost, seconds=seconds) for each in replies]


def worker(script: Sequence[Reply], name: str = "child", **options: Any) -> Agent[None, Any]:
    """An agent with a tool that does nothing."""
    agent = Agent(ScriptedModel(list(script)), name=name, **options)

    @agent.tool_plain(metadata=plain())
    async def look(n: int) -> str:
        return f"seen {n}"

    return agent


def manager(script: Sequence[Reply], **options: Any) -> Agent[None, Any]:
    """An agent that starts others, and waits for them where it is told to."""
    agent = Agent(ScriptedModel(list(script)), name="manager", **options)

    @agent.tool_plain(metadata=plain())
    async def delegate(n: int, wait: bool = True, to: str = "child") -> str:
        child = await current_run().start(to, {"n": n})
        if wait:
            raise Wait.run(child)
        return "started"

    return agent


def requests(*agents: Agent[None, Any]) -> list[int]:
    return [len(agent.model.requests) for agent in agents if isinstance(agent.model, ScriptedModel)]


class Asking(MemoryStore):
    """A store that remembers who asked for room."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.asked: list[Reserve] = []
        self.told: list[Reserved] = []

    async def reserve(self, ask: Reserve) -> Reserved:
        self.asked.append(ask)
        told = await super().reserve(ask)
        self.told.append(told)
        return told


def test_what_children_spend_counts_for_their_parent(sim: Any) -> None:
    """The parent has spent 200 itself; its child as much: 400 leave no room for another 110."""

    async def main() -> None:
        child = worker(hundreds(call("look", n=1), say("child done")))
        parent = manager(hundreds(call("delegate", n=1), say("I have what I wanted.")) + NEVER)
        engine = sim.engine()
        engine.agent(child)
        boss = engine.agent(parent, budget=Budget(max_tokens=400))
        async with engine:
            run = await boss.start({})
            assert await run.result() == ""
            stored = await run.run()
            assert (stored.finish_reason, stored.usage.total_tokens, requests(parent, child)) == ("max_tokens", 100, [1, 2])
            [reached] = [event.data for event in await engine.store.events(run.id) if event.type == "budget.reached"]
            assert reached == {"limit": "max_tokens", "step": 1}

    # The parent's first call goes before it has children; the second finds 300 spent and needs 110.
    sim.run(main)


def test_a_child_comes_to_its_parents_limit(sim: Any) -> None:
    """It says whose limit it was; the parent is told, and has no room itself."""

    async def main() -> None:
        child = worker(hundreds(*(call("look", n=n) for n in range(5))), output_type=int)
        parent = manager(hundreds(call("delegate", n=1), say("never")))
        engine = sim.engine()
        engine.agent(child)
        boss = engine.agent(parent, budget=Budget(max_tokens=450))
        async with engine:
            run = await boss.start({})
            assert await run.result() == ""
            [of_child] = [each for each in await engine.runs() if each.parent_run == run.id]
            assert of_child.error is not None and of_child.error.code == "budget_exceeded"
            assert of_child.error.details["of"] == run.id and "max_tokens=450" in of_child.error.message
            assert requests(parent, child) == [1, 3], "100 + 3 × 100, and 110 more do not fit under 450"

    sim.run(main)


def test_children_at_once_take_turns_where_the_room_is_for_one(sim: Any) -> None:
    """Each call may come to 1,000 tokens of which it uses 100: two do not fit at once under 1,600. The second waits, is woken and finishes; nobody is told."""

    async def main() -> None:
        store = Asking(sim.runtime)
        engine = sim.engine(store=store)
        child = worker(hundreds(say("child done"), seconds=5.0), model_settings=ModelSettings(max_tokens=1_000))
        parent = manager(hundreds(calls(*(call("delegate", n=n) for n in range(3))), say("all done")))
        engine.agent(child)
        boss = engine.agent(parent, budget=Budget(max_tokens=1_600))
        async with engine:
            run = await boss.start({})
            assert await run.result() == "all done"
            runs = await engine.runs()
            assert sum(each.usage.total_tokens for each in runs) == 500
            assert all(each.status is RunStatus.COMPLETED for each in runs)
            told = [each.room for each in store.told]
            assert Room.FULL in told and Room.REACHED not in told
            assert await engine.requests() == []
            waited = [
                event for each in runs for event in await store.events(each.id) if event.type == "wait.resolved" and event.data["kind"] == "budget"
            ]
            assert waited and all(event.data["decision"] == "look" for event in waited), "woken by the one before, not by the clock"

    sim.run(main)


def test_a_child_that_pauses_asks_for_more_of_its_parents_budget(sim: Any) -> None:
    """The request names the run whose limit it is; the top-up is that run's, and all who came to the limit go on."""

    async def main() -> None:
        child = worker(hundreds(call("look", n=1), say("child done")))
        parent = manager(hundreds(calls(call("delegate", n=1), call("delegate", n=2)), say("all done")))
        engine = sim.engine()
        engine.agent(child, budget=Budget(on_limit="pause"))
        boss = engine.agent(parent, budget=Budget(max_tokens=305))
        async with engine:
            run = await boss.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=100)
            asked = await engine.requests(kind="budget")
            assert asked and {request.wait.row.data["of"] for request in asked} == {run.id}
            assert await engine.requests(run_id=run.id, kind="budget") == []
            await asked[0].answer("top_up", {"max_tokens": 2_000}, by="eva")
            assert await run.result() == "all done"
            assert (await run.run()).budget.max_tokens == 2_000
            assert requests(child) == [4]

    sim.run(main)


def test_a_worker_that_dies_in_a_call_leaves_estimated_spend(sim: Any) -> None:
    """Nobody knows what its call has cost: what was reserved for it counts, and the run goes on with what is left."""

    async def main() -> None:
        child = worker(hundreds(say("child done"), seconds=60.0), model_settings=ModelSettings(max_tokens=500))
        parent = manager(hundreds(call("delegate", n=1), say("all done")))

        def registered(engine: Engine) -> Any:
            engine.agent(child, budget=Budget(on_limit="fail"))
            return engine.agent(parent, budget=Budget(max_tokens=1_000))

        first = sim.other("first")
        boss = registered(first)
        other = sim.engine()
        registered(other)

        async def work() -> None:
            async with first:
                await boss.start({}, run_id="0190a000-0000-7000-8000-000000000001")
                await asyncio.Event().wait()

        sim.on("first", work())
        await sim.runtime.sleep(20)
        sim.replicas["first"].kill()
        async with other:
            run = other.handle("0190a000-0000-7000-8000-000000000001")
            assert await run.result() == "all done"
            [of_child] = [each for each in await other.runs() if each.parent_run == run.id]
            # 100 of the parent, about 500 estimated: another 500 do not fit under 1,000.
            assert of_child.status is RunStatus.FAILED and of_child.error is not None and of_child.error.code == "budget_exceeded"
            assert requests(child) == [1]

    sim.run(main)


def test_who_waits_for_a_dead_ones_room_looks_by_himself(sim: Any) -> None:
    """Nobody wakes him: after a while he looks, and finds that the room will not come."""

    async def main() -> None:
        store = Asking(sim.runtime)
        engine = sim.engine(store=store)
        child = worker(hundreds(say("child done"), seconds=100.0), model_settings=ModelSettings(max_tokens=500))
        boss = engine.agent(manager(hundreds(call("delegate", n=1), say("all done"))), budget=Budget(max_tokens=700))
        engine.agent(child)
        async with engine:
            run = await boss.start({})
            await sim.runtime.sleep(1)
            [of_child] = [each for each in await engine.runs() if each.parent_run == run.id]
            other = await engine.admit_child(await run.run(), "child", {"n": 2}, key="another")
            await sim.runtime.sleep(1)
            assert (await other.run()).status is RunStatus.WAITING
            await engine.cancel(of_child.id)
            assert (await engine.settled(of_child.id)).status is RunStatus.CANCELLED
            done = await engine.settled(other.id, timeout=ROOM_LOOK + timedelta(seconds=30))
            assert (done.status, done.finish_reason) == (RunStatus.COMPLETED, "max_tokens")

    sim.run(main)


def test_money_is_shared_too_and_a_price_that_nobody_knows_is_that_of_the_last_call(sim: Any) -> None:
    """3 cents each: the fourth call of the family would come to 12."""

    async def main() -> None:
        cents = Decimal("0.03")
        child = worker(hundreds(*(call("look", n=n) for n in range(9)), cost=cents))
        boss = manager(hundreds(call("delegate", n=1), say("never"), cost=cents))
        engine = sim.engine()
        engine.agent(child)
        parent = engine.agent(boss, budget=Budget(max_cost=Decimal("0.10"), unknown_price="ignore"))
        async with engine:
            run = await parent.start({})
            await run.result()
            runs = await engine.runs()
            assert sum((each.usage.cost or Decimal(0)) for each in runs) == Decimal("0.09")
            assert {each.finish_reason for each in runs} == {"max_cost"}

    sim.run(main)


def test_more_for_the_parent_and_the_child_goes_on_where_it_stood(sim: Any) -> None:
    """Both failed at the shared limit; each is retried, the parent with more."""

    async def main() -> None:
        child = worker(hundreds(call("look", n=1), call("look", n=2), say("child done")))
        engine = sim.engine()
        engine.agent(child, budget=Budget(on_limit="fail"))
        boss = engine.agent(manager(hundreds(call("delegate", n=1), say("all done"))), budget=Budget(max_tokens=310, on_limit="fail"))
        async with engine:
            run = await boss.start({})
            with pytest.raises(RunFailed):
                await run.result()
            [of_child] = [each for each in await engine.runs() if each.parent_run == run.id]
            assert (of_child.status, requests(child)) == (RunStatus.FAILED, [2])
            await run.retry(max_tokens=2_000)
            assert await run.result() == "all done"
            await engine.handle(of_child.id).retry()
            assert (await engine.settled(of_child.id)).output == "child done"
            assert requests(child) == [3]

    sim.run(main)


def test_who_shares_nothing_asks_for_nothing(sim: Any) -> None:
    """No cap, a cap without children, a child without a cap above it: not one further call of the store."""

    async def main() -> None:
        store = Asking(sim.runtime)
        engine = sim.engine(store=store)
        alone = engine.agent(worker(hundreds(call("look", n=1), say("done")), "alone"), budget=Budget(max_tokens=10_000))
        engine.agent(worker(hundreds(call("look", n=1), say("done"))))
        boss = engine.agent(manager(hundreds(call("delegate", n=1), say("all done"))))
        async with engine:
            for kind in (alone, boss):
                await (await kind.start({})).result()
        assert store.asked == []

    sim.run(main)


def test_only_a_capped_parent_begins_to_ask_once_it_has_a_child(sim: Any) -> None:
    """Its first call is made before; each one after it is reserved, once."""

    async def main() -> None:
        store = Asking(sim.runtime)
        engine = sim.engine(store=store)
        engine.agent(worker(hundreds(say("child done"))))
        script = hundreds(call("delegate", n=1, wait=False), call("delegate", n=2, wait=False), say("all done"))
        boss = engine.agent(manager(script), budget=Budget(max_tokens=10_000))
        async with engine:
            run = await boss.start({})
            await run.result()
            await sim.runtime.sleep(5)
        mine = [ask.step for ask in store.asked if ask.run_id == run.id]
        assert mine == [2, 3]
        assert all(told.room is Room.RESERVED for told in store.told)

    sim.run(main)
