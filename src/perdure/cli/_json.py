"""What `--json` prints: the same keys in every version, nothing left out because it is empty."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from perdure.core.effect import Effect
from perdure.core.event import Delta, Event, Reset
from perdure.core.run import Run
from perdure.core.step import Step
from perdure.core.wait import WaitPoint
from perdure.engine import RunEvent, Settled, Waiting


def moment(then: datetime | None) -> str | None:
    return None if then is None else then.isoformat()


def run_json(run: Run) -> dict[str, Any]:
    """A run."""
    return {
        "id": run.id,
        "agent": run.agent,
        "status": str(run.status),
        "cancel_requested": run.cancel_requested,
        "trigger": run.trigger.to_json(),
        "output": run.output,
        "error": None if run.error is None else run.error.to_json(),
        "finish_reason": run.finish_reason,
        "usage": run.usage.to_json(),
        "budget": run.budget.to_json(),
        "labels": dict(run.labels),
        "priority": run.priority,
        "generation": run.generation,
        "executions": run.executions,
        "deaths": run.deaths,
        "version": run.version,
        "parent": run.parent_run,
        "lease": None if run.lease_owner is None else {"owner": run.lease_owner, "epoch": run.epoch, "expires_at": moment(run.lease_expires_at)},
        "activity": None if run.activity is None else run.activity.to_json(),
        "created_at": moment(run.created_at),
        "updated_at": moment(run.updated_at),
        "available_at": moment(run.available_at),
        "started_at": moment(run.started_at),
        "finished_at": moment(run.finished_at),
        "deadline": moment(run.deadline),
    }


def wait_json(wait: WaitPoint) -> dict[str, Any]:
    """A wait point."""
    row = wait.row
    return {
        "id": wait.id,
        "run": wait.run_id,
        "kind": wait.kind,
        "question": row.question,
        "tool": row.tool,
        "input": row.input,
        "effect": row.effect_key,
        "name": row.name,
        "data": dict(row.data),
        "created_at": moment(wait.created_at),
        "expires_at": moment(row.expires_at),
        "on_expiry": row.on_expiry,
        "votes": list(wait.votes),
        "resolution": None if wait.resolution is None else wait.resolution.to_json(),
    }


def effect_json(effect: Effect) -> dict[str, Any]:
    """An effect call."""
    row = effect.row
    return {
        "key": row.key,
        "run": effect.run_id,
        "generation": effect.generation,
        "step": row.index,
        "tool": row.tool,
        "state": str(row.state),
        "unknown": row.unknown,
        "input": row.input,
        "result": row.result,
        "error": row.error,
        "try": row.try_no,
        "business_key": row.claim,
        "worker": effect.worker,
        "epoch": effect.epoch,
        "started_at": moment(effect.started_at),
        "settled_at": moment(effect.settled_at),
        "settled_by": effect.settled_by,
    }


def step_json(step: Step, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A row of the log. `told` holds what the history knows of it."""
    row = step.row
    return {
        "seq": step.seq,
        "generation": step.generation,
        "step": row.index,
        "kind": row.kind,
        "name": row.name,
        "tool_call_id": row.tool_call_id,
        "input": row.input,
        "output": row.output,
        "text": row.text,
        "error": row.error,
        "usage": row.usage,
        "finish_reason": row.finish_reason,
        "started_at": moment(row.started_at),
        "finished_at": moment(row.finished_at),
        **(told or {}),
    }


def event_json(event: RunEvent) -> dict[str, Any]:
    """One line of a followed run."""
    match event:
        case Delta():
            return {"type": "run.delta", "run": event.run_id, "step": event.step, "try": event.try_no, "kind": event.kind, "text": event.text}
        case Reset():
            return {"type": "run.reset", "run": event.run_id, "step": event.step, "try": event.try_no}
        case Waiting():
            waits = [wait_json(each.wait) for each in event.waits]
            return {"type": "run.waiting", "run": event.run_id, "seq": event.seq, "waits": waits}
        case Settled():
            return {"type": "run.settled", "run": event.run_id, "seq": event.seq, "result": run_json(event.run)}
        case Event():
            return {"type": event.type, "run": event.run_id, "seq": event.seq, "at": moment(event.at), "data": event.data}
