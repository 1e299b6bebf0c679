"""A worker of thirty lines on the wire of the simulator: enough of an engine to test the checkers with, and to plant bugs in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse, TextPart, UserPromptPart

from perdure.core.budget import Usage
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import ClaimRequest, Commit, Lease, NewRun, Outcome, Settle, SweepRequest
from perdure.core.errors import StoreUnavailable
from perdure.core.event import EventWrite
from perdure.core.run import Run, RunStatus
from perdure.core.step import StepWrite
from perdure.core.trigger import TriggerEnvelope
from perdure.stores.memory import MemoryStore
from perdure.testing.simulation._loop import Replica, Schedule, SimLoop
from perdure.testing.simulation._port import Faults, FaultyStore, Record
from perdure.testing.simulation._runtime import SimRuntime
from perdure.testing.simulation._watch import Watch

LEASE = timedelta(seconds=10)
STEPS = 3


def new_run(runtime: SimRuntime, key: str | None = None) -> NewRun:
    """A run for the small worker."""
    trigger = TriggerEnvelope(id=runtime.new_id(), source="python", trigger="small", payload={}, key=key)
    return NewRun(id=runtime.new_id(), agent="small", trigger=trigger, payload_hash="0")


def encoded(message: ModelMessage) -> bytes:
    return ModelMessagesTypeAdapter.dump_json([message])[1:-1]


@dataclass
class SmallWorker:
    """Claims a run, makes three steps of it, settles. Renews, repeats what was not answered, sweeps."""

    store: FaultyStore
    runtime: SimRuntime
    lease: timedelta = LEASE
    step_seconds: float = 1.0
    answered: list[Outcome] = field(default_factory=list)

    async def work(self) -> None:
        """For ever."""
        self.runtime.beside(self._sweep, name="sweep")
        while True:
            token = self.runtime.new_token()
            request = ClaimRequest(worker=self.runtime.replica.name, host="simulated", token=token, agents={"small": None}, lease=self.lease)
            for run in await self.patiently(lambda request=request: self.store.claim(request)):
                await self.carry(run)
            await self.runtime.sleep(0.5)

    async def carry(self, run: Run) -> None:
        assert run.claim_token is not None
        side = self.runtime.beside(lambda: self._renew(run), name="renew")
        checkpoint = await self.patiently(lambda: self.store.checkpoint(run.id))
        done = 0 if checkpoint is None else checkpoint.index
        length = 0 if checkpoint is None else checkpoint.length
        usage, number = run.usage, run.commit_no
        for index in range(done + 1, STEPS + 1):
            await self.runtime.sleep(self.step_seconds)
            spent = Usage(input_tokens=10, output_tokens=5, requests=1)
            usage, number = usage + spent, number + 1
            request, response = ModelRequest(parts=[UserPromptPart(f"question {index}")]), ModelResponse(parts=[TextPart(f"answer {index}")])
            write = CheckpointWrite(index=index, base=1, keep=length, append=(encoded(request), encoded(response)))
            length += 2
            step = StepWrite(kind="llm", index=index, name="model", usage=spent.to_json())
            commit = Commit(
                run.id, run.epoch, run.claim_token, number, usage=usage, checkpoint=write, steps=(step,),
                events=(EventWrite("step.completed", {"step": index}),), progress=True, ending=Settle(RunStatus.COMPLETED) if index == STEPS else None,
            )  # fmt: skip
            answer = await self.write(commit)
            self.answered.append(answer)
            if answer is Outcome.LOST:
                break
        side.stop()

    async def write(self, commit: Commit) -> Outcome:
        return (await self.patiently(lambda: self.store.commit(commit))).outcome

    async def patiently(self, ask):  # type: ignore[no-untyped-def]
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await self.runtime.sleep(0.1)

    async def _renew(self, run: Run) -> None:
        while True:
            await self.runtime.sleep(self.lease.total_seconds() / 3)
            try:
                await self.store.renew([Lease(run.id, run.epoch, run.claim_token or "")], self.lease)
            except StoreUnavailable:
                pass

    async def _sweep(self) -> None:
        while True:
            await self.runtime.sleep(1)
            await self.patiently(lambda: self.store.sweep(SweepRequest(limit=100, deaths_max=50)))


class SmallWorld:
    """Some replicas of a worker on one memory store, watched."""

    def __init__(self, *, store: MemoryStore | None = None, schedule: Schedule | None = None) -> None:
        self.loop = SimLoop(schedule)
        self.runtime = SimRuntime(self.loop, self.loop.world)
        self.store = store or MemoryStore(self.runtime)
        self.store._runtime = self.runtime  # a subclass with a planted bug takes this world's clock
        self.record = Record()
        self.watch = Watch(self.store, self.record)
        self.port = FaultyStore(self.store, self.loop.world, self.loop, record=self.record)

    def replica(self, name: str, faults: Faults | None = None) -> tuple[Replica, FaultyStore, SimRuntime]:
        replica = self.loop.replica(name)
        return replica, FaultyStore(self.store, replica, self.loop, record=self.record, faults=faults), SimRuntime(self.loop, replica)

    def worker(
        self, name: str, faults: Faults | None = None, kind: type[SmallWorker] = SmallWorker, **options: object
    ) -> tuple[Replica, SmallWorker]:
        replica, port, runtime = self.replica(name, faults)
        worker = kind(port, runtime, **options)  # type: ignore[arg-type]
        replica.spawn(worker.work(), name="work")
        return replica, worker

    async def settled(self, seconds: float = 600) -> None:
        """Wait until every run has settled, or time is up."""
        async with asyncio.timeout(seconds):
            while not all(rows.run.status.final for rows in self.watch.rows.values()):  # noqa: ASYNC110 -- virtual time
                await asyncio.sleep(0.1)
