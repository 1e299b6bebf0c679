"""Rows into values and back. Nothing here decides anything."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final, NamedTuple, cast

from pydantic_core import to_json

from perdure.core.answers import asks_people
from perdure.core.artifact import Artifact
from perdure.core.budget import Budget, Usage
from perdure.core.checkpoint import Checkpoint
from perdure.core.codec import dump, load
from perdure.core.commit import Signal
from perdure.core.effect import Effect, EffectState, EffectWrite, effect_key
from perdure.core.event import Event
from perdure.core.run import Activity, Run, RunError, RunStatus
from perdure.core.step import Step, StepWrite
from perdure.core.trigger import TriggerEnvelope
from perdure.core.wait import Resolution, WaitPoint, WaitWrite
from perdure.stores._moves._program import Row, Rows, Work, micros, moment


# ── runs ───────────────────────────────────────────────────────────────────────────────────────────────────
def read_run(work: Work, row: Row) -> Run:
    """A row of `run` joined with its `run_body`."""
    return Run(
        id=row["id"],
        agent=row["agent"],
        status=RunStatus(row["status"]),
        trigger=TriggerEnvelope.from_json(work.unseal(row["trigger"])),
        seq=row["seq"],
        budget=Budget.from_json(load(row["budget"])),
        usage=read_usage(row["usage"]),
        output=work.unseal(row["output"]),
        error=RunError.from_json(work.unseal(row["error"])),
        finish_reason=row["finish_reason"],
        parent_run=row["parent_run"],
        parent_wait=row["parent_wait"],
        priority=row["priority"],
        labels=load(row["labels"]),
        epoch=row["epoch"],
        claim_token=row["claim_token"],
        commit_no=row["commit_no"],
        lease_owner=row["lease_owner"],
        lease_expires_at=moment(row["lease_expires_at"]),
        cancel_requested=bool(row["cancel_requested"]),
        generation=row["generation"],
        executions=row["executions"],
        deaths=row["deaths"],
        settlement=row["settlement"],
        version=row["version"],
        format=row["format"],
        activity=Activity.from_json(load(row["activity"])),
        created_at=moment(row["created_at"]),
        updated_at=moment(row["updated_at"]),
        available_at=moment(row["available_at"]),
        started_at=moment(row["started_at"]),
        finished_at=moment(row["finished_at"]),
        deadline=moment(row["deadline"]),
        next_event=row["next_event"],
        next_step=row["next_step"],
        head=row["head"],
    )


NOTHING: Final = Usage()
_USAGE: Final = tuple(field.name for field in fields(Usage))
_ALWAYS: Final = _USAGE[:-1]
"""The last one is there only where the price of something is unknown."""


def write_usage(usage: Usage) -> str:
    """Usage as a JSON list in the order of its fields: names are not stored with every step."""
    cost = f'null,"{usage.cost_known}"' if usage.cost is None else f'"{usage.cost}"'
    counts = ",".join(str(getattr(usage, name)) for name in _ALWAYS[:-1])
    return f"[{counts},{cost}]"


def read_usage(text: str) -> Usage:
    """What `write_usage` stored."""
    return Usage.from_json(cast(dict[str, Any], _usage_dict(text)))


def _usage_list(data: dict[str, Any]) -> str:
    """A usage that comes as a dict. One with other names in it keeps them."""
    if len(data) != len(_ALWAYS) or any(name not in data for name in _ALWAYS):
        return dump(data)
    return to_json([data[name] for name in _ALWAYS]).decode()


def _usage_dict(text: str | None) -> dict[str, Any] | None:
    data = load(text)
    # A field that a later version adds is missing at the end of an older list, and keeps its default.
    return dict(zip(_USAGE, cast(list[Any], data), strict=False)) if isinstance(data, list) else data


# ── steps and events ───────────────────────────────────────────────────────────────────────────────────────
def write_step(work: Work, step: StepWrite, *, run: int, seq: int, generation: int) -> dict[str, Any]:
    """The parameters of `add_step`."""
    return {
        "run": run, "seq": seq, "generation": generation, "idx": step.index, "kind": step.kind, "name": step.name, "tool_call_id": step.tool_call_id,
        "position": step.position, "base": step.base, "message": step.message, "finish_reason": step.finish_reason,
        "usage": None if step.usage is None else _usage_list(step.usage), "started_at": micros(step.started_at), "finished_at": micros(step.finished_at),
        "input": work.seal(step.input), "output": work.seal(step.output), "text": work.seal(step.text), "error": work.seal(step.error),
    }  # fmt: skip


def read_step(work: Work, row: Row, run_id: str) -> Step:
    """A row of `step`."""
    write = StepWrite(
        kind=row["kind"],
        index=row["idx"],
        name=row["name"],
        tool_call_id=row["tool_call_id"],
        position=row["position"],
        base=row["base"],
        message=row["message"],
        input=work.unseal(row["input"]),
        output=work.unseal(row["output"]),
        text=work.unseal(row["text"]),
        error=work.unseal(row["error"]),
        usage=_usage_dict(row["usage"]),
        finish_reason=row["finish_reason"],
        started_at=moment(row["started_at"]),
        finished_at=moment(row["finished_at"]),
    )
    return Step(run_id, row["generation"], row["seq"], write)


def read_event(work: Work, row: Row, run_id: str) -> Event:
    """A row of `event`."""
    at = moment(row["at"])
    assert at is not None
    return Event(run_id, row["seq"], row["type"], work.unseal(row["data"]) or {}, at)


# ── checkpoints ────────────────────────────────────────────────────────────────────────────────────────────
def read_checkpoint(work: Work, row: Row, messages: Rows, run_id: str) -> Checkpoint:
    """A row of `checkpoint` with the messages of its list, of which it takes the first `length`."""
    created_at = moment(row["created_at"])
    assert created_at is not None
    return Checkpoint(
        run_id=run_id,
        generation=row["generation"],
        index=row["idx"],
        base=row["base"],
        length=row["length"],
        finish_reason=row["finish_reason"],
        created_at=created_at,
        format=row["format"],
        version=row["version"],
        tools_hash=row["tools_hash"],
        messages=tuple(work.codec.decode(bytes(message["body"])) for message in messages),
    )


# ── effects ────────────────────────────────────────────────────────────────────────────────────────────────
class Place(NamedTuple):
    """What an effect's key says."""

    run_id: str
    generation: int
    idx: int
    position: int


def place_of(key: str) -> Place | None:
    """The place that a key names (see `effect_key`); None for what is no key of ours."""
    run_id, *numbers = key.rsplit(":", 3)
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        return None
    return Place(run_id, *map(int, numbers))


def write_effect(work: Work, effect: Effect, *, run: int) -> dict[str, Any]:
    """The parameters of `put_effect`."""
    row = effect.row
    return {
        "run": run, "generation": effect.generation, "idx": row.index, "position": row.position, "state": row.state.value, "tool": row.tool,
        "tool_call_id": row.tool_call_id, "unknown": row.unknown, "input": work.seal(row.input), "input_hash": row.input_hash,
        "result": work.seal(row.result), "error": work.seal(row.error), "try_no": row.try_no, "permit": int(row.permit), "claim": row.claim,
        "time_limit": row.time_limit, "worker": effect.worker, "epoch": effect.epoch, "started_at": micros(effect.started_at),
        "settled_at": micros(effect.settled_at), "settled_by": effect.settled_by,
    }  # fmt: skip


def read_effect(work: Work, row: Row, run_id: str) -> Effect:
    """A row of `effect`."""
    write = EffectWrite(
        key=effect_key(run_id, row["generation"], row["idx"], row["position"]),
        state=EffectState(row["state"]),
        index=row["idx"],
        position=row["position"],
        tool=row["tool"],
        tool_call_id=row["tool_call_id"],
        unknown=row["unknown"],
        input=work.unseal(row["input"]),
        input_hash=row["input_hash"],
        result=work.unseal(row["result"]),
        error=work.unseal(row["error"]),
        try_no=row["try_no"],
        permit=bool(row["permit"]),
        claim=row["claim"],
        time_limit=row["time_limit"],
    )
    return Effect(
        run_id, row["generation"], write, row["worker"], row["epoch"], moment(row["started_at"]), moment(row["settled_at"]), row["settled_by"]
    )


# ── wait rows ──────────────────────────────────────────────────────────────────────────────────────────────
def write_wait(work: Work, wait: WaitPoint, *, run: int, commit_no: int | None) -> dict[str, Any]:
    """The parameters of `add_wait`."""
    row = wait.row
    return {
        "id": row.id, "run": run, "generation": wait.generation, "commit_no": commit_no,
        "answered": int(wait.resolution is not None), "kind": row.kind, "question": row.question, "idx": row.index,
        "tool": row.tool, "tool_call_id": row.tool_call_id, "position": row.position, "effect_key": row.effect_key, "name": row.name,
        "child": row.child, "input": work.seal(row.input), "input_hash": row.input_hash, "expires_at": micros(row.expires_at),
        "on_expiry": row.on_expiry, "warn_at": micros(row.warn_at), "notice_at": _notice_at(wait), "data": work.seal(row.data or None), "created_at": micros(wait.created_at),
        "resolved_at": None if wait.resolution is None else micros(wait.resolution.at or wait.created_at),
        "resolution": work.seal(None if wait.resolution is None else wait.resolution.to_json()),
    }  # fmt: skip


def write_progress(work: Work, wait: WaitPoint) -> dict[str, Any]:
    """The parameters of `save_wait`: what may change on a row."""
    row = wait.row
    return {
        "id": row.id, "expires_at": micros(row.expires_at), "warn_at": micros(row.warn_at), "notice_at": _notice_at(wait),
        "resolved_at": None if wait.resolution is None else micros(wait.resolution.at), "votes": work.seal(list(wait.votes) or None),
        "resolution": work.seal(None if wait.resolution is None else wait.resolution.to_json()), "notified_at": micros(wait.notified_at),
        "warned_at": micros(wait.warned_at), "notify_after": micros(wait.notify_after), "notify_tries": wait.notify_tries,
    }  # fmt: skip


def write_hold(wait: WaitPoint) -> dict[str, Any]:
    """The parameters of `hold_notice`."""
    return {"id": wait.id, "notify_after": micros(wait.notify_after), "notice_at": _notice_at(wait)}


def _notice_at(wait: WaitPoint) -> int | None:
    """The earliest moment at which `notice_due` may hold, so that an index finds the rows that are due."""
    if not asks_people(wait):
        return None
    first = wait.created_at if wait.notified_at is None else wait.row.warn_at if wait.warned_at is None else None
    return None if first is None else micros(max(first, wait.notify_after or first))


def read_wait(work: Work, row: Row) -> WaitPoint:
    """A row of `wait` joined with the id of its run."""
    write = WaitWrite(
        id=row["id"],
        kind=row["kind"],
        question=row["question"],
        index=row["idx"],
        tool=row["tool"],
        tool_call_id=row["tool_call_id"],
        position=row["position"],
        effect_key=row["effect_key"],
        name=row["name"],
        child=row["child"],
        input=work.unseal(row["input"]),
        input_hash=row["input_hash"],
        expires_at=moment(row["expires_at"]),
        on_expiry=row["on_expiry"],
        warn_at=moment(row["warn_at"]),
        data=work.unseal(row["data"]) or {},
    )
    created_at = moment(row["created_at"])
    assert created_at is not None
    return WaitPoint(
        run_id=row["run_id"],
        generation=row["generation"],
        row=write,
        created_at=created_at,
        resolution=Resolution.from_json(work.unseal(row["resolution"])),
        votes=tuple(work.unseal(row["votes"]) or ()),
        notified_at=moment(row["notified_at"]),
        warned_at=moment(row["warned_at"]),
        notify_after=moment(row["notify_after"]),
        notify_tries=row["notify_tries"],
    )


# ── signals ────────────────────────────────────────────────────────────────────────────────────────────────
def read_signal(work: Work, row: Row, run_id: str) -> Signal:
    """A row of `signal`."""
    return Signal(row["id"], run_id, row["name"], work.unseal(row["payload"]))


# ── artifacts ──────────────────────────────────────────────────────────────────────────────────────────────
def read_artifact(row: Row) -> Artifact:
    """A row of `artifact`, without its bytes."""
    return Artifact(row["id"], row["media_type"], row["size"], moment(row["created_at"]), row["filename"])
