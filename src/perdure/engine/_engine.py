"""The engine: what a user can ask of it. It holds no run's logic; it opens the store, admits, answers, and lets its worker work."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

from perdure.agents import Registration, decode
from perdure.context import CurrentRun
from perdure.core import given
from perdure.core.artifact import Artifact
from perdure.core.budget import Budget
from perdure.core.commit import (
    Cancelled,
    EffectFilter,
    Resolved,
    ResolveOutcome,
    RunFilter,
    Swept,
    WaitFilter,
)
from perdure.core.effect import Effect
from perdure.core.errors import (
    AgentNotFoundError,
    ArtifactNotFoundError,
    ConfigurationError,
    InvalidTrigger,
    RunNotFoundError,
    StoreUnavailable,
    WaitNotFoundError,
)
from perdure.core.limits import DEATHS_MAX, DRAIN_GRACE, EFFECT_GRACE, LEASE_DEFAULT, MODEL_TRIES_MAX, POLL, TICK
from perdure.core.run import Run
from perdure.core.runtime import RealRuntime, Runtime
from perdure.core.step import Step
from perdure.core.trigger import Attachment, TriggerEnvelope
from perdure.effects import HeldEffects
from perdure.engine import _asked
from perdure.engine._admission import File, Wish, checked, files_of, fork_of, new_run, read_file
from perdure.engine._agents import AgentType
from perdure.engine._handle import DurableAgent, Request, RunHandle, seconds
from perdure.engine._heard import last_heard
from perdure.engine._jobtype import JobType
from perdure.engine._news import RunEvent, follow, until_final
from perdure.engine._notify import Link, Messenger
from perdure.engine._retention import Pruner, Retention
from perdure.engine._schema import schema_error
from perdure.engine._settings import check_engine
from perdure.engine._sync import SyncDoor
from perdure.engine._worker import Env, Worker
from perdure.events import Hub
from perdure.notifiers import Notifier
from perdure.stores import Joined, JoiningStore, Store, open_store

if TYPE_CHECKING:
    from pydantic_ai import Agent

logger = logging.getLogger("perdure")
T = TypeVar("T")
Deps = TypeVar("Deps")
Payload = TypeVar("Payload")
Result = TypeVar("Result")
OnError = Callable[[BaseException], Awaitable[None] | None]
CLOSED = "The engine is not open. Use it inside `async with engine:`, or call run_sync()."
STORE_TRIES = 5
"""How often a caller's request is sent again to a store that is away for a moment. Every verb is safe to repeat."""


class Engine:
    """Runs agents durably on one store.

    Constructing it does no I/O. Entered with `async with`, it opens the store, brings the schema up to date and works in this process.

    Args:
        store: An address (`sqlite:///perdure.db`, `postgresql://…`, `memory://`) or a `Store`.
        workers: How many runs this process executes at once; 0 only starts and answers.
        lease: How long a claim lasts without renewal.
        deaths_max: Leases in a row that may run out before a run is failed as `poisoned`.
        drain_grace: How long leaving the engine lets running steps finish.
        effect_grace: How long an effect in flight is shielded from a stop.
        migrate: Whether entering brings the schema up to date.
        notifiers: Who tells people that something waits: `perdure.notifiers`, or your own.
        link: A function of a wait point and a secret token that gives the page where a person decides.
        on_error: Called with errors that no caller hears of: lost leases, a store that is away.
        runtime: The door to clocks, ids and tasks; tests pass a simulated one.
    """

    def __init__(
        self,
        store: str | Store = "sqlite:///perdure.db",
        *,
        workers: int = 16,
        lease: timedelta = LEASE_DEFAULT,
        deaths_max: int = DEATHS_MAX,
        drain_grace: timedelta = timedelta(0),
        effect_grace: timedelta = EFFECT_GRACE,
        migrate: bool = True,
        tick: timedelta | None = TICK,
        poll: timedelta = POLL,
        notifiers: Sequence[Notifier] = (),
        link: Link | None = None,
        on_error: OnError | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        check_engine(
            workers=workers, lease=lease, deaths_max=deaths_max, drain_grace=drain_grace, effect_grace=effect_grace,
            tick=tick, poll=poll, notifiers=notifiers, link=link, on_error=on_error,
        )  # fmt: skip
        self.runtime: Runtime = runtime or RealRuntime()
        self.store: Store = open_store(store, self.runtime) if isinstance(store, str) else _checked_store(store)
        self._size, self._lease, self._deaths_max = workers, lease, deaths_max
        self._drain_grace, self._effect_grace, self._migrate = drain_grace, effect_grace, migrate
        self._tick, self._poll, self._on_error = tick, poll, on_error
        self._notifiers, self._link = notifiers, link
        self._hub = Hub()
        self._types: dict[str, JobType] = {}
        self._claims = True
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._offs: list[Callable[[], None]] = []
        self._door = SyncDoor(self, lambda: self._loop)

    # ── registering ────────────────────────────────────────────────────────────────────────────────────────
    def agent(
        self,
        agent: Agent[Deps, Result],
        *,
        name: str = "",
        version: str | None = None,
        input: type[Payload] | Any = Any,
        deps: Any = None,
        budget: Budget | None = None,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        toolset: Callable[[CurrentRun], Any] | None = None,
        render: Callable[[TriggerEnvelope], Any] | None = None,
        model: Any = None,
        effects: HeldEffects | Literal["*"] = "ask",
        history: Literal["none", "thread"] = "none",
        limit: int | None = None,
        step_timeout: timedelta | None = None,
        tool_timeout: timedelta | None = None,
        model_tries: int = MODEL_TRIES_MAX,
        retention: Retention | None = None,
        key_retention: timedelta | None = None,
    ) -> DurableAgent[Payload, Result]:
        """Register a Pydantic AI agent. It is never wrapped, copied or changed.

        Args:
            agent: An ordinary agent.
            name: What its runs are listed under; absent: the agent's own name.
            version: Of your code; runs tell when they go on under another one.
            input: The type of the payload: anything that Pydantic validates.
            deps: A value, a function of the current run, or an `@asynccontextmanager` function, entered for each execution.
            budget: Limits of every run.
            tools: Rules by pattern of tool name: `{"refund": approve(), "stripe_*": effect()}`.
            toolset: A function of the current run that gives further tools, called once per execution.
            render: The start message in place of the JSON block.
            model: In place of the agent's own.
            effects: What a full retry or a fork does with an effect that an earlier life may have performed; `"*"` makes every undeclared tool an effect that asks.
            history: `"thread"` starts a run from the end of its thread's conversation.
            limit: How many runs may execute at once, over all workers.
            step_timeout: The longest that one model call with its tools may take.
            tool_timeout: The longest that one tool body may take.
            model_tries: Tries of one model call.
            retention: How long settled runs are kept: a timedelta, or one for each final status, `{"completed": timedelta(days=30)}`. Absent: for ever. What
                another run, a person, a thread or a business key still needs is kept longer.
            key_retention: How long an idempotency key answers after its run has settled, whether the run is still kept or not; 30 days where absent.

        Raises:
            ConfigurationError: What is wrong, and what to write instead.
        """
        what = Registration(
            cast("Agent[Any, Any]", agent),
            name=name,
            version=version,
            input=input,
            deps=deps,
            tools={} if tools is None else copy(tools),
            toolset=toolset,
            render=render,
            model=model,
            budget=budget or Budget(),
        )
        made = AgentType(
            what,
            effects=effects,
            history=history,
            limit=limit,
            step_timeout=step_timeout,
            tool_timeout=tool_timeout,
            model_tries=model_tries,
            effect_grace=self._effect_grace,
            retention=retention,
            key_retention=key_retention,
        )
        self.register(made)
        return DurableAgent(self, made)

    def register(self, kind: JobType) -> None:
        """Register a job type under its name.

        Raises:
            ConfigurationError: The name is taken.
        """
        if kind.name in self._types:
            raise ConfigurationError(f"The name {kind.name!r} is registered already. Give the second one another name=.")
        self._types[kind.name] = kind
        if self._worker is not None:
            self._worker.look()

    @property
    def agents(self) -> Mapping[str, JobType]:
        """What is registered, by name."""
        return self._types

    def check_models(self) -> None:
        """Whether this process can call the models of its agents, as far as that is known without a call.

        Raises:
            ConfigurationError: The first one that it can't call, and why.
        """
        for kind in self._types.values():
            if isinstance(kind, AgentType):
                kind.check_model()

    def durable(self, name: str) -> DurableAgent[Any, Any]:
        """The registered agent of this name. Raises `AgentNotFoundError`."""
        return DurableAgent(self, cast(AgentType, self._type(name)))

    def _type(self, name: str) -> JobType:
        kind = self._types.get(name)
        if kind is None:
            raise AgentNotFoundError(name, known=sorted(self._types))
        return kind

    def adjust(self, *, store: str | Store | None = None, workers: int | None = None, claims: bool | None = None) -> None:
        """Change settings of an engine that is not entered yet: for who runs somebody else's program, such as the command line.

        Args:
            store: Another address, or another `Store`.
            workers: Another number of runs at once.
            claims: False: this process executes only the runs that `execute` names.
        """
        if self._loop is not None:
            raise ConfigurationError("This engine is entered already: adjust() comes before `async with engine:`.")
        if store is not None:
            self.store = open_store(store, self.runtime) if isinstance(store, str) else store
        self._size = self._size if workers is None else workers
        self._claims = self._claims if claims is None else claims

    @property
    def size(self) -> int:
        """How many runs this process executes at once."""
        return self._size

    # ── life ───────────────────────────────────────────────────────────────────────────────────────────────
    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise ConfigurationError("This engine is entered already. One `async with engine:` at a time.")
        self._loop = asyncio.get_running_loop()
        try:
            await self.store.__aenter__()
            try:
                if self._migrate:
                    await self.store.migrate()
                self._offs = [self.store.on_hint(self._hub.hint), self.store.on_delta(self._hub.stream)]
                self._worker = self._make_worker()
                self._worker.start(claim=self._claims, tick=self._tick is not None and self._size > 0)
            except BaseException:
                await self.store.__aexit__(None, None, None)
                raise
        except BaseException:
            self._loop = None
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        worker, self._worker = self._worker, None
        try:
            if worker is not None:
                await worker.stop(self._drain_grace)
        finally:
            for off in self._offs:
                off()
            self._loop = None
            await self.store.__aexit__(*exc)

    @asynccontextmanager
    async def lifespan(self, _app: Any = None) -> AsyncGenerator[None]:
        """For frameworks that take a lifespan: `FastAPI(lifespan=engine.lifespan)`."""
        async with self:
            yield

    def _make_worker(self) -> Worker:
        env = Env(
            store=self.store,
            runtime=self.runtime,
            hub=self._hub,
            types=self._types,
            engine=self,
            report=self._report,
            lease=self._lease,
            deaths_max=self._deaths_max,
            effect_grace=self._effect_grace,
            poll=self._poll,
            tick=self._tick or TICK,
            on_swept=self._swept,
            extra_ticks=[
                Messenger(self.store, self.runtime, self._notifiers, self._report, self._link).send_due,
                Pruner(self.store, self.runtime, self._types).prune_due,
            ],
        )
        return Worker(env, size=self._size)

    def _check_open(self) -> None:
        """What hangs on the engine's loop is not for other loops: there it would work by chance, and hang by chance.

        Raises:
            ConfigurationError: The engine is not open, or open on another event loop.
        """
        if self._loop is None:
            raise ConfigurationError(CLOSED)
        if self._loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                "This engine is open on another event loop. Use run_sync() here, or asyncio.run_coroutine_threadsafe(…) with the loop that entered it."
            )

    @property
    def worker(self) -> Worker:
        """The worker of this process.

        Raises:
            ConfigurationError: The engine is not entered.
        """
        if self._worker is None:
            raise ConfigurationError(CLOSED)
        return self._worker

    async def drain(self, grace: timedelta = DRAIN_GRACE) -> None:
        """Take no more work, let steps finish for up to `grace`, hand every run back as `interrupted`."""
        await self.worker.drain(grace)

    async def execute(self, run_id: str) -> bool:
        """Execute this run here, beside what is claimed anyway. False: it can't be claimed now, because it rests, its turn has not come, or somebody has it."""
        return await self.worker.claim_once(run_id) > 0

    async def tick(self) -> Swept:
        """One pass of maintenance, for cron: recover expired leases, expire waits, fire timers."""
        return await self.worker.tick_once()

    def run_blocking(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine from synchronous code, opening the engine where it is not open.

        Raises:
            ConfigurationError: Called on the engine's own event loop, which it would block for ever; or the engine was left meanwhile.
        """
        return self._door.run(call)

    async def _report(self, error: BaseException) -> None:
        self._hub.failed(error)
        if self._on_error is None:
            logger.warning("%s: %s", type(error).__name__, error)
            return
        try:
            answer = self._on_error(error)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            logger.exception("on_error raised; the engine goes on")

    async def _swept(self, swept: Swept) -> None:
        for run_id in swept.recovered:
            logger.warning("run %s was recovered: its worker's lease ran out", run_id)

    # ── starting ───────────────────────────────────────────────────────────────────────────────────────────
    async def start(self, agent: str, payload: Any, **options: Any) -> RunHandle[Any]:
        """Admit a run of a registered agent by name; the options are those of `DurableAgent.start`."""
        return await self.admit(self._type(agent), payload, **options)

    async def admit(self, kind: JobType, payload: Any, *, attachments: Sequence[File] = (), connection: Any = None, **options: Any) -> RunHandle[Any]:
        """Check everything, then store the run. Durable when it returns, or with the transaction of `connection`; the options are those of `Wish`."""
        self._check_open()
        wish = Wish(**options)
        value = checked(kind, payload, wish)
        files = [await read_file(each, self.runtime) for each in files_of(attachments)]
        stored = [file if isinstance(file, Attachment) else await self._keep(*file) for file in files]
        new = new_run(kind, value, wish, stored, self.runtime)
        admitted = await (self._again(lambda: self.store.admit(new)) if connection is None else self._joining(connection).admit(new))
        handle = RunHandle[Any](self, admitted.run.id, kind if isinstance(kind, AgentType) else None, created=admitted.created)
        handle.pruned = admitted.run.status if admitted.run.pruned else None
        return handle

    def _joining(self, connection: Any) -> Joined:
        if not isinstance(self.store, JoiningStore):
            raise ConfigurationError("start(connection=…) needs a store on Postgres: your rows and the run are then in one database.")
        return self.store.joining(connection)

    async def admit_child(self, parent: Run, agent: str, payload: Any, *, key: str, **options: Any) -> RunHandle[Any]:
        """A child run of `parent`: the same key again answers the same child."""
        return await self.admit(self._type(agent), payload, key=key, source="run", trigger=parent.agent, parent=parent.id, **options)

    async def _keep(self, name: str, data: bytes, media: str) -> Attachment:
        artifact = await self._again(lambda: self.store.put_artifact(data, media_type=media, filename=name))
        return Attachment(artifact.id, name, media, len(data))

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a request to a store that is away for a moment."""
        self._check_open()
        for tried in range(1, STORE_TRIES):
            try:
                return await call()
            except StoreUnavailable:
                await self.runtime.sleep(0.05 * 2**tried)
        return await call()

    # ── looking ────────────────────────────────────────────────────────────────────────────────────────────
    def handle(self, run_id: str) -> RunHandle[Any]:
        """A handle on a run by its id."""
        return RunHandle(self, run_id)

    async def run(self, run_id: str) -> Run:
        """The run as it stands. Raises `RunNotFoundError`."""
        _asked.check_id("run_id", run_id)
        run = await self._again(lambda: self.store.get(run_id))
        if run is None:
            raise RunNotFoundError(run_id)
        return run

    async def runs(self, where: RunFilter | None = None) -> Sequence[Run]:
        """Runs, newest first."""
        return await self._again(lambda: self.store.runs(where or RunFilter()))

    async def settled(self, run_id: str, timeout: float | timedelta | None = None) -> Run:
        """The run once it is final, or as it stands when the time is up."""
        _asked.check_id("run_id", run_id)
        _asked.check_timeout(timeout)
        self._check_open()
        return await until_final(self.store, self._hub, run_id, seconds=seconds(timeout), runtime=self.runtime)

    def events(self, run_id: str, *, after: int = 0) -> AsyncIterator[RunEvent]:
        """What happens to a run, from event number `after` on, until it has settled."""
        _asked.check_id("run_id", run_id)
        _asked.check_index("after", after)
        return follow(self.store, self.runtime, self._hub, run_id, after=after, request=lambda wait: Request(self, wait), check=self._check_open)

    async def steps(self, run_id: str) -> Sequence[Step]:
        """The run's log. Raises `RunNotFoundError`."""
        await self.run(run_id)
        rows: list[Step] = []
        while page := await self.store.steps(run_id, after=rows[-1].seq if rows else 0):
            rows += page
        return rows

    async def messages(self, run_id: str, *, generation: int | None = None, step: int | None = None) -> list[Any]:
        """The message history of a checkpoint; empty where there is none. Raises `RunNotFoundError`."""
        _asked.check_index("generation", generation)
        _asked.check_index("step", step)
        await self.run(run_id)
        checkpoint = await self.store.checkpoint(run_id, generation=generation, index=step)
        return [] if checkpoint is None else [decode(each) for each in checkpoint.messages]

    def on(self, kind: str, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Listen to `run.delta`, `run.reset`, a durable event's type, `error` (what `on_error` gets too), or `*`, in this process. Answers the way to stop.

        A listener that raises is reported and dropped; it never fails a run.
        """
        return self._hub.on(kind, listener)

    # ── answering ──────────────────────────────────────────────────────────────────────────────────────────
    async def requests(self, *, run_id: str | None = None, kind: str | None = None, limit: int = 100) -> list[Request]:
        """Open wait points, oldest first."""
        _asked.check_kind(kind)
        _asked.check_limit(limit)
        where = WaitFilter(run_id=run_id, kind=(kind,) if kind else (), open=True, limit=limit)
        return [Request(self, wait) for wait in await self._again(lambda: self.store.waits(where))]

    async def resolve(
        self,
        wait_id: str,
        decision: str | None = None,
        value: Any = None,
        *,
        by: str | None = None,
        reason: str | None = None,
        via: str = "python",
        input_hash: str | None = None,
        token: str | None = None,
    ) -> Resolved:
        """Close an open wait point: the first answer wins, the same again is told so, another is told who won.

        Args:
            decision: One of the row's `decisions`; None for an event, whose payload is `value`.
            input_hash: The hash of the input that the person saw; another one is refused.
            token: The secret of a notice, where the caller has no other right to answer.

        Raises:
            WaitNotFoundError: There is no such row.
        """
        request = _asked.resolve_of(wait_id, decision, value, by=by, reason=reason, via=via, input_hash=input_hash, token=token)
        if decision == "approve" and value is not None:
            refused = await self._refusal(wait_id, request.resolution.value)
            if refused is not None:
                return refused
        return await self._again(lambda: self.store.resolve(request))

    async def _refusal(self, wait_id: str, edited: Any) -> Resolved | None:
        """An edited input that the tool's stored schema refuses: nothing is written."""
        wait = await self._again(lambda: self.store.wait(wait_id))
        if wait is None:
            raise WaitNotFoundError(wait_id)
        if not wait.open:
            return None  # whoever comes too late is told so, whatever they say
        wrong = schema_error(edited, wait.row.data.get("schema") or {})
        if wrong is None:
            return None
        status = (await self.run(wait.run_id)).status
        return Resolved(ResolveOutcome.REFUSED, wait, status, f"The edited input does not fit {wait.row.tool!r}: {wrong}.")

    async def approve(
        self, wait_id: str, *, by: str | None = None, input: Mapping[str, Any] | None = None, reason: str | None = None, via: str = "python"
    ) -> Resolved:
        """Say yes to a request, with its own input or an edited one."""
        _asked.check_input(input)
        return await self.resolve(wait_id, "approve", None if input is None else dict(input), by=by, reason=reason, via=via)

    async def deny(self, wait_id: str, *, by: str | None = None, reason: str | None = None, via: str = "python") -> Resolved:
        """Say no to a request."""
        return await self.resolve(wait_id, "deny", by=by, reason=reason, via=via)

    async def extend(self, wait_id: str, within: timedelta | None) -> Resolved:
        """Move an open request's deadline to so long from now (None: never)."""
        _asked.check_id("wait_id", wait_id)
        _asked.check_within(within)
        until = None if within is None else await self.store.now() + within
        return await self._again(lambda: self.store.extend(wait_id, until))

    async def signal(self, run_id: str, name: str, payload: Any = None, *, id: str | None = None) -> bool:
        """Say something to a run. False: a signal of this id was received already.

        Raises:
            RunNotFoundError: There is no such run.
            Conflict: The run is completed, or its inbox is full.
        """
        signal = _asked.signal_of(run_id, name, payload, id=id, new_id=self.runtime.new_id())
        return await self._again(lambda: self.store.signal(signal))

    async def effects(self, *, run_id: str | None = None, state: str | None = "unknown", limit: int = 100) -> Sequence[Effect]:
        """Effects, by default those whose outcome is unknown."""
        _asked.check_limit(limit)
        where = EffectFilter(run_id=run_id, state=(state,) if state else (), limit=limit)
        return await self._again(lambda: self.store.effects(where))

    async def last_heard(self, effect: Effect) -> datetime | None:
        """The last durable sign of the execution that started an effect, by the store's clock."""
        return await self._again(lambda: last_heard(self.store, effect))

    async def settle(
        self,
        key: str,
        decision: Literal["done", "run", "fail"],
        result: Any = None,
        *,
        by: str | None = None,
        reason: str | None = None,
        via: str = "python",
    ) -> Effect:
        """Say what became of an effect of unknown outcome: it happened (`done`, with its result), run it again (`run`), or give up on it (`fail`).

        Raises:
            EffectNotFoundError: There is no such effect.
            Conflict: Its outcome is not unknown, or the earlier try may still be running.
        """
        request = _asked.settle_of(key, decision, result, by=by, reason=reason, via=via)
        return await self._again(lambda: self.store.settle_effect(request))

    # ── moving ─────────────────────────────────────────────────────────────────────────────────────────────
    async def cancel(self, run_id: str, *, reason: str | None = None, by: str | None = None) -> Cancelled:
        """Ask a run to stop: it is cancelled now, or its owner is told. Its child runs are cancelled too. Safe to repeat.

        Raises:
            RunNotFoundError: There is no such run.
        """
        run = await self.run(run_id)
        request = _asked.cancel_of(run, reason=reason, by=by)
        answer = await self._again(lambda: self.store.cancel(request))
        if self._worker is not None:
            self._worker.cancel_here(run_id)
        for child in answer.children:
            await self.cancel(child, reason=f"its parent {run_id} was cancelled", by=by)
        return answer

    async def retry(
        self,
        run_id: str,
        mode: Literal["resume", "full"] = "resume",
        *,
        max_steps: int | None = None,
        max_tokens: int | None = None,
        max_cost: Decimal | None = None,
        budget: Budget | None = None,
        deadline: timedelta | None = None,
    ) -> Run:
        """Bring a failed or cancelled run back: `resume` from its last checkpoint, `full` from its trigger.

        Raises:
            RunNotFoundError: There is no such run.
            Conflict: It is not failed or cancelled.
        """
        limits = {"max_steps": max_steps, "max_tokens": max_tokens, "max_cost": max_cost}
        _asked.check_retry(mode, limits, budget, deadline)
        request = _asked.retry_of(await self.run(run_id), mode, limits, budget, deadline)
        return (await self._again(lambda: self.store.retry(request))).run

    async def resolve_external(self, token: str, payload: Any = None, *, error: str | None = None) -> bool:
        """Answer a token that a tool handed out while it waited (Pydantic AI's external events). False: it was answered before.

        Raises:
            InvalidTrigger: This is not such a token.
            Conflict: The run is completed.
        """
        _asked.check_id("token", token)
        run_id, slash, event = token.partition("/")
        if not slash or not event.startswith("external:"):
            raise InvalidTrigger(f"token: {token!r} was not handed out by a waiting tool.", field="token")
        return await self.signal(run_id, event, payload if error is None else {"perdure-error": error}, id=event)

    async def fork(
        self,
        run_id: str,
        step: int | None = None,
        *,
        message: str | None = None,
        results: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> RunHandle[Any]:
        """Start a new run from a checkpoint of another; the original stays as it is. Effects that the original may have performed are held.

        Args:
            step: The step to start after; the newest where none is named.
            message: What the user says there instead, or in addition.
            results: Tool results to replace, by tool call id.

        Raises:
            RunNotFoundError: There is no such run.
            InvalidTrigger: There is no such step, or the change does not fit it.
        """
        _asked.check_index("step", step)
        run = await self.run(run_id)
        kind = self._types.get(run.agent)
        checkpoint = await self._again(lambda: self.store.checkpoint(run_id, index=step))
        if checkpoint is None:
            raise InvalidTrigger(f"step: run {run_id} has no checkpoint {'yet' if step is None else step}.", field="step")
        new = fork_of(run, checkpoint, self.runtime, message=message, results=results, budget=budget, labels=labels)
        admitted = await self._again(lambda: self.store.admit(new))
        return RunHandle(self, admitted.run.id, kind if isinstance(kind, AgentType) else None)

    # ── artifacts ──────────────────────────────────────────────────────────────────────────────────────────
    async def artifact(self, artifact_id: str) -> tuple[Artifact, bytes]:
        """Stored bytes and what they are. Raises `ArtifactNotFoundError`."""
        if not artifact_id:
            raise ArtifactNotFoundError(artifact_id)
        return await self._again(lambda: self.store.get_artifact(artifact_id))


def _checked_store(store: Store) -> Store:
    if not all(hasattr(store, verb) for verb in ("admit", "claim", "commit")):
        raise ConfigurationError(f"Engine(store={given.shown(store)}): it takes an address, such as 'sqlite:///perdure.db', or a Store.")
    return store


__all__ = ["Engine", "OnError"]
