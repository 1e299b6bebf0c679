"""The moves of a run, as plainly as they can be written (tables R, C, E and W of docs/concepts/protocol.md).

What may refuse a write is asked before anything of it is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from perdure.core import answers, endings, facts, family
from perdure.core.answers import Verdict
from perdure.core.checkpoint import Checkpoint, CheckpointWrite
from perdure.core.commit import Admitted, CancelRequest, Commit, Committed, NewRun, Outcome, Park, Release, ResolveOutcome, Settle
from perdure.core.effect import Effect, EffectState, EffectWrite
from perdure.core.errors import ArtifactNotFoundError, Conflict, StoreError
from perdure.core.limits import KEY_RETENTION
from perdure.core.run import Run, RunError, RunStatus, rest, settled_as
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint, WaitWrite
from perdure.stores._copies import copied
from perdure.stores.memory._tables import Row, Tables


class Moves(Tables):
    """What happens to runs."""

    def admit(self, new: NewRun) -> Admitted:
        seen = self._seen(new)
        if seen is not None:
            return Admitted(copied(seen), False)
        self._check_new(new)
        now = self.now()
        self.admitted += 1
        run = Run(
            id=new.id, agent=new.agent, status=RunStatus.PENDING, trigger=new.trigger, seq=self.admitted, budget=new.budget,
            parent_run=new.parent_run, parent_wait=new.parent_wait, priority=new.priority, labels=new.labels, created_at=now, updated_at=now,
            available_at=now + (new.delay or timedelta(0)), deadline=None if new.budget.deadline is None else now + new.budget.deadline,
        )  # fmt: skip
        row = self.rows[run.id] = Row(run, new.payload_hash, KEY_RETENTION if new.key_retention is None else new.key_retention)
        if run.trigger.key is not None:
            self.keys[run.agent, run.trigger.key] = run.id
        if new.checkpoint is not None:
            self._save_checkpoint(row, new.checkpoint, now)
        self.tell(row, facts.created(row.run))
        self.touch(row)
        return Admitted(copied(row.run), True)

    def _seen(self, new: NewRun) -> Run | None:
        """The run that this id or key already made."""
        if new.id in self.rows:
            return self.rows[new.id].run
        row = None if new.trigger.key is None else self.keyed(new.agent, new.trigger.key)
        if row is None:
            return None
        if row.payload_hash != new.payload_hash:
            raise Conflict(
                f"Key {new.trigger.key!r} already started run {row.run.id} of {new.agent!r} with another payload. Use another key.", run_id=row.run.id
            )
        return row.run

    def _check_new(self, new: NewRun) -> None:
        """Raise what refuses an unseen run."""
        for attachment in new.trigger.attachments:
            if attachment.artifact_id not in self.artifacts:
                raise ArtifactNotFoundError(attachment.artifact_id)
        if new.parent_run is None:
            return
        ancestor = self.row(new.parent_run)
        while new.trigger.source != "fork" and new.trigger.thread is not None:
            if ancestor.holds_thread and ancestor.run.thread == new.trigger.thread:
                raise Conflict(f"Thread {new.trigger.thread!r} is held by the ancestor {ancestor.run.id} until it settles.", run_id=ancestor.run.id)
            if ancestor.run.parent_run is None or ancestor.run.forked:
                return
            ancestor = self.row(ancestor.run.parent_run)

    def apply(self, row: Row, commit: Commit) -> Committed:
        self._check(row, commit)
        now, run = self.now(), row.run
        row.run = replace(
            run, commit_no=commit.commit_no, usage=commit.usage or run.usage, version=commit.version or run.version, updated_at=now,
            deaths=0 if commit.progress else run.deaths,
        )  # fmt: skip
        if commit.checkpoint is not None:
            self._save_checkpoint(row, commit.checkpoint, now)
        self.log(row, commit.steps)
        for effect in commit.effects:
            self._save_effect(row, effect, now)
        for child in commit.children:
            self.admit(replace(child, parent_run=run.id))
        first_event = row.run.next_event
        self.tell(row, *commit.events)
        opened, answered = self._open_all(row, commit.waits, now)
        if opened or answered:
            row.run = replace(row.run, deaths=0)
        for effect in commit.effects:
            self._wake_for_effect(row.effects[effect.key], now, own=True)
        if commit.reservation is not None:
            self._end_reservation(row, commit.reservation, now)
        self._end(row, commit.ending, now)
        row.ended_by_commit = commit.ending is not None
        row.answer = Committed(Outcome.APPLIED, run.epoch, row.run.status, row.run.cancel_requested, first_event, opened, answered)
        self.touch(row, moved=row.run.status is not run.status)
        return row.answer

    def _check(self, row: Row, commit: Commit) -> None:
        """Raise what refuses the whole commit, before anything of it is written."""
        if commit.checkpoint is not None:
            self._check_checkpoint(row, commit.checkpoint)
        for write in commit.effects:
            before = self.effect(write.key)
            if before is not None and answers.settled_for_ever(before, write):
                raise Conflict(f"Effect {write.key} is {before.state} and stays so.", key=write.key, run_id=before.run_id, state=str(before.state))
            holder = self._holder(write)
            if write.state in (EffectState.STARTED, EffectState.DONE) and holder is not None:
                raise Conflict(
                    f"Another call of {write.tool!r} is {holder.state} under this business key.",
                    claim=write.claim, key=holder.key, run_id=holder.run_id, state=str(holder.state),
                )  # fmt: skip
        for child in commit.children:
            if self._seen(child) is None:
                self._check_new(replace(child, parent_run=commit.run_id))

    def _holder(self, write: EffectWrite) -> Effect | None:
        """The oldest other effect that keeps the business key of this one from being started, or done with its record."""
        others = (self.effect(key) for key in self.effects if key != write.key)
        named = (each for each in others if each is not None and write.claim is not None and each.row.claim == write.claim)
        return next((each for each in named if answers.blocks_key(each)), None)

    def _check_checkpoint(self, row: Row, write: CheckpointWrite) -> None:
        generation = row.run.generation
        stored = row.messages.get((generation, write.base), [])
        shared = [
            each.length for at, each in row.checkpoints.items() if at[0] == generation and each.base == write.base and each.index != write.index
        ]
        if not max(shared, default=0) <= write.keep <= len(stored):
            raise StoreError(f"Checkpoint {write.index} of run {row.run.id} keeps {write.keep} of {len(stored)} messages, which others share.")

    def _save_checkpoint(self, row: Row, write: CheckpointWrite, now: datetime) -> None:
        generation = row.run.generation
        stored = row.messages.setdefault((generation, write.base), [])
        stored[write.keep :] = write.append
        row.checkpoints[generation, write.index] = Checkpoint(
            run_id=row.run.id, generation=generation, index=write.index, base=write.base, length=len(stored), finish_reason=write.finish_reason,
            created_at=now, format=write.format, version=write.version, tools_hash=write.tools_hash,
        )  # fmt: skip
        row.run = replace(row.run, format=write.format)

    def _save_effect(self, row: Row, write: EffectWrite, now: datetime) -> None:
        before = row.effects.get(write.key)
        run = row.run
        stored = Effect(run.id, run.generation, write) if before is None else replace(before, row=write)
        if write.state is EffectState.STARTED:
            stored = replace(stored, worker=run.lease_owner, epoch=run.epoch, started_at=now, settled_at=None, settled_by=None)
        if write.state in (EffectState.DONE, EffectState.FAILED):
            stored = replace(stored, settled_at=now)
        self.put_effect(row, stored)

    def _open_all(self, row: Row, writes: Iterable[WaitWrite], now: datetime) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Open the rows whose question is not open already; answers which were opened and which had their answer waiting."""
        opened: list[str] = []
        answered: list[str] = []
        for write in writes:
            if any(wait.row.question == write.question for wait in row.open_waits()):
                continue
            self.waits[write.id] = row.run.id
            row.waits[write.id] = WaitPoint(row.run.id, row.run.generation, write, now)
            self.open[write.id] = row.run.id
            answer = self._look(row, write, now)
            if answer is None:
                opened.append(write.id)
                self.tell(row, facts.opened(write))
            else:
                answered.append(write.id)
                self.close(row, row.waits[write.id], answer)
        return tuple(opened), tuple(answered)

    def _look(self, row: Row, write: WaitWrite, now: datetime) -> Resolution | None:
        """Nothing that comes before a row is lost: look for its answer first."""
        signal = row.inbox(write.name) if write.kind == "event" and write.name is not None else None
        effect = None if write.effect_key is None else self.effect(write.effect_key)
        cap = answers.cap_of(write)
        answer = answers.answer_at_birth(
            write, row.run, now=now, signal=signal, child=self._named_child(write), effect=effect, cap=None if cap not in self.rows else self.rows[cap].run,
            room=family.room_at_birth(write, row.run.id, *self.family(write.name), now) if write.kind == "budget" and write.name else None,
        )  # fmt: skip
        if signal is not None and answer is not None and answer.kind is ResolutionKind.EVENT:
            row.signals[signal.id] = (signal, row.run.generation)
        return answer

    def _named_child(self, write: WaitWrite) -> Run | None:
        if write.child is not None and write.child in self.rows:
            return self.rows[write.child].run
        return next((row.run for row in self.rows.values() if row.run.parent_wait == write.id), None)

    def close(self, row: Row, wait: WaitPoint, resolution: Resolution) -> None:
        """Close one row: the row itself, its step, its event. The run is moved by whoever calls."""
        row.waits[wait.id] = replace(wait, resolution=resolution)
        del self.open[wait.id]
        self.log(row, [facts.wait_step(wait, resolution)])
        self.tell(row, facts.resolved(wait.row, resolution))
        if wait.kind == "budget" and answers.cap_of(wait.row) is None:
            row.run = answers.topped_up(row.run, resolution)

    def answered(self, row: Row, now: datetime) -> None:
        """Wake a waiting run whose last open row was closed."""
        row.run = replace(row.run, updated_at=now)
        if row.run.status is RunStatus.WAITING and not row.open_waits():
            row.run = replace(row.run, status=RunStatus.PENDING)
        self.touch(row)

    def decide(self, row: Row, wait: WaitPoint, verdict: Verdict, now: datetime) -> None:
        if verdict.votes:
            wait = row.waits[wait.id] = replace(wait, votes=verdict.votes)
        if verdict.outcome is ResolveOutcome.VOTED:
            self.tell(row, facts.voted(wait))
            self.touch(row)
        if verdict.resolution is None:
            return
        if wait.kind == "effect":
            self.settle_effect(row, row.effects[cast(str, wait.row.effect_key)], verdict.resolution, now)
        self.close(row, wait, verdict.resolution)
        self.answered(row, now)
        if wait.kind == "budget" and verdict.resolution.decision == "top_up":
            self._top_up(answers.cap_of(wait.row) or row.run.id, verdict.resolution, now)

    def settle_effect(self, row: Row, effect: Effect, word: Resolution, now: datetime) -> None:
        row.effects[effect.key] = answers.effect_answered(effect, word, now)
        self.tell(row, facts.effect_became(row.effects[effect.key]))
        self._wake_for_effect(row.effects[effect.key], now, own=False)

    def _end(self, row: Row, ending: Park | Release | Settle | None, now: datetime) -> None:
        match ending:
            case None:
                return
            case Park():
                self.rest(row, RunStatus.PENDING, now, reason="park")
            case Release(reason="drain"):
                self.rest(row, RunStatus.INTERRUPTED, now, reason="drain")
            case Release(delay=delay):
                row.run = replace(row.run, available_at=now + delay)
                self.rest(row, RunStatus.PENDING, now, reason="retry_after")
            case Settle():
                row.run = replace(row.run, output=ending.output, finish_reason=ending.finish_reason)
                status = settled_as(ending.status, cancel_requested=row.run.cancel_requested)
                self.finish(row, status, now, error=ending.error)

    def rest(self, row: Row, target: RunStatus, now: datetime, *, reason: str | None = None) -> None:
        """One rule for park, release, sweep and retry: where a run comes to rest."""
        self._end_claim(row, now)
        status = rest(target, cancel_requested=row.run.cancel_requested, open_waits=len(row.open_waits()))
        if status is RunStatus.CANCELLED:
            self.finish(row, status, now)
            return
        row.run = replace(row.run, status=status, lease_owner=None, lease_expires_at=None, updated_at=now)
        if status is RunStatus.WAITING:
            row.holds = False
            self.tell(row, facts.waiting(row.run, endings.open_ids(row.current_waits())))
        elif reason is not None:
            self.tell(row, facts.released(row.run, reason))
        self.touch(row)

    def _end_claim(self, row: Row, now: datetime) -> None:
        """Whatever ends a claim leaves no effect `started`, and asks about each unknown one that a person must settle."""
        if row.run.status is not RunStatus.RUNNING:
            return
        for effect in endings.ended_effects(row.current_effects()):
            row.effects[effect.key] = effect
            self.tell(row, facts.effect_became(effect))
        self._open_all(row, endings.questions_due(row.current_effects(), row.current_waits(), row.run.epoch), now)

    def finish(self, row: Row, status: RunStatus, now: datetime, *, error: RunError | None = None, why: CancelRequest | None = None) -> None:
        """Every entry into a final status, whatever the verb."""
        self._end_claim(row, now)
        for wait in endings.closed_by_settling(row.waits.values()):
            self.close(row, wait, endings.cancelled(now))
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
        self.tell(row, facts.settled(row.run, reason=why and why.reason, by=why and why.by))
        self.touch(row)
        self._wake_for_child(row.run, now)

    def _move_head(self, row: Row, thread: str) -> None:
        """A completed turn becomes its thread's head, unless another one did since this run read it."""
        if self.heads.get(thread) == row.run.head:
            self.heads[thread] = row.run.id
        else:
            self.tell(row, facts.thread_kept(row.run, self.heads.get(thread)))

    def _wake_for_child(self, child: Run, now: datetime) -> None:
        named = [wait for wait in self.all_open() if child.id == wait.row.child or child.parent_wait == wait.id]
        self._wake(named, answers.child_news(child, now), now)

    def _wake_for_effect(self, effect: Effect, now: datetime, *, own: bool) -> None:
        """Tell the rows that wait for this effect: other runs' under its business key, and its own run's unless that is what was answered."""
        rows = [wait for wait in self.all_open() if wait.kind == "effect" and wait.row.effect_key == effect.key]
        self._wake([wait for wait in rows if own or wait.run_id != effect.run_id], answers.effect_news(effect, now), now)

    # ── shared budgets ─────────────────────────────────────────────────────────────────────────────────────
    def reserve(self, row: Row, ask: family.Reserve) -> family.Reserved:
        """Take room for one model call under every cap above it."""
        run = row.run
        answer = family.Reserved(family.Room.LOST, run.epoch, run.status, run.cancel_requested)
        mine = run.status is RunStatus.RUNNING and (run.epoch, run.claim_token, run.commit_no) == (ask.epoch, ask.token, ask.commit_no)
        if not mine:
            return answer
        eldest = self.eldest(run.id)
        verdict = family.judge(ask, *self.family(eldest))
        if verdict.room is family.Room.RESERVED and family.taken(ask) not in self.reservations:
            self.reservations.append(family.taken(ask))
        return family.with_room(answer, verdict, eldest)

    def _end_reservation(self, row: Row, ends: family.ReservationEnds, now: datetime) -> None:
        if not ends.kept:
            self.reservations = [each for each in self.reservations if (each.run_id, each.epoch) != (row.run.id, row.run.epoch)]
        self.wake_family(ends.family, now)

    def _top_up(self, run_id: str, resolution: Resolution, now: datetime) -> None:
        """The limits that an answer names, on the run whose cap it is; whoever had come to them looks again."""
        row = self.rows.get(run_id)
        if row is None:
            return
        row.run = answers.topped_up(row.run, resolution)
        self.touch(row)
        self.wake_family(self.eldest(run_id), now, topped_up=run_id)

    def wake_family(self, eldest: str, now: datetime, *, topped_up: str | None = None) -> None:
        """Tell those who wait for room to look again, and after a top-up those who had come to that limit."""
        rows = [wait for wait in self.all_open() if wait.kind == "budget" and wait.row.name == eldest]
        told = [wait for wait in rows if family.waits_for_room(wait.row) or (topped_up is not None and answers.cap_of(wait.row) == topped_up)]
        self._wake(told, family.room_news(now), now)

    def _wake(self, waits: Iterable[WaitPoint], news: Resolution | None, now: datetime) -> None:
        for wait in waits:
            if news is not None and not answers.due(wait.row, now):
                row = self.rows[wait.run_id]
                self.close(row, wait, news)
                self.answered(row, now)
