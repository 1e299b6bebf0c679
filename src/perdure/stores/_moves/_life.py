"""How wait rows open and close, how a claim ends, how a run comes to rest or settles: the parts that several verbs share.

Each works on a `Draft` that was locked whole. What is decided is decided by the pure functions of core; here is only what must be read for it, and written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from perdure.core import answers, endings, facts, family
from perdure.core.commit import CancelRequest, Signal
from perdure.core.effect import Effect
from perdure.core.run import Run, RunError, RunStatus, rest
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint, WaitWrite
from perdure.stores._moves import _family, _rows
from perdure.stores._moves._draft import Draft, lock_whole
from perdure.stores._moves._program import Program, Row, Work, moment


# ── what hangs on a run ────────────────────────────────────────────────────────────────────────────────────
def open_waits(draft: Draft) -> Program[list[WaitPoint]]:
    """The run's open rows of every generation, oldest first. Kept in the draft, which knows what this transaction opens and closes."""
    if draft.waits is None:
        rows = yield from draft.work.rows("list_open_waits", id=draft.id)
        draft.waits = [_rows.read_wait(draft.work, row) for row in rows]
    return draft.waits


def current_waits(draft: Draft) -> Program[list[WaitPoint]]:
    """The open rows that the run waits for."""
    waits = yield from open_waits(draft)
    return [wait for wait in waits if wait.generation == draft.run.generation]


def unsettled_effects(draft: Draft) -> Program[list[Effect]]:
    """Effects of the current generation that are started or unknown."""
    rows, draft.unsettled = draft.unsettled, None
    if rows is None:
        rows = yield from draft.work.rows("list_unsettled_effects", id=draft.id)
    return [_rows.read_effect(draft.work, row, draft.id) for row in rows if row["generation"] == draft.run.generation]


def find_effect(work: Work, key: str) -> Program[Effect | None]:
    """The effect of this key, whichever run it belongs to. Held against changes until the transaction ends, its run's row is not."""
    place = _rows.place_of(key)
    if place is None:
        return None
    row = yield from work.row("hold_effect", **place._asdict())
    return None if row is None else _rows.read_effect(work, row, place.run_id)


def put_effect(draft: Draft, effect: Effect) -> None:
    """Write an effect that the store itself moved."""
    draft.work.send("save_effect", _rows.write_effect(draft.work, effect, run=draft.seq))
    draft.tell(facts.effect_became(effect))


# ── wait rows ──────────────────────────────────────────────────────────────────────────────────────────────
def open_all(draft: Draft, writes: Iterable[WaitWrite], *, commit_no: int | None = None) -> Program[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Open the rows whose question is not open already; answers which were opened and which had their answer waiting."""
    opened: list[str] = []
    answered: list[str] = []
    for write in writes:
        asked = yield from current_waits(draft)
        if any(wait.row.question == write.question for wait in asked):
            continue
        answer = yield from _look(draft, write)
        (opened if answer is None else answered).append(write.id)
        _add_wait(draft, write, answer, commit_no)
    return tuple(opened), tuple(answered)


def _add_wait(draft: Draft, write: WaitWrite, answer: Resolution | None, commit_no: int | None) -> None:
    now = moment(draft.now)
    assert now is not None and draft.waits is not None
    wait = WaitPoint(draft.id, draft.run.generation, write, now, answer)
    draft.work.send("add_wait", _rows.write_wait(draft.work, wait, run=draft.seq, commit_no=commit_no))
    if answer is None:
        draft.waits.append(wait)
        draft.tell(facts.opened(write))
    else:
        _record(draft, wait, answer)


def _look(draft: Draft, write: WaitWrite) -> Program[Resolution | None]:
    """Nothing that comes before a row is lost: look for its answer first."""
    work, run = draft.work, draft.run
    signal: tuple[int, Signal] | None = None
    if write.kind == "event" and write.name is not None:
        row = yield from work.row("next_signal", run=draft.seq, name=write.name, generation=run.generation)
        signal = None if row is None else (row["seq"], _rows.read_signal(work, row, draft.id))
    child: Run | None = None
    if write.kind == "event" or write.child is not None:
        found = yield from work.row("hold_child", id=write.child, run_id=draft.id, wait_id=write.id)
        row = None if found is None else (yield from work.row("get_run", id=found["id"]))
        child = None if row is None else _rows.read_run(work, row)
    effect = None if write.effect_key is None else (yield from find_effect(work, write.effect_key))
    now = moment(draft.now)
    assert now is not None
    cap, room = (yield from _family.look(draft, write)) if write.kind == "budget" else (None, None)
    answer = answers.answer_at_birth(write, run, now=now, signal=signal and signal[1], child=child, effect=effect, cap=cap, room=room)
    if signal is not None and answer is not None and answer.kind is ResolutionKind.EVENT:
        work.write("take_signal", run=draft.seq, seq=signal[0], generation=run.generation)
    return answer


def close(draft: Draft, wait: WaitPoint, resolution: Resolution) -> None:
    """Close one row: the row itself, its step, its event. The run is moved by whoever calls."""
    assert draft.waits is not None
    draft.waits = [each for each in draft.waits if each.id != wait.id]
    draft.work.send("save_wait", _rows.write_progress(draft.work, replace(wait, resolution=resolution)))
    _record(draft, wait, resolution)


def _record(draft: Draft, wait: WaitPoint, resolution: Resolution) -> None:
    draft.log(facts.wait_step(wait, resolution))
    draft.tell(facts.resolved(wait.row, resolution))
    if wait.kind == "budget" and answers.cap_of(wait.row) is None:
        draft.run = answers.topped_up(draft.run, resolution)


def answered(draft: Draft) -> Program[None]:
    """Wake a waiting run whose last open row was closed."""
    draft.run = replace(draft.run, updated_at=moment(draft.now))
    still_open = yield from current_waits(draft)
    if draft.run.status is RunStatus.WAITING and not still_open:
        draft.run = replace(draft.run, status=RunStatus.PENDING)


# ── how a claim ends ───────────────────────────────────────────────────────────────────────────────────────
def come_to_rest(draft: Draft, target: RunStatus, *, reason: str | None = None) -> Program[None]:
    """One rule for park, release, sweep and retry: where a run comes to rest."""
    yield from _end_claim(draft)
    waits = yield from current_waits(draft)
    status = rest(target, cancel_requested=draft.run.cancel_requested, open_waits=len(waits))
    if status is RunStatus.CANCELLED:
        yield from finish(draft, status)
        return
    draft.run = replace(draft.run, status=status, lease_owner=None, lease_expires_at=None, updated_at=moment(draft.now))
    if status is RunStatus.WAITING:
        draft.work.write("drop_holds_but_thread", run=draft.seq)
        draft.tell(facts.waiting(draft.run, endings.open_ids(waits)))
    elif reason is not None:
        draft.tell(facts.released(draft.run, reason))


def _end_claim(draft: Draft) -> Program[None]:
    """Whatever ends a claim leaves no effect `started`, and asks about each unknown one that a person must settle."""
    if draft.run.status is not RunStatus.RUNNING:
        return
    unsettled = yield from unsettled_effects(draft)
    changed = {each.key: each for each in endings.ended_effects(unsettled)}
    for effect in changed.values():
        put_effect(draft, effect)
    waits = yield from current_waits(draft)
    effects = [changed.get(each.key, each) for each in unsettled]
    yield from open_all(draft, endings.questions_due(effects, waits, draft.run.epoch))


# ── how a run ends ─────────────────────────────────────────────────────────────────────────────────────────
def finish(draft: Draft, status: RunStatus, *, error: RunError | None = None, why: CancelRequest | None = None) -> Program[None]:
    """Every entry into a final status, whatever the verb."""
    yield from _end_claim(draft)
    now = moment(draft.now)
    assert now is not None
    waits = yield from open_waits(draft)
    for wait in endings.closed_by_settling(waits):
        close(draft, wait, endings.cancelled(now))
    run = draft.run
    draft.work.write("drop_holds", run=draft.seq)
    draft.run = run = replace(
        run, status=status, error=error, settlement=run.settlement + 1, lease_owner=None, lease_expires_at=None, finished_at=now, updated_at=now
    )
    if run.trigger.key is not None:
        draft.work.write("date_key", agent=run.agent, key=run.trigger.key, run_id=run.id, now=draft.now)
    if status is RunStatus.COMPLETED and run.thread is not None:
        yield from _move_head(draft, run.thread)
    draft.tell(facts.settled(draft.run, reason=why and why.reason, by=why and why.by))
    yield from _wake_for_child(draft)


def _move_head(draft: Draft, thread: str) -> Program[None]:
    """A completed turn becomes its thread's head, unless another one did since this run read it."""
    row = yield from draft.work.row("hold_head", thread=thread)
    head: str | None = None if row is None else row["run_id"]
    if head == draft.run.head:
        draft.work.write("put_head", thread=thread, run_id=draft.id)
    else:
        draft.tell(facts.thread_kept(draft.run, head))


# ── who hears of it ────────────────────────────────────────────────────────────────────────────────────────
def _wake_for_child(draft: Draft) -> Program[None]:
    now = moment(draft.now)
    assert now is not None
    news = answers.child_news(draft.run, now)
    if news is not None:
        rows = draft.waiters
        if rows is None:
            rows = yield from draft.work.rows("list_waits_for_run", run_id=draft.id)
        yield from _wake(draft.work, rows, lambda _, __: news)


def close_own_question(draft: Draft, effect: Effect) -> Program[None]:
    """Close the run's own rows about this effect, whose outcome it has found out."""
    now = moment(draft.now)
    assert now is not None
    news = answers.effect_news(effect, now)
    waits = yield from open_waits(draft)
    for wait in [wait for wait in waits if wait.kind == "effect" and wait.row.effect_key == effect.key]:
        if news is not None:
            close(draft, wait, news)
            yield from answered(draft)


def wake_for_effect(draft: Draft, effect: Effect) -> Program[None]:
    """Tell the runs that wait for this effect under its business key."""
    now = moment(draft.now)
    assert now is not None
    news = answers.effect_news(effect, now)
    if news is not None and effect.row.claim is not None:
        rows = yield from draft.work.rows("list_waits_for_effect", key=effect.key, run=draft.seq)
        yield from _wake(draft.work, rows, lambda _, __: news)


def _wake(work: Work, rows: Sequence[Row], news: Callable[[WaitPoint, datetime], Resolution | None]) -> Program[None]:
    """Close the rows for which there is news, and wake their runs."""
    for row in rows:
        other = yield from lock_whole(work, row["run_id"])
        if other is None:
            continue
        waits = yield from open_waits(other)
        now = moment(other.now)
        assert now is not None
        # Looked for again under that run's lock: somebody may have closed it a moment ago.
        for wait in [wait for wait in waits if wait.id == row["id"] and not answers.due(wait.row, now)]:
            if (word := news(wait, now)) is not None:
                close(other, wait, word)
                yield from answered(other)


# ── shared budgets ─────────────────────────────────────────────────────────────────────────────────────────
def end_reservation(draft: Draft, ends: family.ReservationEnds) -> Program[None]:
    """The reservation of this claim is over; those who wait for room look again, whether or not this made any."""
    if not ends.kept:
        draft.work.write("drop_reservation", run=draft.seq, epoch=draft.row["epoch"])
    yield from wake_family(draft.work, ends.family)


def top_up(draft: Draft, of: str | None, resolution: Resolution) -> Program[None]:
    """The limits that an answer names, on the run whose cap it is; whoever had come to them looks again."""
    other = draft if of is None else (yield from lock_whole(draft.work, of))
    if other is None:
        return
    other.run = answers.topped_up(other.run, resolution)
    eldest = yield from _family.eldest_of(draft.work, other.id)
    yield from wake_family(draft.work, eldest or other.id, topped_up=other.id)


def wake_family(work: Work, eldest: str, *, topped_up: str | None = None) -> Program[None]:
    """Tell those who wait for room to look again, and after a top-up those who had come to that run's limit."""

    def news(wait: WaitPoint, now: datetime) -> Resolution | None:
        concerned = family.waits_for_room(wait.row) or (topped_up is not None and answers.cap_of(wait.row) == topped_up)
        return family.room_news(now) if concerned else None

    yield from _wake(work, (yield from work.rows("list_room_waits", family=eldest)), news)
