"""The shapes that are stored: plain frozen values, each with one JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, Self, TypeAlias, TypeVar, cast

S = TypeVar("S")

JobStatus = Literal["idle", "running", "paused", "complete", "error"]
"""`idle`: known and never started. `running`: an advance is on its way or at work. `paused`: until somebody or a time resumes it."""

STATUSES: Final[tuple[JobStatus, ...]] = ("idle", "running", "paused", "complete", "error")

Level = Literal["info", "warn", "error"]
LEVELS: Final[tuple[Level, ...]] = ("info", "warn", "error")
RetryMode = Literal["resume", "full"]


def seconds(span: timedelta | float) -> timedelta:
    """A span of time; a bare number is seconds."""
    return span if isinstance(span, timedelta) else timedelta(seconds=span)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a wait ended. The first one wins.

    `approved` is True or False for an approval that a person decided, None for a plain resume. `kind`: `person`, or `timer` (the time came), or
    `expired` (an approval lapsed: `approved` is False then, decided by nobody). `value` is whatever the person sent along.
    """

    kind: Literal["person", "timer", "expired"] = "person"
    approved: bool | None = None
    value: Any = None
    reason: str | None = None
    by: str | None = None
    at: datetime | None = None

    def same_as(self, other: Answer) -> bool:
        """Whether `other` says the same thing, whoever said it and when."""
        return (self.kind, self.approved, self.value, self.reason) == (other.kind, other.approved, other.value, other.reason)

    def to_json(self) -> dict[str, Any]:
        return _to_json(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(**{**data, "at": _time(data.get("at"))})


@dataclass(frozen=True, slots=True)
class WaitRecord:
    """What a paused job waits for: a person (`resume`), a time (`until`) or a decision (`approval`).

    `until` is when it ends by itself (None: never). `data` is JSON for whoever answers. Open while `answer` is None.
    """

    id: str
    kind: Literal["resume", "until", "approval"]
    question: str = ""
    until: datetime | None = None
    data: Any = None
    answer: Answer | None = None

    def to_json(self) -> dict[str, Any]:
        return _to_json(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        answer = data.get("answer")
        given: dict[str, Any] = {**data, "until": _time(data.get("until")), "answer": Answer.from_json(answer) if answer else None}
        return cls(**given)


@dataclass(frozen=True)
class Checkpoint(Generic[S]):
    """Where a job stands: the phase that comes next and the state it gets.

    In a storage `state` is plain JSON data; in a `PhaseContext` it is of the phase's own type. `created_at` is when the phase was reached.
    `life` names this life of the job (a new one from every fresh start), `step` counts the phases reached in it. `attempt` is how many tries
    of this phase have failed, `not_before` the earliest moment of the next, `wait` what the job waits or waited for.
    """

    next_phase: str
    state: S
    created_at: datetime
    life: str = ""
    step: int = 0
    attempt: int = 0
    not_before: datetime | None = None
    wait: WaitRecord | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, if `state` is."""
        return {
            "next_phase": self.next_phase, "state": self.state, "created_at": self.created_at.isoformat(), "life": self.life, "step": self.step,
            "attempt": self.attempt, "not_before": None if self.not_before is None else self.not_before.isoformat(),
            "wait": None if self.wait is None else self.wait.to_json(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Checkpoint[Any]:
        """What `to_json` gave. Fields that a storage dropped take their defaults."""
        wait = data.get("wait")
        known = {each.name for each in fields(cls)}
        given: dict[str, Any] = {name: value for name, value in data.items() if name in known}
        given["created_at"] = _time(data["created_at"])
        given["not_before"] = _time(data.get("not_before"))
        given["wait"] = WaitRecord.from_json(wait) if wait else None
        return Checkpoint(**given)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the phase at work says it is. `total` None: it does not know."""

    done: float
    total: float | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as stored.

    `version` is the fencing number: every claim and every written outcome raises it, over all lives of the job; 0 where the storage has none.
    `lease_left` is set while an advance holds the job: for how long its lease still runs by the storage's clock, not above zero once it ran out. `deaths` counts leases in a row that ran out, `progress` is of the phase at work.
    """

    status: JobStatus
    checkpoint: Checkpoint[Any] | None = None
    error: str | None = None
    output: Any = None
    version: int = 0
    lease_left: timedelta | None = None
    deaths: int = 0
    progress: Progress | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of a job's log."""

    timestamp: datetime
    message: str
    phase: str | None = None
    level: Level = "info"

    def to_json(self) -> dict[str, Any]:
        return _to_json(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(**{**data, "timestamp": _time(data["timestamp"])})


@dataclass(frozen=True, slots=True)
class PendingToolCall:
    """A tool call that the model asked for and that has no result yet. `args` are as the model gave them; None where they did not parse."""

    id: str
    name: str
    args: dict[str, Any] | None = field(default_factory=dict[str, Any])


JSON: TypeAlias = Any
"""Plain JSON data: what `json.dumps` takes."""


def _time(text: str | datetime | None) -> Any:
    return datetime.fromisoformat(text) if isinstance(text, str) else text


def _to_json(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in fields(value):
        item = getattr(value, each.name)
        if isinstance(item, datetime):
            item = item.isoformat()
        elif isinstance(item, (Answer, WaitRecord)):
            item = cast(Any, item).to_json()
        found[each.name] = item
    return found
