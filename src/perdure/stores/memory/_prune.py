"""Forgetting old runs that nothing needs any more."""

from __future__ import annotations

from datetime import datetime
from typing import cast

from perdure.core.answers import blocks_key
from perdure.core.commit import Pruned, PruneRequest
from perdure.core.run import Run, RunStatus
from perdure.stores.memory._tables import Row, Tables


def prune(tables: Tables, request: PruneRequest) -> Pruned:
    """One bounded pass."""
    until = tables.now() - request.older_than
    old = [row for row in tables.rows.values() if _asked_for(row.run, request, until) and not _needed(tables, row)]
    old.sort(key=lambda row: (cast(datetime, row.run.finished_at), row.run.seq))
    runs = [row.run.id for row in old[: request.limit]]
    for run_id in runs:
        _forget(tables, run_id)
    return Pruned(tuple(runs), _forget_keys(tables, request.limit))


def _asked_for(run: Run, request: PruneRequest, until: datetime) -> bool:
    ended = run.status.final and run.finished_at is not None and run.finished_at <= until
    return ended and request.agent in (None, run.agent) and (not request.status or run.status in request.status)


def _needed(tables: Tables, row: Row) -> bool:
    run = row.run
    return (
        run.seq == max(each.run.seq for each in tables.rows.values())
        or any(wait.open for wait in row.waits.values())
        or any(blocks_key(effect) and not (effect.row.claim or "run:").startswith("run:") for effect in row.effects.values())
        or run.id in tables.heads.values()
        or any(_needs(each.run, run) for each in tables.rows.values())
        or _counts(tables, run)
    )


def _needs(other: Run, run: Run) -> bool:
    """Whether another run still needs this one: as its ancestor, or as the turn before it."""
    if other.parent_run == run.id:
        return other.forked or not other.status.final
    return other.head == run.id and other.status is not RunStatus.COMPLETED


def _counts(tables: Tables, run: Run) -> bool:
    """Whether what it has spent still counts: for a run above it that has not settled."""
    above = tables.above(run)
    return above is not None and (not above.run.status.final or _counts(tables, above.run))


def _forget(tables: Tables, run_id: str) -> None:
    row = tables.rows.pop(run_id)
    tables.reservations = [each for each in tables.reservations if each.run_id != run_id]
    for wait_id in row.waits:
        del tables.waits[wait_id]
        tables.tokens.pop(wait_id, None)
    for key in row.effects:
        del tables.effects[key]
    if (run := row.run).trigger.key is not None:
        left = Row(Run.forgotten(run.id, run.agent, run.trigger.key, run.status), row.payload_hash, row.key_retention)
        left.settled_at = run.finished_at
        tables.pruned[run_id] = left


def _forget_keys(tables: Tables, limit: int) -> int:
    over = [name for name in tables.keys if tables.keyed(*name) is None][:limit]
    for name in over:
        tables.pruned.pop(tables.keys.pop(name), None)
    return len(over)
