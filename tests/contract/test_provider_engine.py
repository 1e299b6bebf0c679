"""Faults of the provider server through the whole engine: what is on the wire, what is in the store, and what the outside world saw."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models import Model

from perdure import Delta, DurableAgent, Engine, Reset, RunFailed, RunHandle, RunStatus, effect
from perdure.core.runtime import RealRuntime
from perdure.testing.models import Reply, call, cut, empty, fail, filtered, length, reset, say
from perdure.testing.provider import Answer, ProviderServer, break_off, error_event, finish_as, garble, hold, unfinished

MODELS: dict[str, Callable[[ProviderServer], Model]] = {
    "openai-chat": lambda server: server.openai_chat_model(),
    "openai-responses": lambda server: server.openai_responses_model(),
    "anthropic": lambda server: server.anthropic_model(),
}
every_wire = pytest.mark.parametrize("wire", MODELS)
NEVER = [reset("x")] * 9


class Hurry(RealRuntime):
    """The machine, with short waits: what is slept is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await super().sleep(min(seconds, 0.005))


@dataclass
class Scene:
    """An engine with one agent whose tool pays, and a provider."""

    server: ProviderServer
    engine: Engine
    agent: DurableAgent[Any, str]
    runtime: Hurry
    paid: list[int] = field(default_factory=list)

    async def run(self, timeout: float = 30) -> tuple[RunHandle[str], Any]:
        handle = await self.agent.start("go")
        return handle, await self.engine.settled(handle.id, timeout)

    async def told(self, handle: RunHandle[str], kind: str) -> list[Any]:
        return [event async for event in handle.events() if getattr(event, "type", "") == kind]


@asynccontextmanager
async def scene(wire: str, *script: Reply | Answer) -> AsyncIterator[Scene]:
    paid: list[int] = []

    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return f"paid {cents}"

    async with ProviderServer(script) as server:
        runtime = Hurry()
        engine = Engine("memory://", runtime=runtime)
        agent: Agent[None, str] = Agent(MODELS[wire](server))
        agent.tool_plain(metadata=effect("ask"))(pay)
        durable = engine.agent(agent, name="payer")
        async with engine:
            yield Scene(server, engine, durable, runtime, paid)


PAY = call("pay", cents=7)
BROKEN: dict[str, Answer | Reply] = {
    "clean end in the middle": cut(PAY),
    "clean end in an event": break_off(PAY, "cut", "event"),
    "clean end before the finish part": break_off(PAY, "cut", "block"),
    "no finish part": unfinished(PAY),
    "clean end inside an escape": cut(call("pay", _raw='{"cents": 7, "note": "caf\\u12')),
    "closed": break_off(PAY, "drop"),
    "reset": reset(PAY),
    "reset before the finish part": break_off(PAY, "reset", "block"),
    "reset after the finish part": break_off(PAY, "reset", "finish"),
    "no JSON": garble(PAY),
    "no UTF-8": garble(PAY, "utf8"),
    "no HTTP": garble(PAY, "frame"),
    "an error event": error_event(PAY),
    "429": fail(429),
    "500": fail(500),
    "529": fail(529),
}


@every_wire
@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_step_is_tried_once_more_and_pays_once(wire: str, fault: str) -> None:
    """No effect of the broken step runs; the try is told; three requests are on the wire and in the books."""
    async with scene(wire, BROKEN[fault], PAY, say("done")) as here:
        handle, run = await here.run()
        assert (run.status, run.output, here.paid) == (RunStatus.COMPLETED, "done", [7])
        assert len(here.server.requests) == run.usage.requests == 3 and not here.server.refused
        assert [event.data["try_no"] for event in await here.told(handle, "step.retried")] == [1]


@every_wire
async def test_a_permanent_fault_ends_after_four_requests_and_can_be_resumed(wire: str) -> None:
    """The client library's own retries do not multiply ours; the run fails with the last error, once, and goes on when asked to."""  # case K5, K12
    async with scene(wire, PAY, *[fail(500)] * 4, say("done")) as here:
        handle, run = await here.run()
        assert (run.status, run.error.code, here.paid) == (RunStatus.FAILED, "model_error", [7])
        assert len(here.server.requests) == 1 + 4
        await handle.retry()
        assert await handle.result(30) == "done"
        assert (len(here.server.requests), here.paid) == (6, [7])


@every_wire
async def test_a_stream_that_never_ends_whole_fails_as_incomplete_and_keeps_its_text(wire: str) -> None:
    """The code says so, the partial text is in the errored step's row, and no tool ran."""
    async with scene(wire, *[cut("The first half of")] * 4) as here:
        handle, run = await here.run()
        assert (run.status, run.error.code) == (RunStatus.FAILED, "incomplete_response")
        errored = (await handle.steps())[-1].row
        assert (errored.text, errored.finish_reason) == ("The first half of", "incomplete")
        with pytest.raises(RunFailed):
            await handle.result()


@every_wire
async def test_what_a_listener_saw_of_a_broken_try_is_taken_back(wire: str) -> None:
    """A reset comes before the second try, and the text after it is the step's."""  # case F5
    async with scene(wire, break_off("Nine pla", "cut"), say("Eight planets.")) as here:
        shown: list[str] = []

        def show(news: Delta | Reset) -> None:
            shown.clear() if isinstance(news, Reset) else shown.append(news.text)

        for kind in ("run.delta", "run.reset"):
            here.engine.on(kind, show)
        _, run = await here.run()
        assert "".join(shown) == run.output == "Eight planets."


@every_wire
async def test_a_short_wish_to_wait_is_slept_and_a_longer_one_frees_the_worker(wire: str) -> None:
    """Seven seconds pass inside the step; a minute hands the run back, available later, with no attempt spent."""  # case K4
    async with scene(wire, fail(429, retry_after=7), say("done")) as here:
        _, run = await here.run()
        assert run.output == "done" and 7 in here.runtime.slept
    async with scene(wire, fail(429, retry_after=90), say("done")) as here:
        handle, run = await here.run(timeout=1)
        events = [event.type for event in await here.engine.store.events(handle.id)]
        assert run.status is RunStatus.PENDING and "run.released" in events
        assert run.available_at - run.updated_at > timedelta(seconds=80)
        assert len(here.server.requests) == 1 and run.deaths == 0


@every_wire
async def test_a_limit_that_resets_in_hours_is_a_wait_that_says_so(wire: str) -> None:
    """The run waits instead of running, and shows until when."""  # case K5
    async with scene(wire, fail(429, retry_after=5 * 3600), say("done")) as here:
        handle, run = await here.run(timeout=1)
        [request] = await handle.requests()
        assert (run.status, request.wait.kind, len(here.server.requests)) == (RunStatus.WAITING, "budget", 1)
        assert request.wait.row.expires_at - request.wait.created_at > timedelta(hours=4)


CUT = {
    "cut JSON": length(call("pay", _raw='{"cents": 7')),
    "valid JSON": length(PAY),
    "cut JSON, reason rewritten": finish_as(length(call("pay", _raw='{"cents": 7')), "tool_call"),
    "half an escape": length(call("pay", _raw='{"cents": 7, "note": "caf\\u12')),
}


@every_wire
@pytest.mark.parametrize("fault", CUT)
async def test_calls_cut_at_the_token_limit_are_issued_again_three_times_at_most(wire: str, fault: str) -> None:
    """Nothing of them runs; the third in a row fails the run; one that is issued whole runs once."""  # case C4, C6
    async with scene(wire, CUT[fault], CUT[fault], PAY, say("done")) as here:
        _, run = await here.run()
        assert (run.output, here.paid, len(here.server.requests)) == ("done", [7], 4) and not here.server.refused
    async with scene(wire, *[CUT[fault]] * 3, say("never")) as here:
        _, run = await here.run()
        assert (run.status, run.error.code, here.paid, len(here.server.requests)) == (RunStatus.FAILED, "length_cut", [], 3)


@every_wire
async def test_empty_answers_are_asked_again_twice(wire: str) -> None:
    """The third in a row fails the run; the history never holds one."""
    async with scene(wire, empty(), empty(), say("done")) as here:
        _, run = await here.run()
        assert (run.output, len(here.server.requests)) == ("done", 3) and not here.server.refused
    async with scene(wire, *[empty()] * 3, say("never")) as here:
        _, run = await here.run()
        assert (run.error.code, len(here.server.requests)) == ("empty_response", 3)


@every_wire
async def test_a_filtered_answer_fails_the_run_by_name(wire: str) -> None:
    """It is neither tried again nor taken for the output."""
    for text in ("", "I can"):
        async with scene(wire, filtered(text), say("never")) as here:
            _, run = await here.run()
            assert (run.status, run.error.code, len(here.server.requests)) == (RunStatus.FAILED, "model_error", 1)
            assert "filter" in run.error.message.lower()


@every_wire
async def test_the_same_call_id_in_two_turns_is_two_effects(wire: str) -> None:
    """The ledger's keys are ours: run, generation, step and position."""  # case C3
    async with scene(wire, call("pay", "c0", cents=7), call("pay", "c0", cents=7), say("done")) as here:
        handle, run = await here.run()
        assert (run.output, here.paid) == ("done", [7, 7]) and not here.server.refused
        effects = await here.engine.effects(run_id=handle.id, state=None)
        assert len({each.key for each in effects}) == 2


@every_wire
async def test_a_cancelled_run_closes_its_connection(wire: str) -> None:
    """The provider stops speaking: no new request, and the run is cancelled."""  # case G2
    async with scene(wire, hold("first words, then nothing for a long time"), say("never")) as here:
        handle = await here.agent.start("go")
        await here.server.until_asked(1)
        await handle.cancel()
        run = await here.engine.settled(handle.id, 30)
        assert run.status is RunStatus.CANCELLED and len(here.server.requests) == 1
        await here.server.until_hung_up(1)
