"""The one write of a running run: running → running, or to where its ending leads (table C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, auto

from perdure.core import answers
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import Commit, Committed, Ending, Outcome, Park, Release, Settle
from perdure.core.effect import Effect, EffectState, EffectWrite
from perdure.core.errors import Conflict, RunNotFoundError, StoreError
from perdure.core.run import RunStatus, settled_as
from perdure.stores._moves import _family, _life, _rows
from perdure.stores._moves._admit import admit_at, put_checkpoint
from perdure.stores._moves._draft import Draft, lock, lock_to_end, lock_whole
from perdure.stores._moves._program import NOTHING, Program, Query, Row, Rows, Work, moment


class _Standing(Enum):
    """What a commit is to the row that it names."""

    NEXT = auto()
    REPEATED = auto()
    LOST = auto()


def commit(work: Work, ask: Commit) -> Program[Committed]:
    """Apply the whole commit or nothing of it, and say which.

    Most commits end nothing and open nothing: they take the short way, one read and one batch of writes, whose cost does not depend on the run's length.
    """
    if ask.ending is None and not ask.waits and not ask.children and ask.reservation is None:
        return (yield from _short(work, ask))
    return (yield from _long(work, ask))


def _short(work: Work, ask: Commit) -> Program[Committed]:
    draft, rows = yield from lock(work, ask.run_id, *_asked_first(ask))
    if draft is None:
        raise RunNotFoundError(ask.run_id)
    standing = _standing(draft.row, ask)
    if standing is not _Standing.NEXT:
        return (yield from _not_applied(draft, ask, standing))
    found = _Found.of(work, ask, rows)
    if found.own_questions:
        del work.drafts[ask.run_id]
        return (yield from _long(work, ask))
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
    yield from _write_history(draft, ask, found)
    draft.tell(*ask.events)
    yield from _wake_others(draft, ask.effects)
    return Committed(Outcome.APPLIED, row["epoch"], RunStatus(row["status"]), bool(row["cancel_requested"]), first_event)


def _long(work: Work, ask: Commit) -> Program[Committed]:
    family = None if ask.reservation is None else ask.reservation.family
    yield from _family.eldest_first(work, family, *(wait.name for wait in ask.waits if wait.kind == "budget"))
    draft = yield from (lock_whole if ask.ending is None else lock_to_end)(work, ask.run_id)
    if draft is None:
        raise RunNotFoundError(ask.run_id)
    standing = _standing(draft.row, ask)
    if standing is not _Standing.NEXT:
        return (yield from _not_applied(draft, ask, standing))
    if ask.effects:
        draft.unsettled = None  # this commit changes some of them
    run, first_event = draft.run, draft.row["next_event"]
    draft.row["first_event"], draft.row["ended"] = first_event, int(ask.ending is not None)
    draft.run = replace(
        run, commit_no=ask.commit_no, usage=ask.usage or run.usage, version=ask.version or run.version, updated_at=moment(draft.now),
        deaths=0 if ask.progress else run.deaths, format=run.format if ask.checkpoint is None else ask.checkpoint.format,
    )  # fmt: skip
    asked = _asked_first(ask)
    found = _Found.of(work, ask, (yield from work.read(*asked)) if asked else ())
    yield from _write_history(draft, ask, found)
    for child in ask.children:
        yield from admit_at(work, replace(child, parent_run=run.id), draft.now)
    draft.tell(*ask.events)
    opened, answered = yield from _life.open_all(draft, ask.waits, commit_no=ask.commit_no)
    if opened or answered:
        draft.run = replace(draft.run, deaths=0)
    yield from _wake_own(draft, ask.effects)
    yield from _wake_others(draft, ask.effects)
    if ask.reservation is not None:
        yield from _life.end_reservation(draft, ask.reservation)
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


# ── what must be known of the run for it ───────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _Found:
    """What a commit looks at besides the run's own row. It is asked for together with the lock.

    `effects` are those that the commit names, as they stand; `own_questions`: the run waits for the outcome of an effect of its own.
    """

    own_questions: bool
    effects: tuple[Effect | None, ...]

    @classmethod
    def of(cls, work: Work, ask: Commit, answers: Sequence[Rows]) -> _Found:
        questions, *effects = answers or ((),)
        found = (_rows.read_effect(work, rows[0], ask.run_id) if rows else None for rows in effects)
        return cls(bool(questions), tuple(found))


def _asked_first(ask: Commit) -> list[Query]:
    """The queries behind `_Found`: none for a commit without effects."""
    if not ask.effects:
        return []
    questions = Query("list_effect_questions", {"id": ask.run_id}) if any(_tells(write) for write in ask.effects) else NOTHING
    return [questions, *(_hold(write) for write in ask.effects)]


def _hold(write: EffectWrite) -> Query:
    place = _rows.place_of(write.key)
    return NOTHING if place is None else Query("hold_effect", place._asdict())


def _tells(write: EffectWrite) -> bool:
    """Whether this state is news to whoever waits for the effect's outcome."""
    return write.state not in (EffectState.STARTED, EffectState.UNKNOWN)


# ── what it writes ─────────────────────────────────────────────────────────────────────────────────────────
def _write_history(draft: Draft, ask: Commit, found: _Found) -> Program[None]:
    if ask.checkpoint is not None:
        _write_checkpoint(draft, ask.checkpoint)
    generation: int = draft.row["generation"]
    for write, before in zip(ask.effects, found.effects, strict=True):
        if before is not None and answers.settled_for_ever(before, write):
            raise Conflict(f"Effect {write.key} is {before.state} and stays so.", key=write.key, run_id=before.run_id, state=str(before.state))
        if write.claim is not None and write.state in (EffectState.STARTED, EffectState.DONE):
            yield from _refuse_held_claim(draft, write, write.claim)
        draft.work.send("put_effect", _rows.write_effect(draft.work, _as_written(draft, write, generation), run=draft.seq))
    draft.log(*ask.steps)


def _write_checkpoint(draft: Draft, write: CheckpointWrite) -> None:
    """Write what the checkpoint adds.

    The row knows the newest checkpoint and how much of it older ones share: a replacement may not touch that. Messages that a longer version of this one
    left behind are beyond every length, so nothing needs to be deleted.
    """
    row = draft.row
    same = write.base == row["tail_base"]
    stored: int = row["tail_length"] if same else 0
    shared: int = 0 if not same else row["tail_shared"] if write.index == row["tail_idx"] else stored
    if not shared <= write.keep <= stored:
        raise StoreError(f"Checkpoint {write.index} of run {draft.id} keeps {write.keep} of {stored} messages, which others share.")
    row["tail_base"], row["tail_idx"], row["tail_shared"] = write.base, write.index, shared
    row["tail_length"] = write.keep + len(write.append)
    put_checkpoint(draft.work, write, run=draft.seq, generation=row["generation"], now=draft.now)


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


def _wake_own(draft: Draft, writes: Sequence[EffectWrite]) -> Program[None]:
    """Close the run's own rows about effects whose outcome it found out by itself."""
    for write in writes:
        if _tells(write):
            effect = yield from _life.find_effect(draft.work, write.key)
            if effect is not None:
                yield from _life.close_own_question(draft, effect)


def _wake_others(draft: Draft, writes: Sequence[EffectWrite]) -> Program[None]:
    for write in writes:
        # Only a business key lets another run name this effect.
        if write.claim is not None and _tells(write):
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
