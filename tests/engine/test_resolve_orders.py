"""An answer and a signal that come before, during and after the park: one resume, in any order."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent

from perdure import Engine, RunStatus, Wait, approve, effect, plain
from perdure.core.commit import ResolveOutcome
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.models import ScriptedModel, StrictProvider, call, calls, say
from perdure.testing.simulation._loop import Shuffled, SimLoop, tidy
from perdure.testing.simulation._runtime import SimRuntime

ORDERS = int(os.environ.get("PERDURE_TEST_ORDERS", "40"))
"""How many orders are tried on each store; before a release a thousand."""
STEP = 0.0005
"""How closely somebody who waits for the request looks when it may come at any moment: some 25 callbacks."""
COARSE = 0.05
"""How closely they look while the other tool is still at work."""


class Order:
    """One order of events: a run that asks and listens while another tool still works, and two people who do not know where it stands."""

    def __init__(self, kind: str, folder: Path, seed: int, work: float) -> None:
        self.loop = SimLoop(Shuffled(seed))
        self.process, self.people = self.loop.replica("worker"), self.loop.replica("people")
        self.runtime = SimRuntime(self.loop, self.people, seed=seed)
        memory = MemoryStore(self.runtime)
        here = SimRuntime(self.loop, self.process, seed=seed)
        stores: list[Any] = [memory, memory] if kind == "memory" else [SqliteStore(folder / "runs.db", each) for each in (here, self.runtime)]
        self.deeds: list[str] = []
        script = [calls(call("refund", order="7"), call("hear"), call("work")), say("done")]
        self.model = StrictProvider(ScriptedModel(script, runtime=here))
        agent = Agent(self.model, name="desk", output_type=str)

        @agent.tool_plain(metadata=effect() | approve())
        async def refund(order: str) -> str:
            self.deeds.append(order)
            return "refunded"

        @agent.tool_plain(metadata=plain())
        async def hear() -> str:
            raise Wait.event("news")

        @agent.tool_plain(name="work", metadata=plain())
        async def work_on() -> str:
            await here.sleep(work)
            return "worked"

        self.at_work_until = self.runtime.monotonic() + work
        self.worker = Engine(stores[0], runtime=here)
        self.desk = Engine(stores[1], runtime=self.runtime, workers=0, tick=None)
        self.worker.agent(agent)
        self.desk.agent(agent)

    def run(self, answer: float, signal: float) -> None:
        """The answer comes `answer` seconds after its request can be seen, the signal `signal` seconds after the start."""
        self.loop.run_until_complete(self.people.spawn(self._story(answer, signal), name="story"))

    async def _story(self, answer: float, signal: float) -> None:
        async with self.desk:
            working = self.process.spawn(self.worker.__aenter__(), name="worker")
            run = await self.desk.start("desk", {})
            others = [self.people.spawn(self._answer(run.id, answer), name="answer"), self.people.spawn(self._signal(run.id, signal), name="signal")]
            assert await run.result(timeout=120) == "done"
            for each in (working, *others):
                await each
            events = Counter(event.type for event in await self.desk.store.events(run.id))
            closed = [event.data["wait"] for event in await self.desk.store.events(run.id) if event.type == "wait.resolved"]
            assert self.deeds == ["7"] and not self.model.refusals
            assert self.model.requests == 2, "the model is asked once for each step"
            assert len(closed) == len(set(closed)) and events["run.settled"] == 1
            # One claim to begin with; and if it rested, one more, once both had come: whether they came before, during or after.
            assert events["run.claimed"] == 1 + events["run.waiting"] + events["run.released"] <= 2, events
            assert (await run.run()).status is RunStatus.COMPLETED
            await self.process.spawn(self.worker.__aexit__(None, None, None), name="end")

    async def _answer(self, run_id: str, seconds: float) -> None:
        while not (requests := [each for each in await self.desk.requests(run_id=run_id) if each.kind == "approval"]):
            # Looking is what costs the most here, so nobody looks closely at a request that can't be there yet.
            await self.runtime.sleep(COARSE if self.runtime.monotonic() + COARSE < self.at_work_until else STEP)
        await self.runtime.sleep(seconds)
        assert (await requests[0].approve(by="eva")).outcome is ResolveOutcome.RESOLVED
        assert (await requests[0].approve(by="kim")).outcome is ResolveOutcome.ALREADY

    async def _signal(self, run_id: str, seconds: float) -> None:
        await self.runtime.sleep(seconds)
        assert await self.desk.signal(run_id, "news", {"n": 1}, id="s1")
        assert not await self.desk.signal(run_id, "news", {"n": 1}, id="s1")


SOON = st.floats(0, 0.02) | st.floats(0, 2)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_resolve_before_during_and_after_the_park_resumes_once(kind: str) -> None:
    """Whichever comes first, and however the processes take turns."""
    with tidy() as collect:
        seen: Counter[str] = Counter()

        @settings(max_examples=ORDERS, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(seed=st.integers(0, 2**32), work=SOON, answer=SOON, signal=SOON)
        def orders(seed: int, work: float, answer: float, signal: float) -> None:
            with TemporaryDirectory() as folder:
                order = Order(kind, Path(folder), seed, work)
                try:
                    order.run(answer, signal)
                finally:
                    order.loop.close()
            seen["orders"] += 1
            if seen["orders"] % 50 == 0:
                collect()

        orders()
        assert seen["orders"] >= ORDERS
