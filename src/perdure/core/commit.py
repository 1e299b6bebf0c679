"""Requests to a store and its answers (table C of docs/concepts/protocol.md).

Every write that changes a run is one of these values, applied whole or not at all. The store decides *whether*
it may happen, never *what* is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from perdure.core.budget import Budget, Usage
from perdure.core.checkpoint import Checkpoint, CheckpointWrite
from perdure.core.effect import Effect, EffectWrite
from perdure.core.event import EventWrite
from perdure.core.family import ReservationEnds
from perdure.core.run import Activity, Run, RunError, RunStatus
from perdure.core.step import Step, StepWrite
from perdure.core.trigger import TriggerEnvelope
from perdure.core.wait import Resolution, WaitPoint, WaitWrite


# ── admit ──────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to admit. Safe to repeat: the id is the caller's.

    `payload_hash` tells one payload from another under one key. `delay` postpones the first claim. `checkpoint` is the history that a
    fork starts from. `parent_wait` is the parent's wait row that this run's settlement resolves.
    """

    id: str
    agent: str
    trigger: TriggerEnvelope
    payload_hash: str
    budget: Budget = Budget()
    priority: int = 0
    labels: dict[str, str] = field(default_factory=dict[str, str])
    delay: timedelta | None = None
    parent_run: str | None = None
    parent_wait: str | None = None
    checkpoint: CheckpointWrite | None = None
    key_retention: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The run, and whether this call created it (False: its key or id was seen)."""

    run: Run
    created: bool


# ── claim and renew ────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Take up to `limit` runs of `agents` under `token`; the same token again answers the same claim.

    `agents` maps the name of each registered agent to its limit of runs at once over all workers (None: no limit). `run_id` narrows the claim to one run.
    """

    worker: str
    host: str
    token: str
    agents: dict[str, int | None]
    lease: timedelta
    limit: int = 1
    format: int = 1
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """A claim that a worker believes it holds, and what it is doing under it."""

    run_id: str
    epoch: int
    token: str
    activity: Activity | None = None


@dataclass(frozen=True, slots=True)
class Renewed:
    """What a renewal was told. `held` False: somebody else owns the run, it is settled, or it was forgotten since."""

    run_id: str
    held: bool
    epoch: int
    status: RunStatus
    cancel_requested: bool

    @classmethod
    def of_nobody(cls, run_id: str) -> Renewed:
        """For a run that is not there: an error would cost a worker all the leases of the same call."""
        return cls(run_id, False, 0, RunStatus.CANCELLED, False)


# ── commit ─────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Park:
    """The execution ends; the run rests (pending unless a wait row is open or a cancel was asked for)."""


@dataclass(frozen=True, slots=True)
class Release:
    """The execution hands the run back: `drain` → interrupted, `retry_after` → pending, available after `delay`."""

    reason: Literal["drain", "retry_after"]
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Settle:
    """The run ends. `failed` that finds a cancel is `cancelled`."""

    status: Literal[RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED]
    output: Any = None
    error: RunError | None = None
    finish_reason: str | None = None


Ending = Park | Release | Settle


@dataclass(frozen=True, slots=True)
class Commit:
    """One write of a running run, conditional on status, epoch, token and `commit_no` (the row's + 1).

    `usage` is the run's own total, absolute. `progress` is True when it stores a response, an answer or a new wait row: it resets the deaths.
    `children` are admitted in the same transaction. `reservation` ends the room that this claim has taken for a model call (`core/family.py`). The store adds its own events after `events`: those of `core/facts.py`, nobody else writes them.
    """

    run_id: str
    epoch: int
    token: str
    commit_no: int
    usage: Usage | None = None
    checkpoint: CheckpointWrite | None = None
    steps: tuple[StepWrite, ...] = ()
    effects: tuple[EffectWrite, ...] = ()
    waits: tuple[WaitWrite, ...] = ()
    children: tuple[NewRun, ...] = ()
    events: tuple[EventWrite, ...] = ()
    ending: Ending | None = None
    progress: bool = False
    version: str | None = None
    reservation: ReservationEnds | None = None


class Outcome(StrEnum):
    """What became of a commit. `lost` says that nothing more may be written, not that it was not applied."""

    APPLIED = "applied"
    ALREADY = "already applied"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Committed:
    """The store's answer. `first_event` is the number of the commit's first event, the same when it is repeated.

    `opened` are the ids of the wait rows that this commit opened, `answered` of those that it wrote resolved, because the answer was there already. A row
    whose question is open already is in neither.
    """

    outcome: Outcome
    epoch: int
    status: RunStatus
    cancel_requested: bool
    first_event: int = 0
    opened: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.outcome is not Outcome.LOST


# ── answers of people and the world ────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Resolve:
    """Close a wait row: a compare-and-set on the row, whatever the run's status.

    `input_hash`, where given, must be the row's own: a decision is bound to the input that was shown.
    """

    wait_id: str
    resolution: Resolution
    input_hash: str | None = None
    token_hash: str | None = None


class ResolveOutcome(StrEnum):
    RESOLVED = "resolved"
    VOTED = "voted"
    """Counted; the quorum is not reached."""
    ALREADY = "already"
    """The same answer stands already."""
    CONFLICT = "conflict"
    """Another answer stands, or the row is not what was answered; `wait.resolution` says who won."""
    EXPIRED = "expired"
    """At or after `expires_at`: only *expired* is possible now."""
    REFUSED = "refused"
    """This person may not decide this row; `message` says why."""


@dataclass(frozen=True, slots=True)
class Resolved:
    outcome: ResolveOutcome
    wait: WaitPoint
    run_status: RunStatus
    message: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Ask a run to stop. `settlement` names the life that is meant, so that a repeated call can't cancel the next one."""

    run_id: str
    reason: str | None = None
    by: str | None = None
    settlement: int | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """`settled`: it is cancelled now; `cancelling`: its owner was told; `already`: it had ended as `status`."""

    outcome: Literal["settled", "cancelling", "already"]
    status: RunStatus
    children: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RetryRequest:
    """Bring a failed or cancelled run back. `settlement` is the one that this retry answers; another one there: `already`."""

    run_id: str
    mode: Literal["resume", "full"]
    settlement: int
    budget: Budget | None = None
    deadline: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Retried:
    run: Run
    outcome: Literal["retried", "already"]


@dataclass(frozen=True, slots=True)
class Signal:
    """Something that the world says to a run. `id` deduplicates."""

    id: str
    run_id: str
    name: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class SettleEffect:
    """A person's word on an effect of unknown outcome, whatever the run's status."""

    key: str
    decision: Literal["done", "run", "fail"]
    result: Any = None
    reason: str | None = None
    by: str | None = None
    via: str | None = None


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """One bounded pass: expired leases, expired waits, timers, deadlines. `deaths_max` fails a poisoned run."""

    limit: int
    deaths_max: int


@dataclass(frozen=True, slots=True)
class Swept:
    """Run ids by what was done to them."""

    recovered: tuple[str, ...] = ()
    poisoned: tuple[str, ...] = ()
    expired: tuple[str, ...] = ()
    woken: tuple[str, ...] = ()
    deadlines: tuple[str, ...] = ()
    next_due: datetime | None = None

    @property
    def count(self) -> int:
        return len(self.recovered) + len(self.poisoned) + len(self.expired) + len(self.woken) + len(self.deadlines)


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """Forget settled runs that ended at least `older_than` ago, the oldest first, at most `limit` of them; and as many keys whose retention is over.

    Never forgotten, however old: a run that a fork, a child or a parent still needs, the head of a thread and what an unfinished run of the thread read
    as its head, a run with an open wait row, and one whose effect holds a business key beyond the run.
    """

    older_than: timedelta
    agent: str | None = None
    status: tuple[RunStatus, ...] = ()
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Pruned:
    """Ids of the runs that were forgotten, and how many keys. A key whose run is gone answers with its id, its final status and `pruned`."""

    runs: tuple[str, ...] = ()
    keys: int = 0


# ── reads ──────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Loaded:
    """All that an execution needs of its run, read at one moment.

    `checkpoint` is the one with the highest index of the current generation, or None. `steps` are the rows of that index, `effects` those of
    the current generation, `held` the effects of earlier generations and of the fork's ancestor, `waits` every row of the current generation.
    `model_calls` counts the llm steps of this generation that have no error; `recent` are its last llm steps (at most `RECENT_STEPS`), oldest first,
    so that counters come from what is stored, never from memory. `shares`: a cap may be shared with other runs, so each model call asks for room first.
    """

    run: Run
    checkpoint: Checkpoint | None
    steps: tuple[Step, ...]
    effects: tuple[Effect, ...]
    held: tuple[Effect, ...]
    waits: tuple[WaitPoint, ...]
    model_calls: int = 0
    recent: tuple[Step, ...] = ()
    shares: bool = False


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list, newest first. `before` is the `seq` to continue below."""

    agent: str | None = None
    status: tuple[RunStatus, ...] = ()
    thread: str | None = None
    label: tuple[str, str] | None = None
    parent: str | None = None
    since: datetime | None = None
    before: int | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class WaitFilter:
    """Which wait rows to list, oldest first."""

    run_id: str | None = None
    kind: tuple[str, ...] = ()
    open: bool | None = True
    limit: int = 100
    after: str | None = None


@dataclass(frozen=True, slots=True)
class EffectFilter:
    """Which effects to list, oldest first. `claim` is a business key."""

    run_id: str | None = None
    state: tuple[str, ...] = ()
    claim: str | None = None
    limit: int = 100
