"""Effects happen once; where nobody knows, somebody is asked."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry

from perdure import Happened, NotDone, Retry, RunFailed, RunStatus, StillWaiting, current_run, effect
from perdure.core.effect import EffectState
from perdure.errors import Conflict
from perdure.testing.models import Reply, ScriptedCall, ScriptedModel, call, calls, say


class Bank:
    """The outside world: it counts deeds by key, and may misbehave after one."""

    def __init__(self, *faults: BaseException | None) -> None:
        self.deeds: list[tuple[str | None, int]] = []
        self.faults = list(faults)

    async def refund(self, order: str, cents: int) -> dict[str, Any]:
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and getattr(fault, "before", False):
            raise fault
        self.deeds.append((current_run().key, cents))
        if fault is not None:
            raise fault
        return {"order": order, "refunded": cents}


def before(error: Exception) -> Exception:
    """This fault comes before the deed."""
    error.before = True  # type: ignore[attr-defined]
    return error


def refunding(bank: Bank, *script: Any, **declared: Any) -> Agent[None, str]:
    agent = Agent(ScriptedModel(script or [call("refund", order="7", cents=900), say("done")]), name="refunds")
    agent.tool_plain(bank.refund, metadata=effect(**declared))
    return agent


def test_an_effect_costs_two_commits_and_runs_once(sim: Any) -> None:
    """Started rides on the response, done on the results; the key is the run's."""
    bank = Bank()

    async def main() -> None:
        engine = sim.engine()
        agent = engine.agent(refunding(bank))
        async with engine:
            run = await agent.start({})
            assert await run.result() == "done"
            assert (await run.run()).commit_no == 3
            [effect_row] = await engine.effects(run_id=run.id, state=None)
            assert (effect_row.state, effect_row.key) == (EffectState.DONE, f"{run.id}:1:1:0")
            assert bank.deeds == [(f"{run.id}:1:1:0", 900)]

    sim.run(main)


def test_an_exception_after_the_deed_is_no_proof(sim: Any) -> None:
    """The run waits for a person, who says that it happened; the tool is not run again. # case A1"""
    bank = Bank(ConnectionError("read timed out"))

    async def main() -> None:
        engine = sim.engine()
        agent = engine.agent(refunding(bank))
        async with engine:
            run = await agent.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=600)
            assert await run.status() is RunStatus.WAITING
            [unknown] = await engine.effects()
            assert unknown.state is EffectState.UNKNOWN
            assert unknown.row.input == {"order": "7", "cents": 900}
            await engine.settle(unknown.key, "done", {"order": "7", "refunded": 900}, by="eva")
            assert await run.result() == "done"
            assert len(bank.deeds) == 1
            with pytest.raises(Conflict):
                await engine.settle(unknown.key, "run")

    sim.run(main)


def test_run_it_is_a_permission_for_one_more_try(sim: Any) -> None:
    """Accepted once the earlier try can't be running any more, and used once."""
    bank = Bank(before(ConnectionError("refused")), ConnectionError("again"))

    async def main() -> None:
        engine = sim.engine()
        agent = engine.agent(refunding(bank))
        async with engine:
            run = await agent.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=5)
            [unknown] = await engine.effects()
            with pytest.raises(Conflict):
                await engine.settle(unknown.key, "run", by="eva")
            await sim.runtime.sleep(60)
            await engine.settle(unknown.key, "run", by="eva")
            with pytest.raises(StillWaiting):
                await run.result(timeout=60)
            assert len(bank.deeds) == 1
            [unknown] = await engine.effects()
            await engine.settle(unknown.key, "fail", reason="called the bank", by="eva")
            assert await run.result() == "done"
            assert len(bank.deeds) == 1

    sim.run(main)


@pytest.mark.parametrize("proof", [ModelRetry("use another order"), LookupError("no such order")])
def test_a_certain_failure_is_a_result(sim: Any, proof: Exception) -> None:
    """What proves that nothing happened is told to the model, and nobody is asked."""
    bank = Bank(before(proof))

    async def main() -> None:
        engine = sim.engine()
        agent = engine.agent(refunding(bank, call("refund", order="7", cents=1), say("done"), certain=(LookupError,)))
        async with engine:
            run = await agent.start({})
            assert await run.result() == "done"
            [failed] = await engine.effects(run_id=run.id, state=None)
            assert failed.state is EffectState.FAILED
            assert bank.deeds == []

    sim.run(main)


def test_a_safe_tool_is_tried_again_with_the_same_key(sim: Any) -> None:
    """Declared `retry`: spaced by the back-off, one key over all tries. # case A9, # case K10"""
    bank = Bank(ConnectionError("1"), ConnectionError("2"))

    async def main() -> None:
        engine = sim.engine()
        retries = Retry(attempts=5, backoff=timedelta(seconds=10))
        agent = engine.agent(refunding(bank, unknown="retry", retries=retries))
        async with engine:
            began = sim.runtime.monotonic()
            assert await agent.run({}) == "done"
            assert sim.runtime.monotonic() - began >= 30
            assert len(bank.deeds) == 3
            assert len({key for key, _ in bank.deeds}) == 1

    sim.run(main)


def test_tries_that_are_used_up_end_with_a_person(sim: Any) -> None:
    """A crash or an answer resets nothing."""
    bank = Bank(*[ConnectionError("down")] * 9)

    async def main() -> None:
        engine = sim.engine()
        agent = engine.agent(refunding(bank, unknown="retry", retries=Retry(attempts=3, backoff=timedelta(seconds=1))))
        async with engine:
            run = await agent.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=600)
            assert len(bank.deeds) == 3
            assert [request.kind for request in await run.requests()] == ["effect"]

    sim.run(main)


@pytest.mark.parametrize(("answer", "deeds"), [(Happened({"refunded": 900}), 1), (NotDone(), 2)])
def test_verify_asks_the_world(sim: Any, answer: Happened | NotDone, deeds: int) -> None:
    """It happened: its result; it did not: once more."""
    bank = Bank(ConnectionError("reset"))

    async def main() -> None:
        async def look(call: Any) -> Happened | NotDone:
            assert call.input == {"order": "7", "cents": 900}
            return answer

        engine = sim.engine()
        agent = engine.agent(refunding(bank, unknown=look))
        async with engine:
            assert await agent.run({}) == "done"
            assert len(bank.deeds) == deeds

    sim.run(main)


def test_a_verify_that_raises_asks_a_person(sim: Any) -> None:
    """Not knowing is not knowing."""
    bank = Bank(ConnectionError("reset"))

    async def main() -> None:
        async def look(call: Any) -> Happened | NotDone:
            raise OSError("the bank's API is down")

        engine = sim.engine()
        agent = engine.agent(refunding(bank, unknown=look))
        async with engine:
            run = await agent.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=600)
            assert [request.kind for request in await run.requests()] == ["effect"]

    sim.run(main)


def test_a_time_out_is_unknown_even_where_the_deed_goes_on(sim: Any) -> None:
    """The body that outlives its limit is not run again by itself. # case C1"""
    deeds: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([call("slow"), say("done")]), name="slow")

        @agent.tool_plain(metadata=effect(timeout=timedelta(seconds=5)))
        async def slow() -> str:
            deeds.append("begun")
            await sim.runtime.sleep(60)
            return "ok"

        engine = sim.engine()
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=900)
            assert deeds == ["begun"]
            [unknown] = await engine.effects()
            assert "longer than 5 s" in unknown.row.error["message"]

    sim.run(main)


def test_effects_of_one_response_run_one_at_a_time_and_stop_at_the_first_unknown(sim: Any) -> None:
    """Plain siblings go on; the effects behind it stay planned; after the answer they run."""
    bank = Bank(None, ConnectionError("reset"))
    looked: list[str] = []

    async def main() -> None:
        batch = calls(*[call("refund", order=str(n), cents=n) for n in (1, 2, 3)], call("look", order="4"))
        agent = refunding(bank, batch, say("done"))

        @agent.tool_plain
        async def look(order: str) -> str:
            looked.append(order)
            return "found"

        engine = sim.engine()
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=600)
            assert [cents for _, cents in bank.deeds] == [1, 2]
            assert looked == ["4"]
            [unknown] = await engine.effects()
            await engine.settle(unknown.key, "done", "ok", by="eva")
            assert await run.result() == "done"
            assert [cents for _, cents in bank.deeds] == [1, 2, 3]
            assert looked == ["4"]

    sim.run(main)


def test_a_provider_that_repeats_its_call_ids_gets_two_effects(sim: Any) -> None:
    """The key is run, step and position, never the provider's id. # case C3"""
    bank = Bank()

    async def main() -> None:
        same = [Reply(calls=(ScriptedCall("refund", {"order": str(n), "cents": n}, id="call_1"),), finish="tool_call") for n in (1, 2)]
        engine = sim.engine()
        agent = engine.agent(refunding(bank, *same, say("done")))
        async with engine:
            assert await agent.run({}) == "done"
            assert [cents for _, cents in bank.deeds] == [1, 2]

    sim.run(main)


def test_a_result_that_cannot_be_stored_is_an_error_after_a_deed_that_is_done(sim: Any) -> None:
    """The effect is recorded as done, the model sees the path, the run goes on. # case E5"""

    async def main() -> None:
        agent = Agent(ScriptedModel([call("odd"), say("done")]), name="odd")

        @agent.tool_plain(metadata=effect())
        async def odd() -> dict[str, Any]:
            return {"file": {"handle": object()}}

        engine = sim.engine()
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            assert await run.result() == "done"
            [done] = await engine.effects(run_id=run.id, state=None)
            assert done.state is EffectState.DONE
            assert "$.file.handle" in str((await run.messages())[2])

    sim.run(main)


@pytest.mark.parametrize(("rule", "deeds"), [("ask", 1), ("reuse", 1), ("run", 2), ("block", 1)])
def test_a_full_retry_holds_what_an_earlier_life_may_have_done(sim: Any, rule: Any, deeds: int) -> None:
    """Nobody pays twice by clicking. # case O5"""
    bank = Bank()

    async def main() -> None:
        def check(text: str) -> str:
            return text

        agent = refunding(bank, call("refund", order="7", cents=900), call("refund", order="8", cents=1), say("done"))

        @agent.tool_plain
        async def unused() -> str:
            return check("x")

        engine = sim.engine()
        from perdure import Budget

        durable = engine.agent(agent, effects=rule, budget=Budget(max_steps=1, on_limit="fail"))
        async with engine:
            run = await durable.start({})
            with pytest.raises(RunFailed):
                await run.result()
            await run.retry("full")
            if rule == "ask":
                with pytest.raises(StillWaiting):
                    await run.result(timeout=600)
                [request] = await run.requests()
                assert (request.kind, request.tool) == ("approval", "refund")
                await request.answer("reuse", by="eva")
            with pytest.raises(RunFailed):
                await run.result()
            assert len(bank.deeds) == deeds
            assert len({key for key, _ in bank.deeds}) == deeds

    sim.run(main)


def test_a_business_key_holds_over_runs(sim: Any) -> None:
    """The second run gets the first one's result; a third waits while the outcome is unknown, and is woken by the answer."""
    bank = Bank(None, ConnectionError("reset"))

    async def main() -> None:
        def script(order: str) -> list[Any]:
            return [call("refund", order=order, cents=900), say("done")]

        engine = sim.engine()
        once = engine.agent(refunding(bank, *script("7"), key="order", scope="agent"), name="once")
        twin = engine.agent(refunding(bank, *script("8"), key="order", scope="agent"), name="twin")
        async with engine:
            assert await once.run({}) == "done"
            assert await once.run({"again": True}) == "done"
            assert len(bank.deeds) == 1
            first = await twin.start({"n": 1})
            with pytest.raises(StillWaiting):
                await first.result(timeout=600)
            second = await twin.start({"n": 2})
            with pytest.raises(StillWaiting):
                await second.result(timeout=600)
            assert len(bank.deeds) == 2
            [unknown] = await engine.effects()
            assert unknown.run_id == first.id
            await engine.settle(unknown.key, "done", {"refunded": 900}, by="eva")
            assert await first.result() == "done"
            assert await second.result() == "done"
            assert len(bank.deeds) == 2

    sim.run(main)


@pytest.mark.parametrize("stop", ["cancel", "drain"])
def test_an_effect_in_flight_is_shielded_from_a_stop(sim: Any, stop: str) -> None:
    """It is recorded before the run settles; only then does the run end."""
    ended: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([call("slow"), say("done")]), name="slow")

        @agent.tool_plain(metadata=effect())
        async def slow() -> str:
            await sim.runtime.sleep(15)
            ended.append("ok")
            return "ok"

        engine = sim.engine()
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            await sim.runtime.sleep(5)
            if stop == "cancel":
                await run.cancel()
                assert (await engine.settled(run.id)).status is RunStatus.CANCELLED
            else:
                await engine.drain(timedelta(seconds=1))
                assert await run.status() is RunStatus.INTERRUPTED
            assert ended == ["ok"]
            [done] = await engine.effects(run_id=run.id, state=None)
            assert done.state is EffectState.DONE
        if stop == "drain":
            again = sim.engine(store=engine.store)
            agent_again = again.agent(agent)
            async with again:
                assert await agent_again._engine.handle(run.id).result() == "done"
            assert ended == ["ok"]

    sim.run(main)


def test_an_effect_that_outlives_the_grace_is_unknown(sim: Any) -> None:
    """Cancelled while in flight for longer than the shield lasts: listed, and settled by a person in the final run."""

    async def main() -> None:
        agent = Agent(ScriptedModel([call("slow"), say("done")]), name="slow")

        @agent.tool_plain(metadata=effect())
        async def slow() -> str:
            await sim.runtime.sleep(500)
            return "ok"

        engine = sim.engine(effect_grace=timedelta(seconds=10))
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            await sim.runtime.sleep(5)
            await run.cancel()
            assert (await engine.settled(run.id)).status is RunStatus.CANCELLED
            [unknown] = await engine.effects()
            await engine.settle(unknown.key, "done", "ok", by="eva")
            assert await run.status() is RunStatus.CANCELLED
            assert list(await engine.effects()) == []

    sim.run(main)
