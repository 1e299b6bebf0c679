"""Promises, each one sentence and one class, watched from outside of the engine.

A checker believes nobody: it compares what was asked on the wire, what the store's rows were before and after, and what the outside world saw
(model calls, tool bodies, deeds). The row checks run right after every write, before anything else can happen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal, cast

from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolReturnPart

from perdure.core.budget import Usage
from perdure.core.checkpoint import Checkpoint
from perdure.core.commit import (
    Admitted,
    Cancelled,
    CancelRequest,
    ClaimRequest,
    Commit,
    Committed,
    Lease,
    NewRun,
    Outcome,
    Park,
    Release,
    Renewed,
    Resolve,
    Resolved,
    ResolveOutcome,
    Settle,
)  # fmt: skip
from perdure.core.effect import Effect, EffectState
from perdure.core.event import Event
from perdure.core.run import Run, RunStatus, moves_from, settled_as
from perdure.core.run import rest as rests_at
from perdure.core.step import Step
from perdure.core.wait import ResolutionKind, WaitPoint
from perdure.testing.simulation._history import refused
from perdure.testing.simulation._port import Call

UNSETTLED_EFFECTS: Final = frozenset({EffectState.STARTED})


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of one run at one moment. `checkpoint` is the highest of the current generation."""

    run: Run
    steps: tuple[Step, ...]
    events: tuple[Event, ...]
    waits: tuple[WaitPoint, ...]
    effects: tuple[Effect, ...]
    checkpoint: Checkpoint | None

    @property
    def open_waits(self) -> tuple[WaitPoint, ...]:
        """Open rows of the current generation."""
        return tuple(wait for wait in self.waits if wait.open and wait.generation == self.run.generation)

    @property
    def responses(self) -> int:
        """Model responses in the current history."""
        return 0 if self.checkpoint is None else sum(isinstance(each, ModelResponse) for each in history(self.checkpoint))


def history(checkpoint: Checkpoint) -> list[ModelMessage]:
    """The messages of a checkpoint."""
    return ModelMessagesTypeAdapter.validate_json(b"[" + b",".join(checkpoint.messages) + b"]")


@dataclass(slots=True)
class Change:
    """One write and what it did. `before` is None for a run that did not exist; `now` is the store's clock."""

    call: Call
    run_id: str
    before: Rows | None
    after: Rows
    now: datetime


SightKind = Literal["model", "body", "deed", "done", "shown"]


@dataclass(frozen=True, slots=True)
class Sight:
    """Something that the outside world saw: a model call (`messages`), a plain tool's body, an effect's body beginning (`deed`) and ending (`done`), an event shown to
    a listener. `epoch` is the newest that this replica was granted for the run."""

    kind: SightKind
    replica: str
    run_id: str
    at: float
    epoch: int
    name: str = ""
    key: str | None = None
    messages: tuple[ModelMessage, ...] = ()
    event: Event | None = None
    paused: bool = False


class Checker:
    """One promise. Subclasses yield what breaks it."""

    def written(self, change: Change) -> Iterator[str]:
        """After a write that may have touched this run."""
        return iter(())

    def seen(self, sight: Sight, rows: Rows | None, now: datetime) -> Iterator[str]:
        """When the outside world saw something of this run."""
        return iter(())

    def rested(self, rows: Sequence[Rows]) -> Iterator[str]:
        """Once all faults are over and everything has come to rest."""
        return iter(())

    @classmethod
    def promise(cls) -> str:
        return (cls.__doc__ or cls.__name__).strip()


# ── ownership ──────────────────────────────────────────────────────────────────────────────────────────────
class EpochsOnlyRise(Checker):
    """An epoch never goes down; only a claim raises it, by one."""

    def written(self, change: Change) -> Iterator[str]:
        if change.before is None:
            return
        before, after = change.before.run.epoch, change.after.run.epoch
        if after != before and (change.call.verb != "claim" or after != before + 1):
            yield f"{change.call.verb} moved the epoch from {before} to {after}"


class OneOwner(Checker):
    """Each epoch of a run is granted once, to one claim, and the row names the newest."""

    def __init__(self) -> None:
        self._granted: dict[str, dict[int, str]] = {}

    def written(self, change: Change) -> Iterator[str]:
        call = change.call
        granted = self._granted.setdefault(change.run_id, {})
        if call.verb == "claim" and call.applied:
            request = cast(ClaimRequest, call.request[0])
            for run in cast(Sequence[Run], call.answer):
                if run.id != change.run_id:
                    continue
                if granted.setdefault(run.epoch, request.token) != request.token:
                    yield f"epoch {run.epoch} was granted twice"
                if change.after.run.claim_token != request.token:
                    yield f"the claim was answered, and the row names another one (epoch {change.after.run.epoch})"
        if change.after.run.status is RunStatus.RUNNING and granted and change.after.run.epoch != max(granted):
            yield f"the row has epoch {change.after.run.epoch}; the newest claim was granted {max(granted)}"


class StaleWritesChangeNothing(Checker):
    """A write under a stale claim, or out of its order, changes nothing and is told so."""

    def written(self, change: Change) -> Iterator[str]:
        before, call = change.before, change.call
        if before is None or not call.applied:
            return
        if call.verb == "commit":
            yield from self._commit(change, before, cast(Commit, call.request[0]), cast(Committed, call.answer))
        elif call.verb == "renew":
            yield from self._renew(change, before)

    def _commit(self, change: Change, before: Rows, commit: Commit, answer: Committed) -> Iterator[str]:
        if commit.run_id != change.run_id:
            return
        run = before.run
        ours = (run.epoch, run.claim_token) == (commit.epoch, commit.token)
        current = ours and run.status is RunStatus.RUNNING and commit.commit_no == run.commit_no + 1
        if current and answer.outcome is not Outcome.APPLIED:
            yield f"a current commit (epoch {commit.epoch}, number {commit.commit_no}) was answered {answer.outcome!s}"
        if not current and change.after != before:
            yield f"a stale commit (epoch {commit.epoch}, number {commit.commit_no}) changed a run at epoch {run.epoch}, number {run.commit_no}, {run.status}"
        if not current and answer.outcome is Outcome.APPLIED:
            yield f"a stale commit (epoch {commit.epoch}, number {commit.commit_no}) was answered applied"
        if answer.outcome is Outcome.ALREADY and not (ours and commit.commit_no == run.commit_no):
            yield f"commit {commit.commit_no} of epoch {commit.epoch} was answered already applied; the row has {run.commit_no} of {run.epoch}"
        if answer.outcome is Outcome.LOST and ours and commit.commit_no == run.commit_no:
            yield f"commit {commit.commit_no} of epoch {commit.epoch} had been applied and was answered lost"

    def _renew(self, change: Change, before: Rows) -> Iterator[str]:
        run = before.run
        leases, answers = cast(Sequence[Lease], change.call.request[0]), cast(Sequence[Renewed], change.call.answer)
        mine = [lease for lease in leases if lease.run_id == change.run_id]
        held = [lease for lease in mine if run.status is RunStatus.RUNNING and (run.epoch, run.claim_token) == (lease.epoch, lease.token)]
        if mine and not held and change.after.run.lease_expires_at != run.lease_expires_at:
            yield f"a renewal under epoch {mine[0].epoch} moved the lease of epoch {run.epoch}"
        for answer in answers:
            if answer.run_id == change.run_id and answer.held != bool(held):
                yield f"a renewal under epoch {mine[0].epoch} was told held={answer.held}; the row has epoch {run.epoch}, {run.status}"


class LeasesRunOut(Checker):
    """A claim is taken from its owner only after its lease has run out by the store's clock."""

    def written(self, change: Change) -> Iterator[str]:
        before = change.before
        if (
            before is None
            or change.call.verb != "sweep"
            or before.run.status is not RunStatus.RUNNING
            or change.after.run.status is RunStatus.RUNNING
        ):
            return
        expires = before.run.lease_expires_at
        if expires is not None and expires > change.now:
            yield f"swept {(expires - change.now).total_seconds():.3f} s before its lease ran out"


class WorkStopsInTime(Checker):
    """Nobody starts a model call or a tool under a claim that somebody else may have taken, unless it was stopped itself and could not know."""

    def seen(self, sight: Sight, rows: Rows | None, now: datetime) -> Iterator[str]:
        if rows is None or sight.kind not in ("model", "body", "deed") or sight.paused:
            return
        if sight.epoch < rows.run.epoch:
            yield f"{sight.replica} began {sight.kind} {sight.name} under epoch {sight.epoch}; epoch {rows.run.epoch} exists"
        elif rows.run.lease_expires_at is not None and rows.run.lease_expires_at <= now:
            yield f"{sight.replica} began {sight.kind} {sight.name} {(now - rows.run.lease_expires_at).total_seconds():.3f} s after its lease ran out"


class KeysAreHeldOnce(Checker):
    """Runs that share a concurrency key run one at a time; those that share a thread do so until each has settled, its waits included."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str], str] = {}

    def written(self, change: Change) -> Iterator[str]:
        run = change.after.run
        for kind, name in (("concurrency key", run.concurrency_key), ("thread", run.thread)):
            if name is None:
                continue
            holder = self._running.get((kind, name))
            if run.status is RunStatus.RUNNING:
                if holder not in (None, run.id):
                    yield f"{kind} {name} is held by {holder} and by {run.id}"
                self._running[kind, name] = run.id
            elif holder == run.id and (run.status.final or (kind == "concurrency key" and run.status is RunStatus.WAITING)):
                del self._running[kind, name]


class ThreadsGoOn(Checker):
    """A turn begins where the newest completed turn of its thread has ended, as that stands when it is claimed."""

    def __init__(self) -> None:
        self._newest: dict[str, str] = {}
        self._begun: set[tuple[str, int]] = set()

    def written(self, change: Change) -> Iterator[str]:
        run, before = change.after.run, change.before
        if run.thread is None:
            return
        newest = self._newest.get(run.thread)
        if run.status is RunStatus.RUNNING and (run.id, run.generation) not in self._begun:
            self._begun.add((run.id, run.generation))
            if run.head != newest:
                yield f"a turn of thread {run.thread} begins after {run.head}; the newest completed one is {newest}"
        if run.status is RunStatus.COMPLETED and (before is None or before.run.status is not run.status) and run.head == newest:
            self._newest[run.thread] = run.id


# ── what is written stays ──────────────────────────────────────────────────────────────────────────────────
class NothingAcknowledgedIsLost(Checker):
    """What the store has acknowledged stays: steps, events, answers, checkpoints and outcomes are only ever added to."""

    def written(self, change: Change) -> Iterator[str]:
        before, after = change.before, change.after
        if before is not None:
            yield from self._only_added(before, after)
        call = change.call
        if call.verb == "commit" and call.applied and cast(Commit, call.request[0]).run_id == change.run_id and before is not None:
            commit, answer = cast(Commit, call.request[0]), cast(Committed, call.answer)
            if answer.outcome is Outcome.APPLIED:
                yield from self._all_of(commit, answer, before, after)
        if call.verb == "resolve" and call.applied:
            yield from self._resolution(change, cast(Resolve, call.request[0]), cast(Resolved, call.answer))

    def _only_added(self, before: Rows, after: Rows) -> Iterator[str]:
        if after.events[: len(before.events)] != before.events:
            yield "an event was changed or lost"
        if after.steps[: len(before.steps)] != before.steps:
            yield "a step was changed or lost"
        now = {wait.id: wait for wait in after.waits}
        yield from (f"wait row {wait.id} is gone" for wait in before.waits if wait.id not in now)
        if before.run.generation == after.run.generation and before.checkpoint is not None:
            if after.checkpoint is None or after.checkpoint.index < before.checkpoint.index:
                yield f"checkpoint {before.checkpoint.index} is gone"
            elif after.checkpoint.length < before.checkpoint.length and after.checkpoint.base == before.checkpoint.base:
                yield f"the history shrank from {before.checkpoint.length} to {after.checkpoint.length} messages"
        if before.run.status.final and after.run.status.final and (before.run.output, before.run.error) != (after.run.output, after.run.error):
            yield "the outcome of a settled run was changed"

    def _all_of(self, commit: Commit, answer: Committed, before: Rows, after: Rows) -> Iterator[str]:
        if after.run.commit_no != commit.commit_no:
            yield f"commit {commit.commit_no} was acknowledged and the row has {after.run.commit_no}"
        added = [step.row for step in after.steps[len(before.steps) :]]
        if [row for row in added if row in commit.steps] != list(commit.steps):
            yield f"{len(commit.steps)} steps were acknowledged, {len(added)} are stored"
        place = answer.first_event - 1
        told = [(event.type, event.data) for event in commit.events]
        if told and [(event.type, event.data) for event in after.events[place : place + len(told)]] != told:
            yield f"the acknowledged events {[kind for kind, _ in told]} are not stored from number {answer.first_event} on"
        written = commit.checkpoint
        if written is not None and (
            after.checkpoint is None
            or after.checkpoint.index != written.index
            or (written.append and after.checkpoint.messages[written.keep :] != written.append)
        ):
            yield f"checkpoint {written.index} was acknowledged and is not what is read"
        if commit.usage is not None and after.run.usage != commit.usage:
            yield "the acknowledged usage is not what is read"

    def _resolution(self, change: Change, request: Resolve, answer: Resolved) -> Iterator[str]:
        if answer.outcome is not ResolveOutcome.RESOLVED:
            return
        for wait in change.after.waits:
            if wait.id == request.wait_id and (wait.resolution is None or wait.resolution.decision != request.resolution.decision):
                yield f"the answer to {wait.id} was acknowledged and the row says {wait.resolution}"


class EventsAreGapFree(Checker):
    """The events of a run are numbered from 1, without gaps, in commit order."""

    def written(self, change: Change) -> Iterator[str]:
        numbers = [event.seq for event in change.after.events]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"numbers {numbers[-5:]} after {len(numbers)} events"
        if change.after.run.next_event != len(numbers) + 1:
            yield f"the next number is {change.after.run.next_event} after {len(numbers)} events"
        times = [event.at for event in change.after.events]
        if times != sorted(times):
            yield "an event is older than the one before it"


class StepsAreGapFree(Checker):
    """The steps of a run are numbered from 1, without gaps."""

    def written(self, change: Change) -> Iterator[str]:
        numbers = [step.seq for step in change.after.steps]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"numbers {numbers[-5:]} after {len(numbers)} steps"


class ShownAfterCommit(Checker):
    """An event is shown to nobody before it is stored."""

    def seen(self, sight: Sight, rows: Rows | None, now: datetime) -> Iterator[str]:
        if sight.kind != "shown" or sight.event is None:
            return
        stored = () if rows is None else rows.events
        event = sight.event
        if event.seq > len(stored) or stored[event.seq - 1].type != event.type:
            yield f"{event.type} number {event.seq} was shown; the store has {len(stored)} events"


class KeysStartOneRun(Checker):
    """A key starts one run, however often and wherever it is used."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], str] = {}

    def written(self, change: Change) -> Iterator[str]:
        call = change.call
        if call.verb != "admit" or not call.applied:
            return
        new, answer = cast(NewRun, call.request[0]), cast(Admitted, call.answer)
        if new.trigger.key is not None and self._runs.setdefault((new.agent, new.trigger.key), answer.run.id) != answer.run.id:
            yield f"key {new.trigger.key} started {self._runs[new.agent, new.trigger.key]} and {answer.run.id}"


# ── moves ──────────────────────────────────────────────────────────────────────────────────────────────────
class OnlyLegalMoves(Checker):
    """A run moves only by table R."""

    _ENDS: Final = {Park: "park", Release: "release", Settle: "settle"}

    def written(self, change: Change) -> Iterator[str]:
        before, after = None if change.before is None else change.before.run.status, change.after.run.status
        if before is after:
            return
        verbs = self._verbs(change)
        if not any(after in moves_from(before, cast(Any, verb)) for verb in verbs):
            yield f"{' or '.join(verbs)} moved the run from {before} to {after}"

    def _verbs(self, change: Change) -> list[str]:
        verb = change.call.verb
        if verb == "commit":
            commit = cast(Commit, change.call.request[0])
            if commit.run_id != change.run_id:
                return ["resolve", "admit"]  # a parent that is woken, a child that is born
            return [self._ENDS[type(commit.ending)]] if commit.ending is not None else ["commit"]
        # A sweep settles children whose parents it wakes; an answer may come as a signal or as a word on an effect; a cancel wakes the parent.
        return {"signal": ["resolve"], "settle_effect": ["resolve"], "sweep": ["sweep", "resolve"], "cancel": ["cancel", "resolve"]}.get(verb, [verb])


class RestIsOneRule(Checker):
    """A run that rests waits exactly while a row is open, and never with a cancel asked for."""

    def written(self, change: Change) -> Iterator[str]:
        run, waits = change.after.run, change.after.open_waits
        if run.status in (RunStatus.PENDING, RunStatus.INTERRUPTED, RunStatus.WAITING):
            if run.cancel_requested:
                yield f"{run.status} with a cancel asked for"
            if bool(waits) != (run.status is RunStatus.WAITING):
                yield f"{run.status} with {len(waits)} open wait rows"
        if run.status.final and (left := [wait.id for wait in waits if wait.kind != "effect"]):
            yield f"{run.status} with open wait rows {left}"
        commit = change.call.request[0] if change.call.verb == "commit" else None
        if (
            isinstance(commit, Commit)
            and change.call.applied
            and cast(Committed, change.call.answer).outcome is Outcome.APPLIED
            and commit.run_id == run.id
        ):
            expected = self._expected(commit, change)
            if expected is not None and run.status is not expected:
                yield f"{type(commit.ending).__name__} came to {run.status}, not {expected}"

    def _expected(self, commit: Commit, change: Change) -> RunStatus | None:
        assert change.before is not None
        cancelled = change.before.run.cancel_requested
        match commit.ending:
            case Settle(status=status):
                return settled_as(status, cancel_requested=cancelled)
            case Park():
                return rests_at(RunStatus.PENDING, cancel_requested=cancelled, open_waits=len(change.after.open_waits))
            case Release(reason=reason):
                target = RunStatus.INTERRUPTED if reason == "drain" else RunStatus.PENDING
                return rests_at(target, cancel_requested=cancelled, open_waits=len(change.after.open_waits))
            case None:
                return RunStatus.RUNNING


class OneSettlement(Checker):
    """Every entry into a final status is one settlement and one `run.settled` event that carries its number."""

    def written(self, change: Change) -> Iterator[str]:
        before, after = change.before, change.after
        entered = after.run.status.final and not (before is not None and before.run.status.final)
        grew = after.run.settlement - (before.run.settlement if before else 0)
        if grew != int(entered):
            yield f"the settlements grew by {grew} on the way to {after.run.status}"
        told = [event.data.get("settlement") for event in after.events if event.type == "run.settled"]
        if told != list(range(1, after.run.settlement + 1)):
            yield f"{after.run.settlement} settlements, events for {told}"


class CancelsAreHonoured(Checker):
    """A run whose cancel was accepted ends cancelled or completed, never failed, and never begins anew."""

    def __init__(self) -> None:
        self._accepted: dict[str, int] = {}

    def written(self, change: Change) -> Iterator[str]:
        call, run = change.call, change.after.run
        if (
            call.verb == "cancel"
            and call.applied
            and cast(CancelRequest, call.request[0]).run_id == run.id
            and cast(Cancelled, call.answer).outcome != "already"
        ):
            self._accepted[run.id] = run.settlement if run.status.final else run.settlement + 1
        if run.status is RunStatus.FAILED and self._accepted.get(run.id) == run.settlement:
            yield "the cancel was accepted and the run is failed"
        if call.verb == "claim" and change.before is not None and change.before.run.cancel_requested and change.before.run.epoch != run.epoch:
            yield "a run with a cancel asked for was claimed"


class WaitsResolveOnce(Checker):
    """A wait row is resolved once, and what it says never changes."""

    def __init__(self) -> None:
        self._won: dict[str, int] = {}

    def written(self, change: Change) -> Iterator[str]:
        now = {wait.id: wait for wait in change.after.waits}
        for wait in change.before.waits if change.before else ():
            if wait.resolution is not None and wait.id in now and now[wait.id].resolution != wait.resolution:
                yield f"row {wait.id} said {wait.resolution} and now says {now[wait.id].resolution}"
        call = change.call
        if call.verb == "resolve" and call.applied and cast(Resolved, call.answer).outcome is ResolveOutcome.RESOLVED:
            wait_id = cast(Resolve, call.request[0]).wait_id
            if self._won.setdefault(wait_id, call.number) != call.number:
                yield f"two answers to {wait_id} were both told that they won"


class ExpiryHolds(Checker):
    """At or after its end a row can only expire, and only then."""

    def written(self, change: Change) -> Iterator[str]:
        open_before = {wait.id: wait for wait in (change.before.waits if change.before else ()) if wait.open}
        for wait in change.after.waits:
            said = wait.resolution
            was = open_before.get(wait.id)
            if said is None or was is None or was.row.expires_at is None:
                continue
            due = was.row.expires_at <= change.now
            if said.kind in (ResolutionKind.ANSWER, ResolutionKind.EVENT) and due and was.kind != "effect":
                yield f"row {wait.id} took an answer {(change.now - was.row.expires_at).total_seconds():.3f} s after its end"
            if said.kind in (ResolutionKind.EXPIRED, ResolutionKind.TIMER) and not due:
                yield f"row {wait.id} expired {(was.row.expires_at - change.now).total_seconds():.3f} s before its end"


# ── steps ──────────────────────────────────────────────────────────────────────────────────────────────────
class SpendAddsUp(Checker):
    """What a run has spent is the sum of its model steps and of their failed tries: nothing twice, nothing forgotten."""

    def written(self, change: Change) -> Iterator[str]:
        rows = [step.row.usage for step in change.after.steps if step.kind == "llm"]
        tries = [event.data.get("usage") for event in change.after.events if event.type == "step.retried"]
        spent = sum((Usage.from_json(each) for each in [*rows, *tries] if each is not None), Usage())
        stored = change.after.run.usage
        if _spend(spent) != _spend(stored):
            yield f"steps and tries come to {_spend(spent)}, the run says {_spend(stored)}"


def _spend(usage: Usage) -> tuple[int, int, int, Decimal | None]:
    return usage.requests, usage.input_tokens, usage.output_tokens, usage.cost


class HistoriesStayValid(Checker):
    """A stored history is one that a strict provider accepts, at every moment; so is every history that is sent."""

    def written(self, change: Change) -> Iterator[str]:
        checkpoint = change.after.checkpoint
        if checkpoint is None or (change.before is not None and change.before.checkpoint == checkpoint):
            return
        yield from refused(history(checkpoint), to_send=False)

    def seen(self, sight: Sight, rows: Rows | None, now: datetime) -> Iterator[str]:
        if sight.kind == "model":
            yield from refused(sight.messages, to_send=True)


class StepsAreDoneOnce(Checker):
    """A completed step is never executed again: no model call whose response is stored, no tool whose result is stored."""

    def seen(self, sight: Sight, rows: Rows | None, now: datetime) -> Iterator[str]:
        if rows is None or sight.epoch < rows.run.epoch:
            return  # an old owner that does not know yet: WorkStopsInTime judges it
        if sight.kind == "model":
            asked = sum(isinstance(each, ModelResponse) for each in sight.messages)
            if asked < rows.responses:
                yield f"the model was asked for response {asked + 1}; {rows.responses} are stored"
        if sight.kind == "body" and sight.key is not None:
            done = [
                step for step in rows.steps if step.kind == "tool" and step.generation == rows.run.generation and step.row.tool_call_id == sight.key
            ]
            if done:
                yield f"tool {sight.name} ran again for call {sight.key}, which is answered"


class AnswersAreReal(Checker):
    """Every result in a stored history is one that was recorded for its call: nobody invents an answer for a call that was not run."""

    def written(self, change: Change) -> Iterator[str]:
        checkpoint = change.after.checkpoint
        if checkpoint is None or (change.before is not None and change.before.checkpoint == checkpoint):
            return
        recorded = {step.row.tool_call_id for step in change.after.steps if step.kind == "tool" and step.generation == checkpoint.generation}
        for message in history(checkpoint):
            for part in message.parts:
                if isinstance(part, ToolReturnPart) and part.tool_call_id not in recorded and not _is_output(part):
                    yield f"call {part.tool_call_id} of {part.tool_name} is answered with {str(part.content)[:60]!r}, and no step records that"


def _is_output(part: ToolReturnPart) -> bool:
    """Output tools have no step of their own: the run's output is theirs."""
    return part.tool_name.startswith("final_result")


# ── effects ────────────────────────────────────────────────────────────────────────────────────────────────
class EffectsHappenOnce(Checker):
    """An effect is performed at most once, unless the ledger said *unknown* and somebody (a person, verify, a declared retry) allowed it again."""

    def __init__(self) -> None:
        self._deeds: dict[str, int] = {}
        self._allowed: dict[str, int] = {}

    def written(self, change: Change) -> Iterator[str]:
        if change.before is None:
            return iter(())
        was = {effect.key: effect for effect in change.before.effects}
        for effect in change.after.effects:
            old = was.get(effect.key)
            # Started anew after it stood as not happened, or as unknown under a declaration that makes another try safe.
            if old is not None and effect.state is EffectState.STARTED and old.state is not EffectState.STARTED:
                permitted = old.state is EffectState.PLANNED or (old.state is EffectState.UNKNOWN and old.row.unknown in ("retry", "verify"))
                self._allowed[effect.key] = self._allowed.get(effect.key, 0) + int(permitted)
        return iter(())

    def seen(self, sight: Sight, rows: Rows | None, now: datetime) -> Iterator[str]:
        if sight.kind != "deed" or sight.key is None:
            return
        count = self._deeds[sight.key] = self._deeds.get(sight.key, 0) + 1
        if count > 1 + self._allowed.get(sight.key, 0):
            yield f"effect {sight.name} ({sight.key}) was performed {count} times, allowed {1 + self._allowed.get(sight.key, 0)}"


class StartedBeforeBody(Checker):
    """An effect's body runs only after its *started* was acknowledged, under the claim that wrote it."""

    def seen(self, sight: Sight, rows: Rows | None, now: datetime) -> Iterator[str]:
        if sight.kind != "deed" or rows is None or sight.paused:
            return
        row = next((effect for effect in rows.effects if effect.key == sight.key), None)
        if row is None or row.state is not EffectState.STARTED or row.epoch != sight.epoch:
            yield f"the body of {sight.name} ({sight.key}) runs; the ledger says {row.state if row else 'nothing'}" + (
                f" under epoch {row.epoch}" if row else ""
            )


class EffectsOneAtATime(Checker):
    """The effects of one run are performed one after the other: each is recorded before the next begins."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}

    def seen(self, sight: Sight, rows: Rows | None, now: datetime) -> Iterator[str]:
        if sight.kind != "deed" or rows is None:
            return
        others = [
            effect.key
            for effect in rows.effects
            if effect.state is EffectState.STARTED and effect.key != sight.key and effect.generation == rows.run.generation
        ]
        if others:
            yield f"{sight.key} begins while {others} are not recorded"


class NoEffectOutlivesItsClaim(Checker):
    """What ends a claim leaves no effect *started*."""

    def written(self, change: Change) -> Iterator[str]:
        if change.after.run.status is RunStatus.RUNNING:
            return
        started = [effect.key for effect in change.after.effects if effect.state in UNSETTLED_EFFECTS]
        if started:
            yield f"{change.after.run.status} with effects still started: {started}"


# ── the end ────────────────────────────────────────────────────────────────────────────────────────────────
class EverythingComesToRest(Checker):
    """Once the faults stop, every run settles."""

    def rested(self, rows: Sequence[Rows]) -> Iterator[str]:
        for each in rows:
            if not each.run.status.final:
                waits = [f"{wait.kind}:{wait.row.question}" for wait in each.open_waits]
                yield f"run {each.run.id} ({each.run.agent}) is still {each.run.status} (epoch {each.run.epoch}, waits {waits})"
