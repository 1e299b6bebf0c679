"""Taking runs and keeping them: pending, interrupted → running."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from perdure.core import facts
from perdure.core.codec import dump
from perdure.core.commit import ClaimRequest, Lease, Renewed
from perdure.core.run import Run, RunStatus
from perdure.stores._moves import _rows
from perdure.stores._moves._draft import Draft
from perdure.stores._moves._program import CLOCK, Program, Query, Row, Rows, Work, moment, span


class _Hold(NamedTuple):
    """A row that keeps others from what a run uses: its concurrency key, its thread, or one of its agent's places."""

    kind: str
    name: str
    slot: int = 0


class _Places:
    """Who has a place of which agent. A claim without a limit takes one too, of its own number, because other workers may have a limit."""

    def __init__(self, limits: dict[str, int | None], taken: Sequence[Rows]) -> None:
        self._limits = limits
        self._taken = {agent: {row["slot"]: row["run"] for row in rows} for agent, rows in zip(limits, taken, strict=True)}

    def full(self, agent: str) -> bool:
        """Whether only runs that have a place already may be claimed."""
        limit = self._limits[agent]
        return limit is not None and len(self._taken[agent]) >= limit

    def take(self, row: Row) -> int | None:
        """A place for this run: its own, or a free one; None where there is none."""
        agent, run, taken = row["agent"], row["seq"], self._taken[row["agent"]]
        own = next((slot for slot, holder in taken.items() if holder == run), None)
        if own is not None:
            return own
        if self.full(agent):
            return None
        slot = -run if self._limits[agent] is None else next(slot for slot in range(1, len(taken) + 2) if slot not in taken)
        taken[slot] = run
        return slot


def claim(work: Work, ask: ClaimRequest) -> Program[Sequence[Run]]:
    """Take up to `limit` runs. The same token again answers what it took and still holds."""
    limited = [agent for agent, limit in ask.agents.items() if limit is not None]
    [mine, [clock], *taken] = yield from work.read(
        Query("list_claimed", {"token": ask.token}), CLOCK, *(Query("list_places", {"agent": agent}) for agent in limited)
    )
    if mine:
        return [_rows.read_run(work, row) for row in mine if row["status"] == RunStatus.RUNNING.value]
    if not ask.agents:
        return []
    work.write("make_due", now=clock["now"])
    by_agent = dict(zip(limited, taken, strict=True))
    places = _Places(ask.agents, [by_agent.get(agent, ()) for agent in ask.agents])
    candidates = yield from _candidates(work, ask, places)
    picked = _pick(candidates, ask.limit, places)
    return (yield from _take_all(work, ask, picked)) if picked else []


def _candidates(work: Work, ask: ClaimRequest, places: _Places) -> Program[list[Row]]:
    """Runs that may be claimed, in the order of the claim: each agent's own first ones, merged."""
    roomy = dump([agent for agent in ask.agents if not places.full(agent)])
    query = "list_claimable" if ask.run_id is None else "find_claimable"
    params = {"format": ask.format, "limit": ask.limit, "roomy": roomy, "agents": dump(list(ask.agents)), "run_id": ask.run_id}
    answers = yield from work.read(*(Query(query, {**params, "agent": agent}) for agent in ask.agents))
    return sorted((row for rows in answers for row in rows), key=_order)


def _order(row: Row) -> tuple[bool, int, bool, int]:
    """Interrupted ones first, then by priority, begun before new, then in order of admission."""
    return row["status"] != RunStatus.INTERRUPTED.value, -row["priority"], row["executions"] == 0, row["seq"]


def _pick(candidates: Sequence[Row], limit: int, places: _Places) -> list[tuple[Row, list[_Hold]]]:
    """The first ones that don't get in each other's way, each with what it needs."""
    picked: list[tuple[Row, list[_Hold]]] = []
    used: set[_Hold] = set()
    for row in candidates:
        named = [_Hold(kind, row[column]) for kind, column in (("key", "concurrency_key"), ("thread", "thread")) if row[column] is not None]
        if len(picked) == limit or used.intersection(named):
            continue
        slot = places.take(row)
        if slot is not None:
            used.update(named)
            picked.append((row, [*named, _Hold("agent", row["agent"], slot)]))
    return picked


def _take_all(work: Work, ask: ClaimRequest, picked: Sequence[tuple[Row, list[_Hold]]]) -> Program[list[Run]]:
    """Begin those runs that get all of what they need. They are read on the same way, after it was taken."""
    tries = [Query("take_hold", {**hold._asdict(), "run": row["seq"]}) for row, needed in picked for hold in needed]
    threads = [row["thread"] for row, _ in picked if row["thread"] is not None]
    answers = yield from work.read(
        *tries, *(Query("get_head", {"thread": each}) for each in threads), *(Query("get_run", {"id": row["id"]}) for row, _ in picked), CLOCK
    )
    heads = {thread: rows[0]["run_id"] for thread, rows in zip(threads, answers[len(tries) :], strict=False) if rows}
    [clock] = answers[-1]
    runs: list[Run] = []
    for [row], taken in zip(answers[len(tries) + len(threads) : -1], _taken(work, picked, answers), strict=True):
        if taken:
            draft = work.drafts[row["id"]] = Draft(work, row, clock["now"], whole=True)
            _begin(draft, ask, heads.get(draft.run.thread or ""))
            runs.append(draft.stored())
    return runs


def _taken(work: Work, picked: Sequence[tuple[Row, list[_Hold]]], answers: Sequence[Rows]) -> list[bool]:
    """Whether each run got all that it needs, or nothing: unique rows, so that two claims at once can't both find one free."""
    each, whole = iter(answers), list[bool]()
    for row, needed in picked:
        # A row comes back for what is this run's now, be it new or kept from before.
        got = [next(each) for _ in needed]
        whole.append(all(got))
        for hold, rows in zip(needed, got, strict=True):
            if not whole[-1] and rows and rows[0]["taken"]:
                work.write("drop_hold", **hold._asdict(), run=row["seq"])
    return whole


def _begin(draft: Draft, ask: ClaimRequest, head: str | None) -> None:
    """pending, interrupted → running. The thread's head is read at the first claim of each generation."""
    now, run = moment(draft.now), draft.run
    assert now is not None
    if draft.row["head_generation"] == run.generation or run.thread is None:
        head = run.head
    draft.row.update(head_generation=run.generation, first_event=0, ended=0, lease_host=ask.host)
    draft.run = replace(
        run, status=RunStatus.RUNNING, epoch=run.epoch + 1, executions=run.executions + 1, claim_token=ask.token, lease_owner=ask.worker,
        lease_expires_at=now + ask.lease, activity=None, started_at=run.started_at or now, updated_at=now, head=head,
    )  # fmt: skip
    draft.tell(facts.claimed(draft.run))


def renew(work: Work, leases: Sequence[Lease], lease: timedelta) -> Program[Sequence[Renewed]]:
    """Push the expiry of every lease still held. Taking ends a lease, not time: an expired one that nobody took is renewed too."""
    now = yield from work.clock()
    told = dump([[mine.run_id, mine.epoch, mine.token, _activity(mine)] for mine in leases])
    work.write("renew", expires_at=now + span(lease), leases=told)
    rows = yield from work.rows("list_leases", leases=told)
    known = {row["id"]: row for row in rows}
    return [_renewed(mine, known.get(mine.run_id)) for mine in leases]


def _activity(mine: Lease) -> str | None:
    return None if mine.activity is None else dump(mine.activity.to_json())


def _renewed(mine: Lease, row: Row | None) -> Renewed:
    if row is None:
        return Renewed.of_nobody(mine.run_id)
    status = RunStatus(row["status"])
    held = status is RunStatus.RUNNING and row["epoch"] == mine.epoch and row["claim_token"] == mine.token
    return Renewed(mine.run_id, held, row["epoch"], status, bool(row["cancel_requested"]))
