"""What may happen to a run from outside its execution: cancel, retry, and what time asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from perdure.core import answers, endings, facts, revive
from perdure.core.commit import Cancelled, CancelRequest, Retried, RetryRequest, SweepRequest, Swept
from perdure.core.errors import RunNotFoundError
from perdure.core.run import RunStatus
from perdure.stores._moves import _family, _life
from perdure.stores._moves._draft import Draft, lock_to_end
from perdure.stores._moves._program import Program, Query, Work, moment


# ── cancel and retry ───────────────────────────────────────────────────────────────────────────────────────
def cancel(work: Work, ask: CancelRequest) -> Program[Cancelled]:
    """Settle a resting run as cancelled, or mark a running one."""
    draft = yield from _found(work, ask.run_id)
    rows = yield from work.rows("list_unsettled_children", id=ask.run_id)
    children = tuple(row["id"] for row in rows)
    run = draft.run
    if run.status.final or ask.settlement not in (None, run.settlement):
        return Cancelled("already", run.status, children)
    if run.status is not RunStatus.RUNNING:
        yield from _life.finish(draft, RunStatus.CANCELLED, why=ask)
        return Cancelled("settled", draft.run.status, children)
    if not run.cancel_requested:
        draft.run = replace(run, cancel_requested=True, updated_at=_now(draft))
        draft.tell(facts.cancel_requested(ask))
    return Cancelled("cancelling", run.status, children)


def retry(work: Work, ask: RetryRequest) -> Program[Retried]:
    """Bring a failed or cancelled run back."""
    eldest = None if ask.budget is None else (yield from _family.lock_line(work, ask.run_id))
    draft = yield from _found(work, ask.run_id)
    if revive.answered_already(draft.run, ask):
        return Retried(draft.run, "already")
    now = _now(draft)
    revive.refuse(draft.run, ask, now)
    draft.run = revive.revived(draft.run, ask, now)
    key = draft.run.trigger.key
    if key is not None:
        work.write("date_key", agent=draft.run.agent, key=key, run_id=draft.id, now=None)
    draft.tell(facts.retried(draft.run, ask))
    yield from _life.come_to_rest(draft, RunStatus.PENDING)
    if eldest is not None:
        yield from _life.wake_family(work, eldest, topped_up=draft.id)
    return Retried(draft.stored(), "retried")


def _found(work: Work, run_id: str) -> Program[Draft]:
    draft = yield from lock_to_end(work, run_id)
    if draft is None:
        raise RunNotFoundError(run_id)
    return draft


def _now(draft: Draft) -> datetime:
    now = moment(draft.now)
    assert now is not None
    return now


# ── what time asks for ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Due:
    """Something whose time has come when it was looked for. It is looked at again under its run's lock, in a transaction of its own."""

    kind: Literal["lease", "wait", "deadline"]
    run_id: str
    epoch: int = 0
    wait_id: str = ""


Head = Literal["recovered", "poisoned", "expired", "woken", "deadlines"]
"""The fields of `Swept`: what a thing that was due turned out to be."""


def tally(done: Sequence[tuple[str, Head | None]], next_due: datetime | None) -> Swept:
    """What a pass did, run by run. None: it was not due any more."""

    def under(head: Head) -> tuple[str, ...]:
        return tuple(run_id for run_id, found in done if found == head)

    return Swept(under("recovered"), under("poisoned"), under("expired"), under("woken"), under("deadlines"), next_due)


def list_due(work: Work, ask: SweepRequest) -> Program[Sequence[Due]]:
    """What a pass should look at, at most `limit` of each kind."""
    now = yield from work.clock()  # not the last word: each is looked at again under its lock
    bounds = {"now": now, "limit": ask.limit}
    leases, waits, deadlines = yield from work.read(
        Query("list_expired_leases", bounds), Query("list_expired_waits", bounds), Query("list_passed_deadlines", bounds)
    )
    return [
        *(Due("lease", row["id"], epoch=row["epoch"]) for row in leases),
        *(Due("wait", row["run_id"], wait_id=row["id"]) for row in waits),
        *(Due("deadline", row["id"]) for row in deadlines),
    ]


def next_due(work: Work) -> Program[datetime | None]:
    """When there is something to sweep next; not after now: at once, this pass was full."""
    row = yield from work.row("next_due")
    return None if row is None else moment(row["at"])


def sweep(work: Work, due: Due, deaths_max: int) -> Program[Head | None]:
    """Do one thing that time asks for, if it still does. Answers what it was; None: it was not due any more."""
    draft = yield from lock_to_end(work, due.run_id)
    if draft is None:
        return None
    if due.kind == "lease":
        return (yield from _sweep_lease(draft, due.epoch, deaths_max))
    return (yield from (_sweep_wait(draft, due.wait_id) if due.kind == "wait" else _sweep_deadline(draft)))


def _sweep_lease(draft: Draft, epoch: int, deaths_max: int) -> Program[Head | None]:
    run, now = draft.run, _now(draft)
    if run.status is not RunStatus.RUNNING or run.epoch != epoch or run.lease_expires_at is None or run.lease_expires_at > now:
        return None
    draft.run = replace(run, deaths=run.deaths + 1)
    draft.tell(facts.recovered(draft.run))
    if draft.run.deaths >= deaths_max and not run.cancel_requested:
        yield from _life.finish(draft, RunStatus.FAILED, error=endings.poisoned(draft.run))
        return "poisoned"
    yield from _life.come_to_rest(draft, RunStatus.PENDING)
    return "recovered"


def _sweep_wait(draft: Draft, wait_id: str) -> Program[Head | None]:
    now, waits = _now(draft), (yield from _life.open_waits(draft))
    wait = next((wait for wait in waits if wait.id == wait_id), None)
    if wait is None or not answers.due(wait.row, now) or (answers.fails_run(wait.row) and draft.run.status is not RunStatus.WAITING):
        return None
    _life.close(draft, wait, answers.expiry(wait.row, now))
    if answers.fails_run(wait.row):
        yield from _life.finish(draft, RunStatus.FAILED, error=endings.wait_expired(wait))
    else:
        yield from _life.answered(draft)
    return "woken" if wait.kind == "timer" else "expired"


def _sweep_deadline(draft: Draft) -> Program[Head | None]:
    run, now = draft.run, _now(draft)
    if run.status.final or run.status is RunStatus.RUNNING or run.deadline is None or run.deadline > now:
        return None
    yield from _life.finish(draft, RunStatus.FAILED, error=endings.deadline_passed(run))
    return "deadlines"
