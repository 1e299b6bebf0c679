"""What happened to a run (durable) and text as it streams (never stored)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

EVENT_TYPES: Final = (
    "run.created", "run.claimed", "run.waiting", "run.released", "run.recovered", "run.retried", "run.cancel_requested", "run.settled",
    "step.completed", "step.failed", "step.retried", "tool.completed", "tool.failed",
    "wait.opened", "wait.voted", "wait.resolved", "wait.extended", "wait.warned", "wait.notified",
    "effect.started", "effect.done", "effect.failed", "effect.unknown", "effect.planned", "effect.held",
    "budget.reached", "budget.topped_up", "version.changed", "signal.received", "thread.kept", "log",
)  # fmt: skip
"""Every durable event. Numbered per run from 1, without gaps, in commit order."""


@dataclass(frozen=True, slots=True)
class EventWrite:
    """An event to add; the store numbers it and stamps it."""

    type: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Event:
    """A stored event: `seq` is its number in the run."""

    run_id: str
    seq: int
    type: str
    data: dict[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of text as it streams. Receivers drop lower epochs; a `Reset` drops what its step has shown so far."""

    run_id: str
    step: int
    epoch: int
    try_no: int
    kind: Literal["text", "reasoning"]
    text: str


@dataclass(frozen=True, slots=True)
class Reset:
    """The step is tried again: drop what it has shown."""

    run_id: str
    step: int
    epoch: int
    try_no: int
