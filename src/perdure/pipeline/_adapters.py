"""The two seams: where jobs are kept, and who calls `advance_phase` next.

A storage needs five methods, a scheduler one. Everything else is a capability: a method more that a storage may have. The runner looks for each and
is better where it finds it: `commit_outcome` makes an outcome one write, `compare_and_set` refuses late writers, `claim_job` and
`renew_lease` keep a second advance out while the first is at work, wherever it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeAlias, cast, runtime_checkable

from perdure.pipeline._records import Checkpoint, JobRecord, JobStatus, LogEntry, Progress


# ── what every adapter has ─────────────────────────────────────────────────────────────────────────────────
class StorageAdapter(Protocol):
    """Where jobs are kept. Each call is durable when it returns.

    States and outputs arrive as plain JSON data; `Checkpoint.to_json` and `LogEntry.to_json` turn the rest into it.
    """

    async def get_job(self, job_id: str) -> JobRecord | None:
        """The job, or None for an unknown id."""
        ...

    async def set_status(self, job_id: str, status: JobStatus, error: str | None = None) -> None:
        """Set status *and* error: None clears an earlier one. Creates the job if need be."""
        ...

    async def set_checkpoint(self, job_id: str, checkpoint: Checkpoint[Any] | None) -> None:
        """Replace the checkpoint; None clears it. Keep every field of it. Creates the job if need be."""
        ...

    async def append_log(self, job_id: str, entry: LogEntry) -> None:
        """Add one entry after all others."""
        ...

    async def clear_log(self, job_id: str) -> None:
        """Forget the job's log: a new life begins."""
        ...


class SchedulerAdapter(Protocol):
    """Who sees to it that `advance_phase` is called for a job, soon, once or more."""

    async def schedule_advance(self, job_id: str, delay: timedelta) -> None:
        """Have the job advanced after `delay`. The delay is advisory: an advance that comes too early asks for another."""
        ...


# ── capabilities of storages ───────────────────────────────────────────────────────────────────────────────
class Keep(Enum):
    """Stands for "leave it as it is"."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP
Kept: TypeAlias = Literal[Keep.KEEP]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One write of a job, applied whole or not at all.

    `version` is the job's as the writer knows it: 0 for a job that does not exist yet. `status` None leaves status and error alone. `entered` says
    that the checkpoint is a phase's beginning, whose state is kept for a later start from there; `new_life` that states kept by
    earlier lives are forgotten. `advance` is when the job is to be advanced next, None: by nobody. `hold` leaves version, lease and advances as
    they are, because the writer is not done; without it the lease is given back, deaths and progress are cleared and the version is raised.
    `durable` False: may be lost with the machine, not with the process.
    """

    job_id: str
    version: int
    status: JobStatus | None = None
    error: str | None = None
    checkpoint: Checkpoint[Any] | Kept | None = KEEP
    output: Any = KEEP
    progress: Progress | Kept = KEEP
    log: tuple[LogEntry, ...] = ()
    clear_log: bool = False
    entered: bool = False
    new_life: bool = False
    advance: timedelta | None = None
    hold: bool = False
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of a claim. `job` is as it stands now; `taken` says that it is ours, `busy` for how long somebody else's lease still runs, `now` what
    the storage's clock shows."""

    job: JobRecord | None
    taken: bool = False
    busy: timedelta | None = None
    now: datetime | None = None


@runtime_checkable
class KeepsOutput(Protocol):
    """Keeps what `Done` hands over."""

    async def set_output(self, job_id: str, output: Any) -> None: ...


@runtime_checkable
class ReadsLog(Protocol):
    async def get_log(self, job_id: str) -> Sequence[LogEntry]:
        """Every entry, in order."""
        ...


@runtime_checkable
class ListsRunning(Protocol):
    async def list_running(self) -> Sequence[str]:
        """The ids of jobs whose status is `running`."""
        ...


@runtime_checkable
class ListsJobs(Protocol):
    async def list_jobs(self, *, status: JobStatus | None = None, limit: int = 100, after: str | None = None) -> Sequence[tuple[str, JobRecord]]:
        """Jobs in the order of their ids, those after `after`."""
        ...


@runtime_checkable
class KeepsEntries(Protocol):
    async def get_entry(self, job_id: str, phase: str) -> Checkpoint[Any] | None:
        """The checkpoint with which this phase was last reached, whatever became of the job since."""
        ...


@runtime_checkable
class ComparesAndSets(Protocol):
    async def compare_and_set(self, job_id: str, version: int, checkpoint: Checkpoint[Any] | None) -> int | None:
        """Set the checkpoint if the job's version is still `version`, raise it by one and answer it; None: it is not, nothing was written."""
        ...


@runtime_checkable
class CommitsOutcomes(Protocol):
    async def commit_outcome(self, outcome: Outcome) -> int | None:
        """Apply the outcome in one write if the job's version is `outcome.version`; answer the version it has now.

        Unless `outcome.hold`, that is one more, and the lease is given back. None: somebody else was there first, nothing was written.
        """
        ...


@runtime_checkable
class Leases(Protocol):
    async def claim_job(self, job_id: str, lease: timedelta) -> Claim:
        """Take the job for `lease` if it is running, has a checkpoint and no lease on it is live. Raises its version, and `deaths` if one ran out.

        All times are the storage's own clock.
        """
        ...

    async def renew_lease(self, job_id: str, version: int, lease: timedelta, progress: Progress | None = None) -> bool:
        """Push the lease back, and note the progress, if the job still has this version. May be called from another thread's loop."""
        ...


@runtime_checkable
class Chains(Protocol):
    async def commit_and_claim(self, outcome: Outcome, lease: timedelta) -> Claim | None:
        """`commit_outcome` and `claim_job` in one write, for a worker that goes on with the job: `outcome` is a step to another checkpoint. None: refused.

        Not taken: the job was paused meanwhile. Taken: an advance of it comes due within the lease, should the worker die.
        """
        ...


@dataclass(frozen=True, slots=True)
class Advance:
    """An advance taken from a queue. `token` names this taking of it."""

    job_id: str
    token: str


@runtime_checkable
class KeepsAdvances(Protocol):
    """A durable queue of advances: one row a job, due at some time. `StorageScheduler` writes it, `PipelineWorker` reads it."""

    async def put_advance(self, job_id: str, delay: timedelta) -> None:
        """Have the job advanced after `delay`; the earlier of two times wins. An advance taken already is not this one."""
        ...

    async def take_advances(self, *, limit: int, hold: timedelta) -> Sequence[Advance]:
        """Take due advances, earliest first. Whoever takes one has it for `hold`; then it is due again."""
        ...

    async def drop_advance(self, advance: Advance, *, again: timedelta | None = None) -> None:
        """Done with it; with `again`, it is due once more after that. Nothing happens to a row that was put or taken anew meanwhile."""
        ...

    async def next_advance(self, job_id: str | None = None) -> timedelta | None:
        """How long until the earliest advance is due (zero: it is, or it is taken); of one job if given. None: there is none."""
        ...

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back on the loop when this process put an advance. Answers the way to stop."""
        ...


@runtime_checkable
class ListsStranded(Protocol):
    """A storage with a queue that can look for what is missing in it, in one question however many jobs there are."""

    async def list_stranded(self) -> Sequence[str]:
        """The ids of jobs whose status is `running` and of which no advance is on its way or taken."""
        ...


@runtime_checkable
class KnowsPending(Protocol):
    """A scheduler that can say whether an advance is on its way."""

    async def is_pending(self, job_id: str) -> bool: ...


# ── asking for them ────────────────────────────────────────────────────────────────────────────────────────
_KNOWN: Final[dict[tuple[type, type], bool]] = {}


def _has(adapter: object, capability: type) -> bool:
    """`isinstance`, remembered by class: asked several times in each advance, and looking at each method of a protocol is slow."""
    key = (type(adapter), capability)
    known = _KNOWN.get(key)
    if known is None:
        known = _KNOWN[key] = isinstance(adapter, capability)
    return known


def leasing(storage: object) -> Leases | None:
    return cast(Leases, storage) if _has(storage, Leases) else None


def committing(storage: object) -> CommitsOutcomes | None:
    return cast(CommitsOutcomes, storage) if _has(storage, CommitsOutcomes) else None


def comparing(storage: object) -> ComparesAndSets | None:
    return cast(ComparesAndSets, storage) if _has(storage, ComparesAndSets) else None


def chaining(storage: object) -> Chains | None:
    return cast(Chains, storage) if _has(storage, Chains) else None


def keeping_output(storage: object) -> KeepsOutput | None:
    return cast(KeepsOutput, storage) if _has(storage, KeepsOutput) else None


def joined(storage: object, scheduler: object) -> bool:
    """Whether the scheduler's advances are rows of this storage, so that an outcome can carry the next one."""
    return getattr(scheduler, "storage", None) is storage and committing(storage) is not None
