"""What time asks for: expired leases, expired rows and timers, deadlines."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import cast

from perdure.core import answers, endings, facts
from perdure.core.commit import SweepRequest, Swept
from perdure.core.run import RunStatus
from perdure.core.wait import WaitPoint
from perdure.stores.memory._moves import Moves
from perdure.stores.memory._tables import Row


def sweep(moves: Moves, request: SweepRequest) -> Swept:
    """One bounded pass."""
    now = moves.now()
    recovered, poisoned = _sweep_leases(moves, request, now)
    expired, woken = _sweep_waits(moves, request, now)
    deadlines = _sweep_deadlines(moves, request, now)
    return Swept(recovered, poisoned, expired, woken, deadlines, _next_due(moves))


def _sweep_leases(moves: Moves, request: SweepRequest, now: datetime) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ended = [row for row in moves.rows.values() if row.run.status is RunStatus.RUNNING and cast(datetime, row.run.lease_expires_at) <= now]
    ended.sort(key=lambda row: (cast(datetime, row.run.lease_expires_at), row.run.seq))
    recovered: list[str] = []
    poisoned: list[str] = []
    for row in ended[: request.limit]:
        row.run = replace(row.run, deaths=row.run.deaths + 1)
        moves.tell(row, facts.recovered(row.run))
        if row.run.deaths >= request.deaths_max and not row.run.cancel_requested:
            moves.finish(row, RunStatus.FAILED, now, error=endings.poisoned(row.run))
            poisoned.append(row.run.id)
        else:
            moves.rest(row, RunStatus.PENDING, now)
            recovered.append(row.run.id)
    return tuple(recovered), tuple(poisoned)


def _sweep_waits(moves: Moves, request: SweepRequest, now: datetime) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ended = [wait for wait in moves.all_open() if _expires(moves, wait) and answers.due(wait.row, now)]
    ended.sort(key=lambda wait: cast(datetime, wait.row.expires_at))
    expired: list[str] = []
    woken: list[str] = []
    for wait in ended[: request.limit]:
        if wait.id not in moves.open:
            continue  # an earlier one of this pass has failed the run
        row = moves.rows[wait.run_id]
        moves.close(row, wait, answers.expiry(wait.row, now))
        if answers.fails_run(wait.row):
            moves.finish(row, RunStatus.FAILED, now, error=endings.wait_expired(wait))
        else:
            moves.answered(row, now)
        (woken if wait.kind == "timer" else expired).append(row.run.id)
    return tuple(expired), tuple(woken)


def _expires(moves: Moves, wait: WaitPoint) -> bool:
    """Whether time may close this open row now: one that fails its run stays open until the run waits."""
    return not answers.fails_run(wait.row) or moves.rows[wait.run_id].run.status is RunStatus.WAITING


def _sweep_deadlines(moves: Moves, request: SweepRequest, now: datetime) -> tuple[str, ...]:
    late = [row for row in moves.rows.values() if _resting_deadline(moves, row) is not None and cast(datetime, row.run.deadline) <= now]
    late.sort(key=lambda row: (cast(datetime, row.run.deadline), row.run.seq))
    for row in late[: request.limit]:
        moves.finish(row, RunStatus.FAILED, now, error=endings.deadline_passed(row.run))
    return tuple(row.run.id for row in late[: request.limit])


def _resting_deadline(moves: Moves, row: Row) -> datetime | None:
    """The deadline of a run that nobody runs; a running one is its owner's to stop."""
    return None if row.run.status.final or row.run.status is RunStatus.RUNNING else row.run.deadline


def _next_due(moves: Moves) -> datetime | None:
    """When there is something to sweep next; not after now: at once, this pass was full."""
    rows = moves.rows.values()
    times = [row.run.lease_expires_at for row in rows] + [_resting_deadline(moves, row) for row in rows]
    times += [wait.row.expires_at for wait in moves.all_open() if _expires(moves, wait) and wait.kind != "effect"]
    return min((at for at in times if at is not None), default=None)
