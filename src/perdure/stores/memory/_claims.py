"""Who may run what, in which order (G2, G3)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import cast

from perdure.core import facts
from perdure.core.commit import ClaimRequest
from perdure.core.run import Run, RunStatus
from perdure.stores.memory._moves import Moves
from perdure.stores.memory._tables import Row


def claim(moves: Moves, request: ClaimRequest) -> list[Run]:
    """Take what may be taken, in order; the same token again answers what it holds."""
    again = [row.run for row in moves.rows.values() if row.run.claim_token == request.token]
    if again:
        return [run for run in again if run.status is RunStatus.RUNNING]
    candidates = sorted(_candidates(moves, request), key=_claim_order)
    holders = [row for row in moves.rows.values() if row.holds or row.holds_thread]
    taken: list[Run] = []
    for row in candidates:
        if len(taken) == request.limit:
            break
        # Asked anew for each, because the one before may have taken the key, the thread or the last slot.
        if request.run_id in (None, row.run.id) and _first_of_key(row, candidates, holders, request):
            taken.append(_take(moves, row, request))
            holders.append(row)
    return taken


def _candidates(moves: Moves, request: ClaimRequest) -> list[Row]:
    now = moves.now()
    return [
        row
        for row in moves.rows.values()
        if row.run.status.claimable
        and row.run.agent in request.agents
        and row.run.format <= request.format
        and cast(datetime, row.run.available_at) <= now
    ]


def _take(moves: Moves, row: Row, request: ClaimRequest) -> Run:
    now, run = moves.now(), row.run
    row.holds, row.holds_thread = True, run.thread is not None
    row.answer, row.ended_by_commit = None, False
    head = run.head
    if row.head_generation != run.generation and run.thread is not None:
        head = moves.heads.get(run.thread)
    row.head_generation = run.generation
    row.run = replace(
        run, status=RunStatus.RUNNING, epoch=run.epoch + 1, executions=run.executions + 1, claim_token=request.token, lease_owner=request.worker,
        lease_expires_at=now + request.lease, activity=None, started_at=run.started_at or now, updated_at=now, head=head,
    )  # fmt: skip
    moves.tell(row, facts.claimed(row.run))
    moves.touch(row)
    return row.run


def _claim_order(row: Row) -> tuple[bool, int, bool, int]:
    """Interrupted ones first, then by priority, begun before new, then in order of admission."""
    run = row.run
    return run.status is not RunStatus.INTERRUPTED, -run.priority, run.executions == 0, run.seq


def _first_of_key(row: Row, candidates: list[Row], holders: list[Row], request: ClaimRequest) -> bool:
    """Whether this run may be claimed now: all is free for it, and nobody of its concurrency key who could go comes before it."""
    key = row.run.concurrency_key
    rivals = [row] if key is None else [each for each in candidates if each.run.concurrency_key == key]
    able = [each for each in rivals if _free(each, holders, request)]
    return bool(able) and min(able, key=_key_order) is row


def _free(row: Row, holders: list[Row], request: ClaimRequest) -> bool:
    """Whether the key, the thread and a slot of the agent are free for this run."""
    run, others = row.run, [each for each in holders if each is not row]
    if run.concurrency_key is not None and any(each.holds and each.run.concurrency_key == run.concurrency_key for each in others):
        return False
    if run.thread is not None and any(each.holds_thread and each.run.thread == run.thread for each in others):
        return False
    limit = request.agents[run.agent]
    # One that has its place goes on with it, even where a limit came since that all places together exceed: else none of them ever could.
    return limit is None or row.holds or sum(each.holds and each.run.agent == run.agent for each in others) < limit


def _key_order(row: Row) -> tuple[bool, int]:
    """Within one concurrency key: begun before new, then in order of admission, whatever the priority."""
    return row.run.executions == 0, row.run.seq
