"""Taking runs and keeping them: pending, interrupted → running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from perdure.core import facts
from perdure.core.codec import dump
from perdure.core.commit import ClaimRequest, Lease, Renewed
from perdure.core.errors import RunNotFoundError
from perdure.core.run import Run, RunStatus
from perdure.stores._moves import _rows
from perdure.stores._moves._draft import Draft, lock_whole
from perdure.stores._moves._program import Program, Query, Row, Rows, Work, moment, span


@dataclass(frozen=True, slots=True)
class _Hold:
    """A row that keeps others from what a run uses: its concurrency key, its thread, or one of its agent's places."""

    kind: str
    name: str
    slot: int = 0


class _Places:
    """The places of the agents that have a limit: who has one, and which are free."""

    def __init__(self, limits: dict[str, int], taken: Sequence[Rows]) -> None:
        self._limits = limits
        self._taken = {agent: {row["slot"]: row["run"] for row in rows} for agent, rows in zip(limits, taken, strict=True)}

    def full(self, agent: str) -> bool:
        """Whether only runs that have a place already may be claimed."""
        return agent in self._limits and len(self._taken[agent]) >= self._limits[agent]

    def take(self, row: Row) -> int | None:
        """A place for this run: its own or a free one. 0: the agent has no limit. None: there is none."""
        agent, run = row["agent"], row["seq"]
        if agent not in self._limits:
            return 0
        taken = self._taken[agent]
        own = next((slot for slot, holder in taken.items() if holder == run), None)
        if own is not None:
            return own
        if self.full(agent):
            return None
        slot = next(slot for slot in range(1, len(taken) + 2) if slot not in taken)
        taken[slot] = run
        return slot


def claim(work: Work, ask: ClaimRequest) -> Program[Sequence[Run]]:
    """Take up to `limit` runs. The same token again answers what it took and still holds."""
    limits = {agent: limit for agent, limit in ask.agents.items() if limit is not None}
    [mine, [clock], *taken] = yield from work.read(
        Query("list_claimed", {"token": ask.token}), Query("clock", {}), *(Query("list_places", {"agent": agent}) for agent in limits)
    )
    if mine:
        return [_rows.read_run(work, row) for row in mine if row["status"] == RunStatus.RUNNING.value]
    if not ask.agents:
        return []
    now: int = clock["now"]
    work.write("make_due", now=now)
    places = _Places(limits, taken)
    candidates = yield from _candidates(work, ask, places)
    claimed: list[Run] = []
    for row in candidates:
        if len(claimed) == ask.limit:
            break
        run = yield from _take(work, ask, row, places)
        if run is not None:
            claimed.append(run)
    return claimed


def _candidates(work: Work, ask: ClaimRequest, places: _Places) -> Program[list[Row]]:
    """Runs that may be claimed, in the order of the claim: each agent's own first ones, merged."""
    roomy = dump([agent for agent in ask.agents if not places.full(agent)])
    query = "claimable" if ask.run_id is None else "claimable_run"
    params = {"format": ask.format, "limit": ask.limit, "roomy": roomy, "agents": dump(list(ask.agents)), "run_id": ask.run_id}
    answers = yield from work.read(*(Query(query, {**params, "agent": agent}) for agent in ask.agents))
    return sorted((row for rows in answers for row in rows), key=_order)


def _order(row: Row) -> tuple[bool, int, bool, int]:
    """Interrupted ones first, then by priority, begun before new, then in order of admission."""
    return row["status"] != RunStatus.INTERRUPTED.value, -row["priority"], row["executions"] == 0, row["seq"]


def _take(work: Work, ask: ClaimRequest, row: Row, places: _Places) -> Program[Run | None]:
    """Claim one candidate, unless the one before it took what it needs."""
    slot = places.take(row)
    if slot is None or not (yield from _take_holds(work, row, slot)):
        return None
    draft = yield from lock_whole(work, row["id"])
    assert draft is not None
    yield from _begin(draft, ask)
    return draft.stored()


def _take_holds(work: Work, row: Row, slot: int) -> Program[bool]:
    """Take all that the run needs or nothing: a unique row each, so that two claims at once can't both find it free."""
    needed = [
        *([_Hold("key", row["concurrency_key"])] if row["concurrency_key"] is not None else []),
        *([_Hold("thread", row["thread"])] if row["thread"] is not None else []),
        *([_Hold("agent", row["agent"], slot)] if slot else []),
    ]
    if not needed:
        return True
    run: int = row["seq"]
    tries = [Query("take_hold", {"kind": each.kind, "name": each.name, "slot": each.slot, "run": run}) for each in needed]
    answers = yield from work.read(*tries)
    # A row comes back for what is this run's now, be it new or kept from before.
    got = [rows[0] if rows else None for rows in answers]
    if all(got):
        return True
    for each, hold in zip(needed, got, strict=True):
        if hold is not None and hold["taken"]:
            work.write("drop_hold", kind=each.kind, name=each.name, slot=each.slot, run=run)
    return False


def _begin(draft: Draft, ask: ClaimRequest) -> Program[None]:
    now, run = moment(draft.now), draft.run
    assert now is not None
    head = run.head
    if draft.row["head_generation"] != run.generation and run.thread is not None:
        row = yield from draft.work.row("get_head", thread=run.thread)
        head = None if row is None else row["run_id"]
    draft.row.update(head_generation=run.generation, first_event=0, ended=0, lease_host=ask.host)
    draft.run = replace(
        run, status=RunStatus.RUNNING, epoch=run.epoch + 1, executions=run.executions + 1, claim_token=ask.token, lease_owner=ask.worker,
        lease_expires_at=now + ask.lease, activity=None, started_at=run.started_at or now, updated_at=now, head=head,
    )  # fmt: skip
    draft.tell(facts.claimed(draft.run))


def renew(work: Work, leases: Sequence[Lease], lease: timedelta) -> Program[Sequence[Renewed]]:
    """Push the expiry of every lease still held. Taking ends a lease, not time: an expired one that nobody took is renewed too."""
    now = yield from work.clock()
    for mine in leases:
        activity = None if mine.activity is None else dump(mine.activity.to_json())
        work.write("renew", id=mine.run_id, epoch=mine.epoch, token=mine.token, expires_at=now + span(lease), activity=activity)
    answers = yield from work.read(*(Query("get_lease", {"id": mine.run_id}) for mine in leases))
    return [_renewed(mine, rows) for mine, rows in zip(leases, answers, strict=True)]


def _renewed(mine: Lease, rows: Rows) -> Renewed:
    if not rows:
        raise RunNotFoundError(mine.run_id)
    [row] = rows
    status = RunStatus(row["status"])
    held = status is RunStatus.RUNNING and row["epoch"] == mine.epoch and row["claim_token"] == mine.token
    return Renewed(mine.run_id, held, row["epoch"], status, bool(row["cancel_requested"]))
