"""A store in plain Python dicts: for tests and notebooks, and the model that the SQL stores are compared with.

Same rules, same conformance suite, nothing durable. Values are copied in and out, so nobody shares a dict with the store. One lock makes each
call one transaction: what may refuse a write is asked before anything of it is written.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Self, cast

from perdure.core import answers, endings, facts
from perdure.core.answers import Verdict
from perdure.core.artifact import Artifact
from perdure.core.checkpoint import Checkpoint, CheckpointWrite
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
    Park,
    Release,
    Renewed,
    Resolve,
    Resolved,
    ResolveOutcome,
    Retried,
    RetryRequest,
    RunFilter,
    Settle,
    SettleEffect,
    Signal,
    SweepRequest,
    Swept,
    WaitFilter,
)  # fmt: skip
from perdure.core.effect import Effect, EffectState, EffectWrite
from perdure.core.errors import ArtifactNotFoundError, Conflict, EffectNotFoundError, RunNotFoundError, StoreError, WaitNotFoundError
from perdure.core.event import Delta, Event, EventWrite, Reset
from perdure.core.limits import KEY_RETENTION, RECENT_STEPS, SIGNALS_MAX
from perdure.core.run import Run, RunError, RunStatus, rest, settled_as
from perdure.core.runtime import RealRuntime, Runtime
from perdure.core.step import Step, StepWrite
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint, WaitWrite
from perdure.stores._copies import copied
from perdure.stores._protocol import Hint


@dataclass(slots=True)
class _Row:
    """A run and all that hangs on it.

    `holds` is the hold on its concurrency key and on its agent's slot: from the claim until it waits or settles. `holds_thread` lasts until it settles.
    `answer` is what the last commit of the present claim was told, for its repetition.
    """

    run: Run
    payload_hash: str
    key_retention: timedelta
    holds: bool = False
    holds_thread: bool = False
    head_generation: int = 0
    answer: Committed | None = None
    ended_by_commit: bool = False
    messages: dict[tuple[int, int], list[bytes]] = field(default_factory=dict[tuple[int, int], list[bytes]])
    checkpoints: dict[tuple[int, int], Checkpoint] = field(default_factory=dict[tuple[int, int], Checkpoint])
    steps: list[Step] = field(default_factory=list[Step])
    events: list[Event] = field(default_factory=list[Event])
    effects: dict[str, Effect] = field(default_factory=dict[str, Effect])
    waits: dict[str, WaitPoint] = field(default_factory=dict[str, WaitPoint])
    signals: dict[str, tuple[Signal, int]] = field(default_factory=dict[str, tuple[Signal, int]])
    """Each signal with the generation that took it; 0: nobody yet."""

    def current_waits(self) -> list[WaitPoint]:
        return [wait for wait in self.waits.values() if wait.generation == self.run.generation]

    def current_effects(self) -> list[Effect]:
        return [effect for effect in self.effects.values() if effect.generation == self.run.generation]

    def open_waits(self) -> list[WaitPoint]:
        return [wait for wait in self.current_waits() if wait.open]

    def inbox(self, name: str | None) -> Signal | None:
        """The oldest signal of this name that the present generation has not taken."""
        free = (signal for signal, taken in self.signals.values() if taken != self.run.generation and signal.name == name)
        return next(free, None)


class MemoryStore:
    """Runs in this process's memory. What is stored lives as long as the object, through any number of `async with`.

    Args:
        runtime: Where the store's clock comes from; `offset` moves it further, for tests.
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        self._runtime = runtime or RealRuntime()
        self.offset = timedelta(0)
        self._lock = Lock()
        self._instant: datetime | None = None
        self._rows: dict[str, _Row] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._heads: dict[str, str] = {}
        self._waits: dict[str, str] = {}
        self._open: dict[str, str] = {}
        self._effects: dict[str, str] = {}
        self._tokens: dict[str, set[str]] = {}
        self._artifacts: dict[str, tuple[Artifact, bytes]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[Callable[[Hint], None]] = []
        self._news: dict[Hint, None] = {}

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._loop = None

    async def migrate(self) -> int:
        return 1

    def info(self) -> dict[str, Any]:
        messages = sum(len(message) for row in self._rows.values() for stored in row.messages.values() for message in stored)
        return {"kind": "memory", "address": "memory:", "schema": 1, "durable": False, "bytes": messages}

    # ── admit ──────────────────────────────────────────────────────────────────────────────────────────────
    async def admit(self, new: NewRun) -> Admitted:
        with self._write():
            return self._admit(copied(new))

    def _admit(self, new: NewRun) -> Admitted:
        seen = self._seen(new)
        if seen is not None:
            return Admitted(copied(seen), False)
        self._check_new(new)
        now = self._now()
        run = Run(
            id=new.id, agent=new.agent, status=RunStatus.PENDING, trigger=new.trigger, seq=len(self._rows) + 1, budget=new.budget,
            parent_run=new.parent_run, parent_wait=new.parent_wait, priority=new.priority, labels=new.labels, created_at=now, updated_at=now,
            available_at=now + (new.delay or timedelta(0)), deadline=None if new.budget.deadline is None else now + new.budget.deadline,
        )  # fmt: skip
        row = self._rows[run.id] = _Row(run, new.payload_hash, KEY_RETENTION if new.key_retention is None else new.key_retention)
        if run.trigger.key is not None:
            self._keys[run.agent, run.trigger.key] = run.id
        if new.checkpoint is not None:
            self._save_checkpoint(row, new.checkpoint, now)
        self._tell(row, facts.created(row.run))
        self._touch(row)
        return Admitted(copied(row.run), True)

    def _seen(self, new: NewRun) -> Run | None:
        """The run that this id or key already made."""
        if new.id in self._rows:
            return self._rows[new.id].run
        row = None if new.trigger.key is None else self._keyed(new.agent, new.trigger.key)
        if row is None:
            return None
        if row.payload_hash != new.payload_hash:
            raise Conflict(
                f"Key {new.trigger.key!r} already started run {row.run.id} of {new.agent!r} with another payload. Use another key.", run_id=row.run.id
            )
        return row.run

    def _keyed(self, agent: str, key: str) -> _Row | None:
        """The run that this key stands for: while it is unsettled, and then for its retention."""
        run_id = self._keys.get((agent, key))
        if run_id is None:
            return None
        row = self._rows[run_id]
        settled = row.run.finished_at
        return None if settled is not None and settled + row.key_retention <= self._now() else row

    def _check_new(self, new: NewRun) -> None:
        """Raise what refuses an unseen run."""
        for attachment in new.trigger.attachments:
            if attachment.artifact_id not in self._artifacts:
                raise ArtifactNotFoundError(attachment.artifact_id)
        if new.parent_run is None:
            return
        ancestor = self._row(new.parent_run)
        while new.trigger.source != "fork" and new.trigger.thread is not None:
            if ancestor.holds_thread and ancestor.run.thread == new.trigger.thread:
                raise Conflict(f"Thread {new.trigger.thread!r} is held by the ancestor {ancestor.run.id} until it settles.", run_id=ancestor.run.id)
            if ancestor.run.parent_run is None or ancestor.run.forked:
                return
            ancestor = self._row(ancestor.run.parent_run)

    # ── claim and renew ────────────────────────────────────────────────────────────────────────────────────
    async def claim(self, request: ClaimRequest) -> Sequence[Run]:
        with self._write():
            again = [row.run for row in self._rows.values() if row.run.claim_token == request.token]
            if again:
                return copied([run for run in again if run.status is RunStatus.RUNNING])
            candidates = sorted(self._candidates(request), key=_claim_order)
            holders = [row for row in self._rows.values() if row.holds or row.holds_thread]
            taken: list[Run] = []
            for row in candidates:
                if len(taken) == request.limit:
                    break
                # Asked anew for each, because the one before may have taken the key, the thread or the last slot.
                if request.run_id in (None, row.run.id) and _first_of_key(row, candidates, holders, request):
                    taken.append(self._take(row, request))
                    holders.append(row)
            return copied(taken)

    def _candidates(self, request: ClaimRequest) -> list[_Row]:
        now = self._now()
        return [
            row
            for row in self._rows.values()
            if row.run.status.claimable
            and row.run.agent in request.agents
            and row.run.format <= request.format
            and cast(datetime, row.run.available_at) <= now
        ]

    def _take(self, row: _Row, request: ClaimRequest) -> Run:
        now, run = self._now(), row.run
        row.holds, row.holds_thread = True, run.thread is not None
        row.answer, row.ended_by_commit = None, False
        head = run.head
        if row.head_generation != run.generation and run.thread is not None:
            head = self._heads.get(run.thread)
        row.head_generation = run.generation
        row.run = replace(
            run, status=RunStatus.RUNNING, epoch=run.epoch + 1, executions=run.executions + 1, claim_token=request.token, lease_owner=request.worker,
            lease_expires_at=now + request.lease, activity=None, started_at=run.started_at or now, updated_at=now, head=head,
        )  # fmt: skip
        self._tell(row, facts.claimed(row.run))
        self._touch(row)
        return row.run

    async def renew(self, leases: Sequence[Lease], lease: timedelta) -> Sequence[Renewed]:
        with self._write():
            return [self._renew(each, lease) for each in leases]

    def _renew(self, mine: Lease, lease: timedelta) -> Renewed:
        row = self._row(mine.run_id)
        held = row.run.status is RunStatus.RUNNING and row.run.epoch == mine.epoch and row.run.claim_token == mine.token
        if held:
            row.run = replace(row.run, lease_expires_at=self._now() + lease, activity=copied(mine.activity))
        return Renewed(mine.run_id, held, row.run.epoch, row.run.status, row.run.cancel_requested)

    # ── commit ─────────────────────────────────────────────────────────────────────────────────────────────
    async def commit(self, commit: Commit) -> Committed:
        with self._write():
            row = self._row(commit.run_id)
            mine = row.run.epoch == commit.epoch and row.run.claim_token == commit.token
            running = row.run.status is RunStatus.RUNNING
            if mine and running and commit.commit_no == row.run.commit_no + 1:
                return self._apply(row, copied(commit))
            if mine and row.answer is not None and commit.commit_no == row.run.commit_no and (running or row.ended_by_commit):
                return replace(row.answer, outcome=Outcome.ALREADY, status=row.run.status, cancel_requested=row.run.cancel_requested)
            return Committed(Outcome.LOST, row.run.epoch, row.run.status, row.run.cancel_requested)

    def _apply(self, row: _Row, commit: Commit) -> Committed:
        self._check(commit)
        now, run = self._now(), row.run
        row.run = replace(
            run, commit_no=commit.commit_no, usage=commit.usage or run.usage, version=commit.version or run.version, updated_at=now,
            deaths=0 if commit.progress else run.deaths,
        )  # fmt: skip
        if commit.checkpoint is not None:
            self._save_checkpoint(row, commit.checkpoint, now)
        self._log(row, commit.steps)
        for effect in commit.effects:
            self._save_effect(row, effect, now)
        for child in commit.children:
            self._admit(replace(child, parent_run=run.id))
        first_event = row.run.next_event
        self._tell(row, *commit.events)
        opened, answered = self._open_all(row, commit.waits, now)
        if opened or answered:
            row.run = replace(row.run, deaths=0)
        for effect in commit.effects:
            self._wake_for_effect(row.effects[effect.key], now, own=True)
        self._end(row, commit.ending, now)
        row.ended_by_commit = commit.ending is not None
        row.answer = Committed(Outcome.APPLIED, run.epoch, row.run.status, row.run.cancel_requested, first_event, opened, answered)
        self._touch(row)
        return row.answer

    def _check(self, commit: Commit) -> None:
        """Raise what refuses the whole commit, before anything of it is written."""
        for write in commit.effects:
            before = self._effect(write.key)
            if before is not None and answers.settled_for_ever(before, write):
                raise Conflict(f"Effect {write.key} is {before.state} and stays so.", key=write.key, run_id=before.run_id, state=str(before.state))
            holder = self._holder(write)
            if write.state is EffectState.STARTED and holder is not None:
                raise Conflict(
                    f"Another call of {write.tool!r} is {holder.state} under this business key.",
                    claim=write.claim, key=holder.key, run_id=holder.run_id, state=str(holder.state),
                )  # fmt: skip
        for child in commit.children:
            if self._seen(child) is None:
                self._check_new(replace(child, parent_run=commit.run_id))

    def _holder(self, write: EffectWrite) -> Effect | None:
        """The oldest other effect that keeps the business key of this one from being started."""
        others = (self._effect(key) for key in self._effects if key != write.key)
        named = (each for each in others if each is not None and write.claim is not None and each.row.claim == write.claim)
        return next((each for each in named if answers.blocks_key(each)), None)

    def _save_checkpoint(self, row: _Row, write: CheckpointWrite, now: datetime) -> None:
        generation = row.run.generation
        stored = row.messages.setdefault((generation, write.base), [])
        shared = [
            each.length for at, each in row.checkpoints.items() if at[0] == generation and each.base == write.base and each.index != write.index
        ]
        if not max(shared, default=0) <= write.keep <= len(stored):
            raise StoreError(f"Checkpoint {write.index} of run {row.run.id} keeps {write.keep} of {len(stored)} messages, which others share.")
        stored[write.keep :] = write.append
        row.checkpoints[generation, write.index] = Checkpoint(
            run_id=row.run.id, generation=generation, index=write.index, base=write.base, length=len(stored), finish_reason=write.finish_reason,
            created_at=now, format=write.format, version=write.version, tools_hash=write.tools_hash,
        )  # fmt: skip
        row.run = replace(row.run, format=write.format)

    def _save_effect(self, row: _Row, write: EffectWrite, now: datetime) -> None:
        before = row.effects.get(write.key)
        run = row.run
        stored = Effect(run.id, run.generation, write) if before is None else replace(before, row=write)
        if write.state is EffectState.STARTED:
            stored = replace(stored, worker=run.lease_owner, epoch=run.epoch, started_at=now, settled_at=None, settled_by=None)
        if write.state in (EffectState.DONE, EffectState.FAILED):
            stored = replace(stored, settled_at=now)
        self._put_effect(row, stored)

    def _put_effect(self, row: _Row, effect: Effect) -> None:
        row.effects[effect.key] = effect
        self._effects[effect.key] = row.run.id

    # ── wait rows ──────────────────────────────────────────────────────────────────────────────────────────
    def _open_all(self, row: _Row, writes: Iterable[WaitWrite], now: datetime) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Open the rows whose question is not open already; answers which were opened and which had their answer waiting."""
        opened: list[str] = []
        answered: list[str] = []
        for write in writes:
            if any(wait.row.question == write.question for wait in row.open_waits()):
                continue
            self._waits[write.id] = row.run.id
            row.waits[write.id] = WaitPoint(row.run.id, row.run.generation, write, now)
            self._open[write.id] = row.run.id
            answer = self._look(row, write, now)
            if answer is None:
                opened.append(write.id)
                self._tell(row, facts.opened(write))
            else:
                answered.append(write.id)
                self._close(row, row.waits[write.id], answer)
        return tuple(opened), tuple(answered)

    def _look(self, row: _Row, write: WaitWrite, now: datetime) -> Resolution | None:
        """Nothing that comes before a row is lost: look for its answer first."""
        signal = row.inbox(write.name) if write.kind == "event" and write.name is not None else None
        effect = None if write.effect_key is None else self._effect(write.effect_key)
        answer = answers.answer_at_birth(write, row.run, now=now, signal=signal, child=self._named_child(write), effect=effect)
        if signal is not None and answer is not None and answer.kind is ResolutionKind.EVENT:
            row.signals[signal.id] = (signal, row.run.generation)
        return answer

    def _named_child(self, write: WaitWrite) -> Run | None:
        if write.child is not None and write.child in self._rows:
            return self._rows[write.child].run
        return next((row.run for row in self._rows.values() if row.run.parent_wait == write.id), None)

    def _close(self, row: _Row, wait: WaitPoint, resolution: Resolution) -> None:
        """Close one row: the row itself, its step, its event. The run is moved by whoever calls."""
        row.waits[wait.id] = replace(wait, resolution=resolution)
        del self._open[wait.id]
        self._log(row, [facts.wait_step(wait, resolution)])
        self._tell(row, facts.resolved(wait.row, resolution))
        if wait.kind == "budget":
            row.run = answers.topped_up(row.run, resolution)

    def _answered(self, row: _Row, now: datetime) -> None:
        """Wake a waiting run whose last open row was closed."""
        row.run = replace(row.run, updated_at=now)
        if row.run.status is RunStatus.WAITING and not row.open_waits():
            row.run = replace(row.run, status=RunStatus.PENDING)
        self._touch(row)

    async def resolve(self, request: Resolve) -> Resolved:
        with self._write():
            row, wait = self._wait(request.wait_id)
            now = self._now()
            effect = None if wait.row.effect_key is None else self._effect(wait.row.effect_key)
            verdict = answers.judge(wait, copied(request), now=now, effect=effect, tokens=self._tokens.get(wait.id, ()))
            self._decide(row, wait, verdict, now)
            return Resolved(verdict.outcome, copied(row.waits[wait.id]), row.run.status, verdict.message)

    def _decide(self, row: _Row, wait: WaitPoint, verdict: Verdict, now: datetime) -> None:
        if verdict.votes:
            wait = row.waits[wait.id] = replace(wait, votes=verdict.votes)
        if verdict.outcome is ResolveOutcome.VOTED:
            self._tell(row, facts.voted(wait))
            self._touch(row)
        if verdict.resolution is None:
            return
        if wait.kind == "effect":
            self._settle_effect(row, row.effects[cast(str, wait.row.effect_key)], verdict.resolution, now)
        self._close(row, wait, verdict.resolution)
        self._answered(row, now)

    async def extend(self, wait_id: str, expires_at: datetime | None) -> Resolved:
        with self._write():
            row, wait = self._wait(wait_id)
            now = self._now()
            outcome, message = _extension(wait, expires_at, now)
            if outcome is ResolveOutcome.RESOLVED:
                row.waits[wait_id] = replace(wait, row=answers.moved_deadline(wait.row, expires_at))
                self._tell(row, facts.extended(wait_id, expires_at))
                self._touch(row)
            return Resolved(outcome, copied(row.waits[wait_id]), row.run.status, message)

    # ── how a claim and a run end ──────────────────────────────────────────────────────────────────────────
    def _end(self, row: _Row, ending: Park | Release | Settle | None, now: datetime) -> None:
        match ending:
            case None:
                return
            case Park():
                self._rest(row, RunStatus.PENDING, now, reason="park")
            case Release(reason="drain"):
                self._rest(row, RunStatus.INTERRUPTED, now, reason="drain")
            case Release(delay=delay):
                row.run = replace(row.run, available_at=now + delay)
                self._rest(row, RunStatus.PENDING, now, reason="retry_after")
            case Settle():
                row.run = replace(row.run, output=ending.output, finish_reason=ending.finish_reason)
                status = settled_as(ending.status, cancel_requested=row.run.cancel_requested)
                self._finish(row, status, now, error=ending.error)

    def _rest(self, row: _Row, target: RunStatus, now: datetime, *, reason: str | None = None) -> None:
        """One rule for park, release, sweep and retry: where a run comes to rest."""
        self._end_claim(row, now)
        status = rest(target, cancel_requested=row.run.cancel_requested, open_waits=len(row.open_waits()))
        if status is RunStatus.CANCELLED:
            self._finish(row, status, now)
            return
        row.run = replace(row.run, status=status, lease_owner=None, lease_expires_at=None, updated_at=now)
        if status is RunStatus.WAITING:
            row.holds = False
            self._tell(row, facts.waiting(row.run, endings.open_ids(row.current_waits())))
        elif reason is not None:
            self._tell(row, facts.released(row.run, reason))
        self._touch(row)

    def _end_claim(self, row: _Row, now: datetime) -> None:
        """Whatever ends a claim leaves no effect `started`, and asks about each unknown one that a person must settle."""
        if row.run.status is not RunStatus.RUNNING:
            return
        for effect in endings.ended_effects(row.current_effects()):
            row.effects[effect.key] = effect
            self._tell(row, facts.effect_became(effect))
        self._open_all(row, endings.questions_due(row.current_effects(), row.current_waits(), row.run.epoch), now)

    def _finish(self, row: _Row, status: RunStatus, now: datetime, *, error: RunError | None = None, why: CancelRequest | None = None) -> None:
        """Every entry into a final status, whatever the verb."""
        self._end_claim(row, now)
        for wait in endings.closed_by_settling(row.waits.values()):
            self._close(row, wait, endings.cancelled(now))
        row.holds = row.holds_thread = False
        row.run = replace(
            row.run,
            status=status,
            error=error,
            settlement=row.run.settlement + 1,
            lease_owner=None,
            lease_expires_at=None,
            finished_at=now,
            updated_at=now,
        )
        if status is RunStatus.COMPLETED and row.run.thread is not None:
            self._move_head(row, row.run.thread)
        self._tell(row, facts.settled(row.run, reason=why and why.reason, by=why and why.by))
        self._touch(row)
        self._wake_for_child(row.run, now)

    def _move_head(self, row: _Row, thread: str) -> None:
        """A completed turn becomes its thread's head, unless another one did since this run read it."""
        if self._heads.get(thread) == row.run.head:
            self._heads[thread] = row.run.id
        else:
            self._tell(row, facts.thread_kept(row.run, self._heads.get(thread)))

    def _wake_for_child(self, child: Run, now: datetime) -> None:
        named = [wait for wait in self._all_open() if child.id == wait.row.child or child.parent_wait == wait.id]
        self._wake(named, answers.child_news(child, now), now)

    def _wake_for_effect(self, effect: Effect, now: datetime, *, own: bool) -> None:
        """Tell the rows that wait for this effect: other runs' under its business key, and its own run's unless that is what was answered."""
        rows = [wait for wait in self._all_open() if wait.kind == "effect" and wait.row.effect_key == effect.key]
        self._wake([wait for wait in rows if own or wait.run_id != effect.run_id], answers.effect_news(effect, now), now)

    def _wake(self, waits: Iterable[WaitPoint], news: Resolution | None, now: datetime) -> None:
        for wait in waits:
            if news is not None and not answers.due(wait.row, now):
                row = self._rows[wait.run_id]
                self._close(row, wait, news)
                self._answered(row, now)

    # ── cancel, retry, sweep ───────────────────────────────────────────────────────────────────────────────
    async def cancel(self, request: CancelRequest) -> Cancelled:
        with self._write():
            row = self._row(request.run_id)
            children = tuple(
                each.run.id
                for each in self._rows.values()
                if each.run.parent_run == request.run_id and not each.run.forked and not each.run.status.final
            )
            if row.run.status.final or request.settlement not in (None, row.run.settlement):
                return Cancelled("already", row.run.status, children)
            if row.run.status is not RunStatus.RUNNING:
                self._finish(row, RunStatus.CANCELLED, self._now(), why=request)
                return Cancelled("settled", row.run.status, children)
            if not row.run.cancel_requested:
                row.run = replace(row.run, cancel_requested=True, updated_at=self._now())
                self._tell(row, facts.cancel_requested(request))
                self._touch(row)
            return Cancelled("cancelling", row.run.status, children)

    async def retry(self, request: RetryRequest) -> Retried:
        with self._write():
            row, now = self._row(request.run_id), self._now()
            run = row.run
            stopped = run.status in (RunStatus.FAILED, RunStatus.CANCELLED)
            answered = request.settlement < run.settlement or (request.settlement == run.settlement and not run.status.final)
            if answered and run.settlement > 0:
                return Retried(copied(run), "already")
            if not stopped or request.settlement != run.settlement:
                raise Conflict(f"Run {run.id} is {run.status}: only a failed or cancelled run can be retried.", run_id=run.id, status=str(run.status))
            if request.deadline is None and run.deadline is not None and run.deadline <= now:
                raise Conflict(f"The deadline of run {run.id} has passed. Retry it with a new one.", run_id=run.id, status=str(run.status))
            row.run = replace(
                run, generation=run.generation + (request.mode == "full"), cancel_requested=False, deaths=0, available_at=now, finished_at=None,
                output=None, error=None, finish_reason=None, budget=request.budget or run.budget,
                deadline=run.deadline if request.deadline is None else now + request.deadline,
            )  # fmt: skip
            self._tell(row, facts.retried(row.run, request))
            self._rest(row, RunStatus.PENDING, now)
            return Retried(copied(row.run), "retried")

    async def sweep(self, request: SweepRequest) -> Swept:
        with self._write():
            now = self._now()
            recovered, poisoned = self._sweep_leases(request, now)
            expired, woken = self._sweep_waits(request, now)
            deadlines = self._sweep_deadlines(request, now)
            return Swept(recovered, poisoned, expired, woken, deadlines, self._next_due())

    def _sweep_leases(self, request: SweepRequest, now: datetime) -> tuple[tuple[str, ...], tuple[str, ...]]:
        ended = [row for row in self._rows.values() if row.run.status is RunStatus.RUNNING and cast(datetime, row.run.lease_expires_at) <= now]
        ended.sort(key=lambda row: (cast(datetime, row.run.lease_expires_at), row.run.seq))
        recovered: list[str] = []
        poisoned: list[str] = []
        for row in ended[: request.limit]:
            row.run = replace(row.run, deaths=row.run.deaths + 1)
            self._tell(row, facts.recovered(row.run))
            if row.run.deaths >= request.deaths_max and not row.run.cancel_requested:
                self._finish(row, RunStatus.FAILED, now, error=endings.poisoned(row.run))
                poisoned.append(row.run.id)
            else:
                self._rest(row, RunStatus.PENDING, now)
                recovered.append(row.run.id)
        return tuple(recovered), tuple(poisoned)

    def _sweep_waits(self, request: SweepRequest, now: datetime) -> tuple[tuple[str, ...], tuple[str, ...]]:
        ended = [wait for wait in self._all_open() if self._expires(wait) and answers.due(wait.row, now)]
        ended.sort(key=lambda wait: cast(datetime, wait.row.expires_at))
        expired: list[str] = []
        woken: list[str] = []
        for wait in ended[: request.limit]:
            if wait.id not in self._open:
                continue  # an earlier one of this pass has failed the run
            row = self._rows[wait.run_id]
            self._close(row, wait, answers.expiry(wait.row, now))
            if answers.fails_run(wait.row):
                self._finish(row, RunStatus.FAILED, now, error=endings.wait_expired(wait))
            else:
                self._answered(row, now)
            (woken if wait.kind == "timer" else expired).append(row.run.id)
        return tuple(expired), tuple(woken)

    def _expires(self, wait: WaitPoint) -> bool:
        """Whether time may close this open row now: one that fails its run stays open until the run waits."""
        return not answers.fails_run(wait.row) or self._rows[wait.run_id].run.status is RunStatus.WAITING

    def _sweep_deadlines(self, request: SweepRequest, now: datetime) -> tuple[str, ...]:
        late = [row for row in self._rows.values() if self._resting_deadline(row) is not None and cast(datetime, row.run.deadline) <= now]
        late.sort(key=lambda row: (cast(datetime, row.run.deadline), row.run.seq))
        for row in late[: request.limit]:
            self._finish(row, RunStatus.FAILED, now, error=endings.deadline_passed(row.run))
        return tuple(row.run.id for row in late[: request.limit])

    def _resting_deadline(self, row: _Row) -> datetime | None:
        """The deadline of a run that nobody runs; a running one is its owner's to stop."""
        return None if row.run.status.final or row.run.status is RunStatus.RUNNING else row.run.deadline

    def _next_due(self) -> datetime | None:
        """When there is something to sweep next; not after now: at once, this pass was full."""
        rows = self._rows.values()
        times = [row.run.lease_expires_at for row in rows] + [self._resting_deadline(row) for row in rows]
        times += [wait.row.expires_at for wait in self._all_open() if self._expires(wait) and wait.kind != "effect"]
        return min((at for at in times if at is not None), default=None)

    # ── signals and effects ────────────────────────────────────────────────────────────────────────────────
    async def signal(self, signal: Signal) -> bool:
        with self._write():
            row, now = self._row(signal.run_id), self._now()
            if signal.id in row.signals:
                return False
            if row.run.status is RunStatus.COMPLETED:
                raise Conflict(f"Run {signal.run_id} is completed: it takes no signals.", run_id=signal.run_id, status="completed")
            if sum(taken != row.run.generation for _, taken in row.signals.values()) >= SIGNALS_MAX:
                raise Conflict(f"The inbox of run {signal.run_id} is full: it holds {SIGNALS_MAX} signals.", run_id=signal.run_id, limit=SIGNALS_MAX)
            signal = copied(signal)
            row.signals[signal.id] = (signal, 0)
            self._tell(row, facts.signal_received(signal))
            self._touch(row)
            takers = (w for w in row.open_waits() if w.kind == "event" and w.row.name == signal.name and not answers.due(w.row, now))
            wait = next(takers, None)
            if wait is not None:
                row.signals[signal.id] = (signal, row.run.generation)
                self._close(row, wait, answers.signal_news(signal, now))
                self._answered(row, now)
            return True

    async def settle_effect(self, request: SettleEffect) -> Effect:
        with self._write():
            effect, now = self._effect(request.key), self._now()
            if effect is None:
                raise EffectNotFoundError(request.key)
            row = self._rows[effect.run_id]
            word = Resolution(ResolutionKind.ANSWER, request.decision, copied(request.result), request.reason, request.by, request.via, now)
            if effect.state is not EffectState.UNKNOWN and answers.answered_before(effect, word):
                return copied(effect)
            wait = next((wait for wait in row.waits.values() if wait.open and wait.row.effect_key == effect.key and endings.own_effect(wait)), None)
            refusal = answers.settling_refusal(effect, word, asked=wait is not None, final=row.run.status.final, now=now)
            if refusal is not None:
                raise Conflict(refusal, key=effect.key, run_id=effect.run_id, state=str(effect.state))
            self._settle_effect(row, effect, word, now)
            if wait is not None:
                self._close(row, wait, word)
            self._answered(row, now)
            return copied(row.effects[effect.key])

    def _settle_effect(self, row: _Row, effect: Effect, word: Resolution, now: datetime) -> None:
        row.effects[effect.key] = answers.effect_answered(effect, word, now)
        self._tell(row, facts.effect_became(row.effects[effect.key]))
        self._wake_for_effect(row.effects[effect.key], now, own=False)

    # ── notices ────────────────────────────────────────────────────────────────────────────────────────────
    async def claim_notices(self, *, limit: int, hold: timedelta) -> Sequence[WaitPoint]:
        with self._write():
            now = self._now()
            held: list[WaitPoint] = []
            for wait in self._all_open():
                if len(held) < limit and answers.notice_due(wait, now):
                    row = self._rows[wait.run_id]
                    row.waits[wait.id] = replace(wait, notify_after=now + hold)
                    held.append(copied(row.waits[wait.id]))
            return held

    async def note_notice(
        self, wait_id: str, *, tries: int, accepted: bool, warning: bool, retry_in: timedelta | None, token_hash: str | None
    ) -> None:
        with self._write():
            row, wait = self._wait(wait_id)
            if not wait.open:
                return
            if token_hash is not None:
                self._tokens.setdefault(wait_id, set()).add(token_hash)
            first = (wait.warned_at if warning else wait.notified_at) is None
            row.waits[wait_id] = answers.noticed(wait, now=self._now(), tries=tries, accepted=accepted, warning=warning, retry_in=retry_in)
            if accepted and first:
                self._tell(row, facts.notified(wait_id, warning=warning))
                self._touch(row)

    # ── reads ──────────────────────────────────────────────────────────────────────────────────────────────
    async def now(self) -> datetime:
        return self._now()

    async def load(self, run_id: str) -> Loaded:
        with self._lock:
            row = self._row(run_id)
            run = row.run
            checkpoint = self._checkpoint(row, run.generation, None)
            at = 0 if checkpoint is None else checkpoint.index
            steps = tuple(step for step in row.steps if step.generation == run.generation and step.row.index == at)
            earlier = [effect for effect in row.effects.values() if effect.generation < run.generation]
            held = [effect for ancestor in self._fork_ancestors(run) for effect in ancestor.effects.values()] + earlier
            calls = [step for step in row.steps if step.generation == run.generation and step.kind == "llm"]
            good = sum(step.row.error is None for step in calls)
            recent = tuple(calls[-RECENT_STEPS:])
            waits = tuple(row.current_waits())
            return copied(Loaded(run, checkpoint, steps, tuple(row.current_effects()), tuple(held), waits, model_calls=good, recent=recent))

    def _fork_ancestors(self, run: Run) -> list[_Row]:
        """The runs that this one goes back to by forks, oldest first."""
        if not run.forked or run.parent_run not in self._rows:
            return []
        parent = self._rows[run.parent_run]
        return [*self._fork_ancestors(parent.run), parent]

    async def get(self, run_id: str) -> Run | None:
        with self._lock:
            row = self._rows.get(run_id)
            return None if row is None else copied(row.run)

    async def find(self, agent: str, key: str) -> Run | None:
        with self._lock:
            row = self._keyed(agent, key)
            return None if row is None else copied(row.run)

    async def runs(self, where: RunFilter) -> Sequence[Run]:
        with self._lock:
            found = [row.run for row in reversed(self._rows.values()) if _fits(row.run, where)]
            return copied(found[: where.limit])

    async def counts(self, agent: str | None = None) -> dict[str, int]:
        with self._lock:
            runs = [row.run for row in self._rows.values() if agent is None or row.run.agent == agent]
            return {str(status): sum(run.status is status for run in runs) for status in RunStatus}

    async def steps(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Step]:
        with self._lock:
            return copied([step for step in self._row(run_id).steps if step.seq > after][:limit])

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Event]:
        with self._lock:
            return copied([event for event in self._row(run_id).events if event.seq > after][:limit])

    async def checkpoint(self, run_id: str, *, generation: int | None = None, index: int | None = None) -> Checkpoint | None:
        with self._lock:
            row = self._row(run_id)
            return self._checkpoint(row, row.run.generation if generation is None else generation, index)

    def _checkpoint(self, row: _Row, generation: int, index: int | None) -> Checkpoint | None:
        stored = [each for (of, at), each in row.checkpoints.items() if of == generation and index in (None, at)]
        if not stored:
            return None
        last = max(stored, key=lambda each: each.index)
        return replace(last, messages=tuple(row.messages[generation, last.base][: last.length]))

    async def waits(self, where: WaitFilter) -> Sequence[WaitPoint]:
        with self._lock:
            ids = list(self._waits)
            start = 0 if where.after is None else ids.index(where.after) + 1
            rows = (self._rows[self._waits[wait_id]].waits[wait_id] for wait_id in ids[start:])
            found = [
                wait
                for wait in rows
                if where.run_id in (None, wait.run_id) and (not where.kind or wait.kind in where.kind) and where.open in (None, wait.open)
            ]
            return copied(found[: where.limit])

    async def wait(self, wait_id: str) -> WaitPoint | None:
        with self._lock:
            return None if wait_id not in self._waits else copied(self._wait(wait_id)[1])

    async def effects(self, where: EffectFilter) -> Sequence[Effect]:
        with self._lock:
            rows = (self._rows[run_id].effects[key] for key, run_id in self._effects.items())
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
            new = (Artifact(artifact_id, media_type, len(data), self._now(), filename), bytes(data))
            return self._artifacts.setdefault(artifact_id, new)[0]

    async def get_artifact(self, artifact_id: str) -> tuple[Artifact, bytes]:
        with self._lock:
            if artifact_id not in self._artifacts:
                raise ArtifactNotFoundError(artifact_id)
            return self._artifacts[artifact_id]

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
                news = list(self._news)
                self._news.clear()
                self._instant = None
        self._publish(news)

    # ── small parts ────────────────────────────────────────────────────────────────────────────────────────
    def _now(self) -> datetime:
        """The moment of this transaction: one for all that it writes."""
        return self._instant or self._runtime.now() + self.offset

    def _row(self, run_id: str) -> _Row:
        row = self._rows.get(run_id)
        if row is None:
            raise RunNotFoundError(run_id)
        return row

    def _wait(self, wait_id: str) -> tuple[_Row, WaitPoint]:
        if wait_id not in self._waits:
            raise WaitNotFoundError(wait_id)
        row = self._rows[self._waits[wait_id]]
        return row, row.waits[wait_id]

    def _all_open(self) -> list[WaitPoint]:
        """Every open row, oldest first."""
        return [self._rows[run_id].waits[wait_id] for wait_id, run_id in self._open.items()]

    def _effect(self, key: str) -> Effect | None:
        return None if key not in self._effects else self._rows[self._effects[key]].effects[key]

    def _tell(self, row: _Row, *events: EventWrite) -> None:
        """Number events from the run row's counter."""
        now, first = self._now(), row.run.next_event
        row.events += [Event(row.run.id, first + at, each.type, each.data, now) for at, each in enumerate(events)]
        row.run = replace(row.run, next_event=first + len(events))

    def _log(self, row: _Row, steps: Sequence[StepWrite]) -> None:
        """Number steps from the run row's counter."""
        first = row.run.next_step
        row.steps += [Step(row.run.id, row.run.generation, first + at, each) for at, each in enumerate(steps)]
        row.run = replace(row.run, next_step=first + len(steps))

    def _touch(self, row: _Row) -> None:
        """Note what to hint at once the write is done. A run that rests may leave its key to others."""
        self._news[Hint("run", row.run.id)] = None
        if row.run.status is not RunStatus.RUNNING:
            self._news[Hint("work")] = None


def _claim_order(row: _Row) -> tuple[bool, int, bool, int]:
    """Interrupted ones first, then by priority, begun before new, then in order of admission."""
    run = row.run
    return run.status is not RunStatus.INTERRUPTED, -run.priority, run.executions == 0, run.seq


def _first_of_key(row: _Row, candidates: list[_Row], holders: list[_Row], request: ClaimRequest) -> bool:
    """Whether this run may be claimed now: all is free for it, and nobody of its concurrency key who could go comes before it."""
    key = row.run.concurrency_key
    rivals = [row] if key is None else [each for each in candidates if each.run.concurrency_key == key]
    able = [each for each in rivals if _free(each, holders, request)]
    return bool(able) and min(able, key=_key_order) is row


def _free(row: _Row, holders: list[_Row], request: ClaimRequest) -> bool:
    """Whether the key, the thread and a slot of the agent are free for this run."""
    run, others = row.run, [each for each in holders if each is not row]
    if run.concurrency_key is not None and any(each.holds and each.run.concurrency_key == run.concurrency_key for each in others):
        return False
    if run.thread is not None and any(each.holds_thread and each.run.thread == run.thread for each in others):
        return False
    limit = request.agents[run.agent]
    return limit is None or sum(each.holds and each.run.agent == run.agent for each in others) < limit


def _key_order(row: _Row) -> tuple[bool, int]:
    """Within one concurrency key: begun before new, then in order of admission, whatever the priority."""
    return row.run.executions == 0, row.run.seq


def _extension(wait: WaitPoint, expires_at: datetime | None, now: datetime) -> tuple[ResolveOutcome, str | None]:
    """Whether an open row's deadline may move."""
    if wait.resolution is not None:
        gone = wait.resolution.kind is ResolutionKind.EXPIRED
        return ResolveOutcome.EXPIRED if gone else ResolveOutcome.CONFLICT, "It is closed already."
    if answers.due(wait.row, now):
        return ResolveOutcome.EXPIRED, "The deadline has passed; only before that it could be moved."
    if wait.row.expires_at == expires_at:
        return ResolveOutcome.ALREADY, None
    if expires_at is not None and expires_at <= now:
        return ResolveOutcome.REFUSED, "The new deadline has passed already."
    return ResolveOutcome.RESOLVED, None


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
