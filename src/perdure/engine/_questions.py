"""The rows that a step's calls wait for, and how their answers are read."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

from perdure.agents import Call, Decision, NothingCame
from perdure.approvals import ApprovalRule
from perdure.context import Wait
from perdure.core.codec import clean, fingerprint
from perdure.core.effect import Effect, EffectWrite
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint, WaitWrite


def approval_row(call: Call, rule: ApprovalRule, *, id: str, index: int, now: datetime, requester: str | None) -> WaitWrite:
    """May this call run? Bound to its validated input."""
    shown = clean(call.args or {})
    return WaitWrite(
        id=id,
        kind="approval",
        question=f"approval:{call.position}",
        index=index,
        tool=call.name,
        tool_call_id=call.id,
        position=call.position,
        input=shown,
        input_hash=fingerprint(shown),
        expires_at=None if rule.within is None else now + rule.within,
        on_expiry=rule.on_expiry,
        warn_at=None if rule.within is None or rule.warn_at is None else now + rule.within * rule.warn_at,
        data={"schema": call.schema, "policy": rule.policy(requester), "decisions": ["approve", "deny"]},
    )


def wait_row(call: Call, wait: Wait, *, id: str, index: int, now: datetime) -> WaitWrite:
    """What a tool ended with: an event, a timer, another run."""
    return WaitWrite(
        id=id,
        kind="timer" if wait.kind == "timer" else "event",
        question=f"wait:{call.position}",
        index=index,
        tool=call.name,
        tool_call_id=call.id,
        position=call.position,
        name=wait.name,
        child=wait.child,
        expires_at=now + wait.until_ if isinstance(wait.until_, timedelta) else wait.until_,
    )


def unknown_row(row: EffectWrite, effect: Effect | None, *, id: str, owner: str | None, heard: datetime | None) -> WaitWrite:
    """What became of this effect? Names the worker that started it, when, and when it was last heard of."""
    started = effect.started_at if effect is not None else None
    return WaitWrite(
        id=id,
        kind="effect",
        question=f"effect:{row.key}",
        index=row.index,
        tool=row.tool,
        tool_call_id=row.tool_call_id,
        position=row.position,
        effect_key=row.key,
        input=row.input,
        input_hash=row.input_hash,
        data={
            "worker": effect.worker if effect is not None else owner,
            "started_at": started.isoformat() if started else None,
            "last_heard": heard.isoformat() if heard else None,
            "error": row.error,
            "decisions": ["done", "run", "fail"],
        },
    )


def read_decision(row: WaitPoint) -> Decision:
    """A closed approval row as the session takes it."""
    resolution = row.resolution
    assert resolution is not None
    if resolution.kind is ResolutionKind.EXPIRED:
        return Decision(approved=False, message="The request for approval lapsed: nobody answered in time. Nothing was done.")
    if resolution.decision == "approve":
        return Decision(approved=True, args=resolution.value)
    reason = f" Reason: {resolution.reason}" if resolution.reason else ""
    return Decision(approved=False, message=f"The request for approval was denied.{reason}")


def read_event(resolution: Resolution, name: str) -> Any:
    """What came for a wait inside a body.

    Raises:
        NothingCame: It expired, or the other side said that it failed.
    """
    if resolution.kind is ResolutionKind.EXPIRED:
        raise NothingCame(f"Nothing came for {name!r} in time.")
    value = resolution.value
    if isinstance(value, dict) and (error := cast(dict[str, Any], value).get("perdure-error")):
        raise NothingCame(str(error))
    return cast(Any, value)
