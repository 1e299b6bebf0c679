"""The events that a store writes by itself, and the `wait` step: every store tells the same story in the same words.

An execution writes what it alone knows (steps, tools, tries, logs, what it did to an effect). Everything here happens in the store, so the store says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from perdure.core.commit import CancelRequest, RetryRequest, Signal
from perdure.core.effect import Effect
from perdure.core.event import EventWrite
from perdure.core.run import Run
from perdure.core.step import StepWrite
from perdure.core.wait import Resolution, WaitPoint, WaitWrite


def created(run: Run) -> EventWrite:
    return EventWrite("run.created", {"agent": run.agent, "source": run.trigger.source, "trigger": run.trigger.trigger, "parent": run.parent_run})


def claimed(run: Run) -> EventWrite:
    data = {"worker": run.lease_owner, "epoch": run.epoch, "execution": run.executions, "generation": run.generation}
    return EventWrite("run.claimed", data)


def waiting(run: Run, waits: Sequence[str]) -> EventWrite:
    """The run came to rest on its open wait rows."""
    return EventWrite("run.waiting", {"waits": list(waits)})


def released(run: Run, reason: str) -> EventWrite:
    """The run was handed back. `reason`: `park`, `drain` or `retry_after`."""
    return EventWrite("run.released", {"status": str(run.status), "reason": reason})


def recovered(run: Run) -> EventWrite:
    """The lease ran out and was taken away."""
    return EventWrite("run.recovered", {"worker": run.lease_owner, "epoch": run.epoch, "deaths": run.deaths})


def retried(run: Run, request: RetryRequest) -> EventWrite:
    return EventWrite("run.retried", {"mode": request.mode, "settlement": request.settlement, "generation": run.generation})


def cancel_requested(request: CancelRequest) -> EventWrite:
    return EventWrite("run.cancel_requested", {"reason": request.reason, "by": request.by})


def settled(run: Run, *, reason: str | None = None, by: str | None = None) -> EventWrite:
    """The one terminal event of this life. `reason` and `by` are those of a cancel that settled it at once."""
    data = {"settlement": run.settlement, "status": str(run.status), "error": None if run.error is None else run.error.to_json()}
    return EventWrite("run.settled", {**data, "finish_reason": run.finish_reason, "reason": reason, "by": by})


def opened(row: WaitWrite) -> EventWrite:
    data = {"wait": row.id, "kind": row.kind, "question": row.question, "tool": row.tool, "tool_call_id": row.tool_call_id}
    return EventWrite("wait.opened", {**data, "index": row.index})


def voted(wait: WaitPoint) -> EventWrite:
    """One more answer, and no decision yet."""
    return EventWrite("wait.voted", {"wait": wait.id, "by": wait.votes[-1]["by"], "votes": len(wait.votes)})


def resolved(row: WaitWrite, resolution: Resolution) -> EventWrite:
    data = {"wait": row.id, "kind": row.kind, "tool": row.tool, "resolution": str(resolution.kind), "decision": resolution.decision}
    return EventWrite("wait.resolved", {**data, "by": resolution.by, "via": resolution.via})


def extended(wait_id: str, expires_at: datetime | None) -> EventWrite:
    return EventWrite("wait.extended", {"wait": wait_id, "expires_at": None if expires_at is None else expires_at.isoformat()})


def notified(wait_id: str, *, warning: bool) -> EventWrite:
    return EventWrite("wait.warned" if warning else "wait.notified", {"wait": wait_id})


def effect_became(effect: Effect) -> EventWrite:
    """An effect that the store itself moved: at the end of a claim, or by a person's word."""
    data = {"key": effect.key, "tool": effect.row.tool, "worker": effect.worker, "by": effect.settled_by}
    return EventWrite(f"effect.{effect.state}", data)


def signal_received(signal: Signal) -> EventWrite:
    return EventWrite("signal.received", {"signal": signal.id, "name": signal.name})


def thread_kept(run: Run, head: str | None) -> EventWrite:
    """The run completed without moving its thread's head, because another run had moved it meanwhile."""
    return EventWrite("thread.kept", {"thread": run.thread, "read": run.head, "head": head})


def wait_step(wait: WaitPoint, resolution: Resolution) -> StepWrite:
    """Who decided what, and when: the row of a run's log that every closed wait row leaves."""
    row = wait.row
    return StepWrite(
        kind="wait", index=row.index, name=row.kind, tool_call_id=row.tool_call_id, position=row.position,
        input={"wait": row.id, "question": row.question}, output=_told(resolution), started_at=wait.created_at, finished_at=resolution.at,
    )  # fmt: skip


def _told(resolution: Resolution) -> dict[str, object]:
    # `at` is the step's own `finished_at`.
    return {name: value for name, value in resolution.to_json().items() if name != "at"}
