"""What is asked of a store without changing it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from perdure.core.artifact import Artifact
from perdure.core.checkpoint import Checkpoint
from perdure.core.commit import EffectFilter, Loaded, RunFilter, WaitFilter
from perdure.core.effect import Effect
from perdure.core.errors import ArtifactNotFoundError, RunNotFoundError
from perdure.core.event import Event
from perdure.core.limits import RECENT_STEPS
from perdure.core.run import Run, RunStatus
from perdure.core.step import Step
from perdure.core.wait import WaitPoint
from perdure.stores._moves import _family, _rows
from perdure.stores._moves._admit import run_of_key
from perdure.stores._moves._program import Program, Query, Row, Work, micros, moment

BASE_LIMIT = 2**62
"""Stands for "no bound" where a query has one."""


def now(work: Work) -> Program[datetime]:
    at = moment((yield from work.clock()))
    assert at is not None
    return at


# ── one run ────────────────────────────────────────────────────────────────────────────────────────────────
def get(work: Work, run_id: str) -> Program[Run | None]:
    row = yield from work.row("get_run", id=run_id)
    return None if row is None else _rows.read_run(work, row)


def _found(work: Work, run_id: str) -> Program[Run]:
    run = yield from get(work, run_id)
    if run is None:
        raise RunNotFoundError(run_id)
    return run


def find(work: Work, agent: str, key: str) -> Program[Run | None]:
    [keys, [clock]] = yield from work.read(Query("find_key", {"agent": agent, "key": key}), Query("clock", {}))
    if not keys or (keys[0]["expires_at"] is not None and keys[0]["expires_at"] <= clock["now"]):
        return None
    return (yield from run_of_key(work, keys[0]))


def load(work: Work, run_id: str) -> Program[Loaded]:
    run = yield from _found(work, run_id)
    place = {"run": run.seq, "generation": run.generation}
    last, steps, effects, waits, count, recent, line = yield from work.read(
        Query("last_checkpoint", place),
        Query("list_steps_of_last", place),
        Query("list_effects_of", {"run": run.seq}),
        Query("list_current_waits", place),
        Query("count_model_calls", place),
        Query("list_recent_calls", {**place, "limit": RECENT_STEPS}),
        _family.asks_for_line(run),
    )
    checkpoint = yield from _with_messages(work, run, last)
    mine = [_rows.read_effect(work, row, run_id) for row in effects]
    ancestors = yield from _effects_of_ancestors(work, run)
    return Loaded(
        run=run,
        checkpoint=checkpoint,
        steps=tuple(_rows.read_step(work, row, run_id) for row in steps),
        effects=tuple(each for each in mine if each.generation == run.generation),
        held=(*ancestors, *(each for each in mine if each.generation < run.generation)),
        waits=tuple(_rows.read_wait(work, row) for row in waits),
        model_calls=count[0]["count"],
        recent=tuple(_rows.read_step(work, row, run_id) for row in reversed(recent)),
        shares=_family.shares(line),
    )


def _effects_of_ancestors(work: Work, run: Run) -> Program[tuple[Effect, ...]]:
    """Those of the runs that this one goes back to by forks, the oldest run first."""
    found: tuple[Effect, ...] = ()
    while run.forked and run.parent_run is not None:
        parent = yield from get(work, run.parent_run)
        if parent is None:
            break
        rows = yield from work.rows("list_effects_of", run=parent.seq)
        found = (*(_rows.read_effect(work, row, parent.id) for row in rows), *found)
        run = parent
    return found


def _with_messages(work: Work, run: Run, rows: Sequence[Row]) -> Program[Checkpoint | None]:
    if not rows:
        return None
    [row] = rows
    place = {"run": run.seq, "generation": row["generation"], "base": row["base"], "length": row["length"]}
    messages = yield from work.rows("list_messages", **place)
    return _rows.read_checkpoint(work, row, messages, run.id)


def checkpoint(work: Work, run_id: str, generation: int | None, index: int | None) -> Program[Checkpoint | None]:
    run = yield from _found(work, run_id)
    place = {"run": run.seq, "generation": run.generation if generation is None else generation}
    query = Query("last_checkpoint", place) if index is None else Query("get_checkpoint", {**place, "idx": index})
    [rows] = yield from work.read(query)
    return (yield from _with_messages(work, run, rows))


def steps(work: Work, run_id: str, after: int, limit: int) -> Program[Sequence[Step]]:
    known, rows = yield from work.read(Query("has_run", {"id": run_id}), Query("list_steps", {"id": run_id, "after": after, "limit": limit}))
    if not known:
        raise RunNotFoundError(run_id)
    return [_rows.read_step(work, row, run_id) for row in rows]


def events(work: Work, run_id: str, after: int, limit: int) -> Program[Sequence[Event]]:
    known, rows = yield from work.read(Query("has_run", {"id": run_id}), Query("list_events", {"id": run_id, "after": after, "limit": limit}))
    if not known:
        raise RunNotFoundError(run_id)
    return [_rows.read_event(work, row, run_id) for row in rows]


# ── lists ──────────────────────────────────────────────────────────────────────────────────────────────────
def runs(work: Work, where: RunFilter) -> Program[Sequence[Run]]:
    """Newest first. One status of one agent is one range of an index; several are as many ranges, merged: so no list reads what it does not show."""
    bounds = {"before": BASE_LIMIT if where.before is None else where.before, "limit": where.limit}
    rest = {"thread": where.thread, "parent": where.parent, "agent": where.agent}
    statuses = [status.value for status in where.status or RunStatus]
    if where.label is not None:
        name, value = where.label
        queries = [Query("list_runs_of_label", {**bounds, **rest, "name": name, "value": value, "statuses": _rows.dump(statuses)})]
    elif where.thread is not None:
        queries = [Query("list_runs_of_thread", {**bounds, **rest, "statuses": _rows.dump(statuses)})]
    elif where.parent is not None:
        queries = [Query("list_runs_of_parent", {**bounds, **rest, "statuses": _rows.dump(statuses)})]
    elif where.agent is not None:
        queries = [Query("list_runs_of_agent", {**bounds, "agent": where.agent, "status": status}) for status in statuses]
    elif where.status:
        queries = [Query("list_runs_of_status", {**bounds, "status": status}) for status in statuses]
    else:
        queries = [Query("list_runs", bounds)]
    answers = yield from work.read(*queries)
    # Runs are numbered as they are admitted, so those before `since` are the last ones of each range: they only shorten the list.
    since = micros(where.since) or 0
    newest = sorted((row["seq"] for rows in answers for row in rows if row["created_at"] >= since), reverse=True)[: where.limit]
    whole = yield from work.read(*(Query("get_run_at", {"seq": seq}) for seq in newest))
    return [_rows.read_run(work, rows[0]) for rows in whole if rows]


def counts(work: Work, agent: str | None) -> Program[dict[str, int]]:
    rows = yield from (work.rows("count_runs") if agent is None else work.rows("count_runs_of_agent", agent=agent))
    found = {row["status"]: row["count"] for row in rows}
    return {status.value: found.get(status.value, 0) for status in RunStatus}


def wait(work: Work, wait_id: str) -> Program[WaitPoint | None]:
    row = yield from work.row("get_wait", id=wait_id)
    return None if row is None else _rows.read_wait(work, row)


def waits(work: Work, where: WaitFilter) -> Program[Sequence[WaitPoint]]:
    query = "list_waits_of_run" if where.run_id is not None else "list_open_waits_of_all" if where.open else "list_waits"
    rows = yield from work.rows(
        query, run_id=where.run_id, after=where.after, kinds=_rows.dump(list(where.kind)), any_kind=int(not where.kind),
        open=None if where.open is None else int(where.open), limit=where.limit,
    )  # fmt: skip
    return [_rows.read_wait(work, row) for row in rows]


def effects(work: Work, where: EffectFilter) -> Program[Sequence[Effect]]:
    query = "list_effects"
    if where.run_id is not None:
        query = "list_effects_of_run"
    elif where.claim is not None:
        query = "list_effects_of_claim"
    elif where.state and not {"done", "failed"} & set(where.state):
        query = "list_open_effects"
    rows = yield from work.rows(
        query, run_id=where.run_id, claim=where.claim, states=_rows.dump([str(state) for state in where.state]), any_state=int(not where.state),
        limit=where.limit,
    )  # fmt: skip
    return [_rows.read_effect(work, row, row["run_id"]) for row in rows]


# ── artifacts ──────────────────────────────────────────────────────────────────────────────────────────────
def get_artifact(work: Work, artifact_id: str) -> Program[tuple[Artifact, bytes]]:
    row = yield from work.row("get_artifact", id=artifact_id)
    if row is None:
        raise ArtifactNotFoundError(artifact_id)
    return _rows.read_artifact(row), work.codec.decode(bytes(row["body"]))


def put_artifact(work: Work, artifact: Artifact, data: bytes) -> Program[Artifact]:
    """Store the bytes unless they are there; the first description of them stands."""
    at = yield from work.clock()
    work.write(
        "add_artifact", id=artifact.id, media_type=artifact.media_type, size=artifact.size, filename=artifact.filename, created_at=at,
        body=work.codec.encode(data),
    )  # fmt: skip
    row = yield from work.row("describe_artifact", id=artifact.id)
    assert row is not None
    return _rows.read_artifact(row)
