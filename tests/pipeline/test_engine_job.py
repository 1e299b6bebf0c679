"""A pipeline as a job type of the engine: runs, claims, waits, retries and crashes, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import Engine, RunStatus
from perdure.core.errors import ConfigurationError, InvalidTrigger, RunFailed
from perdure.pipeline import (
    AgentCheckpoint,
    Approval,
    Done,
    Error,
    InvalidPipelineError,
    Next,
    Phase,
    PhaseContext,
    PhaseResult,
    Retry,
    RetryPolicy,
    Wait,
    build_agent_phase,
    phase,
    register,
)
from perdure.stores.memory import MemoryStore
from perdure.testing.models import ScriptedModel, call, say
from perdure.testing.simulation._loop import SimLoop
from perdure.testing.simulation._runtime import SimRuntime, die


class Machine:
    """Simulated machines on one store."""

    def __init__(self) -> None:
        self.loop = SimLoop()
        self.home = self.loop.replica("home")
        self.runtime = SimRuntime(self.loop, self.home)
        self.store = MemoryStore(self.runtime)
        self.errors: list[BaseException] = []

    def engine(self, runtime: SimRuntime | None = None, **options: Any) -> Engine:
        return Engine(self.store, runtime=runtime or self.runtime, on_error=self.errors.append, **options)

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.loop.run_until_complete(self.home.spawn(main(), name="test"))


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.loop.close()


@dataclass
class Count:
    n: int = 0


class Story:
    """Phases that add one and go on; `act` is what a named phase does instead."""

    def __init__(self, *names: str) -> None:
        self.seen: list[str] = []
        self.keys: list[str] = []
        self.act: dict[str, Callable[[PhaseContext[Count]], Any]] = {}
        self.phases: list[Phase[Count]] = [self._one(name, names[at + 1] if at + 1 < len(names) else None) for at, name in enumerate(names)]

    def _one(self, name: str, after: str | None) -> Phase[Count]:
        async def run(ctx: PhaseContext[Count]) -> PhaseResult[Count]:
            self.seen.append(name)
            self.keys.append(ctx.key)
            if name in self.act:
                result = self.act[name](ctx)
                result = await result if hasattr(result, "__await__") else result
                if result is not None:
                    return result
            state = Count(ctx.state.n + 1)
            return Done({"n": state.n}) if after is None else Next(after, state)

        return Phase(name, run, retry=RetryPolicy(attempts=3, backoff=timedelta(seconds=10), on=(ConnectionError,)))


def test_a_job_is_a_run_and_its_phases_are_steps(machine: Machine) -> None:
    """Start with a key, wait for the output; the log shows each phase, the history the state."""
    story = Story("a", "b", "c")

    async def main() -> None:
        engine = machine.engine()
        jobs = register(engine, story.phases, name="adder", output_type=dict[str, int])
        async with engine:
            assert await jobs.run(Count(1), key="one") == {"n": 4}
            again = await jobs.start(Count(1), key="one")
            assert not again.created and await again.result() == {"n": 4}
            assert [step.row.name for step in await again.steps()] == ["a", "b", "c"]
            assert '"n":3' in str((await again.messages())[0])
            assert engine.agents["adder"].version is None and jobs.name == "adder"
        assert story.seen == ["a", "b", "c"]

    machine.run(main)
    assert machine.errors == []


def test_bad_input_is_refused_before_anything_is_stored(machine: Machine) -> None:
    """The payload's field is named; wrong phases and taken names too."""
    story = Story("a")

    async def main() -> None:
        engine = machine.engine()
        jobs = register(engine, story.phases, name="adder")
        with pytest.raises(ConfigurationError, match="registered already"):
            register(engine, story.phases, name="adder")
        with pytest.raises(InvalidPipelineError):
            register(engine, [], name="nothing")
        async with engine:
            with pytest.raises(InvalidTrigger) as caught:
                await jobs.start({"n": "many"})  # type: ignore[arg-type]
            assert caught.value.details["field"] == "payload.n"
            assert await engine.runs() == []

    machine.run(main)


# case O1
# case O5
def test_a_failed_run_resumes_at_its_phase_and_restarts_in_full(machine: Machine) -> None:
    """Resume enters the failed phase alone; full all of them, under new keys."""
    story = Story("a", "b", "c")
    story.act["b"] = lambda ctx: Error("not yet") if len(story.seen) == 2 else None

    async def main() -> None:
        engine = machine.engine()
        jobs = register(engine, story.phases, name="adder")
        async with engine:
            handle = await jobs.start(Count(0))
            with pytest.raises(RunFailed) as caught:
                await handle.result()
            assert (caught.value.code, caught.value.run.error and caught.value.run.error.message) == ("phase_error", "not yet")
            assert caught.value.run.error is not None and caught.value.run.error.details["phase"] == "b"
            await handle.retry()
            assert await handle.result() == {"n": 3}
            assert story.seen == ["a", "b", "b", "c"] and story.keys[1] == story.keys[2]
            other = await jobs.start(Count(0))
            story.act["c"] = lambda ctx: Error("again")
            with pytest.raises(RunFailed):
                await other.result()
            before = len(story.keys)
            del story.act["c"]
            await other.retry("full")
            assert await other.result() == {"n": 3}
            assert story.seen[-3:] == ["a", "b", "c"] and not set(story.keys[:before]) & set(story.keys[before:])

    machine.run(main)


def test_an_exception_is_tried_again_later_without_a_worker(machine: Machine) -> None:
    """The run goes back to `pending` between tries; after the last it fails by name."""
    story = Story("a")
    times: list[float] = []

    def fail(ctx: PhaseContext[Count]) -> None:
        times.append(machine.runtime.monotonic())
        raise ConnectionError("no route")

    story.act["a"] = fail

    async def main() -> None:
        engine = machine.engine()
        jobs = register(engine, story.phases, name="adder")
        async with engine:
            handle = await jobs.start(Count(0))
            with pytest.raises(RunFailed) as caught:
                await handle.result()
            assert "threw: ConnectionError: no route (try 3 of 3)" in str(caught.value)
            assert 10 <= times[1] - times[0] < 13 and 20 <= times[2] - times[1] < 25
            await handle.retry()
            with pytest.raises(RunFailed):
                await handle.result()
            assert len(times) == 6

    machine.run(main)


def test_an_approval_is_a_request_of_the_run(machine: Machine) -> None:
    """It shows up among the engine's requests, and the phase finds the answer; silence expires."""
    story = Story("review")
    heard: list[Any] = []

    def review(ctx: PhaseContext[Count]) -> Any:
        heard.append(ctx.answer)
        if ctx.answer is None:
            return Wait(approval=Approval("Send it?", {"to": "eva"}, within=timedelta(hours=1)))
        return Done(ctx.answer.approved)

    story.act["review"] = review

    async def main() -> None:
        engine = machine.engine()
        jobs = register(engine, story.phases, name="letters")
        async with engine:
            handle = await jobs.start(Count(0))
            request = await _request(engine, machine)
            assert (request.wait.row.tool, request.wait.row.input, request.wait.row.data["question"]) == ("review", {"to": "eva"}, "Send it?")
            await request.approve(by="eva", reason="fine")
            assert await handle.result() is True
            assert (heard[1].by, heard[1].reason, heard[1].approved) == ("eva", "fine", True)
            lapsed = await jobs.start(Count(0))
            assert await lapsed.result() is False
            assert heard[3].kind == "expired"

    machine.run(main)


async def _request(engine: Engine, machine: Machine) -> Any:
    while not (found := await engine.requests()):
        await machine.runtime.sleep(0.1)
    return found[0]


def test_waits_for_time_and_for_a_person_hold_no_worker(machine: Machine) -> None:
    """A timer goes on by itself; a plain wait when an operator resumes it."""
    story = Story("nap", "ask", "poll")
    story.act["nap"] = lambda ctx: Wait("ask", Count(10), until=timedelta(hours=8))
    story.act["ask"] = lambda ctx: Wait(reason="look at it") if ctx.answer is None or ctx.answer.kind == "timer" else None
    story.act["poll"] = lambda ctx: None if story.seen.count("poll") == 3 else Retry(60)

    async def main() -> None:
        engine = machine.engine()
        jobs = register(engine, story.phases, name="sleepy")
        async with engine:
            began = machine.runtime.monotonic()
            handle = await jobs.start(Count(0))
            request = await _request(engine, machine)
            assert request.wait.kind == "timer"
            while request.wait.kind != "attention":
                await machine.runtime.sleep(60)
                request = await _request(engine, machine) if await engine.requests() else request
            assert machine.runtime.monotonic() - began >= 8 * 3600
            await engine.resolve(request.wait.id, "resume", by="eva")
            assert await handle.result() == {"n": 12}
            assert story.seen.count("poll") == 3

    machine.run(main)


def test_a_dead_workers_phase_is_entered_again_with_what_it_saved(machine: Machine) -> None:
    """Another machine takes the run over when the lease has run out."""
    story = Story("a", "long", "c")
    entered: list[int] = []

    async def long(ctx: PhaseContext[Count]) -> None:
        entered.append(ctx.state.n)
        if len(entered) == 1:
            await ctx.save_state(Count(50))
            await die()

    story.act["long"] = long

    async def main() -> None:
        other = machine.loop.replica("other")
        runtime = SimRuntime(machine.loop, other)

        async def doomed() -> None:
            engine = machine.engine(runtime)
            register(engine, story.phases, name="adder")
            async with engine:
                await runtime.sleep(1e9)

        starter = machine.engine(workers=0)
        jobs = register(starter, story.phases, name="adder")
        async with starter:
            handle = await jobs.start(Count(0))
            other.spawn(doomed(), name="doomed")
            while not entered:
                await machine.runtime.sleep(1)
        rescuer = machine.engine()
        register(rescuer, story.phases, name="adder")
        async with rescuer:
            run = await rescuer.settled(handle.id)
            assert (run.status, run.output) == (RunStatus.COMPLETED, {"n": 52})
        assert entered == [1, 50] and story.seen == ["a", "long", "long", "c"]

    machine.run(main)


def test_a_drain_lets_the_phase_finish_and_another_worker_goes_on(machine: Machine) -> None:
    """Never failed, never entered twice where it had time to finish."""
    story = Story("a", "slow", "c")
    reasons: list[Any] = []

    async def slow(ctx: PhaseContext[Count]) -> None:
        await machine.runtime.sleep(5)
        reasons.append(ctx.cancelled.reason)

    story.act["slow"] = slow

    async def main() -> None:
        first = machine.engine(drain_grace=timedelta(seconds=20))
        jobs = register(first, story.phases, name="adder")
        async with first:
            handle = await jobs.start(Count(0))
            while "slow" not in story.seen:
                await machine.runtime.sleep(0.1)
        second = machine.engine()
        register(second, story.phases, name="adder")
        async with second:
            assert (await second.settled(handle.id)).output == {"n": 3}
        assert story.seen == ["a", "slow", "c"] and reasons == ["drain"]

    machine.run(main)


def test_a_cancel_ends_a_job_and_nothing_after_it_runs(machine: Machine) -> None:
    """The phase at work is cancelled; the next one never begins."""
    story = Story("a", "slow", "c")

    async def slow(ctx: PhaseContext[Count]) -> None:
        await machine.runtime.sleep(1e6)

    story.act["slow"] = slow

    async def main() -> None:
        engine = machine.engine()
        jobs = register(engine, story.phases, name="adder")
        async with engine:
            handle = await jobs.start(Count(0))
            while "slow" not in story.seen:
                await machine.runtime.sleep(0.1)
            await handle.cancel(by="eva")
            assert (await engine.settled(handle.id)).status is RunStatus.CANCELLED
        assert story.seen == ["a", "slow"]

    machine.run(main)


def test_an_agent_phase_works_in_a_registered_pipeline(machine: Machine) -> None:
    """Its approval is the run's request; a tool runs once."""
    did: list[str] = []
    agent = Agent(ScriptedModel([call("send", to="eva"), say("sent")]))

    @agent.tool_plain(requires_approval=True)
    def send(to: str) -> str:
        did.append(to)
        return "ok"

    turn = build_agent_phase(agent, runtime=machine.runtime, then=lambda outcome, carry: Next("end", Count(carry + len(outcome.output))))

    @phase
    async def end(ctx: PhaseContext[Count]) -> Done:
        return Done(ctx.state.n)

    async def main() -> None:
        engine = machine.engine()
        jobs = register(engine, [turn, end], name="clerk")  # type: ignore[list-item]
        async with engine:
            handle = await jobs.start(AgentCheckpoint.start("write to eva", carry=100))
            request = await _request(engine, machine)
            assert request.wait.row.input["tool"] == "send"
            await request.approve(by="eva")
            assert await handle.result() == 104
        assert did == ["eva"]

    machine.run(main)
