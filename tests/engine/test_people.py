"""Runs that wait for people and the world: they hold nothing, and go on exactly once."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ApprovalRequired, RunContext
from pydantic_ai.messages import ToolReturnPart, UserPromptPart

from perdure import Conflict, RunFailed, RunStatus, StillWaiting, Wait, approve, effect
from perdure.core.commit import ResolveOutcome
from perdure.testing.models import ScriptedModel, StrictProvider, call, calls, say


class Receipt(BaseModel):
    order: str
    cents: int


class Desk:
    """Counts what was really done."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []

    async def refund(self, order: str, cents: int) -> str:
        self.done.append((order, cents))
        return "refunded"

    async def look(self, order: str) -> str:
        self.done.append((order, 0))
        return "found"


def gated(desk: Desk, *script: Any, output_type: Any = str, **rule: Any) -> Agent[None, Any]:
    agent = Agent(ScriptedModel(script or [call("refund", order="7", cents=900), say("done")]), name="gated", output_type=output_type)
    agent.tool_plain(desk.refund, metadata=effect() | approve(**rule))
    agent.tool_plain(desk.look)
    return agent


def patient(sim: Any) -> Any:
    """An engine for tests in which days pass: it looks at the clock less often."""
    return sim.engine(tick=timedelta(hours=1), poll=timedelta(hours=1), lease=timedelta(hours=1))


async def waiting(run: Any, seconds: float = 30) -> list[Any]:
    """The run's open requests, once it waits."""
    with pytest.raises(StillWaiting):
        await run.result(timeout=seconds)
    assert await run.status() is RunStatus.WAITING
    return await run.requests()


def test_nothing_is_held_while_a_run_waits(sim: Any) -> None:
    """No worker, no lease; the answer starts one tool call."""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        agent = engine.agent(gated(desk))
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            assert engine.worker.idle
            assert (await run.run()).lease_owner is None
            assert desk.done == []
            await sim.runtime.sleep(timedelta(days=2).total_seconds())
            await request.approve(by="eva")
            assert await run.result() == "done"
            assert desk.done == [("7", 900)]

    sim.run(main)


def test_fifty_racing_answers_have_one_winner(sim: Any) -> None:
    """The rest learn who won; one resume. # case B1"""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        agent = engine.agent(gated(desk))
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            answers = [request.approve(by=f"p{n}") if n % 2 else request.deny(by=f"p{n}", reason="no") for n in range(50)]
            outcomes = [answer.outcome for answer in await asyncio.gather(*answers)]
            assert outcomes.count(ResolveOutcome.RESOLVED) == 1
            assert set(outcomes) == {ResolveOutcome.RESOLVED, ResolveOutcome.ALREADY, ResolveOutcome.CONFLICT}
            last = await request.deny(by="late", reason="other")
            assert (last.outcome, last.wait.resolution is not None) == (ResolveOutcome.CONFLICT, True)
            assert await run.result() == "done"
            assert len(desk.done) <= 1
            claims = [event for event in await engine.store.events(run.id) if event.type == "run.claimed"]
            assert len(claims) == 2

    sim.run(main)


def test_edited_input_is_what_the_tool_gets(sim: Any) -> None:
    """Checked against the schema when it is answered; proposed, decided and effective are kept. # case B11, # case B12"""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        agent = engine.agent(gated(desk))
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            bad = await request.approve(by="eva", input={"order": "7", "cents": "many"})
            assert bad.outcome is ResolveOutcome.REFUSED
            renamed = await request.approve(by="eva", input={"order": "7", "cents": 1, "tool_name": "look"})
            assert renamed.outcome is ResolveOutcome.REFUSED
            assert desk.done == []
            assert (await request.approve(by="eva", input={"order": "7", "cents": 400})).outcome is ResolveOutcome.RESOLVED
            assert await run.result() == "done"
            assert desk.done == [("7", 400)]
            [row] = await engine.effects(run_id=run.id, state=None)
            assert row.row.input == {"order": "7", "cents": 400}
            wait = await engine.store.wait(request.id)
            assert wait.row.input == {"order": "7", "cents": 900}
            assert wait.resolution.value == {"order": "7", "cents": 400}

    sim.run(main)


def test_a_model_that_takes_an_edit_for_a_mistake_is_told_of_it(sim: Any) -> None:
    """Without a word it would make its first call again: the history shows its own input beside another one's result. # case B11"""
    desk = Desk()

    def script(messages: list[Any]) -> Any:
        said = [part for message in messages[1:] for part in message.parts]
        told = any(isinstance(part, UserPromptPart) and '{"cents":400} in place of {"cents":900}' in str(part.content) for part in said)
        return say("done") if told else call("refund", order="7", cents=900)

    async def main() -> None:
        engine = patient(sim)
        model = StrictProvider(ScriptedModel(script))
        agent = Agent(model, name="gated")
        agent.tool_plain(desk.refund, metadata=effect() | approve())
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            [request] = await waiting(run)
            await request.approve(by="eva", input={"order": "7", "cents": 400})
            assert await run.result() == "done"
            assert (desk.done, model.refusals) == ([("7", 400)], [])
            response = (await run.messages())[1]
            assert response.parts[0].args_as_dict() == {"order": "7", "cents": 900}, "what the model said stays as it said it"
            other = await durable.start({"n": 2})
            [request] = await waiting(other)
            await request.approve(by="eva", input={"order": "7", "cents": 900})
            [again] = await waiting(other)
            assert again.id != request.id, "an edit that changes nothing is no edit, and is not told"

    sim.run(main)


def test_a_denial_is_told_to_the_model(sim: Any) -> None:
    """With its reason; nothing was done."""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        agent = engine.agent(gated(desk))
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            await request.deny(by="eva", reason="too much")
            assert await run.result() == "done"
            assert desk.done == []
            assert "too much" in str((await run.messages())[2])

    sim.run(main)


@pytest.mark.parametrize("rule", [{}, {"within": timedelta(hours=36)}], ids=["default", "declared"])
def test_silence_is_never_consent(sim: Any, rule: dict[str, Any]) -> None:
    """A default deadline, and one that was named; at its end the model is told, and the record says expired, by nobody. # case B2, # case B3"""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        agent = engine.agent(gated(desk, **rule))
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            assert request.wait.row.expires_at is not None
            await sim.runtime.sleep(timedelta(days=8).total_seconds())
            assert await run.result() == "done"
            assert desk.done == []
            assert "lapsed" in str((await run.messages())[2])
            wait = await engine.store.wait(request.id)
            assert (str(wait.resolution.kind), wait.resolution.by) == ("expired", None)
            assert (await request.approve(by="late")).outcome is not ResolveOutcome.RESOLVED

    sim.run(main)


def test_an_expiry_may_fail_the_run_or_be_extended(sim: Any) -> None:
    """`fail` ends it as approval_expired; `extend` moves the deadline; `never` has none. # case B4"""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        failing = engine.agent(gated(desk, within=timedelta(hours=1), on_expiry="fail"), name="failing")
        moved = engine.agent(gated(desk, within=timedelta(hours=1)), name="moved")
        never = engine.agent(gated(desk, within="never"), name="never")
        async with engine:
            run = await failing.start({})
            await sim.runtime.sleep(timedelta(hours=2).total_seconds())
            with pytest.raises(RunFailed) as failed:
                await run.result()
            assert failed.value.code == "approval_expired"
            run = await moved.start({})
            [request] = await waiting(run)
            await request.extend(timedelta(days=6))
            await sim.runtime.sleep(timedelta(days=5).total_seconds())
            await request.approve(by="eva")
            assert await run.result() == "done"
            run = await never.start({})
            await sim.runtime.sleep(timedelta(days=10).total_seconds())
            [request] = await waiting(run)
            assert request.wait.row.expires_at is None

    sim.run(main)


def test_several_requests_are_answered_in_any_order(sim: Any) -> None:
    """By ids, never by positions; the run goes on when all are answered. # case B6, # case B10"""
    desk = Desk()

    async def main() -> None:
        batch = calls(*[call("refund", order=str(n), cents=n) for n in range(1, 6)], call("look", order="free"))
        engine = patient(sim)
        agent = engine.agent(gated(desk, batch, say("done")))
        async with engine:
            run = await agent.start({})
            requests = {request.input["order"]: request for request in await waiting(run)}
            assert sorted(requests) == ["1", "2", "3", "4", "5"]
            assert desk.done == [("free", 0)]
            for order in ("4", "2", "5", "1"):
                await requests[order].approve(by="eva", input={"order": order, "cents": int(order) * 10})
                assert await run.status() is RunStatus.WAITING
            await requests["3"].deny(by="eva")
            assert await run.result() == "done"
            assert sorted(desk.done[1:]) == [("1", 10), ("2", 20), ("4", 40), ("5", 50)]

    sim.run(main)


@pytest.mark.parametrize("seed", range(6))
def test_five_requests_in_any_order_with_pauses_and_one_that_lapses(sim: Any, seed: int) -> None:
    """Nothing undecided is taken for failed, no request goes to the model before the last one is closed, and each call gets its own. # case B10, # case B19"""
    desk, chance = Desk(), random.Random(seed)
    asked: list[int] = []

    def script(messages: list[Any]) -> Any:
        asked.append(len(messages))
        return say("done") if len(messages) > 1 else calls(*[call("refund", order=str(n), cents=n) for n in range(5)], call("look", order="free"))

    async def main() -> None:
        engine = patient(sim)
        model = StrictProvider(ScriptedModel(script))
        agent = Agent(model, name="gated")
        agent.tool_plain(desk.refund, metadata=effect() | approve(within=timedelta(days=2)))
        agent.tool_plain(desk.look)
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            requests = {request.input["order"]: request for request in await waiting(run)}
            order = chance.sample(sorted(requests), 5)
            lapses = order.pop(chance.randrange(5))
            for each in order:
                await requests[each].extend(timedelta(days=30))
            pauses = sorted(chance.uniform(0, 5 * 86_400) for _ in order)
            for each, pause, before in zip(order, pauses, [0.0, *pauses], strict=False):
                await sim.runtime.sleep(pause - before)
                assert await run.status() is RunStatus.WAITING
                assert len(asked) == 1 and len([step for step in await run.steps() if step.kind == "tool"]) == 1
                await requests[each].approve(by="eva", input={"order": each, "cents": 100 + int(each)})
            await sim.runtime.sleep(timedelta(days=3).total_seconds())
            assert await run.result() == "done"
            assert sorted(desk.done) == sorted([("free", 0), *((each, 100 + int(each)) for each in order)])
            results = {part.tool_call_id: str(part.content) for part in (await run.messages())[2].parts if isinstance(part, ToolReturnPart)}
            assert [lapses for each in results.values() if "lapsed" in each] == [lapses]
            assert "lapsed" in results[str(requests[lapses].wait.row.tool_call_id)]
            assert (len(asked), model.refusals) == (2, [])

    sim.run(main)


def test_a_predicate_decides_by_the_validated_input(sim: Any) -> None:
    """Below the line nobody is asked."""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        script = [call("refund", order="1", cents="100"), call("refund", order="2", cents=9_000), say("done")]
        agent = engine.agent(gated(desk, *script, when=lambda each: each.input["cents"] > 5_000))
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            assert request.input == {"order": "2", "cents": 9_000}
            assert desk.done == [("1", 100)]
            await request.approve(by="eva")
            assert await run.result() == "done"

    sim.run(main)


def test_quorum_and_named_approvers(sim: Any) -> None:
    """Two of three; the same person counts once, the requester not at all, a denial settles it. # case B21"""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        agent = engine.agent(gated(desk, approvers=["eva", "kim", "lee"], quorum=2, not_requester=True))
        async with engine:
            run = await agent.start({}, labels={"requester": "lee"})
            [request] = await waiting(run)
            assert (await request.approve(by="mia")).outcome is ResolveOutcome.REFUSED
            assert (await request.approve(by="lee")).outcome is ResolveOutcome.REFUSED
            assert (await request.approve(by="eva")).outcome is ResolveOutcome.VOTED
            assert (await request.approve(by="eva")).outcome is not ResolveOutcome.RESOLVED
            assert (await request.approve(by="kim")).outcome is ResolveOutcome.RESOLVED
            assert await run.result() == "done"
            second = await agent.start({"n": 2})
            [request] = await waiting(second)
            await request.approve(by="eva")
            assert (await request.deny(by="kim")).outcome is ResolveOutcome.RESOLVED
            assert await second.result() == "done"
            assert len(desk.done) == 1
            third = await agent.start({"n": 3})
            [request] = await waiting(third)
            assert (await request.approve(by="eva")).outcome is ResolveOutcome.VOTED
            await sim.runtime.sleep(timedelta(days=8).total_seconds())
            assert await third.result() == "done"
            lapsed = (await engine.store.wait(request.id)).resolution
            assert (str(lapsed.kind), lapsed.by, len(desk.done)) == ("expired", None, 1), "one of two is not enough, and silence is no second one"
            assert (await request.approve(by="kim")).outcome is ResolveOutcome.EXPIRED

    sim.run(main)


def test_what_the_agent_declares_itself_waits_too(sim: Any) -> None:
    """`requires_approval`, and `ApprovalRequired` raised by the tool; with structured output and a validator."""
    done: list[str] = []

    async def main() -> None:
        script = [calls(call("native", order="1"), call("raises", order="2")), call("final_result", order="7", cents=1)]
        agent = Agent(ScriptedModel(script), name="native", output_type=Receipt)

        @agent.tool_plain(requires_approval=True)
        async def native(order: str) -> str:
            done.append(order)
            return "ok"

        @agent.tool
        async def raises(ctx: RunContext[None], order: str) -> str:
            if not ctx.tool_call_approved:
                raise ApprovalRequired
            done.append(order)
            return "ok"

        @agent.output_validator
        async def check(receipt: Receipt) -> Receipt:
            return receipt

        engine = patient(sim)
        durable = engine.agent(agent)
        async with engine:
            run = await durable.start({})
            requests = await waiting(run)
            assert [request.tool for request in requests] == ["native", "raises"]
            for request in requests:
                await request.approve(by="eva")
            assert await run.result() == Receipt(order="7", cents=1)
            assert sorted(done) == ["1", "2"]

    sim.run(main)


def test_a_second_request_in_the_same_run_is_a_new_one(sim: Any) -> None:
    """Three gated calls in three turns, each asked and done once. # case B9"""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        strict = StrictProvider(ScriptedModel([*[call("refund", order=str(n), cents=n) for n in range(3)], say("done")]))
        gate = Agent(strict, name="gated")
        gate.tool_plain(desk.refund, metadata=effect() | approve())
        agent = engine.agent(gate)
        async with engine:
            run = await agent.start({})
            for _ in range(3):
                [request] = await waiting(run)
                await request.approve(by="eva")
            assert await run.result() == "done"
            assert desk.done == [("0", 0), ("1", 1), ("2", 2)]
            answers = [part.tool_call_id for message in await run.messages() for part in message.parts if isinstance(part, ToolReturnPart)]
            assert (len(answers), len(set(answers)), strict.refusals) == (3, 3, []), "each output went to the provider once, beside its own call"

    sim.run(main)


def test_a_tool_waits_for_an_event_or_a_time(sim: Any) -> None:
    """The body runs once; what came is its result; a signal that came before is not lost; beyond 2^31 ms."""
    began: list[str] = []

    async def main() -> None:
        agent = Agent(ScriptedModel([call("payment"), call("pause"), say("done")]), name="waits")

        @agent.tool_plain
        async def payment() -> str:
            began.append("payment")
            raise Wait.event("paid", expires=timedelta(days=3))

        @agent.tool_plain
        async def pause() -> str:
            began.append("pause")
            raise Wait.until(timedelta(days=26))

        engine = patient(sim)
        durable = engine.agent(agent)
        async with engine:
            early = await durable.start({"n": 1}, delay=timedelta(seconds=5))
            assert await early.signal("paid", {"cents": 1}, id="s1")
            assert not await early.signal("paid", {"cents": 1}, id="s1")
            late = await durable.start({"n": 2})
            [request] = await waiting(late)
            assert request.kind == "event"
            assert await late.signal("paid", {"cents": 2})
            for run, cents in ((early, 1), (late, 2)):
                await sim.runtime.sleep(timedelta(days=12).total_seconds())
                assert await run.status() is RunStatus.WAITING
                assert f"'cents': {cents}" in str((await run.messages())[2])
            await sim.runtime.sleep(timedelta(days=2).total_seconds())
            assert [await run.result() for run in (early, late)] == ["done", "done"]
            assert sorted(began) == ["pause", "pause", "payment", "payment"]
            with pytest.raises(Conflict):
                await early.signal("paid")

    sim.run(main)


def test_a_run_that_waits_is_cancelled_at_once(sim: Any) -> None:
    """Its open rows close; a late answer changes nothing."""
    desk = Desk()

    async def main() -> None:
        engine = patient(sim)
        agent = engine.agent(gated(desk))
        async with engine:
            run = await agent.start({})
            [request] = await waiting(run)
            assert (await run.cancel(by="kim")).outcome == "settled"
            assert (await request.approve(by="eva")).outcome is not ResolveOutcome.RESOLVED
            await run.retry()
            [again] = await waiting(run)
            assert again.id != request.id
            await again.approve(by="eva")
            assert await run.result() == "done"
            assert desk.done == [("7", 900)]

    sim.run(main)
