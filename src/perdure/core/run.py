"""A run and the only moves it may make (table R of docs/concepts/protocol.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

from perdure.core.budget import Budget, Usage
from perdure.core.trigger import TriggerEnvelope


class RunStatus(StrEnum):
    """Where a run stands. The last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in FINAL

    @property
    def claimable(self) -> bool:
        return self in CLAIMABLE


FINAL: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
CLAIMABLE: Final = frozenset({RunStatus.PENDING, RunStatus.INTERRUPTED})

Verb = Literal["admit", "claim", "renew", "commit", "cancel", "park", "release", "settle", "sweep", "resolve", "retry"]


@dataclass(frozen=True, slots=True)
class Move:
    """One row of table R. `before` is None for a run that does not exist yet.

    `rests` marks the targets that go through `rest`: the store may end them elsewhere.
    """

    before: RunStatus | None
    verb: Verb
    after: RunStatus
    condition: str
    rests: bool = False


def _moves() -> tuple[Move, ...]:
    s = RunStatus
    owner = "status, epoch, claim token, commit_no"
    rows = [
        Move(None, "admit", s.PENDING, "key unused, or the run it started is returned"),
        Move(s.PENDING, "claim", s.RUNNING, "available, agent registered, format read, key and thread free"),
        Move(s.INTERRUPTED, "claim", s.RUNNING, "available, agent registered, format read, key and thread free"),
        Move(s.RUNNING, "renew", s.RUNNING, "status, epoch, claim token"),
        Move(s.RUNNING, "commit", s.RUNNING, owner),
        Move(s.RUNNING, "cancel", s.RUNNING, "sets cancel_requested"),
        Move(s.RUNNING, "park", s.PENDING, owner, rests=True),
        Move(s.RUNNING, "release", s.INTERRUPTED, owner, rests=True),
        Move(s.RUNNING, "release", s.PENDING, f"{owner}; available_at later", rests=True),
        Move(s.RUNNING, "settle", s.COMPLETED, owner),
        Move(s.RUNNING, "settle", s.FAILED, f"{owner}; no cancel requested"),
        Move(s.RUNNING, "settle", s.CANCELLED, owner),
        Move(s.RUNNING, "sweep", s.PENDING, "lease expired and epoch as read; deaths + 1", rests=True),
        Move(s.RUNNING, "sweep", s.FAILED, "lease expired and epoch as read; deaths reached the limit, no cancel requested"),
        Move(s.WAITING, "resolve", s.PENDING, "the last open wait row of this generation was resolved"),
        Move(s.WAITING, "sweep", s.FAILED, "an open row expired whose option is fail, or the run's deadline"),
        Move(s.PENDING, "cancel", s.CANCELLED, "-"),
        Move(s.INTERRUPTED, "cancel", s.CANCELLED, "-"),
        Move(s.WAITING, "cancel", s.CANCELLED, "-"),
        Move(s.PENDING, "sweep", s.FAILED, "the run's deadline"),
        Move(s.INTERRUPTED, "sweep", s.FAILED, "the run's deadline"),
        Move(s.FAILED, "retry", s.PENDING, "names the settlement that it answers", rests=True),
        Move(s.CANCELLED, "retry", s.PENDING, "names the settlement that it answers", rests=True),
    ]
    return tuple(rows)


MOVES: Final = _moves()
"""Table R. Every store enforces it; the docs and the tests are compared with it."""


def moves_from(before: RunStatus | None, verb: Verb) -> frozenset[RunStatus]:
    """Every status that `verb` may lead to from `before`, `rest` included. Empty means the verb is refused."""
    reached: set[RunStatus] = set()
    for move in MOVES:
        if move.before == before and move.verb == verb:
            reached.add(move.after)
            if move.rests:
                reached |= {RunStatus.WAITING, RunStatus.CANCELLED}
    return frozenset(reached)


def rest(target: RunStatus, *, cancel_requested: bool, open_waits: int) -> RunStatus:
    """Where a run comes to rest: one rule for park, release, sweep and retry.

    `open_waits` counts the open wait rows of the run's current generation.
    """
    if cancel_requested:
        return RunStatus.CANCELLED
    return RunStatus.WAITING if open_waits else target


def settled_as(asked: RunStatus, *, cancel_requested: bool) -> RunStatus:
    """The final status of a settle: a failure under a cancel is the cancel's; a completion stands."""
    return RunStatus.CANCELLED if asked is RunStatus.FAILED and cancel_requested else asked


@dataclass(frozen=True, slots=True)
class RunError:
    """Why a run failed. `code` is one of `errors.CODES`; `details` is JSON."""

    code: str
    message: str
    details: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "details": self.details}

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> RunError | None:
        return None if data is None else cls(data["code"], data["message"], data.get("details") or {})


@dataclass(frozen=True, slots=True)
class Activity:
    """What the owner is doing, as its last renewal told: for people, never for decisions."""

    step: int
    what: str
    since: datetime

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "what": self.what, "since": self.since.isoformat()}

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> Activity | None:
        return None if data is None else cls(data["step"], data["what"], datetime.fromisoformat(data["since"]))


@dataclass(frozen=True, slots=True)
class Run:
    """One piece of work of one agent, from its trigger to a final status.

    `epoch`, `claim_token` and `commit_no` stay on the row until the next claim, so that a repeated
    commit is always told the truth. `lease_owner` and `lease_expires_at` are set while `running`.
    `settlement` counts entries into a final status; a retry names the one that it answers.
    `seq` is the order of admission in this store. `head` is the run that its thread's head named at the first claim of this generation.
    `pruned` marks what is left of a run that was forgotten: its key still knows the id and the final status.
    """

    id: str
    agent: str
    status: RunStatus
    trigger: TriggerEnvelope
    seq: int = 0
    budget: Budget = Budget()
    usage: Usage = Usage()
    output: Any = None
    error: RunError | None = None
    finish_reason: str | None = None
    parent_run: str | None = None
    parent_wait: str | None = None
    priority: int = 0
    labels: dict[str, str] = field(default_factory=dict[str, str])
    epoch: int = 0
    claim_token: str | None = None
    commit_no: int = 0
    lease_owner: str | None = None
    lease_expires_at: datetime | None = None
    cancel_requested: bool = False
    generation: int = 1
    executions: int = 0
    deaths: int = 0
    settlement: int = 0
    version: str | None = None
    format: int = 1
    activity: Activity | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    available_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deadline: datetime | None = None
    next_event: int = 1
    next_step: int = 1
    head: str | None = None
    pruned: bool = False

    @property
    def forked(self) -> bool:
        """Whether `parent_run` is the run that this one was forked from: an ancestor, but nobody's child."""
        return self.trigger.source == "fork"

    @classmethod
    def forgotten(cls, run_id: str, agent: str, key: str, status: RunStatus) -> Run:
        """What a key answers once its run was pruned."""
        trigger = TriggerEnvelope(id="", source="python", trigger=agent, payload=None, key=key)
        return cls(run_id, agent, status, trigger, pruned=True)

    @property
    def thread(self) -> str | None:
        return self.trigger.thread

    @property
    def concurrency_key(self) -> str | None:
        return self.trigger.concurrency_key
