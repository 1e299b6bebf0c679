"""The one write of a running run: running → running, or to where its ending leads (table C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from enum import Enum, auto

from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import Commit, Committed, Ending, Outcome, Park, Release, Settle
from perdure.core.effect import Effect, EffectState, EffectWrite
from perdure.core.errors import Conflict, RunNotFoundError, StoreError
from perdure.core.run import RunStatus, settled_as
from perdure.stores._moves import _life, _rows
from perdure.stores._moves._admit import admit_at, put_checkpoint
from perdure.stores._moves._draft import Draft, lock, lock_to_end, lock_whole
from perdure.stores._moves._program import Program, Query, Row, Work, moment


class _Standing(Enum):
    """What a commit is to the row that it names."""

    NEXT = auto()
    REPEATED = auto()
    LOST = auto()


def commit(work: Work, ask: Commit) -> Program[Committed]:
    """Apply the whole commit or nothing of it, and say which.

    Most commits end nothing and open nothing: they take the short way, one read and one batch of writes, whose cost does not depend on the run's length.
    """
    if ask.ending is None and not ask.waits and not ask.children:
        return (yield from _short(work, ask))
    return (yield from _long(work, ask))


def _short(work: Work, ask: Commit) -> Program[Committed]:
    tails = () if ask.checkpoint is None else (Query("list_tails", {"id": ask.run_id}),)
    draft, more = yield from lock(work, ask.run_id, *tails)
    if draft is None:
        raise RunNotFoundError(ask.run_id)
    standing = _standing(draft.row, ask)
    if standing is not _Standing.NEXT:
        return (yield from _not_applied(draft, ask, standing))
    row = draft.row
    first_event: int = row["next_event"]
    row["commit_no"], row["first_event"] = ask.commit_no, first_event
    row["version"] = ask.version or row["version"]
    if ask.usage is not None:
        row["usage"] = _rows.write_usage(ask.usage)
    if ask.progress:
        row["deaths"] = 0
    if ask.checkpoint is not None:
        row["format"] = ask.checkpoint.format
        write_checkpoint(draft, ask.checkpoint, more[0])
    yield from _write_effects(draft, ask.effects, row["generation"])
    draft.log(*ask.steps)
    draft.tell(*ask.events)
    yield from _wake_for(draft, ask.effects)
    return Committed(Outcome.APPLIED, row["epoch"], RunStatus(row["status"]), bool(row["cancel_requested"]), first_event)


def _long(work: Work, ask: Commit) -> Program[Committed]:
    draft = yield from (lock_whole if ask.ending is None else lock_to_end)(work, ask.run_id)
    if draft is None:
        raise RunNotFoundError(ask.run_id)
    standing = _standing(draft.row, ask)
    if standing is not _Standing.NEXT:
        return (yield from _not_applied(draft, ask, standing))
    run, first_event = draft.run, draft.row["next_event"]
    draft.row["first_event"], draft.row["ended"] = first_event, int(ask.ending is not None)
    draft.run = replace(
        run, commit_no=ask.commit_no, usage=ask.usage or run.usage, version=ask.version or run.version, updated_at=moment(draft.now),
        deaths=0 if ask.progress else run.deaths, format=run.format if ask.checkpoint is None else ask.checkpoint.format,
    )  # fmt: skip
    if ask.checkpoint is not None:
        tails = yield from work.rows("list_tails", id=ask.run_id)
        write_checkpoint(draft, ask.checkpoint, tails)
    yield from _write_effects(draft, ask.effects, run.generation)
    draft.log(*ask.steps)
    for child in ask.children:
        yield from admit_at(work, replace(child, parent_run=run.id), draft.now)
    draft.tell(*ask.events)
    opened, answered = yield from _life.open_all(draft, ask.waits, commit_no=ask.commit_no)
    if opened or answered:
        draft.run = replace(draft.run, deaths=0)
    yield from _wake_for(draft, ask.effects)
    yield from _end(draft, ask.ending)
    return Committed(Outcome.APPLIED, run.epoch, draft.run.status, draft.run.cancel_requested, first_event, opened, answered)


# ── whether it may be applied ──────────────────────────────────────────────────────────────────────────────
def _standing(row: Row, ask: Commit) -> _Standing:
    mine = row["epoch"] == ask.epoch and row["claim_token"] == ask.token
    running = row["status"] == RunStatus.RUNNING.value
    if mine and running and ask.commit_no == row["commit_no"] + 1:
        return _Standing.NEXT
    if mine and row["first_event"] and ask.commit_no == row["commit_no"] and (running or row["ended"]):
        return _Standing.REPEATED
    return _Standing.LOST


def _not_applied(draft: Draft, ask: Commit, standing: _Standing) -> Program[Committed]:
    row = draft.row
    status, cancel_requested = RunStatus(row["status"]), bool(row["cancel_requested"])
    if standing is _Standing.LOST:
        return Committed(Outcome.LOST, row["epoch"], status, cancel_requested)
    waits = yield from draft.work.rows("list_waits_of_commit", run=draft.seq, commit_no=ask.commit_no)
    opened = tuple(wait["id"] for wait in waits if not wait["answered"])
    answered = tuple(wait["id"] for wait in waits if wait["answered"])
    return Committed(Outcome.ALREADY, row["epoch"], status, cancel_requested, row["first_event"], opened, answered)


# ── what it writes ─────────────────────────────────────────────────────────────────────────────────────────
def write_checkpoint(draft: Draft, write: CheckpointWrite, tails: Sequence[Row]) -> None:
    """Write what the checkpoint adds: its messages after `keep`, and its own row.

    `tails` are the newest checkpoints of the generation, newest first; lengths grow with the index, so two of them tell what a replacement may not touch. Messages
    that a longer version of this checkpoint left behind are beyond every length, so nothing needs to be deleted.
    """
    same = [tail for tail in tails if tail["base"] == write.base]
    stored: int = same[0]["length"] if same else 0
    shared: int = max((tail["length"] for tail in same if tail["idx"] != write.index), default=0)
    if not shared <= write.keep <= stored:
        raise StoreError(f"Checkpoint {write.index} of run {draft.id} keeps {write.keep} of {stored} messages, of which others share {shared}.")
    put_checkpoint(draft.work, write, run=draft.seq, generation=draft.row["generation"], now=draft.now)


def _write_effects(draft: Draft, writes: Sequence[EffectWrite], generation: int) -> Program[None]:
    for write in writes:
        if write.claim is not None and write.state is EffectState.STARTED:
            yield from _refuse_held_claim(draft, write, write.claim)
        draft.work.send("put_effect", _rows.write_effect(draft.work, _as_written(draft, write, generation), run=draft.seq))


def _as_written(draft: Draft, write: EffectWrite, generation: int) -> Effect:
    """The row for a new effect. For one that is there, `put_effect` keeps what this state says nothing of: who started it, and when."""
    now, owner, epoch = moment(draft.now), draft.row["lease_owner"], draft.row["epoch"]
    if write.state is EffectState.STARTED:
        return Effect(draft.id, generation, write, worker=owner, epoch=epoch, started_at=now)
    settled_at = now if write.state in (EffectState.DONE, EffectState.FAILED) else None
    return Effect(draft.id, generation, write, settled_at=settled_at)


def _refuse_held_claim(draft: Draft, write: EffectWrite, claim: str) -> Program[None]:
    """E6: one row a scope may be started, unknown or done."""
    row = yield from draft.work.row("hold_claim", claim=claim)
    if row is None:
        return
    holder = _rows.read_effect(draft.work, row, row["run_id"])
    if holder.key != write.key:
        raise Conflict(
            f"Another call of {write.tool!r} is {holder.state} under this business key.",
            claim=claim, key=holder.key, run_id=holder.run_id, state=str(holder.state),
        )  # fmt: skip


def _wake_for(draft: Draft, writes: Sequence[EffectWrite]) -> Program[None]:
    for write in writes:
        # Only a business key lets another run name this effect.
        if write.claim is not None:
            effect = yield from _life.find_effect(draft.work, write.key)
            if effect is not None:
                yield from _life.wake_for_effect(draft, effect)


def _end(draft: Draft, ending: Ending | None) -> Program[None]:
    match ending:
        case None:
            return
        case Park():
            yield from _life.come_to_rest(draft, RunStatus.PENDING, reason="park")
        case Release(reason="drain"):
            yield from _life.come_to_rest(draft, RunStatus.INTERRUPTED, reason="drain")
        case Release(delay=delay):
            yield from _release_for_later(draft, delay)
        case Settle():
            draft.run = replace(draft.run, output=ending.output, finish_reason=ending.finish_reason)
            status = settled_as(ending.status, cancel_requested=draft.run.cancel_requested)
            yield from _life.finish(draft, status, error=ending.error)


def _release_for_later(draft: Draft, delay: timedelta) -> Program[None]:
    now = moment(draft.now)
    assert now is not None
    draft.run = replace(draft.run, available_at=now + delay)
    yield from _life.come_to_rest(draft, RunStatus.PENDING, reason="retry_after")
