"""Everything that people, the world, time and crashes do to waiting runs, in any order: one decision, one resume, a valid history."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Coroutine
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from bridged import BridgedPostgres
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse

from perdure import Conflict, Engine, RunStatus, Wait, approve, current_run, effect, plain
from perdure.core.commit import ResolveOutcome, WaitFilter
from perdure.core.wait import ResolutionKind, WaitPoint
from perdure.notifiers import Notice
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.models import Reply, ScriptedModel, StrictProvider, call, calls, say
from perdure.testing.postgres import PostgresServer
from perdure.testing.simulation._loop import SimLoop, tidy
from perdure.testing.simulation._runtime import SimRuntime

HOUR = 3_600.0
RUNS_MAX = 3
KILLS_MAX = 6
SLOW = timedelta(seconds=15)
"""How often idle engines look: hours pass in these tests."""
STORY = (
    calls(call("refund", order="a", cents=100), call("refund", order="b", cents=200), seconds=0.2),
    call("strict", order="c", cents=300),
    call("hear"),
    say("done"),
)


class World:
    """A simulated machine: one worker process at a time, and people with a process of their own."""

    def __init__(self, kind: str, folder: Path, dsn: str) -> None:
        self.loop = SimLoop(steps_max=50_000_000)
        self.kind, self.folder = kind, folder
        self.people = self.loop.replica("people")
        self.runtime = SimRuntime(self.loop, self.people, seed="people")
        self.shared: Any = BridgedPostgres(dsn, self.runtime) if kind == "postgres" else MemoryStore(self.runtime)
        """The store of all processes, where they do not open one each."""
        self.errors: list[BaseException] = []
        self.asked: Counter[int] = Counter()
        """Model requests by run number."""
        self.deeds: list[tuple[str, int]] = []
        """Idempotency key and cents of what was really done."""
        self.notices: list[tuple[float, Notice]] = []
        self.models: list[StrictProvider] = []
        self.kills = 0
        self.engine = Engine(self.store(self.runtime), workers=0, tick=None, runtime=self.runtime)
        self.engine.agent(self.agent(self.runtime))
        self.do(self.engine.__aenter__())
        self.boot()

    def store(self, runtime: SimRuntime) -> Any:
        return SqliteStore(self.folder / "runs.db", runtime) if self.kind == "sqlite" else self.shared

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Let people do something; the worker goes on meanwhile."""
        return self.loop.run_until_complete(self.people.spawn(work, name="people"))

    def wait(self, seconds: float) -> None:
        self.do(self.runtime.sleep(seconds))

    # ── the worker process ─────────────────────────────────────────────────────────────────────────────────
    def boot(self) -> None:
        """Start a worker process."""
        self.process = self.loop.replica(f"worker-{self.kills}")
        runtime = SimRuntime(self.loop, self.process, seed=self.kills)
        self.worker = Engine(
            self.store(runtime), workers=4, lease=timedelta(minutes=2), poll=SLOW, tick=SLOW, deaths_max=1_000, runtime=runtime,
            notifiers=[self], on_error=self.errors.append,
        )  # fmt: skip
        self.worker.agent(self.agent(runtime))
        self.loop.run_until_complete(self.process.spawn(self.worker.__aenter__(), name="boot"))

    def crash(self) -> None:
        """The worker's process dies here; another one starts."""
        self.process.kill()
        self.kills += 1
        self.boot()

    async def notify(self, notice: Notice) -> None:
        self.notices.append((self.loop.time(), notice))

    def agent(self, runtime: SimRuntime) -> Agent[None, str]:
        model = StrictProvider(ScriptedModel(self.reply, runtime=runtime))
        self.models.append(model)
        agent = Agent(model, name="desk", output_type=str)

        async def pay(cents: int) -> str:
            await runtime.sleep(1)
            self.deeds.append((str(current_run().key), cents))
            await runtime.sleep(1)
            return "refunded"

        @agent.tool_plain(metadata=effect() | approve(within=timedelta(hours=1)))
        async def refund(order: str, cents: int) -> str:
            return await pay(cents)

        @agent.tool_plain(metadata=effect() | approve(within=timedelta(hours=2), on_expiry="fail"))
        async def strict(order: str, cents: int) -> str:
            return await pay(cents)

        @agent.tool_plain(metadata=plain())
        async def hear() -> str:
            raise Wait.event("news", expires=timedelta(hours=1))

        return agent

    def reply(self, messages: list[ModelMessage]) -> Reply:
        place = sum(isinstance(each, ModelResponse) for each in messages)
        number = re.search(r'"n":\s*(\d+)', str(messages[0]))
        assert number is not None
        self.asked[int(number[1])] += 1
        return STORY[min(place, len(STORY) - 1)]

    def close(self) -> None:
        """The processes end; what was killed is collected by `tidy`."""
        self.loop.run_until_complete(self.process.spawn(self.worker.__aexit__(None, None, None), name="end"))
        self.do(self.engine.__aexit__(None, None, None))
        self.loop.close()


class WaitsMachine(RuleBasedStateMachine):
    """People, the world, time and crashes, in any order."""

    kind = "memory"
    dsn = ""

    def __init__(self) -> None:
        super().__init__()
        self.exit = ExitStack()
        self.exit.enter_context(tidy())
        self.world = World(self.kind, Path(self.exit.enter_context(TemporaryDirectory())), self.dsn)
        self.runs: list[str] = []
        self.cancels: Counter[str] = Counter()
        self.won: dict[str, tuple[str, str, Any]] = {}
        """What won, by request: who, decision, value."""
        self.names = 0

    # ── what happens ───────────────────────────────────────────────────────────────────────────────────────
    @initialize()
    def begin(self) -> None:
        self.ask()

    @precondition(lambda self: len(self.runs) < RUNS_MAX)
    @rule(seconds=st.sampled_from([0.0, 20.0]))
    def ask(self, seconds: float = 20.0) -> None:
        async def start() -> None:
            run = await self.world.engine.start("desk", {"n": len(self.runs)}, key=f"n{len(self.runs)}")
            self.runs.append(run.id)

        self.world.do(start())
        self.world.wait(seconds)

    @rule(seconds=st.sampled_from([0.01, 0.3, 1.0, 1.5, 5.0, 300.0, 0.85 * HOUR, 1.2 * HOUR]))
    def time_passes(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule(
        pick=st.integers(0, 9),
        late=st.integers(0, 4),
        words=st.lists(st.sampled_from(["approve", "edit", "edit", "deny", "again"]), min_size=1, max_size=4),
        seconds=st.sampled_from([0.0, 0.5, 1.5, 4.0, 8.0, 12.0, 20.0]),
        dies=st.booleans(),
    )
    def answer(self, pick: int, late: int, words: list[str], seconds: float, dies: bool) -> None:
        """One answer, or several at once: the same, other ones, the one that stands. Then the worker may die of the work."""
        rows = self.rows(open=None if late == 0 else True)
        if rows:
            self.world.do(self.answer_all(rows[pick % len(rows)], words))
            self.world.wait(seconds)
            if dies and self.world.kills < KILLS_MAX:
                self.world.crash()

    async def answer_all(self, wait: WaitPoint, words: list[str]) -> None:
        row, engine = wait.row, self.world.engine
        if wait.kind == "effect":
            if wait.open:
                await self.settle(wait)
            return
        if wait.kind != "approval":
            return
        before = await engine.store.now()
        sayings: list[tuple[str, str, Any]] = []
        for word in words:
            self.names += 1
            edited = {**row.input, "cents": 1_000 + self.names} if word == "edit" else None
            decision = "deny" if word == "deny" else "approve"
            if row.data.get("held"):
                decision, edited = ("block" if word == "deny" else "run"), None
            saying = (f"p{self.names}", decision, edited)
            sayings.append(self.won.get(wait.id, saying) if word == "again" else saying)
        answers = await asyncio.gather(*(engine.resolve(wait.id, word, value, by=by) for by, word, value in sayings))
        winners = [saying for saying, each in zip(sayings, answers, strict=True) if each.outcome is ResolveOutcome.RESOLVED]
        if not wait.open:
            assert winners == [], "closed is closed"
        elif row.expires_at is not None and row.expires_at <= before:
            assert winners == [] and {each.outcome for each in answers} == {ResolveOutcome.EXPIRED}, "silence is never consent"
        else:
            assert len(winners) == 1, [each.outcome for each in answers]
        for winner in winners:
            assert wait.id not in self.won
            self.won[wait.id] = winner
        stands = self.won.get(wait.id)
        for (_, decision, value), each in zip(sayings, answers, strict=True):
            if each.outcome is ResolveOutcome.ALREADY:
                assert stands is not None and stands[1:] == (decision, value)
            if each.outcome is ResolveOutcome.CONFLICT and stands is not None:
                assert stands[1:] != (decision, value)

    async def settle(self, wait: WaitPoint) -> None:
        """Honest word on an effect of unknown outcome."""
        key = str(wait.row.effect_key)
        done = any(each == key for each, _ in self.world.deeds)
        try:
            await self.world.engine.settle(key, "done" if done else "fail", "refunded" if done else None, by="eva")
        except Conflict:
            pass  # somebody was faster

    @rule(pick=st.integers(0, 9), hours=st.sampled_from([0.5, 1, 5]))
    def extend(self, pick: int, hours: float) -> None:
        rows = [wait for wait in self.rows(open=None) if wait.row.expires_at is not None and wait.kind == "approval"]
        if not rows:
            return
        wait = rows[pick % len(rows)]

        async def move() -> None:
            now = await self.world.engine.store.now()
            answered = await self.world.engine.extend(wait.id, timedelta(hours=hours))
            moved = answered.outcome in (ResolveOutcome.RESOLVED, ResolveOutcome.ALREADY)
            assert wait.row.expires_at is not None
            assert moved == (wait.open and wait.row.expires_at > now)

        self.world.do(move())

    @rule(pick=st.integers(0, RUNS_MAX - 1), seconds=st.sampled_from([0.0, 5.0]), mode=st.sampled_from(["", "resume", "full", "full"]))
    def cancel(self, pick: int, seconds: float, mode: str) -> None:
        """Stop one; it may be brought back."""
        run = self.runs[pick % len(self.runs)]
        self.cancels[run] += 1
        self.world.do(self.world.engine.cancel(run, by="eva"))
        self.world.wait(seconds)
        if mode:
            self.retry(run, mode)

    @rule(pick=st.integers(0, RUNS_MAX - 1), mode=st.sampled_from(["resume", "full"]))
    def retry_one(self, pick: int, mode: str) -> None:
        self.retry(self.runs[pick % len(self.runs)], mode)

    def retry(self, run: str, mode: Any) -> None:

        async def again() -> None:
            try:
                await self.world.engine.retry(run, mode)
            except Conflict:
                assert (await self.world.engine.run(run)).status not in (RunStatus.FAILED, RunStatus.CANCELLED)

        self.world.do(again())

    @rule(pick=st.integers(0, RUNS_MAX - 1), id=st.integers(0, 5))
    def signal(self, pick: int, id: int) -> None:
        run = self.runs[pick % len(self.runs)]

        async def tell() -> None:
            try:
                await self.world.engine.signal(run, "news", {"id": id}, id=f"s{id}")
            except Conflict:
                assert (await self.world.engine.run(run)).status is RunStatus.COMPLETED

        self.world.do(tell())

    @precondition(lambda self: self.world.kills < KILLS_MAX)
    @rule()
    def crash(self) -> None:
        self.world.crash()

    @rule()
    def tick(self) -> None:
        self.world.do(self.world.engine.tick())

    # ── what must hold ─────────────────────────────────────────────────────────────────────────────────────
    def rows(self, *, open: bool | None) -> list[WaitPoint]:
        return list(self.world.do(self.world.engine.store.waits(WaitFilter(open=open, limit=1_000))))

    def teardown(self) -> None:
        try:
            self.come_to_rest()
            self.world.do(self.check())
            self.world.close()
        finally:
            self.world.loop.close()
            if isinstance(self.world.shared, BridgedPostgres):
                self.world.shared.close()
            self.exit.close()

    def come_to_rest(self) -> None:
        """Whatever happened, honest answers and time bring every run to its end."""
        for _ in range(60):
            statuses = [self.world.do(self.world.engine.run(run)).status for run in self.runs]
            if all(status.final for status in statuses):
                return
            for wait in self.rows(open=True):
                self.world.do(self.answer_all(wait, ["approve"]))
            self.world.wait(600)
        raise AssertionError(f"stuck: {statuses}, {self.rows(open=True)}")

    async def check(self) -> None:
        store, world = self.world.engine.store, self.world
        assert [refusal for model in world.models for refusal in model.refusals] == []
        waits = {wait.id: wait for wait in await store.waits(WaitFilter(open=None, limit=1_000))}
        for wait in waits.values():
            said = wait.resolution
            if wait.id in self.won:
                by, decision, value = self.won[wait.id]
                assert said is not None and (said.by, said.decision, said.value) == (by, decision, value)
            if said is not None and said.kind is ResolutionKind.EXPIRED:
                assert said.by is None and said.at is not None and wait.row.expires_at is not None and said.at >= wait.row.expires_at
        assert max(Counter(key for key, _ in world.deeds).values(), default=1) == 1, "each deed once"
        for key, cents in world.deeds:
            run_id, generation, index, position = key.rsplit(":", 3)
            place = (run_id, int(generation), int(index), int(position))
            asked = [wait for wait in waits.values() if wait.kind == "approval" and not wait.row.data.get("held")]
            said = [wait for wait in asked if (wait.run_id, wait.generation, wait.row.index, wait.row.position) == place]
            assert any(_allows(wait, cents) for wait in said), f"nobody said yes to {key}: {cents}"
        for number, run_id in enumerate(self.runs):
            events = await store.events(run_id)
            closed = Counter(event.data["wait"] for event in events if event.type == "wait.resolved")
            assert max(closed.values(), default=1) == 1, "each request is closed once"
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            model_steps = [step for step in await store.steps(run_id) if step.kind == "llm"]
            assert world.asked[number] <= len(model_steps) + world.kills + self.cancels[run_id], "no answer resumes a run twice"
        told = Counter(notice.id for _, notice in world.notices)
        assert all(count <= 1 + world.kills for count in told.values()), "told once, but for crashes"


def _allows(wait: WaitPoint, cents: int) -> bool:
    said = wait.resolution
    return said is not None and said.decision == "approve" and (said.value or wait.row.input)["cents"] == cents


class SqliteWaitsMachine(WaitsMachine):
    """The same on one file."""

    kind = "sqlite"


class PostgresWaitsMachine(WaitsMachine):
    """The same on a real server that shows the simulation's clock."""

    kind = "postgres"


class LongPostgresWaitsMachine(PostgresWaitsMachine):
    """The same, for as long as it takes to meet what is rare."""


@pytest.fixture(scope="session")
def served(postgres: PostgresServer) -> None:
    """Tells the machine where the server is: it makes its own schemas."""
    PostgresWaitsMachine.dsn = postgres.dsn


WALK = settings(max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
TestWaitsInMemory = WaitsMachine.TestCase
TestWaitsInMemory.settings = WALK
TestWaitsOnSqlite = SqliteWaitsMachine.TestCase
TestWaitsOnSqlite.settings = settings(WALK, max_examples=15)
# The same walks each time, so that a change is judged by itself; new ones are searched for nightly.
TestWaitsOnPostgres = pytest.mark.usefixtures("served")(PostgresWaitsMachine.TestCase)
TestWaitsOnPostgres.settings = settings(WALK, max_examples=5, derandomize=True)
TestWaitsOnPostgresAtLength = pytest.mark.nightly(pytest.mark.usefixtures("served")(LongPostgresWaitsMachine.TestCase))
TestWaitsOnPostgresAtLength.settings = settings(WALK, max_examples=60, stateful_step_count=40)
