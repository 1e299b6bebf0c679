"""One simulation from its seed: the cast is given work, the plan's faults strike, people answer, and in the end everything has to come to rest."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from perdure.core.errors import PerdureError, StoreUnavailable
from perdure.core.family import waits_for_room
from perdure.core.run import RunStatus
from perdure.core.wait import WaitPoint
from perdure.engine import Engine, Request
from perdure.stores import Store
from perdure.testing.simulation._checkers import Rows
from perdure.testing.simulation._loop import Deadlock, Livelock, Shuffled, SimHandle, Strand
from perdure.testing.simulation._plan import Fault, Plan, WireFaults
from perdure.testing.simulation._port import CallFault
from perdure.testing.simulation._runtime import SimRuntime
from perdure.testing.simulation._stage import Actor, Part, Stage
from perdure.testing.simulation._watch import Violation

CALM_AT: Final = 75.0
"""Virtual seconds after which no more faults strike."""
POLL: Final = timedelta(seconds=2)
"""How often an idle replica looks for work: rarely, so that hints matter and empty looks don't fill the time."""
PACE: Final = 0.8
"""The longest that a tool, or a piece of a model's stream, takes: a run lasts about as long as a lease, so that owners overlap."""
REST_SECONDS: Final = 2 * 3600.0
"""Virtual seconds that everything may take to come to rest once the faults are over."""
LOOK_SECONDS: Final = 1.0
LEAVE_SECONDS: Final = 120.0
"""Virtual seconds that an engine may take to close."""
FAILURES_EXPLAINED: Final = {"model_error": "model", "incomplete_response": "model", "quota": "model"}
MODEL_FAULTS_TO_FAIL: Final = 3
"""Model faults that a plan needs before one of them may explain a failed run: fewer are retried away."""


@dataclass(frozen=True, slots=True)
class Order:
    """One run that is asked for: what, when (in seconds) and under which keys."""

    agent: str
    input: Any
    at: float = 0.0
    key: str | None = None
    concurrency_key: str | None = None
    thread: str | None = None
    signals: tuple[tuple[float, str, Any], ...] = ()
    """What the world says to the run, each so many seconds after it was started."""


@dataclass(frozen=True)
class Cast:
    """The agents of one simulation and the work that they are given. Made anew for each, so that nothing is shared between two."""

    parts: Sequence[Part]
    orders: Sequence[Order]
    bind: Callable[[Stage], None] | None = None
    """Called with the stage before it opens, for tools that want to ask what really happened."""
    edits: Mapping[str, Any] | None = None
    """Arguments that people put in place of the proposed ones now and then; they also extend deadlines then."""
    expects: Callable[[Sequence[Rows]], Iterable[str]] | None = None
    """Asked at rest what is wrong with all rows, beyond the promises that hold for every cast."""


@dataclass(slots=True)
class Result:
    """What one seed came to."""

    seed: int
    plan: Plan
    trace: str = ""
    events: int = 0
    calls: int = 0
    runs: Counter[str] = field(default_factory=Counter[str])
    struck: Counter[str] = field(default_factory=Counter[str])
    violations: list[Violation] = field(default_factory=list[Violation])
    story: list[str] = field(default_factory=list[str])
    """The last calls before the first violation, where there is one."""


class Broken(Exception):
    """A promise was broken: the simulation stops there."""


class Play:
    """One simulation.

    Args:
        cast: Agents and orders.
        seed: Of the schedule and of every chance in it.
        plan: What goes wrong.
        replicas: How many processes work.
        store: The shared store, in place of a plain memory store.
    """

    def __init__(
        self, cast: Cast, seed: int, plan: Plan, *, replicas: int = 3, store: Callable[[SimRuntime], Store] | None = None, **options: Any
    ) -> None:
        self.cast, self.seed, self.plan, self.replicas = cast, seed, plan, replicas
        self.result = Result(seed, plan)
        self._chance = random.Random(f"play/{seed}")
        self._calm = False
        self._numbered = {(fault.where, fault.at): fault for fault in plan if fault.where in ("model", "tool")}
        self._counts: Counter[str] = Counter()
        self._steps = {(fault.slot, fault.at): fault for fault in plan if fault.where == "replica"}
        self._walked: Counter[int] = Counter()
        self._wires = [WireFaults(plan, slot, self._strike) for slot in range(replicas)]
        self._slots: dict[str, int] = {}
        self._run_ids: dict[int, str] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._skews = [round(self._chance.uniform(-3600, 3600), 3) for _ in range(replicas)]
        self.stage = Stage(
            cast.parts,
            seed=seed,
            schedule=Shuffled(seed),
            store=store,
            faults=lambda slot: _Wire(self, slot),
            pace=PACE,
            latency=0.05,
            tool_fault=lambda: self._nth("tool"),
            model_fault=lambda: self._nth("model"),
            options={"deaths_max": 50, "workers": 4, "poll": POLL, **options},
        )
        self.stage.before = self._before
        if cast.bind is not None:
            cast.bind(self.stage)

    def run(self) -> Result:
        """Play it to the end, or to the first broken promise."""
        stage, result = self.stage, self.result
        assert stage.watch is not None
        with stage.open():
            try:
                stage.run(self._world())
            except Broken:
                pass
            except (Deadlock, Livelock) as error:
                stage.watch.blame(type(error).__name__, str(error))
            for error in stage.loop.errors:
                stage.watch.blame("NothingIsLeftUnhandled", error)
            result.violations = list(stage.watch.violations)
            result.trace, result.events, result.calls = stage.trace, stage.loop.steps, len(stage.record.calls)
            result.runs = Counter(str(rows.run.status) for rows in stage.watch.rows.values())
            if result.violations:
                result.story = self._story(result.violations[0])
        return result

    # ── the world ──────────────────────────────────────────────────────────────────────────────────────────
    async def _world(self) -> None:
        stage = self.stage
        async with stage.people() as people:
            for slot in range(self.replicas):
                self._start(slot)
            self._also(self._keep_alive(), "keeper")
            self._also(self._answer_for_ever(people), "people")
            for number, order in enumerate(self.cast.orders):
                self._also(self._place(people, number, order), f"order {number}")
            for fault in self.plan:
                if fault.where in ("clock", "people"):
                    self._also(self._later(people, fault), str(fault))
            await asyncio.sleep(CALM_AT)
            self._calm = True
            await self._rest()
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            await self._leave()

    def _also(self, work: Any, name: str) -> None:
        self._tasks.append(self.stage.loop.world.spawn(work, name=name))

    def _start(self, slot: int, version: str | None = None) -> Actor:
        actor = self.stage.start(slot, skew=self._skews[slot], version=version)
        self._slots[actor.process.name] = slot
        return actor

    async def _keep_alive(self) -> None:
        """Start the next life of every replica that died, after a while."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for slot, actor in list(self.stage.actors.items()):
                if not actor.process.alive:
                    self._judge_end(actor)
                    await asyncio.sleep(self._chance.uniform(0, 5))
                    self._start(slot, version=actor.version)

    def _judge_end(self, actor: Actor) -> None:
        """A program may fail because the store is away, and for no other reason."""
        if actor.error is not None and not isinstance(actor.error, StoreUnavailable):
            assert self.stage.watch is not None
            self.stage.watch.blame("EnginesOpenAndClose", f"{actor.process.name} ended with {actor.error!r}")

    async def _rest(self) -> None:
        """Wait until every run has settled, and say so if some never do."""
        watch = self.stage.watch
        assert watch is not None
        until = self.stage.loop.time() + REST_SECONDS
        while self.stage.loop.time() < until and not self._settled(list(watch.rows.values())):  # noqa: ASYNC110 -- virtual time
            await asyncio.sleep(LOOK_SECONDS)
        watch.rest()
        for message in self.cast.expects(list(watch.rows.values())) if self.cast.expects else ():
            watch.blame("OrdersAreFilledOnce", message)
        for rows in watch.rows.values():
            self._explain(rows)

    def _settled(self, rows: list[Rows]) -> bool:
        return len(self._run_ids) == len(self.cast.orders) and all(each.run.status.final for each in rows)

    def _explain(self, rows: Rows) -> None:
        """A run ends as its script says, unless a planned fault says otherwise."""
        watch, run = self.stage.watch, rows.run
        assert watch is not None
        if run.status is RunStatus.FAILED:
            code = run.error.code if run.error else "none"
            model_faults = sum(fault.where == "model" for fault in self.plan)
            if FAILURES_EXPLAINED.get(code) != "model" or model_faults < MODEL_FAULTS_TO_FAIL:
                watch.blame("OnlyExplainedFailures", f"{run.agent} failed: {code}: {run.error.message if run.error else ''}", run.id)
        if run.status is RunStatus.CANCELLED and not any(fault.kind.startswith("cancel") for fault in self.plan):
            watch.blame("OnlyExplainedFailures", f"{run.agent} is cancelled and nobody asked for it", run.id)

    async def _leave(self) -> None:
        """Every engine closes in time, and without an error."""
        for actor in self.stage.actors.values():
            self._tell_to_leave(actor)
        until = self.stage.loop.time() + LEAVE_SECONDS
        while any(actor.process.alive for actor in self.stage.actors.values()):
            if self.stage.loop.time() > until:
                assert self.stage.watch is not None
                self.stage.watch.blame("EnginesOpenAndClose", f"an engine does not close:\n{self.stage.loop.describe()}")
                return
            await asyncio.sleep(LOOK_SECONDS)
        for actor in self.stage.actors.values():
            self._judge_end(actor)

    def _tell_to_leave(self, actor: Actor) -> None:
        self.stage.loop.call_soon(actor.leave.set, context=actor.process.main.context)

    # ── work and answers ───────────────────────────────────────────────────────────────────────────────────
    async def _place(self, people: Engine, number: int, order: Order) -> None:
        await asyncio.sleep(order.at)
        handle = await self._admit(people, order)
        self._run_ids[number] = handle.id
        for after, name, payload in order.signals:
            self._also(self._say(people, handle.id, after, name, payload), f"signal {name}")

    async def _admit(self, people: Engine, order: Order) -> Any:
        return await people.durable(order.agent).start(order.input, key=order.key, concurrency_key=order.concurrency_key, thread=order.thread)

    async def _say(self, people: Engine, run_id: str, after: float, name: str, payload: Any) -> None:
        await asyncio.sleep(after)
        for _ in range(1 + (self._chance.random() < 0.3)):
            await self._try(people.signal(run_id, name, payload, id=f"{run_id}/{name}"))

    async def _answer_for_ever(self, people: Engine) -> None:
        """Look at the open requests now and then; answer some, at times twice, at times at the last moment."""
        while True:
            await asyncio.sleep(LOOK_SECONDS if self._calm else self._chance.uniform(0.2, 6.0))
            for request in await people.requests(limit=50):
                if self._calm or self._chance.random() < 0.6:
                    self._also(self._answer(people, request), f"answer {request.id}")
                    if self._chance.random() < 0.25:
                        self._also(self._answer(people, request), f"another answer {request.id}")

    async def _answer(self, people: Engine, request: Request) -> None:
        wait = request.wait
        if not self._calm and self._chance.random() < 0.3:
            await self._last_moment(people, wait)
        await self._try(self._say_what(request))

    async def _last_moment(self, people: Engine, wait: WaitPoint) -> None:
        """Sleep until just before, at or just after the end of the request."""
        if wait.row.expires_at is None:
            return
        left = (wait.row.expires_at - self.stage.runtime.now()).total_seconds()
        if 0 < left < CALM_AT:
            await asyncio.sleep(max(0.0, left + self._chance.choice([-0.05, -0.001, 0.0, 0.0, 0.001, 0.05])))

    async def _say_what(self, request: Request) -> None:
        chance, who = self._chance.random(), self._chance.choice(["ada", "bob"])
        match request.kind:
            case "approval" if (request.wait.row.question or "").startswith("held"):
                await request.answer(self._chance.choice(["run", "reuse", "block"]), by=who)
            case "approval":
                if self.cast.edits is not None and chance < 0.15 and not self._calm:
                    await request.extend(timedelta(seconds=30))
                elif self.cast.edits is not None and chance < 0.4:
                    await request.approve(by=who, input=self.cast.edits)
                elif chance < 0.7:
                    await request.approve(by=who)
                else:
                    await request.deny(by=who, reason="no")
            case "effect":
                await self._tell_the_truth(request, who)
            case "attention":
                await request.answer("resume", by=who)
            case "budget":
                if not waits_for_room(request.wait.row):
                    # A little more at a time, where it is tokens that have run out.
                    seen = request.wait.row.data.get("budget", {}).get("max_tokens")
                    await request.answer("top_up", {"max_steps": 50} if seen is None else {"max_tokens": seen + 300}, by=who)
            case _:
                pass  # the world's own business: signals and time

    async def _tell_the_truth(self, request: Request, who: str) -> None:
        """Whoever is asked about an effect looks at the outside world, where it is known."""
        key = request.wait.row.effect_key
        happened = any(each == key for _, each in self.stage.tally.effects)
        if happened:
            await request.answer("done", {"told": "it happened"}, by=who)
        else:
            await request.answer(self._chance.choice(["run", "fail"]), by=who)

    async def _try(self, work: Any) -> None:
        """People are told no at times, and live with it."""
        try:
            await work
        except PerdureError as error:
            self.stage.errors.append(f"people: {type(error).__name__}: {error}")

    # ── faults ─────────────────────────────────────────────────────────────────────────────────────────────
    def _strike(self, fault: Fault) -> None:
        self.result.struck[fault.kind] += 1

    def wire_fault(self, slot: int, verb: str, number: int) -> CallFault | None:
        return None if self._calm else self._wires[slot].on_call(verb, number)

    def claim_fault(self, slot: int) -> CallFault | None:
        return None if self._calm else self._wires[slot].on_claimed()

    def hint_fault(self, slot: int) -> Sequence[float]:
        return (0.0,) if self._calm else self._wires[slot].on_hint()

    def _nth(self, where: str) -> Fault | None:
        """The fault planned for the next model or tool call, if any."""
        self._counts[where] += 1
        fault = None if self._calm else self._numbered.get((where, self._counts[where]))  # type: ignore[call-overload]
        if fault is not None:
            self._strike(fault)
        return fault

    def _before(self, strand: Strand, handle: SimHandle) -> None:
        watch = self.stage.watch
        if watch is not None and watch.violations:
            raise Broken
        slot = self._slots.get(strand.replica.name)
        if slot is None or self._calm or not self.stage.actors[slot].busy:
            return
        self._walked[slot] += 1
        fault = self._steps.get((slot, self._walked[slot]))
        if fault is None:
            return
        self._strike(fault)
        if fault.kind == "crash":
            strand.replica.kill()
        else:
            strand.replica.pause(fault.seconds)

    async def _later(self, people: Engine, fault: Fault) -> None:
        """A fault that comes at a time."""
        await asyncio.sleep(fault.at / 1000)
        self._strike(fault)
        if fault.where == "people":
            await self._try(self._meddle(people, fault))
            return
        actor = self.stage.actors[fault.slot]
        if fault.kind == "clock_jump":
            actor.runtime.jump(fault.seconds)
            self._skews[fault.slot] = actor.runtime.skew
        else:
            if fault.kind == "deploy":
                actor.version = "2"
            self._tell_to_leave(actor)

    async def _meddle(self, people: Engine, fault: Fault) -> None:
        if fault.kind == "start_again":
            # The same caller, not sure whether the first time got through.
            order = self.cast.orders[fault.slot % len(self.cast.orders)]
            if order.key is not None:
                await self._admit(people, order)
            return
        run_id = self._run_ids.get(fault.slot % len(self.cast.orders))
        if run_id is None:
            return
        match fault.kind:
            case "cancel":
                await people.cancel(run_id, by="ada")
            case "cancel_twice":
                self._also(self._try(people.cancel(run_id, by="bob")), "second cancel")
                await people.cancel(run_id, by="ada")
            case "retry":
                await people.retry(run_id)
            case _:
                await people.retry(run_id, "full")

    # ── telling ────────────────────────────────────────────────────────────────────────────────────────────
    def _story(self, violation: Violation, last: int = 25) -> list[str]:
        """The calls that led to a violation: those of its run, and whatever had a fault."""
        calls = self.stage.record.calls[: violation.call]
        run = violation.run_id[-6:] if violation.run_id else ""
        told = [str(call) for call in calls if call.write and (not run or run in str(call) or call.fault)]
        return told[-last:]


class _Wire:
    """One replica's wire, through all its lives."""

    def __init__(self, play: Play, slot: int) -> None:
        self._play, self._slot = play, slot

    def on_call(self, verb: str, number: int) -> CallFault | None:
        return self._play.wire_fault(self._slot, verb, number)

    def on_claimed(self) -> CallFault | None:
        return self._play.claim_fault(self._slot)

    def on_hint(self) -> Sequence[float]:
        return self._play.hint_fault(self._slot)


__all__ = ["Cast", "Order", "Play", "Result"]
