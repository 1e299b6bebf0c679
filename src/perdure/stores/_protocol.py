"""The `Store` protocol. Its verbs are the moves of table R.

A store decides *whether* a write may happen, in the same transaction as the write, never *what* is written.
Every call is atomic and is acknowledged only once it is durable. Every write takes the run row first, a parent's before its child's.
All times are the store's own clock. A call that raises `StoreUnavailable` may or may not have been applied:
repeat it, each verb is safe to repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, Self, runtime_checkable

from perdure.core.artifact import Artifact
from perdure.core.checkpoint import Checkpoint
from perdure.core.commit import (
    Admitted,
    Cancelled,
    CancelRequest,
    ClaimRequest,
    Commit,
    Committed,
    EffectFilter,
    Lease,
    Loaded,
    NewRun,
    Pruned,
    PruneRequest,
    Renewed,
    Resolve,
    Resolved,
    Retried,
    RetryRequest,
    RunFilter,
    SettleEffect,
    Signal,
    SweepRequest,
    Swept,
    WaitFilter,
)  # fmt: skip
from perdure.core.effect import Effect
from perdure.core.event import Delta, Event, Reset
from perdure.core.family import Reserve, Reserved
from perdure.core.run import Run
from perdure.core.step import Step
from perdure.core.wait import WaitPoint


@dataclass(frozen=True, slots=True)
class Hint:
    """Something may have changed. Only a hint: look and see.

    `work`: a run may be claimable. `run`: this run may have another status. `news`: it has events that were not there before, and the same status.
    """

    kind: Literal["work", "run", "news"]
    run_id: str | None = None


class Store(Protocol):
    """Where runs are kept. Open it with `async with`."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def migrate(self) -> int:
        """Bring the schema up to date; answers its version. Many may do it at once."""
        ...

    # ── moves ──────────────────────────────────────────────────────────────────────────────────────────────
    async def admit(self, new: NewRun) -> Admitted:
        """Create a pending run, or answer the one that its key or id already created.

        Raises:
            Conflict: The key stands for another payload (`details["run_id"]` names its run).
            ArtifactNotFoundError: An attachment is not stored.
        """
        ...

    async def claim(self, request: ClaimRequest) -> Sequence[Run]:
        """Take runs that may be claimed: interrupted ones first, then by priority, runs begun before runs not begun, then in order of admission."""
        ...

    async def renew(self, leases: Sequence[Lease], lease: timedelta) -> Sequence[Renewed]:
        """Push the expiry of every lease still held. Called from a thread and loop of its own."""
        ...

    async def commit(self, commit: Commit) -> Committed:
        """Apply the whole commit or nothing of it, and say which."""
        ...

    async def reserve(self, ask: Reserve) -> Reserved:
        """Take room for one model call under the budgets that a run shares with its family, in one conditional write.

        Raises:
            RunNotFoundError: There is no such run.
        """
        ...

    async def resolve(self, request: Resolve) -> Resolved:
        """Close a wait row; a run whose last open row this was goes back to `pending`.

        Raises:
            WaitNotFoundError: There is no such row.
        """
        ...

    async def extend(self, wait_id: str, expires_at: datetime | None) -> Resolved:
        """Move an open row's deadline (None: never), only before it has passed. Outcome `RESOLVED` means moved."""
        ...

    async def cancel(self, request: CancelRequest) -> Cancelled:
        """Settle a resting run as cancelled, or mark a running one. `children` are its unfinished child runs."""
        ...

    async def retry(self, request: RetryRequest) -> Retried:
        """Bring a failed or cancelled run back to `pending`.

        Raises:
            RunNotFoundError: There is no such run.
            Conflict: The run is not failed or cancelled, or its deadline has passed and none was given.
        """
        ...

    async def sweep(self, request: SweepRequest) -> Swept:
        """Do what time asks for, at most `limit` rows of each kind, each update repeating its condition."""
        ...

    async def prune(self, request: PruneRequest) -> Pruned:
        """Forget old settled runs that nothing needs any more. Apart from the writes of runs: each run in a transaction of its own."""
        ...

    async def signal(self, signal: Signal) -> bool:
        """Put a signal into the run's inbox and resolve the oldest matching open row. False: this id was seen.

        Raises:
            RunNotFoundError: There is no such run.
            Conflict: The run is completed, or its inbox is full.
        """
        ...

    async def settle_effect(self, request: SettleEffect) -> Effect:
        """Settle an effect of unknown outcome, in a final run too; its wait row is resolved with it.

        Raises:
            EffectNotFoundError: There is no such effect.
            Conflict: It is not unknown, or "run it" came while the try before may still be running.
        """
        ...

    # ── notifications ──────────────────────────────────────────────────────────────────────────────────────
    async def claim_notices(self, *, limit: int, hold: timedelta) -> Sequence[WaitPoint]:
        """Open rows whose request or warning is due to be sent, each held for the caller until `hold` has passed."""
        ...

    async def note_notice(
        self, wait_id: str, *, tries: int, accepted: bool, warning: bool, retry_in: timedelta | None, token_hash: str | None
    ) -> None:
        """Record what became of one notice."""
        ...

    # ── reads ──────────────────────────────────────────────────────────────────────────────────────────────
    async def now(self) -> datetime:
        """The store's clock."""
        ...

    async def load(self, run_id: str) -> Loaded:
        """All that an execution needs, read at one moment. Raises `RunNotFoundError`."""
        ...

    async def get(self, run_id: str) -> Run | None: ...

    async def find(self, agent: str, key: str) -> Run | None:
        """The run that this key started."""
        ...

    async def runs(self, where: RunFilter) -> Sequence[Run]: ...

    async def counts(self, agent: str | None = None) -> dict[str, int]:
        """How many runs there are by status."""
        ...

    async def steps(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Step]: ...

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Event]:
        """Events with a number above `after`, in order."""
        ...

    async def checkpoint(self, run_id: str, *, generation: int | None = None, index: int | None = None) -> Checkpoint | None:
        """A checkpoint with its messages; the highest of the generation where no index is given."""
        ...

    async def waits(self, where: WaitFilter) -> Sequence[WaitPoint]: ...

    async def wait(self, wait_id: str) -> WaitPoint | None: ...

    async def effects(self, where: EffectFilter) -> Sequence[Effect]: ...

    # ── artifacts ──────────────────────────────────────────────────────────────────────────────────────────
    async def put_artifact(self, data: bytes, *, media_type: str, filename: str | None = None) -> Artifact:
        """Store bytes once, by content."""
        ...

    async def get_artifact(self, artifact_id: str) -> tuple[Artifact, bytes]:
        """Raises `ArtifactNotFoundError`."""
        ...

    # ── hints ──────────────────────────────────────────────────────────────────────────────────────────────
    def on_hint(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        """Call back, on the loop that entered the store, when something may have changed here or elsewhere. Answers the way to stop."""
        ...

    async def send_deltas(self, deltas: Sequence[Delta | Reset]) -> None:
        """Tell the listeners of other processes what streams here, as far as the store can. Never raises."""
        ...

    def on_delta(self, callback: Callable[[Delta | Reset], None]) -> Callable[[], None]:
        """Deltas of other processes, as far as the store brings them."""
        ...

    def info(self) -> dict[str, Any]:
        """Kind, address without secrets, schema version, limits: for people."""
        ...


class Joined(Protocol):
    """A transaction of the user's own rows and ours. Whoever opened it ends it; until then nothing of it can be seen from outside."""

    @property
    def connection(self) -> Any:
        """The driver's own connection, for the user's rows."""
        ...

    async def admit(self, new: NewRun) -> Admitted:
        """As `Store.admit`, with this transaction."""
        ...

    async def commit(self, commit: Commit) -> Committed:
        """As `Store.commit`, with this transaction."""
        ...

    def passing(self, error: BaseException) -> bool:
        """Whether this error of the driver says that others were in the way or the connection broke: the same may work the next time."""
        ...


@runtime_checkable
class JoiningStore(Protocol):
    """A store whose database can hold the user's tables too: their rows and ours are there together or not at all."""

    def joined(self, *, idle: timedelta | None = None) -> AbstractAsyncContextManager[Joined]:
        """Open a transaction. `idle`: how long it may stay without a statement before the database takes it back."""
        ...

    def joining(self, connection: Any) -> Joined:
        """The transaction that the user has opened on a connection of his own."""
        ...
