"""Keeps the leases of jobs at work alive, from a thread and a loop of its own: a phase that blocks the event loop keeps its job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from perdure.core.limits import LEASE_MARGIN, RENEWALS_PER_LEASE
from perdure.core.runtime import Runtime, Side
from perdure.pipeline._adapters import Leases
from perdure.pipeline._records import Progress

log = logging.getLogger("perdure.pipeline")


@dataclass(slots=True)
class Held:
    """A job at work here. `deadline` is on the runtime's monotonic clock: past it, others may have it."""

    job_id: str
    version: int
    deadline: float
    lost: Callable[[], None]
    loop: asyncio.AbstractEventLoop
    progress: Progress | None = None


class LeaseKeeper:
    """Renews every held lease `RENEWALS_PER_LEASE` times per lease, and says so where one is lost."""

    def __init__(self, storage: Leases, lease: timedelta, runtime: Runtime) -> None:
        self._storage, self.lease, self._runtime = storage, lease, runtime
        self._held: dict[str, Held] = {}
        self._side: Side | None = None

    @property
    def period(self) -> float:
        return self.lease.total_seconds() / RENEWALS_PER_LEASE

    def deadline(self, sent: float) -> float:
        """When work has to stop if nothing is heard after a renewal that was sent at `sent`."""
        return sent + self.lease.total_seconds() * (1 - LEASE_MARGIN)

    def start(self) -> None:
        if self._side is None:
            self._side = self._runtime.beside(self._run, name="perdure-pipeline-leases")

    async def stop(self) -> None:
        side, self._side = self._side, None
        if side is not None:
            await self._runtime.in_thread(side.stop)

    def hold(self, job_id: str, version: int, sent: float, lost: Callable[[], None]) -> Held:
        """Keep this job from now on. `lost` is called on the caller's loop."""
        held = self._held[job_id] = Held(job_id, version, self.deadline(sent), lost, asyncio.get_running_loop())
        return held

    def let_go(self, held: Held) -> None:
        if self._held.get(held.job_id) is held:
            del self._held[held.job_id]

    async def _run(self) -> None:
        while True:
            for held in list(self._held.values()):
                await self._renew(held)
            await self._runtime.sleep(self.period)

    async def _renew(self, held: Held) -> None:
        sent = self._runtime.monotonic()
        try:
            kept = await self._storage.renew_lease(held.job_id, held.version, self.lease, held.progress)
        except Exception:
            log.warning("The lease of job %s could not be renewed", held.job_id, exc_info=True)
            kept = self._runtime.monotonic() < held.deadline
        else:
            if kept:
                held.deadline = self.deadline(sent)
        if not kept and self._held.get(held.job_id) is held:
            self.let_go(held)
            try:
                held.loop.call_soon_threadsafe(held.lost)
            except RuntimeError:
                pass  # its loop has ended, and the phase with it
