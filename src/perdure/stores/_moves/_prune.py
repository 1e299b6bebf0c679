"""Forgetting old runs that nothing needs any more: one run a transaction, so that no pass holds a lock for long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perdure.core.codec import dump
from perdure.core.commit import PruneRequest
from perdure.core.run import FINAL
from perdure.stores._moves._draft import lock_whole
from perdure.stores._moves._program import Program, Work, span


@dataclass(frozen=True, slots=True)
class Old:
    """A run that may be forgotten, as it was listed. It is looked at again under its lock."""

    run_id: str
    finished_at: int


def list_old(work: Work, ask: PruneRequest) -> Program[Sequence[Old]]:
    """The runs that a pass may forget, the oldest first."""
    now = yield from work.clock()
    rows = yield from work.rows("list_prunable", **_asked_for(ask), after=0, before=now - span(ask.older_than), limit=ask.limit)
    return [Old(row["id"], row["finished_at"]) for row in rows]


def forget(work: Work, old: Old, ask: PruneRequest) -> Program[bool]:
    """Delete a run and all that hangs on it, unless something needs it by now. Its key keeps the id and the status."""
    draft = yield from lock_whole(work, old.run_id)
    if draft is None or draft.row["finished_at"] != old.finished_at:
        return False
    rows = yield from work.rows("list_prunable", **_asked_for(ask), after=old.finished_at, before=old.finished_at, limit=1_000_000)
    if all(row["seq"] != draft.seq for row in rows):
        return False
    if draft.run.trigger.key is not None:
        work.write("keep_key", agent=draft.run.agent, key=draft.run.trigger.key, run=draft.seq, id=draft.id)
    for name, value in draft.run.labels.items():
        work.write("drop_label", name=name, value=value, run=draft.seq)
    for query in _ALL_OF_A_RUN:
        work.write(query, run=draft.seq)
    return True


_ALL_OF_A_RUN = (
    "drop_tokens_of", "drop_waits_of", "drop_effects_of", "drop_reservations_of", "drop_signals_of", "drop_events_of", "drop_steps_of", "drop_checkpoints_of", "drop_messages_of",
    "drop_holds", "drop_body", "drop_run",
)  # fmt: skip


def forget_keys(work: Work, limit: int) -> Program[int]:
    """Delete keys whose retention is over; answers how many."""
    now = yield from work.clock()
    rows = yield from work.rows("drop_expired_keys", now=now, limit=limit)
    return len(rows)


def _asked_for(ask: PruneRequest) -> dict[str, str | None]:
    return {"agent": ask.agent, "statuses": dump(sorted(str(status) for status in ask.status or FINAL))}
