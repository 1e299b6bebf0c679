"""Budgets that a run shares with its family (table B): who must ask for room, and what comes of it. Who hears of room is in `_life`."""

from __future__ import annotations

from decimal import Decimal

from perdure.core import answers, family
from perdure.core.budget import Budget
from perdure.core.codec import load
from perdure.core.errors import RunNotFoundError
from perdure.core.run import Run, RunStatus
from perdure.core.wait import Resolution, WaitWrite
from perdure.stores._moves import _rows
from perdure.stores._moves._draft import Draft, lock_whole
from perdure.stores._moves._program import NOTHING, Program, Query, Row, Rows, Work, moment


# ── reading ────────────────────────────────────────────────────────────────────────────────────────────────
def asks_for_line(run: Run) -> Query:
    """The query behind `shares`: none for a run that has neither a cap nor anybody above it."""
    alone = run.forked or run.parent_run is None
    return NOTHING if alone and not family.capped(run.budget) else Query("list_line", {"id": run.id})


def shares(line: Rows) -> bool:
    """Whether the run at the foot of this line must ask for room."""
    above = [family.capped(_budget(row)) for row in line]
    return any(above[1:]) or bool(line and above[0] and line[0]["parent"])


def _budget(row: Row) -> Budget:
    return Budget.from_json(load(row["budget"]))


def eldest_of(work: Work, run_id: str) -> Program[str | None]:
    """The run at the head of this one's family; None where there is no such run."""
    line = yield from work.rows("list_line", id=run_id)
    return line[-1]["id"] if line else None


def members_of(work: Work, eldest: str) -> Program[tuple[list[family.Member], list[family.Reservation]]]:
    """The whole family, with its reservations. Nobody ends one meanwhile who has taken the eldest first."""
    rows = yield from work.rows("list_family", id=eldest)
    members = {row["id"]: _member(row, eldest) for row in rows}
    return list(members.values()), [_reservation(row) for row in rows if row["taken"] is not None]


def _member(row: Row, eldest: str) -> family.Member:
    usage = _rows.read_usage(row["usage"])
    parent = None if row["id"] == eldest else row["parent_run"]
    held = family.held(RunStatus(row["status"]), row["epoch"])
    return family.Member(row["id"], parent, usage.total_tokens, usage.cost_at_least, _budget(row), held)


def _reservation(row: Row) -> family.Reservation:
    return family.Reservation(row["id"], row["taken"], row["step"], row["tokens"], Decimal(row["cost"]))


# ── room ───────────────────────────────────────────────────────────────────────────────────────────────────
def reserve(work: Work, ask: family.Reserve) -> Program[family.Reserved]:
    """Take room for one model call under every cap above it. The eldest is locked first, so that two can't both find the same room."""
    eldest = yield from lock_line(work, ask.run_id)
    draft = work.drafts.get(ask.run_id)
    if draft is None or eldest is None:
        raise RunNotFoundError(ask.run_id)
    run = draft.run
    answer = family.Reserved(family.Room.LOST, run.epoch, run.status, run.cancel_requested)
    if run.status is not RunStatus.RUNNING or (run.epoch, run.claim_token, run.commit_no) != (ask.epoch, ask.token, ask.commit_no):
        return answer
    verdict = family.judge(ask, *(yield from members_of(work, eldest)))
    if verdict.room is family.Room.RESERVED:
        work.write("add_reservation", run=draft.seq, epoch=ask.epoch, step=ask.step, tokens=ask.tokens, cost=str(ask.cost))
    return family.with_room(answer, verdict, eldest)


def lock_line(work: Work, run_id: str) -> Program[str | None]:
    """Lock the eldest of a family, then this run of it; answers who the eldest is."""
    eldest = yield from eldest_of(work, run_id)
    if eldest is not None:
        yield from lock_whole(work, eldest)
        yield from lock_whole(work, run_id)
    return eldest


def eldest_first(work: Work, *names: str | None) -> Program[None]:
    """Lock the head of each family that this transaction will look at."""
    for name in sorted({name for name in names if name is not None}):
        yield from lock_whole(work, name)


def look(draft: Draft, write: WaitWrite) -> Program[tuple[Run | None, Resolution | None]]:
    """What a `budget` row needs to know at its birth: the run whose cap it is about, and whether nobody is in flight any more."""
    cap: Run | None = None
    of = answers.cap_of(write)
    if of is not None:
        row = yield from draft.work.row("get_run", id=of)
        cap = None if row is None else _rows.read_run(draft.work, row)
    room: Resolution | None = None
    now = moment(draft.now)
    assert now is not None
    if family.waits_for_room(write) and write.name is not None:
        members, reservations = yield from members_of(draft.work, write.name)
        room = family.room_at_birth(write, draft.id, members, reservations, now)
    return cap, room
