"""Claims runs, executes them, and hands them back.

A worker holds at most `size` runs. Each is supervised until it rests: the job works, the supervisor watches the clock and the stop signal, and makes the
one commit that ends the claim.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from perdure.agents import describe
from perdure.core.checkpoint import FORMAT
from perdure.core.commit import ClaimRequest, Ending, Release, SweepRequest, Swept
from perdure.core.errors import StoreError, Suspend
from perdure.core.event import Delta, Event, Reset
from perdure.core.limits import CLAIM_BATCH, DEATHS_MAX, DRAIN_GRACE, EFFECT_GRACE, LEASE_DEFAULT, LOG_FLUSH, POLL, SWEEP_BATCH, TICK
from perdure.core.run import Run
from perdure.core.runtime import Runtime
from perdure.engine import _settle
from perdure.engine._execution import AbortReason, Execution
from perdure.engine._jobtype import Job, JobType
from perdure.engine._journal import LeaseLost, Write
from perdure.engine._lease import LeaseKeeper, ours_until
from perdure.events import Hub
from perdure.stores import Hint, Store

logger = logging.getLogger("perdure")

TOOL_GRACE = timedelta(seconds=1)
"""How long plain tools may go on after a cancel or a time-out, before they are cancelled."""
UNWIND_PATIENCE = timedelta(seconds=2)
"""How long a cancelled execution may take to unwind; one that swallows cancellation is left behind, fenced."""
STORE_RETRY_MAX = timedelta(seconds=30)
"""The longest pause between two attempts to reach a store that is away."""


@dataclass(frozen=True)
class Env:
    """What every part of a worker needs."""

    store: Store
    runtime: Runtime
    hub: Hub
    types: Mapping[str, JobType]
    engine: Any
    report: Callable[[BaseException], Awaitable[None]]
    lease: timedelta = LEASE_DEFAULT
    deaths_max: int = DEATHS_MAX
    effect_grace: timedelta = EFFECT_GRACE
    poll: timedelta = POLL
    tick: timedelta = TICK
    on_swept: Callable[[Swept], Awaitable[None]] | None = None
    on_ended: Callable[[Run], None] | None = None
    extra_ticks: list[Callable[[], Awaitable[None]]] = field(default_factory=list[Callable[[], Awaitable[None]]])


class Worker:
    """Executes runs in this process."""

    def __init__(self, env: Env, *, size: int, name: str | None = None) -> None:
        self._env, self._size = env, size
        self.name = name or f"{env.runtime.host()}/{env.runtime.new_id()[-12:]}"
        self._keeper = LeaseKeeper(env.store, env.runtime, env.lease, env.report)
        self._active: dict[str, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._wake = asyncio.Event()
        self._draining = False
        self._drain_until: float | None = None
        self._outbox: list[Delta | Reset] = []
        self._posting: asyncio.Task[None] | None = None
        self._unhint: Callable[[], None] | None = None

    # ── life ───────────────────────────────────────────────────────────────────────────────────────────────
    def start(self, *, claim: bool = True, tick: bool = True) -> None:
        """Begin to claim and to tick. On the loop."""
        self._unhint = self._env.store.on_hint(self._hinted)
        self._keeper.start()
        if claim and self._size:
            self._loops.append(self._env.runtime.spawn(self._claim_forever(), name="perdure-claims"))
        if tick:
            self._loops.append(self._env.runtime.spawn(self._tick_forever(), name="perdure-tick"))

    async def drain(self, grace: timedelta = DRAIN_GRACE) -> None:
        """Claim nothing more, let steps finish for up to `grace`, hand every run back. Safe to call twice."""
        self._draining = True
        until = self._env.runtime.monotonic() + grace.total_seconds()
        self._drain_until = until if self._drain_until is None else min(until, self._drain_until)
        self._wake.set()
        for execution in list(self._active.values()):
            execution.abort("drain")
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self, grace: timedelta = DRAIN_GRACE) -> None:
        """Drain, then end every loop and thread."""
        try:
            await self.drain(grace)
        finally:
            # Also when whoever leaves is cancelled: a loop left behind would go on against a closed store.
            for loop in self._loops:
                loop.cancel()
            if self._unhint is not None:
                self._unhint()
            self._keeper.stop()
        if self._loops:
            await asyncio.wait(self._loops)

    @property
    def executions(self) -> Mapping[str, Execution]:
        """What runs here now, by run id."""
        return self._active

    @property
    def idle(self) -> bool:
        return not self._active

    def cancel_here(self, run_id: str) -> None:
        """A cancel of a run that executes here takes effect now, not at the next renewal."""
        execution = self._active.get(run_id)
        if execution is not None:
            execution.abort("cancel")

    def look(self) -> None:
        """Look for work now. On the loop."""
        self._wake.set()

    def _hinted(self, hint: Hint) -> None:
        if hint.kind == "work":
            self._wake.set()

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────
    async def _claim_forever(self) -> None:
        away = 0
        while not self._draining:
            self._wake.clear()
            try:
                took = await self.claim_once()
                away = 0
            except StoreError as error:
                away += 1
                await self._env.report(error)
                await self._env.runtime.sleep(min(0.1 * 2**away, STORE_RETRY_MAX.total_seconds()))
                continue
            except Exception as error:
                away += 1
                await self._env.report(error)
                await self._env.runtime.sleep(min(0.1 * 2**away, STORE_RETRY_MAX.total_seconds()))
                continue
            if not took:
                await self._nap(self._env.poll.total_seconds())

    async def claim_once(self, run_id: str | None = None) -> int:
        """Claim what fits, start it, and say how many."""
        free = self._size - len(self._active)
        if free <= 0 or self._draining or not self._env.types:
            return 0
        token = self._env.runtime.new_token()
        sent = self._env.runtime.monotonic()
        request = ClaimRequest(
            worker=self.name,
            host=self._env.runtime.host(),
            token=token,
            agents={name: each.limit for name, each in self._env.types.items()},
            lease=self._env.lease,
            limit=min(free, CLAIM_BATCH),
            format=FORMAT,
            run_id=run_id,
        )
        runs = await self._env.store.claim(request)
        for run in runs:
            self._begin(run, sent)
        return len(runs)

    async def _nap(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _begin(self, run: Run, sent: float) -> None:
        listening = self._env.hub.listening
        execution = Execution(
            run=run,
            store=self._env.store,
            runtime=self._env.runtime,
            hub=self._env.hub,
            engine=self._env.engine,
            ours_until=ours_until(sent, self._env.lease),
            lease_length=self._env.lease,
            claimed_at=sent,
            on_event=self._happened if listening else None,
            announce=self._announce,
        )
        # From here on the lease is renewed, whatever the set-up waits for.
        self._keeper.keep(execution)
        self._active[run.id] = execution
        if self._draining:
            execution.abort("drain")
        # The answer may have been so long on its way that the claim is somebody else's by now: then nothing starts here.
        execution.must_stop()
        task = self._env.runtime.spawn(self._execute(execution), name=f"execution {run.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _happened(self, event: Event) -> None:
        self._env.hub.happened(event)

    def _announce(self, item: Delta | Reset) -> None:
        """Deltas for the listeners of other processes: gathered, sent beside the work, lost if the store is slow."""
        self._outbox.append(item)
        if self._posting is None or self._posting.done():
            self._posting = self._env.runtime.spawn(self._post(), name="perdure-deltas")

    async def _post(self) -> None:
        while self._outbox:
            batch, self._outbox = self._outbox, []
            await self._env.store.send_deltas(batch)

    # ── one execution ──────────────────────────────────────────────────────────────────────────────────────
    async def _execute(self, execution: Execution) -> None:
        try:
            await self._supervise(execution)
        except LeaseLost as lost:
            await self._env.report(lost.error)
        except Exception as error:
            # The store could not be told how it ended: the lease runs out, and somebody takes the run over.
            await self._env.report(error)
        finally:
            execution.abort("ended")
            self._keeper.let_go(execution)
            self._active.pop(execution.run.id, None)
            self._wake.set()
            if self._env.on_ended is not None:
                self._env.on_ended(execution.run)

    async def _supervise(self, execution: Execution) -> None:
        run, runtime = execution.run, self._env.runtime
        kind = self._env.types[run.agent]
        job = kind.open(execution)
        work = runtime.spawn(job.run(), name=f"run {run.id}")
        beside = [runtime.spawn(self._flush_logs(execution), name="log flush"), *self._clocks(execution)]
        try:
            await self._until_over(execution, work)
            write = await self._outcome(execution, job, work)
        finally:
            for task in beside:
                task.cancel()
        try:
            await execution.journal.write(write)
        except Exception as error:
            # The store refuses what this execution wants to write, and would refuse it again: say so in the run, instead of dying of it over and over.
            await self._env.report(error)
            code, words = (error.code, error.message) if isinstance(error, StoreError) else ("internal", describe(error))
            await execution.journal.write(Write(ending=_settle.failed(code, f"The last write was refused: {words}")))

    def _clocks(self, execution: Execution) -> list[asyncio.Task[None]]:
        run = execution.run
        limits: list[tuple[float, AbortReason]] = []
        if run.budget.timeout is not None:
            limits.append((run.budget.timeout.total_seconds(), "timeout"))
        if run.deadline is not None and run.updated_at is not None:
            # The claim stamped `updated_at` by the store's clock: the only clock that may judge a deadline.
            limits.append((max(0.0, (run.deadline - run.updated_at).total_seconds()), "deadline"))
        return [self._env.runtime.spawn(self._abort_after(execution, seconds, reason), name=reason) for seconds, reason in limits]

    async def _abort_after(self, execution: Execution, seconds: float, reason: AbortReason) -> None:
        await self._env.runtime.sleep(seconds)
        execution.abort(reason)

    async def _until_over(self, execution: Execution, work: asyncio.Task[Write]) -> None:
        """Wait for the work to end by itself, or for its patience to run out after a stop signal."""
        stopped_at: float | None = None
        while not work.done():
            reason = execution.stop.reason
            patience: float | None = None
            if reason is not None:
                now = self._env.runtime.monotonic()
                stopped_at = now if stopped_at is None else stopped_at
                patience = self._patience(execution, reason, stopped_at) - now
                if patience <= 0:
                    break
            news = self._env.runtime.spawn(execution.stop.changed(), name="stop signal")
            try:
                await asyncio.wait({work, news}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=UNWIND_PATIENCE.total_seconds())
            # One that swallows cancellation is left behind. What it comes to in the end is nobody's business any more.
            work.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _patience(self, execution: Execution, reason: AbortReason, since: float) -> float:
        """Monotonic time until which the work may go on after it was told to stop."""
        if reason == "drain" and self._drain_until is not None:
            return self._drain_until
        in_tool = execution.activity is not None and execution.activity.what != "model"
        return since + TOOL_GRACE.total_seconds() if in_tool and reason in ("cancel", "timeout", "deadline", "step_timeout") else since

    async def _outcome(self, execution: Execution, job: Job, work: asyncio.Task[Write]) -> Write:
        """The write that ends the claim."""
        if work.done() and not work.cancelled():
            error = work.exception()
            if error is None:
                return work.result()
            if isinstance(error, LeaseLost):
                raise error
            if not isinstance(error, Suspend):
                return Write(ending=_settle.from_error(error))
        if work.done() and execution.stop.reason is None:
            # Nobody stopped it: handed back, it would end in the same way again and again.
            left = await job.wind_down(self._env.effect_grace)
            if left.ending is not None:
                return left  # what the run came to was known: only its deps were still being left
            return left + Write(
                ending=_settle.failed("internal", "The execution was cancelled from inside: by a tool, a hook or the model's client.")
            )
        reason = execution.stop.reason or "drain"
        grace = timedelta(0) if reason == "lease_lost" else self._env.effect_grace
        left = await job.wind_down(grace)
        if left.ending is not None:
            return left
        return left + Write(ending=self._ending(execution, execution.stop.reason or reason))

    def _ending(self, execution: Execution, reason: AbortReason) -> Ending:
        budget = execution.run.budget
        if reason == "cancel":
            return _settle.cancelled()
        if reason == "timeout":
            return _settle.failed("timeout", f"The execution took longer than timeout={budget.timeout}. Retry it to go on from its last step.")
        if reason == "step_timeout":
            what = f" Last activity: {execution.activity.what}." if execution.activity else ""
            return _settle.failed("timeout", f"A step took longer than step_timeout.{what} Retry it to go on from its last step.")
        if reason == "deadline":
            return _settle.failed("deadline", f"The run's deadline ({execution.run.deadline}) has passed.")
        # A lease that is over and that nobody took may still be handed back; if somebody took it, the store says `lost`.
        return Release("drain")

    async def _flush_logs(self, execution: Execution) -> None:
        """Log lines ride on the next commit, or on one of their own after a short while."""
        while True:
            await execution.log_came.wait()
            execution.log_came.clear()
            await self._env.runtime.sleep(LOG_FLUSH.total_seconds())
            if execution.journal.has_logs and not execution.journal.ended:
                try:
                    await execution.journal.write(Write())
                except LeaseLost:
                    return

    # ── tick ───────────────────────────────────────────────────────────────────────────────────────────────
    async def _tick_forever(self) -> None:
        away = 0
        while True:
            try:
                await self.tick_once()
                away = 0
            except Exception as error:
                away += 1
                await self._env.report(error)
            pause = self._env.tick.total_seconds() * (0.75 + self._env.runtime.random() / 2)
            await self._env.runtime.sleep(min(pause * 2**away, STORE_RETRY_MAX.total_seconds()))

    async def tick_once(self) -> Swept:
        """One bounded pass of maintenance: recover, expire, wake, then what else was asked for."""
        swept = await self._env.store.sweep(SweepRequest(limit=SWEEP_BATCH, deaths_max=self._env.deaths_max))
        if swept.count:
            self._wake.set()
            if self._env.on_swept is not None:
                await self._env.on_swept(swept)
        for each in self._env.extra_ticks:
            await each()
        return swept
