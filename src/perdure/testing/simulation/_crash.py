"""Kill your own agent everywhere, and see what is left.

    def test_refund_survives(crash_everywhere):
        report = crash_everywhere(triage, script=[call("refund", order="o1", cents=900), say("done")], input=Email(...))
        assert report.effects == {"refund": 1} and report.unfinished == []

One run is carried through without faults, to count its store calls and its event-loop callbacks. Then one simulation for each of them: the process dies
there, without unwinding, as under `kill -9`; another one is started; virtual time passes the lease; the run has to finish as it did undisturbed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, cast

from perdure.core.commit import Commit
from perdure.core.effect import EffectState, EffectWrite, Unknown
from perdure.core.errors import Conflict, RunCancelled, RunFailed
from perdure.core.run import Run, RunStatus
from perdure.engine import DurableAgent, Engine, Request
from perdure.stores import Store
from perdure.testing.models import Script
from perdure.testing.simulation._ledger import Ledger
from perdure.testing.simulation._loop import Deadlock, Livelock, SimHandle, Strand, tidy
from perdure.testing.simulation._port import CallFault, CallFaultKind, NoFaults
from perdure.testing.simulation._runtime import SimRuntime
from perdure.testing.simulation._stage import Actor, Part, Stage

Points = Literal["calls", "callbacks", "all"]
StoreName = Literal["memory", "sqlite"]
Answer = Callable[[Request], Awaitable[Any]]

CALL_KINDS: Final[tuple[CallFaultKind, ...]] = ("crash_before", "reply_lost", "crash_after")
PATIENCE: Final = timedelta(hours=6)
"""Virtual time that a run may take to finish, crash, lease and waits for people included."""
WORLD_SECONDS: Final = 0.5
"""How often the world looks: after a dead process, after open requests."""
KEY: Final = "crash-everywhere"
COLLECT_EVERY: Final = 25


@dataclass(frozen=True, slots=True)
class Point:
    """Where the process dies: at store call number `at`, in one of three ways, or before callback number `at`."""

    kind: CallFaultKind | Literal["callback"]
    at: int
    what: str = ""

    def __str__(self) -> str:
        if self.kind == "callback":
            return f"before callback {self.at}"
        return f"store call {self.at} ({self.what}): {self.kind.replace('_', ' ')}"


@dataclass(slots=True)
class Outcome:
    """What one simulation came to. `status` is the run's, or why there is none."""

    point: Point | None
    status: str
    died: bool = False
    output: Any = None
    usage: Any = None
    rows: tuple[int, int] = (0, 0)
    """Model steps and tool steps that are stored."""
    calls: list[str] = field(default_factory=list[str])
    callbacks: int = 0
    model_calls_repeated: int = 0
    effects: dict[str, int] = field(default_factory=dict[str, int])
    performed_twice: list[str] = field(default_factory=list[str])
    asked: int = 0
    asked_never_started: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    violations: list[str] = field(default_factory=list[str])


@dataclass
class CrashReport:
    """What became of one agent that was killed everywhere.

    Attributes:
        points: Places where it was killed.
        finished: Runs that ended as the undisturbed one did: same status, output, usage, steps. Equals `points` when all is well.
        unfinished: The others, each with its place and what it came to.
        effects: How often each effect tool was performed at most in one simulation; performances under one key of a tool declared `retry` count once.
        performed_twice: Effects that were performed more than once under one key, save for those declared `retry`.
        asked: Questions to people about effects of unknown outcome, over all simulations.
        asked_never_started: Those of them about a call whose *started* never reached the store: nobody can have begun it.
        model_calls_repeated: Model calls that had to be made again, over all simulations.
        model_calls_repeated_most: The same in the worst simulation: 1 is the promise.
        refused: Histories sent to the model that a strict provider would refuse.
        violations: Other promises that were broken, as the simulator's checkers tell it.
        calls, callbacks: What the undisturbed run took.
    """

    agent: str
    store: str
    points: int = 0
    finished: int = 0
    unfinished: list[str] = field(default_factory=list[str])
    effects: dict[str, int] = field(default_factory=dict[str, int])
    performed_twice: list[str] = field(default_factory=list[str])
    asked: int = 0
    asked_never_started: list[str] = field(default_factory=list[str])
    model_calls_repeated: int = 0
    model_calls_repeated_most: int = 0
    refused: list[str] = field(default_factory=list[str])
    violations: list[str] = field(default_factory=list[str])
    calls: int = 0
    callbacks: int = 0

    @property
    def ok(self) -> bool:
        """Whether every promise held at every point. (How many effects there should be is for the caller to say.)"""
        broken = self.performed_twice or self.asked_never_started or self.refused or self.violations
        return self.finished == self.points and self.model_calls_repeated_most <= 1 and not broken

    def __str__(self) -> str:
        head = (
            f"{self.agent} on {self.store}: {self.points} points of {self.calls} store calls x {len(CALL_KINDS)} and {self.callbacks} callbacks, "
            f"{self.finished} runs finished, {self.model_calls_repeated} model calls repeated (at most {self.model_calls_repeated_most} in one run), "
            f"{len(self.refused)} histories refused"
        )
        if self.effects:
            head += (
                f"; effects performed twice {len(self.performed_twice)}, asked about although never started {len(self.asked_never_started)} "
                f"(people were asked {self.asked} times)"
            )
        broken = [*self.unfinished[:10], *self.performed_twice[:10], *self.asked_never_started[:10], *self.violations[:10], *self.refused[:10]]
        return "\n  ".join([head, *broken])


def crash_everywhere(
    agent: DurableAgent[Any, Any],
    *,
    script: Script,
    input: Any,
    store: StoreName = "memory",
    points: Points = "calls",
    answer: Answer | None = None,
    ledger: Ledger | None = None,
    processes: int = 1,
    every: int = 1,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> CrashReport:
    """Kill an agent at every store call (before, after it was applied with the reply lost, after the reply), and report what became of its run.

    Args:
        agent: A registered agent. Its own model is not asked: `script` is told in its place. Tools and deps are yours, and run.
        script: What the model says.
        input: The payload of the run.
        store: Where runs are kept meanwhile.
        points: `calls`, `callbacks` (every callback of the event loop: many more), or `all`.
        answer: What people do with an open request. By default they approve, top up, and say the truth about effects of unknown outcome.
        ledger: Where the tools enter their deeds. Then `effects` counts deeds instead of bodies that began, people answer from it, and each deed has to
            be done as often as it was undisturbed.
        processes: Simulations at once, each in a process of its own.
        every: Only every so-manieth place, for a test that has to be quick.
        progress: Called with (done, all) as it goes.
        options: For the engines (`lease=…`, `deaths_max=…`).

    Raises:
        AssertionError: The agent does not complete even undisturbed.
    """
    lab = Laboratory(Part(agent, script), input, store, answer, ledger, options)
    calm = lab.simulate(None)
    if calm.status != RunStatus.COMPLETED or calm.refused or calm.violations:
        raise AssertionError(f"Undisturbed, the run of {agent.name!r} came to {calm.status}: {[*calm.violations, *calm.refused]}")
    report = CrashReport(agent.name, store, calls=len(calm.calls), callbacks=calm.callbacks)
    report.effects = dict(calm.effects)
    todo = list(_points(calm, points))[::every]
    for done, outcome in enumerate(lab.all_of(todo, processes), start=1):
        _enter(report, calm, outcome, ledger)
        if progress is not None:
            progress(done, len(todo))
    return report


def _points(calm: Outcome, points: Points) -> Iterator[Point]:
    if points != "callbacks":
        for at, verb in enumerate(calm.calls, start=1):
            for kind in CALL_KINDS:
                yield Point(kind, at, verb)
    if points != "calls":
        for at in range(1, calm.callbacks + 1):
            yield Point("callback", at)


def _enter(report: CrashReport, calm: Outcome, outcome: Outcome, ledger: Ledger | None) -> None:
    """Add one simulation to the report."""
    report.points += 1
    different = [
        f"{name} {mine!r} instead of {due!r}"
        for name, mine, due in (
            ("status", outcome.status, calm.status),
            ("output", outcome.output, calm.output),
            ("usage", outcome.usage, calm.usage),
            ("model and tool steps", outcome.rows, calm.rows),
        )
        if mine != due
    ]
    if not outcome.died:
        different.append("the process did not die")
    if different:
        report.unfinished.append(f"{outcome.point}: {', '.join(different)}")
    else:
        report.finished += 1
    report.model_calls_repeated += outcome.model_calls_repeated
    report.model_calls_repeated_most = max(report.model_calls_repeated_most, outcome.model_calls_repeated)
    report.refused += [f"{outcome.point}: {each}" for each in outcome.refused]
    report.violations += [f"{outcome.point}: {each}" for each in outcome.violations]
    if ledger is not None and outcome.effects != calm.effects:
        report.violations.append(f"{outcome.point}: deeds {outcome.effects} instead of {calm.effects}")
    report.performed_twice += [f"{outcome.point}: {each}" for each in outcome.performed_twice]
    report.asked += outcome.asked
    report.asked_never_started += [f"{outcome.point}: {each}" for each in outcome.asked_never_started]
    for name, count in outcome.effects.items():
        report.effects[name] = max(report.effects.get(name, 0), count)


class Laboratory:
    """Simulates one run of one agent, again and again."""

    def __init__(self, part: Part, input: Any, store: StoreName, answer: Answer | None, ledger: Ledger | None, options: Mapping[str, Any]) -> None:
        self.part, self.input, self.store, self.answer, self.ledger, self.options = part, input, store, answer, ledger, options
        self.results: dict[str, Any] = {}
        """What each tool came to in the undisturbed run: what honest people say that it did."""

    def all_of(self, points: Sequence[Point], processes: int) -> Iterable[Outcome]:
        """The outcome of each point, as they come."""
        if processes <= 1:
            with tidy() as collect:
                for done, point in enumerate(points, start=1):
                    yield self.simulate(point)
                    if done % COLLECT_EVERY == 0:
                        collect()
            return
        # Forked, so that agents, scripts and tools need not be picklable.
        _working.append(self)
        try:
            with multiprocessing.get_context("fork").Pool(processes) as pool:
                for outcomes in pool.imap_unordered(_simulate, _batches(points, COLLECT_EVERY)):
                    yield from outcomes
        finally:
            _working.pop()

    def simulate(self, point: Point | None) -> Outcome:
        """One simulation: the process dies at `point`, and another takes its place."""
        with tempfile.TemporaryDirectory(prefix="perdure-crash-", dir=_fast_disk()) as folder:

            def open_sqlite(runtime: SimRuntime) -> Store:
                from perdure.stores.sqlite import SqliteStore

                return SqliteStore(Path(folder) / "runs.db", runtime)

            at_call = _AtCall(point) if point is not None and point.kind != "callback" else None
            stage = Stage(
                [self.part],
                open_store=open_sqlite if self.store == "sqlite" else None,
                faults=lambda _: at_call or NoFaults(),
                options=self.options,
            )
            if self.ledger is not None:
                self.ledger.open(Path(folder) / "deeds.jsonl")
            return _Simulation(self, stage, point).outcome()


_working: list[Laboratory] = []


def _simulate(points: Sequence[Point]) -> list[Outcome]:
    with tidy():
        return [_working[-1].simulate(point) for point in points]


def _batches(points: Sequence[Point], size: int) -> list[Sequence[Point]]:
    return [points[at : at + size] for at in range(0, len(points), size)]


def _fast_disk() -> str | None:
    """Durability is not what is tested here, so the file may live in memory."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class _AtCall:
    """One fault, once, at one store call of the first process."""

    def __init__(self, point: Point) -> None:
        self._point = point
        self._struck = False

    def on_call(self, verb: str, number: int) -> CallFault | None:
        if self._struck or number != self._point.at:
            return None
        self._struck = True
        return CallFault(cast(CallFaultKind, self._point.kind))

    def on_claimed(self) -> CallFault | None:
        return None

    def on_hint(self) -> Sequence[float]:
        return (0.0,)


class _Simulation:
    """One stage from curtain to curtain."""

    def __init__(self, lab: Laboratory, stage: Stage, point: Point | None) -> None:
        self._lab, self._stage, self._point = lab, stage, point
        self._run: Run | None = None
        self._rows = (0, 0)
        self._asked: set[str] = set()
        self._never_started: list[str] = []

    def outcome(self) -> Outcome:
        with self._stage.open():
            try:
                self._stage.run(self._world())
                status = str(self._run.status) if self._run else "no run"
            except (Deadlock, Livelock, TimeoutError) as error:
                status = f"{type(error).__name__}: {error}"
            return self._told(status)

    async def _world(self) -> None:
        """Start the process, start another when it dies, answer requests, until a process has got the run's result."""
        actor = self._first = self._start()
        if self._point is not None and self._point.kind == "callback":
            self._stage.before = self._kill_at(self._point.at)
        async with self._stage.people() as people, asyncio.timeout(PATIENCE.total_seconds()):
            while not actor.ended:
                await asyncio.sleep(WORLD_SECONDS)
                if not actor.process.alive and not actor.ended:
                    actor = self._start()
                await self._answer_all(people)
            self._run = await people.store.find(self._lab.part.name, KEY)
            if self._run is not None:
                kinds = [step.kind for step in await people.steps(self._run.id)]
                self._rows = (kinds.count("llm"), kinds.count("tool"))

    def _start(self) -> Actor:
        return self._stage.start(0, main=self._program)

    async def _program(self, engine: Engine) -> None:
        """What a user's script would do; the next process does the same, under the same key."""
        try:
            await engine.durable(self._lab.part.name).run(self._lab.input, key=KEY)
        except (RunFailed, RunCancelled):
            pass  # the run says so itself

    def _kill_at(self, step: int) -> Callable[[Strand, SimHandle], None]:
        def before(strand: Strand, _: SimHandle) -> None:
            if strand.replica is self._first.process and strand.replica.steps == step:
                strand.replica.kill()

        return before

    async def _answer_all(self, people: Engine) -> None:
        for request in await people.requests():
            if request.kind == "effect" and request.id not in self._asked:
                self._asked.add(request.id)
                await self._check_started(people, request)
            await (self._lab.answer or self._answer)(request)

    async def _check_started(self, people: Engine, request: Request) -> None:
        """Nobody is asked about a call that can't have begun: one whose *started* never reached the store."""
        key = request.wait.row.effect_key
        if self._stage.shared is not None:
            started = any(row.key == key and row.state is EffectState.STARTED for row in self._written())
        else:
            # A thread of a process that died may have written into the file what nobody heard of any more: the file itself says so.
            events = await people.store.events(request.wait.run_id)
            started = any(event.type == "effect.started" and event.data["key"] == key for event in events)
        if not started:
            self._never_started.append(f"asked about {request.tool} ({key}), which was never started")

    def _written(self) -> Iterator[EffectWrite]:
        """Every record of an effect that reached the store."""
        for seen in self._stage.record.calls:
            for request in seen.request:
                if seen.applied and isinstance(request, Commit):
                    yield from request.effects

    async def _answer(self, request: Request) -> None:
        """What honest and willing people do."""
        if request.kind == "approval":
            await request.approve(by="eva")
        elif request.kind == "effect":
            happened, result = self._happened(request.wait.row.effect_key or "", request.tool or "")
            try:
                await (request.answer("done", result, by="eva") if happened else request.answer("run", by="eva"))
            except Conflict:
                pass  # the earlier try may still be running: later
        elif request.kind == "attention":
            await request.answer("resume", by="eva")

    def _happened(self, key: str, tool: str) -> tuple[bool, Any]:
        """Whether the deed was done, and what it came to: the ledger's word, or else what was seen of the tools' bodies."""
        ledger, tally = self._lab.ledger, self._stage.tally
        if ledger is not None:
            return ledger.happened(key), ledger.result(key) if ledger.happened(key) else None
        return any(each == key for _, each in tally.effects), tally.results.get(tool, self._lab.results.get(tool))

    def _deeds(self) -> Iterator[tuple[str, str, int]]:
        """What was performed: tool, key and how often. Under a key that the outside world was given (`retry`), once is as good as twice."""
        ledger, repeatable = self._lab.ledger, self._declared("retry")
        done = [(tool, key, count) for (tool, key), count in self._stage.tally.effects.items()]
        if ledger is not None:
            done = [(deed.tool, key, deed.times) for key, deed in ledger.deeds.items()]
        yield from ((tool, key, 1 if tool in repeatable else count) for tool, key, count in done)

    def _twice(self, deeds: Sequence[tuple[str, str, int]]) -> Iterator[str]:
        # Without a ledger only bodies are seen, and one that died before its deed is rightly run again when the tool's own verify says so.
        unseen = self._declared("verify") if self._lab.ledger is None else set[str]()
        yield from (f"{tool} ({key}) was performed {count} times" for tool, key, count in deeds if count > 1 and tool not in unseen)

    def _declared(self, unknown: Unknown) -> set[str]:
        return {row.tool for row in self._written() if row.unknown == unknown}

    def _told(self, status: str) -> Outcome:
        tally, watch, run = self._stage.tally, self._stage.watch, self._run
        if self._point is None:
            self._lab.results = dict(tally.results)
        effects: dict[str, int] = {}
        deeds = list(self._deeds())
        for tool, _, count in deeds:
            effects[tool] = effects.get(tool, 0) + count
        return Outcome(
            self._point,
            status,
            died=not self._first.process.alive,
            output=run.output if run else None,
            usage=run.usage if run else None,
            rows=self._rows,
            calls=[call.verb for call in self._stage.record.calls if call.replica == self._first.process.name],
            callbacks=self._first.process.steps,
            model_calls_repeated=tally.model_calls_repeated,
            effects=effects,
            performed_twice=list(self._twice(deeds)),
            asked=len(self._asked),
            asked_never_started=self._never_started,
            refused=tally.refused,
            violations=[str(each) for each in watch.violations] if watch else [],
        )
