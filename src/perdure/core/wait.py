"""What a waiting run waits for (table W of docs/concepts/protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

WaitKind = Literal["approval", "event", "timer", "effect", "budget", "attention"]
OnExpiry = Literal["deny", "fail"]
"""At expiry the model is told (`deny`; for events and timers: the wait resolves as expired), or the run fails."""


class ResolutionKind(StrEnum):
    """Why a wait row closed."""

    ANSWER = "answer"
    EVENT = "event"
    TIMER = "timer"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Resolution:
    """How a wait row was closed. The first one wins.

    `decision` is the word that was said: `approve`, `deny` (approval); `run`, `reuse`, `block` (held effect); `done`, `run`, `fail` (effect);
    `top_up`, `stop` (budget); `resume`, `fail` (attention); None for events and timers. `value` carries the edited input, the result,
    the event's payload or the new limits.
    """

    kind: ResolutionKind
    decision: str | None = None
    value: Any = None
    reason: str | None = None
    by: str | None = None
    via: str | None = None
    at: datetime | None = None

    def same_as(self, other: Resolution) -> bool:
        """Whether `other` says the same thing, whoever said it and when."""
        return (self.kind, self.decision, self.value, self.reason) == (other.kind, other.decision, other.value, other.reason)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": str(self.kind), "decision": self.decision, "value": self.value, "reason": self.reason,
            "by": self.by, "via": self.via, "at": None if self.at is None else self.at.isoformat(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> Resolution | None:
        if data is None:
            return None
        at = data.get("at")
        fields: dict[str, Any] = {**data, "kind": ResolutionKind(data["kind"]), "at": datetime.fromisoformat(at) if at else None}
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class WaitWrite:
    """A wait row to open. It belongs to the run's current generation; each question is a row of its own.

    `question` names what is asked, unique among the rows of a step (`approval:<position>`, `effect:<key>`, …): a commit that would open a second
    *open* row for one question opens none. `name` is the event that an `event` row takes from the inbox, `child` the run whose settlement
    resolves it, `expires_at` the end; a `timer` resolves at `expires_at` as `timer`. `data` is JSON for people and notifiers
    (tool, input, schema, old worker, policy …). `warn_at` is when one warning goes out. A `budget` row carries in `data["budget"]` the budget that its
    author saw: another one on the run by then means that the top-up came first. An `effect` row may name another run's effect: it is woken when that one is settled.
    """

    id: str
    kind: WaitKind
    question: str
    index: int
    tool: str | None = None
    tool_call_id: str | None = None
    position: int | None = None
    effect_key: str | None = None
    name: str | None = None
    child: str | None = None
    input: Any = None
    input_hash: str | None = None
    expires_at: datetime | None = None
    on_expiry: OnExpiry = "deny"
    warn_at: datetime | None = None
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class WaitPoint:
    """A stored wait row. Open while `resolution` is None.

    `votes` are the answers so far where a quorum is asked for. `notified_at` is set once the notifier accepted the request,
    `warned_at` once the warning went out; `notify_after` and `notify_tries` are the notifier's back-off.
    """

    run_id: str
    generation: int
    row: WaitWrite
    created_at: datetime
    resolution: Resolution | None = None
    votes: tuple[dict[str, Any], ...] = ()
    notified_at: datetime | None = None
    warned_at: datetime | None = None
    notify_after: datetime | None = None
    notify_tries: int = 0

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def kind(self) -> WaitKind:
        return self.row.kind

    @property
    def open(self) -> bool:
        return self.resolution is None
