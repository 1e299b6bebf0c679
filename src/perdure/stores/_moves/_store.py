"""The `Store` protocol on top of the programs: what SQLite and Postgres have in common, which is all but the driving."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar

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
from perdure.core.event import Event
from perdure.core.family import Reserve, Reserved
from perdure.core.run import Run
from perdure.core.step import Step
from perdure.core.wait import WaitPoint
from perdure.stores._moves import _admit, _claim, _commit, _family, _lifecycle, _notices, _prune, _reads, _resolve
from perdure.stores._moves._program import Program, Verb, Work, span
from perdure.stores._protocol import Hint

T = TypeVar("T")


class SqlStore(ABC):
    """A store whose verbs are the shared programs. A subclass says how one is driven in a transaction, and how it opens and closes."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[Callable[[Hint], None]] = []

    @abstractmethod
    async def _write(self, verb: Verb[T]) -> T:
        """Drive a program that writes; returns once that is durable."""

    @abstractmethod
    async def _read(self, verb: Verb[T]) -> T:
        """Drive a program that only reads, as of one moment."""

    @abstractmethod
    async def _look(self, verb: Verb[T]) -> T:
        """Drive a program that reads one batch, each query as of its own moment: for what needs no more than that."""

    # ── moves ──────────────────────────────────────────────────────────────────────────────────────────────
    async def admit(self, new: NewRun) -> Admitted:
        return await self._write(lambda work: _admit.admit(work, new))

    async def claim(self, request: ClaimRequest) -> Sequence[Run]:
        return await self._write(lambda work: _claim.claim(work, request))

    async def renew(self, leases: Sequence[Lease], lease: timedelta) -> Sequence[Renewed]:
        return await self._write(lambda work: _claim.renew(work, leases, lease))

    async def commit(self, commit: Commit) -> Committed:
        return await self._write(lambda work: _commit.commit(work, commit))

    async def reserve(self, ask: Reserve) -> Reserved:
        return await self._write(lambda work: _family.reserve(work, ask))

    async def resolve(self, request: Resolve) -> Resolved:
        return await self._write(lambda work: _resolve.resolve(work, request))

    async def extend(self, wait_id: str, expires_at: datetime | None) -> Resolved:
        return await self._write(lambda work: _resolve.extend(work, wait_id, expires_at))

    async def cancel(self, request: CancelRequest) -> Cancelled:
        return await self._write(lambda work: _lifecycle.cancel(work, request))

    async def retry(self, request: RetryRequest) -> Retried:
        return await self._write(lambda work: _lifecycle.retry(work, request))

    async def sweep(self, request: SweepRequest) -> Swept:
        # Each in a transaction of its own: one bad run never ends a pass.
        due = await self._look(lambda work: _lifecycle.list_due(work, request))
        done: list[tuple[str, _lifecycle.Head | None]] = []
        for each in due:
            done.append((each.run_id, await self._write(partial(_lifecycle.sweep, due=each, deaths_max=request.deaths_max))))
        return _lifecycle.tally(done, await self._look(_lifecycle.next_due))

    async def prune(self, request: PruneRequest) -> Pruned:
        forgotten: list[str] = []
        for old in await self._look(lambda work: _prune.list_old(work, request)):
            if await self._write(partial(_prune.forget, old=old, ask=request)):
                forgotten.append(old.run_id)
        return Pruned(tuple(forgotten), await self._write(lambda work: _prune.forget_keys(work, request.limit)))

    async def signal(self, signal: Signal) -> bool:
        return await self._write(lambda work: _resolve.signal(work, signal))

    async def settle_effect(self, request: SettleEffect) -> Effect:
        return await self._write(lambda work: _resolve.settle_effect(work, request))

    # ── notifications ──────────────────────────────────────────────────────────────────────────────────────
    async def claim_notices(self, *, limit: int, hold: timedelta) -> Sequence[WaitPoint]:
        return await self._write(lambda work: _notices.claim_notices(work, limit, hold))

    async def note_notice(
        self, wait_id: str, *, tries: int, accepted: bool, warning: bool, retry_in: timedelta | None, token_hash: str | None
    ) -> None:
        notice = partial(
            _notices.note_notice, wait_id=wait_id, tries=tries, accepted=accepted, warning=warning, retry_in=retry_in, token_hash=token_hash
        )
        await self._write(notice)

    # ── reads ──────────────────────────────────────────────────────────────────────────────────────────────
    async def now(self) -> datetime:
        return await self._look(_reads.now)

    async def load(self, run_id: str) -> Loaded:
        return await self._read(lambda work: _reads.load(work, run_id))

    async def get(self, run_id: str) -> Run | None:
        return await self._look(lambda work: _reads.get(work, run_id))

    async def find(self, agent: str, key: str) -> Run | None:
        return await self._read(lambda work: _reads.find(work, agent, key))

    async def runs(self, where: RunFilter) -> Sequence[Run]:
        return await self._read(lambda work: _reads.runs(work, where))

    async def counts(self, agent: str | None = None) -> dict[str, int]:
        return await self._look(lambda work: _reads.counts(work, agent))

    async def steps(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Step]:
        return await self._look(lambda work: _reads.steps(work, run_id, after, limit))

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Event]:
        return await self._look(lambda work: _reads.events(work, run_id, after, limit))

    async def checkpoint(self, run_id: str, *, generation: int | None = None, index: int | None = None) -> Checkpoint | None:
        return await self._read(lambda work: _reads.checkpoint(work, run_id, generation, index))

    async def waits(self, where: WaitFilter) -> Sequence[WaitPoint]:
        return await self._look(lambda work: _reads.waits(work, where))

    async def wait(self, wait_id: str) -> WaitPoint | None:
        return await self._look(lambda work: _reads.wait(work, wait_id))

    async def effects(self, where: EffectFilter) -> Sequence[Effect]:
        return await self._look(lambda work: _reads.effects(work, where))

    # ── artifacts ──────────────────────────────────────────────────────────────────────────────────────────
    async def put_artifact(self, data: bytes, *, media_type: str, filename: str | None = None) -> Artifact:
        artifact = Artifact(hashlib.sha256(data).hexdigest(), media_type, len(data), filename=filename)
        return await self._write(lambda work: _reads.put_artifact(work, artifact, data))

    async def get_artifact(self, artifact_id: str) -> tuple[Artifact, bytes]:
        return await self._look(lambda work: _reads.get_artifact(work, artifact_id))

    # ── hints ──────────────────────────────────────────────────────────────────────────────────────────────
    def on_hint(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def _publish(self, hints: Iterable[Hint]) -> None:
        """Call the listeners, on the loop that entered the store."""
        # Sorted, because the order of a set differs from process to process and a simulation must not.
        for hint in sorted(hints, key=lambda each: (each.kind, each.run_id or "")):
            for listener in list(self._listeners):
                listener(hint)

    # ── for tests ──────────────────────────────────────────────────────────────────────────────────────────
    async def move_clock(self, by: timedelta) -> None:
        """Move the store's clock, for every process on it. For tests."""
        await self._write(lambda work: _move_clock(work, by))


def _move_clock(work: Work, by: timedelta) -> Program[None]:
    work.write("move_clock", micros=span(by))
    return
    yield
