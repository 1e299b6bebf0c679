"""Admitting a run: – → pending."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from perdure.core import facts
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.codec import dump
from perdure.core.commit import Admitted, NewRun
from perdure.core.errors import ArtifactNotFoundError, Conflict, RunNotFoundError, StoreError
from perdure.core.limits import KEY_RETENTION
from perdure.core.run import Run, RunStatus
from perdure.stores._moves import _rows
from perdure.stores._moves._program import CLOCK, Program, Query, Row, Rows, Work, micros, moment, span


def admit(work: Work, new: NewRun) -> Program[Admitted]:
    """Create the run, or answer the one that its id or key already created."""
    [[clock], rows] = yield from work.read(CLOCK, _same_id(new))
    return (yield from _admit(work, new, clock["now"], rows))


def admit_at(work: Work, new: NewRun, now: int) -> Program[Admitted]:
    """As `admit`, inside a transaction that knows the time: children of a commit come this way."""
    [rows] = yield from work.read(_same_id(new))
    return (yield from _admit(work, new, now, rows))


def _same_id(new: NewRun) -> Query:
    return Query("get_run", {"id": new.id})


def _admit(work: Work, new: NewRun, now: int, same_id: Rows) -> Program[Admitted]:
    known = yield from _seen(work, new, now, same_id)
    if known is None:
        yield from _refuse_missing_attachments(work, new)
        yield from _refuse_thread_of_ancestor(work, new)
        run = yield from _create(work, new, now)
        if run is not None:
            return Admitted(run, created=True)
        # Another transaction was first with this id or key, and is durable by now.
        known = yield from _seen(work, new, now, (yield from work.read(_same_id(new)))[0])
        assert known is not None
    return Admitted(known, created=False)


def _seen(work: Work, new: NewRun, now: int, same_id: Rows) -> Program[Run | None]:
    """The run that this id or key created before."""
    if same_id:
        return _rows.read_run(work, same_id[0])
    key = new.trigger.key
    if key is None:
        return None
    stands = yield from work.row("find_key", agent=new.agent, key=key)
    if stands is None or (stands["expires_at"] is not None and stands["expires_at"] <= now):
        return None
    if stands["payload_hash"] != new.payload_hash:
        raise Conflict(
            f"Key {key!r} already started run {stands['run_id']} of {new.agent!r} with another payload. Use another key.", run_id=stands["run_id"]
        )
    return (yield from run_of_key(work, stands))


def run_of_key(work: Work, stands: Row) -> Program[Run]:
    """The run that a key started; of one that was forgotten, what the key still knows."""
    row = yield from work.row("get_run", id=stands["run_id"])
    if row is not None:
        return _rows.read_run(work, row)
    return Run.forgotten(stands["run_id"], stands["agent"], stands["key"], RunStatus(stands["status"]))


def _refuse_missing_attachments(work: Work, new: NewRun) -> Program[None]:
    ids = [each.artifact_id for each in new.trigger.attachments]
    if not ids:
        return
    answers = yield from work.read(*(Query("has_artifact", {"id": each}) for each in ids))
    for artifact_id, rows in zip(ids, answers, strict=True):
        if not rows:
            raise ArtifactNotFoundError(artifact_id)


def _refuse_thread_of_ancestor(work: Work, new: NewRun) -> Program[None]:
    """A child that waited for the thread of its waiting ancestor would wait for ever."""
    thread, ancestor = new.trigger.thread, new.parent_run
    if ancestor is None:
        return
    row = yield from work.row("get_kin", id=ancestor, thread=thread)
    if row is None:
        raise RunNotFoundError(ancestor)
    while new.trigger.source != "fork" and thread is not None:
        if row["holds"]:
            raise Conflict(f"Thread {thread!r} is held by the ancestor {row['id']} until it settles.", run_id=row["id"])
        if row["parent_run"] is None or row["forked"]:
            return
        row = yield from work.row("get_kin", id=row["parent_run"], thread=thread)
        if row is None:
            return  # that ancestor was pruned, so it has settled


def _create(work: Work, new: NewRun, now: int) -> Program[Run | None]:
    """Write the run; None where another transaction was faster with the same key or id."""
    run = _as_admitted(new, now)
    key = run.trigger.key
    if key is not None:
        retention = span(KEY_RETENTION if new.key_retention is None else new.key_retention)
        took = yield from work.row("take_key", agent=run.agent, key=key, run_id=run.id, payload_hash=new.payload_hash, retention=retention, now=now)
        if took is None:
            return None
    row = yield from work.row("add_run", **_columns(new, run, now))
    if row is None:
        return None
    seq: int = row["seq"]
    _write_rest(work, new, run, seq, now)
    work.moved(run.id)
    work.claimable()
    return replace(run, seq=seq)


def _columns(new: NewRun, run: Run, now: int) -> dict[str, Any]:
    available = micros(run.available_at)
    assert available is not None
    return {
        "id": run.id, "agent": run.agent, "status": run.status.value, "priority": run.priority, "concurrency_key": run.concurrency_key, "thread": run.thread,
        "trigger_key": run.trigger.key, "parent_run": run.parent_run, "parent_wait": run.parent_wait, "forked": int(run.forked), "format": run.format,
        "usage": _rows.write_usage(run.usage), "created_at": now, "available_at": available, "due_at": available if available > now else None,
        "deadline": micros(run.deadline), "next_event": run.next_event,
        "tail_base": -1 if new.checkpoint is None else new.checkpoint.base, "tail_idx": -1 if new.checkpoint is None else new.checkpoint.index,
        "tail_length": 0 if new.checkpoint is None else len(new.checkpoint.append),
    }  # fmt: skip


def _write_rest(work: Work, new: NewRun, run: Run, seq: int, now: int) -> None:
    """What hangs on the row of a new run."""
    work.write("add_body", run=seq, trigger=work.seal(run.trigger.to_json()), budget=dump(run.budget.to_json()), labels=dump(run.labels))
    for name, value in run.labels.items():
        work.write("add_label", name=name, value=value, run=seq)
    if new.checkpoint is not None:
        if new.checkpoint.keep:
            raise StoreError(f"The first checkpoint of run {run.id} keeps {new.checkpoint.keep} messages, and there are none yet.")
        put_checkpoint(work, new.checkpoint, run=seq, generation=1, now=now)
    created = facts.created(run)
    work.write("add_event", run=seq, seq=1, type=created.type, at=now, data=work.seal(created.data))


def _as_admitted(new: NewRun, now: int) -> Run:
    at = moment(now)
    assert at is not None
    return Run(
        id=new.id, agent=new.agent, status=RunStatus.PENDING, trigger=new.trigger, budget=new.budget, parent_run=new.parent_run,
        parent_wait=new.parent_wait, priority=new.priority, labels=dict(new.labels), format=1 if new.checkpoint is None else new.checkpoint.format,
        created_at=at, updated_at=at, available_at=at + (new.delay or timedelta(0)), deadline=None if new.budget.deadline is None else at + new.budget.deadline,
        next_event=2,
    )  # fmt: skip


def put_checkpoint(work: Work, write: CheckpointWrite, *, run: int, generation: int, now: int) -> None:
    """Write what a checkpoint adds: the messages after `keep`, and its own row.

    Messages beyond its length that an earlier version of it left are out of every checkpoint's reach, so nothing needs to be deleted.
    """
    for position, body in enumerate(write.append, start=write.keep):
        work.write("put_message", run=run, generation=generation, base=write.base, position=position, body=work.codec.encode(body))
    work.write(
        "put_checkpoint", run=run, generation=generation, idx=write.index, base=write.base, length=write.keep + len(write.append), format=write.format,
        created_at=now, finish_reason=write.finish_reason, version=write.version, tools_hash=write.tools_hash,
    )  # fmt: skip
