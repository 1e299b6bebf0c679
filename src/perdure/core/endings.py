"""What ends with a claim or with a run (the rules under table R): which effects turn unknown, which rows open and close, which error is told."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from perdure.core.effect import Effect, EffectState
from perdure.core.run import Run, RunError
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint, WaitWrite


def ended_effects(effects: Iterable[Effect]) -> list[Effect]:
    """Those of `effects` that the end of their claim changes: none stays `started`, its outcome is unknown now."""
    return [each.became(EffectState.UNKNOWN) for each in effects if each.state is EffectState.STARTED]


def questions_due(effects: Iterable[Effect], waits: Iterable[WaitPoint], epoch: int) -> list[WaitWrite]:
    """The rows to open when a claim ends: one for each effect of unknown outcome that asks a person and is not asked about yet.

    Args:
        effects: All of the run's current generation, after `ended_effects`.
        waits: All rows of that generation.
        epoch: Of the claim that ends.
    """
    asked = {wait.row.effect_key for wait in waits if wait.open and wait.kind == "effect"}
    unknown = (each for each in effects if each.state is EffectState.UNKNOWN and each.row.unknown == "ask")
    return [outcome_question(each, epoch) for each in unknown if each.key not in asked]


def outcome_question(effect: Effect, epoch: int) -> WaitWrite:
    """The row that asks a person what became of `effect`: no expiry, never answered by itself."""
    row = effect.row
    return WaitWrite(
        id=derived_id("wait", effect.key, str(epoch)), kind="effect", question=f"effect:{effect.key}", index=row.index, tool=row.tool,
        tool_call_id=row.tool_call_id, position=row.position, effect_key=effect.key, input=row.input, input_hash=row.input_hash,
        data={
            "worker": effect.worker, "epoch": effect.epoch, "try_no": row.try_no, "error": row.error,
            "started_at": effect.started_at.isoformat() if effect.started_at else None, "decisions": ["done", "run", "fail"],
        },
    )  # fmt: skip


def derived_id(*parts: str) -> str:
    """A UUIDv8 (RFC 9562, section 5.8) made of what it stands for, so that a repeated write makes the same row."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{'89ab'[int(digest[16], 16) % 4]}{digest[17:20]}-{digest[20:32]}"


def own_effect(wait: WaitPoint) -> bool:
    """Whether the row asks about an effect of its own run (a business key may make it name another run's)."""
    return wait.kind == "effect" and (wait.row.effect_key or "").startswith(f"{wait.run_id}:")


def closed_by_settling(waits: Iterable[WaitPoint]) -> list[WaitPoint]:
    """The rows that every entry into a final status closes as cancelled: all that are open, but unknown effects stay listed and can be settled."""
    return [wait for wait in waits if wait.open and not own_effect(wait)]


def cancelled(now: datetime) -> Resolution:
    return Resolution(ResolutionKind.CANCELLED, at=now)


def poisoned(run: Run) -> RunError:
    """The error of a run whose owners keep dying. `run.deaths` counts the last one already."""
    doing = "" if run.activity is None else f", last in step {run.activity.step}: {run.activity.what}"
    details: dict[str, Any] = {"deaths": run.deaths, "worker": run.lease_owner, "activity": None if run.activity is None else run.activity.to_json()}
    return RunError("poisoned", f"{run.deaths} workers in a row died with this run{doing}. Look at what it does there, then retry it.", details)


def deadline_passed(run: Run) -> RunError:
    return RunError("deadline", "The run's deadline passed before it had ended. Retry it with a new one.", {"deadline": _text(run.deadline)})


def wait_expired(wait: WaitPoint) -> RunError:
    """The error of a run that fails because nobody answered in time."""
    code = "approval_expired" if wait.kind == "approval" else "wait_expired"
    about = f" for {wait.row.tool!r}" if wait.row.tool else ""
    details = {"wait": wait.id, "tool": wait.row.tool, "expires_at": _text(wait.row.expires_at)}
    return RunError(code, f"Nobody answered the {wait.kind} request{about} in time.", details)


def open_ids(waits: Sequence[WaitPoint]) -> list[str]:
    return [wait.id for wait in waits if wait.open]


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
