"""What people and the world say to a run: answers, signals, word on effects, more time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from perdure.core import answers, endings, facts
from perdure.core.answers import Verdict
from perdure.core.commit import Resolve, Resolved, ResolveOutcome, SettleEffect, Signal
from perdure.core.effect import Effect, EffectState
from perdure.core.errors import Conflict, EffectNotFoundError, RunNotFoundError, WaitNotFoundError
from perdure.core.limits import SIGNALS_MAX
from perdure.core.run import RunStatus
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint
from perdure.stores._moves import _family, _life, _rows
from perdure.stores._moves._draft import Draft, lock_whole
from perdure.stores._moves._program import Program, Query, Work, moment


# ── wait rows ──────────────────────────────────────────────────────────────────────────────────────────────
def resolve(work: Work, ask: Resolve) -> Program[Resolved]:
    """Close a wait row; a run whose last open row this was goes back to `pending`."""
    draft, wait = yield from lock_wait(work, ask.wait_id)
    [hashes] = yield from work.read(Query("list_tokens", {"wait_id": wait.id}))
    effect = None if wait.row.effect_key is None else (yield from _life.find_effect(work, wait.row.effect_key))
    verdict = answers.judge(wait, ask, now=_now(draft), effect=effect, tokens={row["hash"] for row in hashes})
    wait = yield from _decide(draft, wait, verdict, effect)
    return Resolved(verdict.outcome, wait, draft.run.status, verdict.message)


def lock_wait(work: Work, wait_id: str) -> Program[tuple[Draft, WaitPoint]]:
    """The row as it stands under its run's lock."""
    found = yield from work.row("get_wait", id=wait_id)
    if found is None:
        raise WaitNotFoundError(wait_id)
    if found["kind"] == "budget":
        # A top-up may change the budget of a run above, and wakes others of the family.
        cap = answers.cap_of(_rows.read_wait(work, found).row) or found["run_id"]
        yield from _family.lock_line(work, cap)
    draft = yield from lock_whole(work, found["run_id"])
    row = yield from work.row("get_wait", id=wait_id)
    if draft is None or row is None:
        raise WaitNotFoundError(wait_id)
    return draft, _rows.read_wait(work, row)


def _decide(draft: Draft, wait: WaitPoint, verdict: Verdict, effect: Effect | None) -> Program[WaitPoint]:
    if verdict.votes:
        wait = replace(wait, votes=verdict.votes)
    if verdict.outcome is ResolveOutcome.VOTED:
        draft.work.send("save_wait", _rows.write_progress(draft.work, wait))
        draft.tell(facts.voted(wait))
    if verdict.resolution is None:
        return wait
    yield from _life.open_waits(draft)
    if wait.kind == "effect" and effect is not None:
        yield from _settle(draft, effect, verdict.resolution)
    _life.close(draft, wait, verdict.resolution)
    yield from _life.answered(draft)
    if wait.kind == "budget" and verdict.resolution.decision == "top_up":
        yield from _life.top_up(draft, answers.cap_of(wait.row), verdict.resolution)
    return replace(wait, resolution=verdict.resolution)


def extend(work: Work, wait_id: str, expires_at: datetime | None) -> Program[Resolved]:
    """Move an open row's deadline, only before it has passed."""
    draft, wait = yield from lock_wait(work, wait_id)
    outcome, message = answers.extension(wait, expires_at, _now(draft))
    if outcome is ResolveOutcome.RESOLVED:
        wait = replace(wait, row=answers.moved_deadline(wait.row, expires_at))
        work.send("save_wait", _rows.write_progress(work, wait))
        draft.tell(facts.extended(wait_id, expires_at))
    return Resolved(outcome, wait, draft.run.status, message)


# ── signals ────────────────────────────────────────────────────────────────────────────────────────────────
def signal(work: Work, ask: Signal) -> Program[bool]:
    """Put a signal into the run's inbox and resolve the oldest matching open row. False: this id was seen."""
    draft = yield from lock_whole(work, ask.run_id)
    if draft is None:
        raise RunNotFoundError(ask.run_id)
    [seen, [inbox]] = yield from work.read(
        Query("find_signal", {"run": draft.seq, "id": ask.id}), Query("count_signals", {"run": draft.seq, "generation": draft.run.generation})
    )
    if seen:
        return False
    _refuse(draft, inbox["free"])
    now, waits = _now(draft), (yield from _life.current_waits(draft))
    takers = (wait for wait in waits if wait.kind == "event" and wait.row.name == ask.name and not answers.due(wait.row, now))
    wait = next(takers, None)
    taken = 0 if wait is None else draft.run.generation
    work.write("add_signal", run=draft.seq, id=ask.id, name=ask.name, payload=work.seal(ask.payload), at=draft.now, taken=taken)
    draft.tell(facts.signal_received(ask))
    if wait is not None:
        _life.close(draft, wait, answers.signal_news(ask, now))
        yield from _life.answered(draft)
    return True


def _refuse(draft: Draft, waiting: int) -> None:
    if draft.run.status is RunStatus.COMPLETED:
        raise Conflict(f"Run {draft.id} is completed: it takes no signals.", run_id=draft.id, status="completed")
    if waiting >= SIGNALS_MAX:
        raise Conflict(f"The inbox of run {draft.id} is full: it holds {SIGNALS_MAX} signals.", run_id=draft.id, limit=SIGNALS_MAX)


# ── effects ────────────────────────────────────────────────────────────────────────────────────────────────
def settle_effect(work: Work, ask: SettleEffect) -> Program[Effect]:
    """Settle an effect of unknown outcome, in a final run too; its wait row is resolved with it."""
    place = _rows.place_of(ask.key)
    draft = None if place is None else (yield from lock_whole(work, place.run_id))
    effect = yield from _life.find_effect(work, ask.key)
    if draft is None or effect is None:
        raise EffectNotFoundError(ask.key)
    now = _now(draft)
    word = Resolution(ResolutionKind.ANSWER, ask.decision, ask.result, ask.reason, ask.by, ask.via, now)
    if effect.state is not EffectState.UNKNOWN and answers.answered_before(effect, word):
        return effect
    waits = yield from _life.open_waits(draft)
    wait = next((wait for wait in waits if wait.row.effect_key == effect.key and endings.own_effect(wait)), None)
    refusal = answers.settling_refusal(effect, word, asked=wait is not None, final=draft.run.status.final, now=now)
    if refusal is not None:
        raise Conflict(refusal, key=effect.key, run_id=effect.run_id, state=str(effect.state))
    effect = yield from _settle(draft, effect, word)
    if wait is not None:
        _life.close(draft, wait, word)
    yield from _life.answered(draft)
    return effect


def _settle(draft: Draft, effect: Effect, word: Resolution) -> Program[Effect]:
    effect = answers.effect_answered(effect, word, _now(draft))
    _life.put_effect(draft, effect)
    yield from _life.wake_for_effect(draft, effect)
    return effect


def _now(draft: Draft) -> datetime:
    now = moment(draft.now)
    assert now is not None
    return now
