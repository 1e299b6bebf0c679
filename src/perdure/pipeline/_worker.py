"""The store-backed worker: advances are rows of the storage, durable and delayed, and any number of processes take them.

An advance is taken for a while, run, and dropped. A worker that dies drops nothing: its advance comes due again, and so does the lease on the job it had.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, Self

from perdure.core import given
from perdure.core.errors import StoreError
from perdure.core.limits import DEATHS_MAX, DRAIN_GRACE, LEASE_DEFAULT, POLL
from perdure.core.runtime import Runtime
from perdure.pipeline import _given
from perdure.pipeline._adapters import Advance, KeepsAdvances, Leases, ListsRunning, StorageAdapter, joined
from perdure.pipeline._errors import InvalidPipelineError, PhaseError
from perdure.pipeline._keeper import LeaseKeeper
from perdure.pipeline._operate import recover
from perdure.pipeline._phase import Cancellation, Phase, check_phases
from perdure.pipeline._runner import REAL, Advanced, Env, advance
from perdure.pipeline._settle import NOW

log = logging.getLogger("perdure.pipeline")
CONCURRENCY: Final = 16
"""Phases that one worker runs at a time unless told otherwise: phases wait for models and networks most of their time."""

CHAIN: Final = 16
"""Phases of one job that follow each other in a worker that is full, before others get their turn: each saves a trip through the queue."""


class QueueStorage(StorageAdapter, KeepsAdvances, Protocol):
    """A storage with a queue of advances in it."""


class StorageScheduler:
    """Schedules by writing a row into the storage. Where the storage is also the jobs', an outcome and its next advance are one write."""

    def __init__(self, storage: QueueStorage) -> None:
        if not isinstance(storage, KeepsAdvances):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidPipelineError(f"{type(storage).__name__} keeps no advances (`KeepsAdvances`); use another scheduler with it.")
        self.storage = storage

    async def schedule_advance(self, job_id: str, delay: timedelta = NOW) -> None:
        await self.storage.put_advance(job_id, delay)

    async def is_pending(self, job_id: str) -> bool:
        return await self.storage.next_advance(job_id) is not None


class PipelineWorker:
    """Takes due advances and runs them, here and in as many processes as you like.

        async with PipelineWorker(phases, storage):
            ...                                    # works until the block ends, then drains

    Args:
        phases: The pipeline's phases. One storage (or prefix) holds the jobs of one pipeline.
        storage: Where jobs and advances are.
        concurrency: Phases at work at once.
        lease: How long a dead worker's jobs stay untouched. A live one renews, from a thread of its own.
        deaths_max: Leases in a row that may run out before a job is failed, because its phase takes down every process that enters it.
        grace: How long a drain lets phases finish before it cancels them; their jobs are handed back at once.
        on_error: Hears of every failed phase and every refused write. By default they are logged.

    Raises:
        InvalidPipelineError: No phases, a storage that keeps no advances, or a setting out of its range.
    """

    def __init__(
        self, phases: Sequence[Phase[Any]], storage: QueueStorage, *, concurrency: int = CONCURRENCY, lease: timedelta = LEASE_DEFAULT,
        poll: timedelta = POLL, grace: timedelta = DRAIN_GRACE, deaths_max: int = DEATHS_MAX, on_error: Callable[[str, Exception], None] | None = None,
        runtime: Runtime = REAL,
    ) -> None:  # fmt: skip
        for name, wrong in (
            ("concurrency", given.whole(concurrency, least=1)),
            ("lease", given.span(lease, positive=True)),
            ("poll", given.span(poll, positive=True)),
            ("grace", given.span(grace)),
            ("deaths_max", given.whole(deaths_max, least=1)),
            ("on_error", None if on_error is None or callable(on_error) else f"must be a function, not {given.shown(on_error)}"),
        ):
            _given.refuse(name, wrong)
        self._phases, self._storage, self._runtime = check_phases(phases), storage, runtime
        self._concurrency, self._lease, self._poll, self._grace, self._deaths_max = concurrency, lease, poll, grace, deaths_max
        self._on_error = on_error or _log_error
        self.scheduler = StorageScheduler(storage)
        self._joined = joined(storage, self.scheduler)
        self._keeper = LeaseKeeper(storage, lease, runtime) if isinstance(storage, Leases) else None
        self._at_work: dict[asyncio.Task[None], Cancellation] = {}
        self._wake = asyncio.Event()
        self._stopping = False
        self._fatal: BaseException | None = None
        self._loop_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._loop_task = self._runtime.spawn(self.run(), name="perdure-pipeline-worker")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.stop()
        if self._loop_task is not None:
            await self._loop_task

    def stop(self) -> None:
        """Take nothing more; `run` drains and returns."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`, then drain."""
        off = self._storage.on_advance(self._wake.set)
        if self._keeper is not None:
            self._keeper.start()
        recover_at = self._runtime.monotonic()
        try:
            while not self._stopping:
                self._wake.clear()
                if self._runtime.monotonic() >= recover_at:
                    await self._recover()
                    recover_at = self._runtime.monotonic() + self._lease.total_seconds()
                if not await self._take():
                    await self._idle(self._poll.total_seconds())
        finally:
            await self._drain()
            off()
            if self._keeper is not None:
                await self._keeper.stop()
        if self._fatal is not None:
            raise self._fatal

    async def run_until_idle(self) -> None:
        """Work until nothing is due and nothing is at work here: for scripts, cron and tests. Later advances stay for the next time."""
        off = self._storage.on_advance(self._wake.set)
        if self._keeper is not None:
            self._keeper.start()
        try:
            await self._recover()
            while not self._stopping:
                self._wake.clear()
                if not await self._take():
                    if not self._at_work:
                        break
                    await self._wake.wait()
        finally:
            await self._drain()
            off()
            if self._keeper is not None:
                await self._keeper.stop()
        if self._fatal is not None:
            raise self._fatal

    # ── one pass ───────────────────────────────────────────────────────────────────────────────────────────
    async def _take(self) -> bool:
        """Start what is due, as far as there is room. Answers whether to look again at once."""
        room = self._concurrency - len(self._at_work)
        if room <= 0:
            return False
        try:
            taken = await self._storage.take_advances(limit=room, hold=self._lease)
        except StoreError as error:
            self._on_error("", error)
            return False
        for each in taken:
            cancelled = Cancellation()
            task = self._runtime.spawn(self._advance(each, cancelled), name=f"perdure-pipeline {each.job_id}")
            self._at_work[task] = cancelled
            task.add_done_callback(self._ended)
        return bool(taken)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._at_work.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Not an `Exception`: somebody wants this process to end. `run` drains and raises it.
            self._fatal = self._fatal or error
            self._stopping = True
        self._wake.set()

    async def _advance(self, taken: Advance, cancelled: Cancellation) -> None:
        again: timedelta | None = None
        try:
            if await self._run(taken.job_id, cancelled) == "ran" and self._joined:
                return  # the outcome's write took the row away, or made it the next advance's
        except PhaseError as error:
            self._on_error(taken.job_id, error)
        except asyncio.CancelledError:
            return  # the job was handed back with an advance of its own
        except Exception as error:
            # Not the phase's: the storage refused, or it is our mistake. The job is as it was; the advance comes again, after a while.
            self._on_error(taken.job_id, error)
            again = self._lease
        try:
            await self._storage.drop_advance(taken, again=again)
        except StoreError as error:
            self._on_error(taken.job_id, error)

    async def _run(self, job_id: str, cancelled: Cancellation) -> Advanced | None:
        env = Env(
            self._storage,
            self.scheduler,
            self._runtime,
            self._lease,
            self._keeper,
            cancelled,
            self._stays if self._joined else None,
            self._deaths_max,
        )
        return await advance(job_id, self._phases, env)

    def _stays(self, ran: int) -> bool:
        """Whether a job may go on at once: while there is room, it is in nobody's way."""
        return len(self._at_work) < self._concurrency or ran % CHAIN != 0

    async def _recover(self) -> None:
        if not isinstance(self._storage, ListsRunning):
            return
        try:
            await recover(self._storage, self.scheduler)
        except StoreError as error:
            self._on_error("", error)

    async def _idle(self, seconds: float) -> None:
        """Until something was put, a phase ended, or the poll is due."""
        sleep = self._runtime.spawn(self._runtime.sleep(seconds), name="perdure-pipeline-poll")
        wake = self._runtime.spawn(self._woken(), name="perdure-pipeline-wake")
        try:
            await asyncio.wait({sleep, wake}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            wake.cancel()

    async def _woken(self) -> None:
        await self._wake.wait()

    async def _drain(self) -> None:
        """Let phases finish, then cancel those that don't; their jobs go back to the queue."""
        for cancelled in self._at_work.values():
            cancelled.fire("drain")
        await self._wait_for_work()
        for task in list(self._at_work):
            task.cancel()
        await self._wait_for_work()
        if self._at_work:
            # Nobody can stop such a phase. Its lease runs out once this process is gone, and another worker enters it again.
            log.error("%d phases ignored their cancellation and were left behind", len(self._at_work))

    async def _wait_for_work(self) -> None:
        """Until nothing is at work here, for `grace` at most."""
        if not self._at_work:
            return
        limit = self._runtime.spawn(self._runtime.sleep(self._grace.total_seconds()), name="perdure-pipeline-grace")
        while self._at_work and not limit.done():
            await asyncio.wait({*self._at_work, limit}, return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()


def _log_error(job_id: str, error: Exception) -> None:
    if isinstance(error, PhaseError):
        log.error("Job %s: %s", job_id, error.message)
    else:
        log.error("The pipeline worker met an error%s", f" at job {job_id}" if job_id else "", exc_info=error)
