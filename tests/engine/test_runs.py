"""A run from its trigger to its end: the steps, what is stored, what callers see."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry

from perdure import Budget, Conflict, Delta, Engine, InvalidTrigger, RunCancelled, RunFailed, RunStatus, Settled, StillWaiting, current_run
from perdure.errors import AgentNotFoundError, ConfigurationError
from perdure.testing.models import ScriptedModel, call, calls, cut, fail, length, say


class Order(BaseModel):
    number: str
    cents: int


def agent_of(*script: Any, **options: Any) -> Agent[None, Any]:
    agent = Agent(ScriptedModel(script), name="shop", **options)

    @agent.tool_plain
    async def look(order: str) -> dict[str, Any]:
        return {"order": order, "total": 9}

    @agent.tool_plain
    async def fails(order: str) -> str:
        raise ValueError("no such order")

    return agent


def test_a_text_run_completes_and_keeps_its_history(sim: Any) -> None:
    """One model call, one commit that ends the run, the text as output."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(say("Hello.")))
        async with engine:
            run = await shop.start({"q": 1})
            assert await run.result() == "Hello."
            stored = await run.run()
            assert stored.status is RunStatus.COMPLETED
            assert stored.finish_reason == "stop"
            assert stored.usage.requests == 1
            assert stored.commit_no == 1
            assert [step.kind for step in await run.steps()] == ["llm"]
            assert len(await run.messages()) == 2

    sim.run(main)


def test_a_step_with_tools_is_two_writes(sim: Any) -> None:
    """The response before the first body, the results after the last."""
    seen: list[tuple[int, int]] = []

    async def main() -> None:
        engine = sim.engine()
        agent = Agent(ScriptedModel([calls(call("look", order="1"), call("look", order="2")), say("done")]), name="shop")

        @agent.tool_plain
        async def look(order: str) -> str:
            run = await engine.run(current_run().id)
            checkpoint = await engine.store.checkpoint(run.id)
            assert checkpoint is not None
            seen.append((run.commit_no, len(checkpoint.messages)))
            return order

        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            await run.result()
            assert (await run.run()).commit_no == 3
            assert [(step.kind, step.row.index) for step in await run.steps()] == [("llm", 1), ("tool", 1), ("tool", 1), ("llm", 2)]

    sim.run(main)
    assert seen == [(1, 2), (1, 2)]


def test_deltas_are_the_stored_text(sim: Any) -> None:
    """What streams, concatenated, is what the step stores; the settlement comes last."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(call("look", order="1"), say("A long enough answer.")))
        async with engine:
            run = await shop.start({})
            events = [event async for event in run.events()]
            text = "".join(event.text for event in events if isinstance(event, Delta))
            assert text == "A long enough answer."
            assert isinstance(events[-1], Settled)
            numbers = [event.seq for event in events if not isinstance(event, Delta)]
            assert numbers == list(range(1, len(numbers) + 1))

    sim.run(main)


def test_a_key_starts_one_run(sim: Any) -> None:
    """The same key again answers with its run; another payload under it is a conflict."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(say("a")))
        async with engine:
            first = await shop.start({"q": 1}, key="k")
            again = await shop.start({"q": 1}, key="k")
            assert (first.created, again.created, again.id) == (True, False, first.id)
            with pytest.raises(Conflict) as refused:
                await shop.start({"q": 2}, key="k")
            assert refused.value.details["run_id"] == first.id

    sim.run(main)


def test_bad_input_names_its_field_and_stores_nothing(sim: Any) -> None:
    """Refused before anything is written, with the field that is wrong."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(say("a")), input=Order)
        async with engine:
            with pytest.raises(InvalidTrigger) as refused:
                await shop.start({"number": "7", "cents": "many"})
            assert refused.value.details["field"] == "cents"
            for options in ({"key": ""}, {"thread": "t" * 600}):
                with pytest.raises(InvalidTrigger):
                    await shop.start(Order(number="7", cents=1), **options)
            with pytest.raises(AgentNotFoundError, match="shop"):
                await engine.start("shopp", {})
            assert list(await engine.runs()) == []

    sim.run(main)


def test_structured_output_is_parsed_back(sim: Any) -> None:
    """The output is stored as JSON and handed over as the agent's type; a refused one costs another call."""

    async def main() -> None:
        agent = agent_of(call("final_result", number="7", cents="many"), call("final_result", number="7", cents=900), output_type=Order)
        engine = sim.engine()
        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            assert await run.result() == Order(number="7", cents=900)
            stored = await run.run()
            assert stored.output == {"number": "7", "cents": 900}
            assert stored.usage.requests == 2

    sim.run(main)


def test_a_failing_tool_is_a_result_that_the_model_sees(sim: Any) -> None:
    """Its siblings go on, and the run completes. # case C1"""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(calls(call("fails", order="1"), call("look", order="2"), call("nothing"), call("look", other=1)), say("done")))
        async with engine:
            run = await shop.start({})
            assert await run.result() == "done"
            tools = [step for step in await run.steps() if step.kind == "tool"]
            assert [bool(step.row.error) for step in tools] == [True, False, True, True]
            assert "ValueError: no such order" in str((await run.messages())[2])

    sim.run(main)


def test_max_steps_stops_a_text_agent_with_its_text(sim: Any) -> None:
    """The default of a text agent: completed, the text so far, the limit as finish reason."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(call("look", order="1"), call("look", order="2"), say("never")), budget=Budget(max_steps=2))
        async with engine:
            run = await shop.start({})
            assert await run.result() == ""
            stored = await run.run()
            assert (stored.finish_reason, stored.usage.requests) == ("max_steps", 2)
            assert len(await run.messages()) == 5

    sim.run(main)


def test_a_budget_that_fails_goes_on_after_a_retry_with_more(sim: Any) -> None:
    """The history is kept, and the next call is the next step."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(call("look", order="1"), call("look", order="2"), say("done")), budget=Budget(max_steps=1, on_limit="fail"))
        async with engine:
            run = await shop.start({})
            with pytest.raises(RunFailed) as failed:
                await run.result()
            assert failed.value.code == "budget_exceeded"
            await run.retry(max_steps=5)
            assert await run.result() == "done"
            assert [step.row.index for step in await run.steps() if step.kind == "llm"] == [1, 2, 3]

    sim.run(main)


def test_a_budget_that_pauses_waits_for_a_top_up(sim: Any) -> None:
    """The run waits, and goes on at the same step."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(call("look", order="1"), say("done")), budget=Budget(max_steps=1, on_limit="pause"))
        async with engine:
            run = await shop.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=30)
            [request] = await run.requests()
            assert request.kind == "budget"
            await request.answer("top_up", {"max_steps": 3}, by="ops")
            assert await run.result() == "done"

    sim.run(main)


def test_transient_model_errors_are_tried_again_inside_the_step(sim: Any) -> None:
    """Each try is an event; the step has one number; time passes by the back-off."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(fail(status=503), fail(status=429, retry_after=7), cut("Hal"), say("Hello.")))
        async with engine:
            run = await shop.start({})
            began = sim.runtime.monotonic()
            assert await run.result() == "Hello."
            assert sim.runtime.monotonic() - began >= 7
            events = await engine.store.events(run.id)
            assert [event.data["try_no"] for event in events if event.type == "step.retried"] == [1, 2, 3]
            assert [step.row.index for step in await run.steps()] == [1]

    sim.run(main)


def test_an_error_that_stays_ends_the_run_with_a_step_of_its_own(sim: Any) -> None:
    """The errored step has the text so far; a retry takes the next index."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(*[cut("Hal")] * 2, say("Hello.")), model_tries=2)
        async with engine:
            run = await shop.start({})
            with pytest.raises(RunFailed) as failed:
                await run.result()
            assert failed.value.code == "incomplete_response"
            [step] = await run.steps()
            assert (step.row.text, step.row.finish_reason, step.row.index) == ("Hal", "incomplete", 1)
            await run.retry()
            assert await run.result() == "Hello."
            assert [step.row.index for step in await run.steps()] == [1, 2]

    sim.run(main)


def test_a_long_retry_after_parks_the_run(sim: Any) -> None:
    """No worker is held meanwhile. # case K4"""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(fail(status=429, retry_after=600), say("Hello.")))
        async with engine:
            run = await shop.start({})
            with pytest.raises(StillWaiting):
                await run.result(timeout=60)
            assert await run.status() is RunStatus.PENDING
            assert engine.worker.idle
            assert await run.result(timeout=700) == "Hello."

    sim.run(main)


def test_a_response_cut_at_the_token_limit_runs_none_of_its_calls(sim: Any) -> None:
    """The model is asked to issue them again; three in a row fail the run. # case C4"""
    ran: list[str] = []

    def agent_that_counts(*script: Any) -> Agent[None, str]:
        agent = Agent(ScriptedModel(script), name="shop")

        @agent.tool_plain
        async def refund(order: str) -> str:
            ran.append(order)
            return "ok"

        return agent

    async def main() -> None:
        engine = sim.engine()
        once = engine.agent(agent_that_counts(length(call("refund", order="cut")), call("refund", order="whole"), say("done")), name="once")
        thrice = engine.agent(agent_that_counts(*[length(call("refund", order="cut"))] * 3), name="thrice")
        async with engine:
            assert await once.run({}) == "done"
            with pytest.raises(RunFailed) as failed:
                await thrice.run({})
            assert failed.value.code == "length_cut"

    sim.run(main)
    assert ran == ["whole"]


def test_empty_answers_are_asked_again_twice(sim: Any) -> None:
    """The third fails the run; what was stored stays valid."""

    async def main() -> None:
        engine = sim.engine()
        twice = engine.agent(agent_of(say(""), say(""), say("Hello.")), name="twice")
        thrice = engine.agent(agent_of(say(""), say(""), say(""), say("never")), name="thrice")
        async with engine:
            assert await twice.run({}) == "Hello."
            with pytest.raises(RunFailed) as failed:
                await thrice.run({})
            assert failed.value.code == "empty_response"

    sim.run(main)


def test_the_same_call_again_and_again_trips_the_loop_guard(sim: Any) -> None:
    """A-A-A and A-B-A-B, by the name of the tool. # case K6"""

    async def main() -> None:
        engine = sim.engine()
        same = engine.agent(agent_of(*[call("look", order="1")] * 9), name="same")
        pair = engine.agent(agent_of(*[call("look", order="1"), call("look", order="2")] * 9), name="pair")
        async with engine:
            for looping in (same, pair):
                with pytest.raises(RunFailed, match="look") as failed:
                    await looping.run({})
                assert failed.value.code == "loop_detected"

    sim.run(main)


def test_cancel_ends_a_run_in_every_state(sim: Any) -> None:
    """Pending and running: settled once, and nothing of it goes on. # case G4"""

    async def main() -> None:
        engine = sim.engine()
        agent = Agent(ScriptedModel([calls(*[call("slow", n=n) for n in range(5)]), say("never")]), name="slow")
        started: list[int] = []

        @agent.tool_plain
        async def slow(n: int) -> str:
            started.append(n)
            try:
                await sim.runtime.sleep(1000)
            except BaseException:
                if n == 3:
                    await sim.runtime.sleep(1000)
                raise
            return "ok"

        slow_agent = engine.agent(agent)
        async with engine:
            later = await slow_agent.start({}, delay=timedelta(hours=1))
            assert (await later.cancel()).outcome == "settled"
            run = await slow_agent.start({})
            await sim.runtime.sleep(5)
            began = sim.runtime.monotonic()
            assert (await run.cancel(by="eva")).outcome == "cancelling"
            with pytest.raises(RunCancelled):
                await run.result()
            assert sim.runtime.monotonic() - began < 10
            assert (await run.cancel()).outcome == "already"
            assert len(started) == 5
            await sim.runtime.sleep(2000)  # the one that ignores cancellation ends, too, and changes nothing
            assert await run.status() is RunStatus.CANCELLED

    sim.run(main)


def test_time_limits_end_the_execution(sim: Any) -> None:
    """`timeout` for the execution, `step_timeout` for a step that hangs, `deadline` for the whole run. # case H16"""

    async def main() -> None:
        def hanging(name: str) -> Agent[None, str]:
            agent = Agent(ScriptedModel([call("hang"), say("done")]), name=name)

            @agent.tool_plain
            async def hang() -> str:
                await sim.runtime.sleep(10_000)
                return "ok"

            return agent

        engine = sim.engine()
        by_execution = engine.agent(hanging("execution"), budget=Budget(timeout=timedelta(seconds=20)))
        by_step = engine.agent(hanging("step"), step_timeout=timedelta(seconds=30))
        by_deadline = engine.agent(hanging("deadline"), budget=Budget(deadline=timedelta(seconds=40)))
        by_tool = engine.agent(hanging("tool"), tool_timeout=timedelta(seconds=10))
        async with engine:
            for agent, code in ((by_execution, "timeout"), (by_step, "timeout"), (by_deadline, "deadline")):
                with pytest.raises(RunFailed) as failed:
                    await agent.run({})
                assert failed.value.code == code
            assert await by_tool.run({}) == "done"

    sim.run(main)


def test_output_validators_may_refuse(sim: Any) -> None:
    """A refused text is a step like any other."""

    async def main() -> None:
        agent = agent_of(say("wrong"), say("right"))

        @agent.output_validator
        async def check(text: str) -> str:
            if text == "wrong":
                raise ModelRetry("not that")
            return text

        engine = sim.engine()
        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            assert await run.result() == "right"
            assert [step.row.index for step in await run.steps()] == [1, 2]

    sim.run(main)


def test_a_thread_is_a_conversation(sim: Any) -> None:
    """The second run sees what the first one said."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_of(say("first"), say("second")), history="thread")
        async with engine:
            assert await shop.run({"q": 1}, thread="customer-17") == "first"
            second = await shop.start({"q": 2}, thread="customer-17")
            assert await second.result() == "second"
            assert len(await second.messages()) == 4

    sim.run(main)


def test_an_engine_is_entered_once_and_its_options_are_checked() -> None:
    """Mistakes of wiring are named when they are made."""
    with pytest.raises(ConfigurationError, match="workers"):
        Engine("memory://", workers=-1)
    with pytest.raises(ConfigurationError, match="sqlite:///"):
        Engine("mysql://x")
    engine = Engine("memory://")
    engine.agent(agent_of(say("a")))
    with pytest.raises(ConfigurationError, match="registered already"):
        engine.agent(agent_of(say("a")))
    with pytest.raises(ConfigurationError, match="price"):
        engine.agent(agent_of(say("a")), name="b", budget=Budget(max_cost=Decimal(1)))


async def test_run_sync_works_in_scripts_and_inside_a_running_loop() -> None:
    """In a notebook a loop runs already; on the engine's own loop it would block, and says so."""
    engine = Engine("memory://")
    shop = engine.agent(agent_of(say("a"), say("b")))
    assert shop.run_sync({}) == "a"
    async with engine:
        with pytest.raises(ConfigurationError, match="await"):
            shop.run_sync({})
