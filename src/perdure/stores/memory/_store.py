"""A store in plain Python dicts: for tests and notebooks, and the model that the SQL stores are compared with.

Same rules, same conformance suite, nothing durable. Values are copied in and out, so nobody shares a dict with the store. One lock makes each
call one transaction: what may refuse a write is asked before anything of it is written.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Self, cast

from perdure.core import answers, endings, facts, family, revive
from perdure.core.artifact import Artifact
from perdure.core.checkpoint import Checkpoint
from perdure.core.commit import (
    Admitted,
    Cancelled,
    CancelRequest,
    ClaimRequest,
    Commit,
    Committed,
    EffectFilter,
    Lease,
    Loaded,
    NewRun,
    Outcome,
    Pruned,
    PruneRequest,
    Renewed,
    Resolve,
    Resolved,
    ResolveOutcome,
    Retried,
    RetryRequest,
    RunFilter,
    SettleEffect,
    Signal,
    SweepRequest,
    Swept,
    WaitFilter,
)  # fmt: skip
from perdure.core.effect import Effect, EffectState
from perdure.core.errors import ArtifactNotFoundError, Conflict, EffectNotFoundError
from perdure.core.event import Delta, Event, Reset
from perdure.core.family import Reserve, Reserved
from perdure.core.limits import RECENT_STEPS, SIGNALS_MAX
from perdure.core.run import Run, RunStatus
from perdure.core.runtime import RealRuntime, Runtime
from perdure.core.step import Step
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint
from perdure.stores._copies import copied
from perdure.stores._protocol import Hint
from perdure.stores.memory import _claims as claims
from perdure.stores.memory import _sweeps as sweeps
from perdure.stores.memory._moves import Moves
from perdure.stores.memory._prune import prune


class MemoryStore:
    """Runs in this process's memory. What is stored lives as long as the object, through any number of `async with`.

    Args:
        runtime: Where the store's clock comes from; `offset` moves it further, for tests.
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        self._runtime = runtime or RealRuntime()
        self.offset = timedelta(0)
        self._lock = Lock()
        self._moves = Moves(self._now)
        self._instant: datetime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[Callable[[Hint], None]] = []

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._loop = None

    async def migrate(self) -> int:
        return 1

    def info(self) -> dict[str, Any]:
        messages = sum(len(message) for row in self._moves.rows.values() for stored in row.messages.values() for message in stored)
        return {"kind": "memory", "address": "memory:", "schema": 1, "durable": False, "bytes": messages}

    # ── admit ──────────────────────────────────────────────────────────────────────────────────────────────
    async def admit(self, new: NewRun) -> Admitted:
        with self._write():
            return self._moves.admit(copied(new))

    # ── claim and renew ────────────────────────────────────────────────────────────────────────────────────
    async def claim(self, request: ClaimRequest) -> Sequence[Run]:
        with self._write():
            return copied(claims.claim(self._moves, request))

    async def renew(self, leases: Sequence[Lease], lease: timedelta) -> Sequence[Renewed]:
        with self._write():
            return [self._renew(each, lease) for each in leases]

    def _renew(self, mine: Lease, lease: timedelta) -> Renewed:
        row = self._moves.rows.get(mine.run_id)
        if row is None:
            return Renewed.of_nobody(mine.run_id)
        held = row.run.status is RunStatus.RUNNING and row.run.epoch == mine.epoch and row.run.claim_token == mine.token
        if held:
            row.run = replace(row.run, lease_expires_at=self._moves.now() + lease, activity=copied(mine.activity))
        return Renewed(mine.run_id, held, row.run.epoch, row.run.status, row.run.cancel_requested)

    # ── commit ─────────────────────────────────────────────────────────────────────────────────────────────
    async def commit(self, commit: Commit) -> Committed:
        with self._write():
            row = self._moves.row(commit.run_id)
            mine = row.run.epoch == commit.epoch and row.run.claim_token == commit.token
            running = row.run.status is RunStatus.RUNNING
            if mine and running and commit.commit_no == row.run.commit_no + 1:
                return self._moves.apply(row, copied(commit))
            if mine and row.answer is not None and commit.commit_no == row.run.commit_no and (running or row.ended_by_commit):
                return replace(row.answer, outcome=Outcome.ALREADY, status=row.run.status, cancel_requested=row.run.cancel_requested)
            return Committed(Outcome.LOST, row.run.epoch, row.run.status, row.run.cancel_requested)

    async def reserve(self, ask: Reserve) -> Reserved:
        with self._write():
            return self._moves.reserve(self._moves.row(ask.run_id), ask)

    # ── wait rows ──────────────────────────────────────────────────────────────────────────────────────────
    async def resolve(self, request: Resolve) -> Resolved:
        with self._write():
            row, wait = self._moves.wait_row(request.wait_id)
            now = self._moves.now()
            effect = None if wait.row.effect_key is None else self._moves.effect(wait.row.effect_key)
            verdict = answers.judge(wait, copied(request), now=now, effect=effect, tokens=self._moves.tokens.get(wait.id, ()))
            self._moves.decide(row, wait, verdict, now)
            return Resolved(verdict.outcome, copied(row.waits[wait.id]), row.run.status, verdict.message)

    async def extend(self, wait_id: str, expires_at: datetime | None) -> Resolved:
        with self._write():
            row, wait = self._moves.wait_row(wait_id)
            now = self._moves.now()
            outcome, message = answers.extension(wait, expires_at, now)
            if outcome is ResolveOutcome.RESOLVED:
                row.waits[wait_id] = replace(wait, row=answers.moved_deadline(wait.row, expires_at))
                self._moves.tell(row, facts.extended(wait_id, expires_at))
                self._moves.touch(row)
            return Resolved(outcome, copied(row.waits[wait_id]), row.run.status, message)

    # ── cancel, retry, sweep ───────────────────────────────────────────────────────────────────────────────
    async def cancel(self, request: CancelRequest) -> Cancelled:
        with self._write():
            row = self._moves.row(request.run_id)
            children = tuple(
                each.run.id
                for each in self._moves.rows.values()
                if each.run.parent_run == request.run_id and not each.run.forked and not each.run.status.final
            )
            if row.run.status.final or request.settlement not in (None, row.run.settlement):
                return Cancelled("already", row.run.status, children)
            if row.run.status is not RunStatus.RUNNING:
                self._moves.finish(row, RunStatus.CANCELLED, self._moves.now(), why=request)
                return Cancelled("settled", row.run.status, children)
            if not row.run.cancel_requested:
                row.run = replace(row.run, cancel_requested=True, updated_at=self._moves.now())
                self._moves.tell(row, facts.cancel_requested(request))
                self._moves.touch(row)
            return Cancelled("cancelling", row.run.status, children)

    async def retry(self, request: RetryRequest) -> Retried:
        with self._write():
            row, now = self._moves.row(request.run_id), self._moves.now()
            run = row.run
            if revive.answered_already(run, request):
                return Retried(copied(run), "already")
            revive.refuse(run, request, now)
            row.run = revive.revived(run, request, now)
            self._moves.tell(row, facts.retried(row.run, request))
            self._moves.rest(row, RunStatus.PENDING, now)
            if request.budget is not None:
                self._moves.wake_family(self._moves.eldest(run.id), now, topped_up=run.id)
            return Retried(copied(row.run), "retried")

    async def sweep(self, request: SweepRequest) -> Swept:
        with self._write():
            return sweeps.sweep(self._moves, request)

    async def prune(self, request: PruneRequest) -> Pruned:
        with self._write():
            return prune(self._moves, request)

    # ── signals and effects ────────────────────────────────────────────────────────────────────────────────
    async def signal(self, signal: Signal) -> bool:
        with self._write():
            row, now = self._moves.row(signal.run_id), self._moves.now()
            if signal.id in row.signals:
                return False
            if row.run.status is RunStatus.COMPLETED:
                raise Conflict(f"Run {signal.run_id} is completed: it takes no signals.", run_id=signal.run_id, status="completed")
            if sum(taken != row.run.generation for _, taken in row.signals.values()) >= SIGNALS_MAX:
                raise Conflict(f"The inbox of run {signal.run_id} is full: it holds {SIGNALS_MAX} signals.", run_id=signal.run_id, limit=SIGNALS_MAX)
            signal = copied(signal)
            row.signals[signal.id] = (signal, 0)
            self._moves.tell(row, facts.signal_received(signal))
            self._moves.touch(row)
            takers = (w for w in row.open_waits() if w.kind == "event" and w.row.name == signal.name and not answers.due(w.row, now))
            wait = next(takers, None)
            if wait is not None:
                row.signals[signal.id] = (signal, row.run.generation)
                self._moves.close(row, wait, answers.signal_news(signal, now))
                self._moves.answered(row, now)
            return True

    async def settle_effect(self, request: SettleEffect) -> Effect:
        with self._write():
            effect, now = self._moves.effect(request.key), self._moves.now()
            if effect is None:
                raise EffectNotFoundError(request.key)
            row = self._moves.rows[effect.run_id]
            word = Resolution(ResolutionKind.ANSWER, request.decision, copied(request.result), request.reason, request.by, request.via, now)
            if effect.state is not EffectState.UNKNOWN and answers.answered_before(effect, word):
                return copied(effect)
            wait = next((wait for wait in row.waits.values() if wait.open and wait.row.effect_key == effect.key and endings.own_effect(wait)), None)
            refusal = answers.settling_refusal(effect, word, asked=wait is not None, final=row.run.status.final, now=now)
            if refusal is not None:
                raise Conflict(refusal, key=effect.key, run_id=effect.run_id, state=str(effect.state))
            self._moves.settle_effect(row, effect, word, now)
            if wait is not None:
                self._moves.close(row, wait, word)
            self._moves.answered(row, now)
            return copied(row.effects[effect.key])

    # ── notices ────────────────────────────────────────────────────────────────────────────────────────────
    async def claim_notices(self, *, limit: int, hold: timedelta) -> Sequence[WaitPoint]:
        with self._write():
            now = self._moves.now()
            held: list[WaitPoint] = []
            for wait in self._moves.all_open():
                if len(held) < limit and answers.notice_due(wait, now):
                    row = self._moves.rows[wait.run_id]
                    row.waits[wait.id] = replace(wait, notify_after=now + hold)
                    held.append(copied(row.waits[wait.id]))
            return held

    async def note_notice(
        self, wait_id: str, *, tries: int, accepted: bool, warning: bool, retry_in: timedelta | None, token_hash: str | None
    ) -> None:
        with self._write():
            row, wait = self._moves.wait_row(wait_id)
            if not wait.open:
                return
            if token_hash is not None:
                self._moves.tokens.setdefault(wait_id, set()).add(token_hash)
            first = (wait.warned_at if warning else wait.notified_at) is None
            row.waits[wait_id] = answers.noticed(wait, now=self._moves.now(), tries=tries, accepted=accepted, warning=warning, retry_in=retry_in)
            if accepted and first:
                self._moves.tell(row, facts.notified(wait_id, warning=warning))
                self._moves.touch(row)

    # ── reads ──────────────────────────────────────────────────────────────────────────────────────────────
    async def now(self) -> datetime:
        return self._moves.now()

    async def load(self, run_id: str) -> Loaded:
        with self._lock:
            row = self._moves.row(run_id)
            run = row.run
            checkpoint = self._moves.read_checkpoint(row, run.generation, None)
            at = 0 if checkpoint is None else checkpoint.index
            steps = tuple(step for step in row.steps if step.generation == run.generation and step.row.index == at)
            earlier = [effect for effect in row.effects.values() if effect.generation < run.generation]
            held = [effect for ancestor in self._moves.fork_ancestors(run) for effect in ancestor.effects.values()] + earlier
            calls = [step for step in row.steps if step.generation == run.generation and step.kind == "llm"]
            good = sum(step.row.error is None for step in calls)
            recent = tuple(calls[-RECENT_STEPS:])
            waits = tuple(row.current_waits())
            shares = family.shares(run.id, self._moves.family(self._moves.eldest(run_id))[0])
            return copied(
                Loaded(run, checkpoint, steps, tuple(row.current_effects()), tuple(held), waits, model_calls=good, recent=recent, shares=shares)
            )

    async def get(self, run_id: str) -> Run | None:
        with self._lock:
            row = self._moves.rows.get(run_id)
            return None if row is None else copied(row.run)

    async def find(self, agent: str, key: str) -> Run | None:
        with self._lock:
            row = self._moves.keyed(agent, key)
            return None if row is None else copied(row.run)

    async def runs(self, where: RunFilter) -> Sequence[Run]:
        with self._lock:
            found = [row.run for row in reversed(self._moves.rows.values()) if _fits(row.run, where)]
            return copied(found[: where.limit])

    async def counts(self, agent: str | None = None) -> dict[str, int]:
        with self._lock:
            runs = [row.run for row in self._moves.rows.values() if agent is None or row.run.agent == agent]
            return {str(status): sum(run.status is status for run in runs) for status in RunStatus}

    async def steps(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Step]:
        with self._lock:
            return copied([step for step in self._moves.row(run_id).steps if step.seq > after][:limit])

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Event]:
        with self._lock:
            return copied([event for event in self._moves.row(run_id).events if event.seq > after][:limit])

    async def checkpoint(self, run_id: str, *, generation: int | None = None, index: int | None = None) -> Checkpoint | None:
        with self._lock:
            row = self._moves.row(run_id)
            return self._moves.read_checkpoint(row, row.run.generation if generation is None else generation, index)

    async def waits(self, where: WaitFilter) -> Sequence[WaitPoint]:
        with self._lock:
            ids = list(self._moves.waits)
            start = 0 if where.after is None else ids.index(where.after) + 1
            rows = (self._moves.rows[self._moves.waits[wait_id]].waits[wait_id] for wait_id in ids[start:])
            found = [
                wait
                for wait in rows
                if where.run_id in (None, wait.run_id) and (not where.kind or wait.kind in where.kind) and where.open in (None, wait.open)
            ]
            return copied(found[: where.limit])

    async def wait(self, wait_id: str) -> WaitPoint | None:
        with self._lock:
            return None if wait_id not in self._moves.waits else copied(self._moves.wait_row(wait_id)[1])

    async def effects(self, where: EffectFilter) -> Sequence[Effect]:
        with self._lock:
            rows = (self._moves.rows[run_id].effects[key] for key, run_id in self._moves.effects.items())
            found = [
                each
                for each in rows
                if where.run_id in (None, each.run_id) and (not where.state or each.state in where.state) and where.claim in (None, each.row.claim)
            ]
            return copied(found[: where.limit])

    # ── artifacts ──────────────────────────────────────────────────────────────────────────────────────────
    async def put_artifact(self, data: bytes, *, media_type: str, filename: str | None = None) -> Artifact:
        with self._lock:
            artifact_id = hashlib.sha256(data).hexdigest()
            new = (Artifact(artifact_id, media_type, len(data), self._moves.now(), filename), bytes(data))
            return self._moves.artifacts.setdefault(artifact_id, new)[0]

    async def get_artifact(self, artifact_id: str) -> tuple[Artifact, bytes]:
        with self._lock:
            if artifact_id not in self._moves.artifacts:
                raise ArtifactNotFoundError(artifact_id)
            return self._moves.artifacts[artifact_id]

    # ── hints ──────────────────────────────────────────────────────────────────────────────────────────────
    def on_hint(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    async def send_deltas(self, deltas: Sequence[Delta | Reset]) -> None:
        """Nobody else can see this memory."""

    def on_delta(self, callback: Callable[[Delta | Reset], None]) -> Callable[[], None]:
        return lambda: None

    def _publish(self, hints: Iterable[Hint]) -> None:
        loop = self._loop
        if loop is None:
            return
        for hint in hints:
            for listener in list(self._listeners):
                try:
                    loop.call_soon_threadsafe(listener, hint)
                except RuntimeError:
                    return  # the loop that entered the store is closed: nobody listens any more

    @contextmanager
    def _write(self) -> Generator[None]:
        """One transaction: others wait, and hints are given only after the write."""
        with self._lock:
            self._instant = self._runtime.now() + self.offset
            try:
                yield
            finally:
                news = list(self._moves.news)
                self._moves.news.clear()
                self._instant = None
        self._publish(news)

    def _now(self) -> datetime:
        """The moment of this transaction: one for all that it writes."""
        return self._instant or self._runtime.now() + self.offset


def _fits(run: Run, where: RunFilter) -> bool:
    return (
        where.agent in (None, run.agent)
        and (not where.status or run.status in where.status)
        and where.thread in (None, run.thread)
        and (where.label is None or run.labels.get(where.label[0]) == where.label[1])
        and where.parent in (None, run.parent_run)
        and (where.since is None or cast(datetime, run.created_at) >= where.since)
        and (where.before is None or run.seq < where.before)
    )
