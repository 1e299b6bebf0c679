"""Keeping what was claimed: renewal beside the main loop, and the local deadline.

Renewal runs on a thread and a loop of its own, so that a long tool, a slow model or a blocked event loop does not lose the lease. The local
deadline counts from *before* a renewal is sent: whatever the thread hears later, the work stops before anybody else may start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from perdure.core.errors import StoreError
from perdure.core.limits import LEASE_MARGIN, RENEWALS_PER_LEASE
from perdure.core.runtime import Runtime, Side
from perdure.engine._execution import AbortReason, Execution
from perdure.stores import Store

logger = logging.getLogger("perdure")


def ours_until(sent: float, lease: timedelta) -> float:
    """Monotonic time until which a claim or renewal that was sent at `sent` is ours alone."""
    return sent + lease.total_seconds() * (1 - LEASE_MARGIN)


class LeaseKeeper:
    """Renews every lease of a worker in one statement, and stops work whose time is over."""

    def __init__(self, store: Store, runtime: Runtime, lease: timedelta, report: Callable[[BaseException], Awaitable[None]]) -> None:
        self._store, self._runtime, self._lease, self._report = store, runtime, lease, report
        self._interval = lease.total_seconds() / RENEWALS_PER_LEASE
        self._held: dict[str, Execution] = {}
        self._loop = asyncio.get_running_loop()
        self._side: Side | None = None
        self._watch: asyncio.Task[None] | None = None
        self._busy = asyncio.Event()
        self._beat_asked: float | None = None
        self._warned = False

    def start(self) -> None:
        self._side = self._runtime.beside(self._renew, name="perdure-leases")
        self._watch = self._runtime.spawn(self._stop_what_is_over(), name="perdure-lease-watch")

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._side is not None:
            self._side.stop()

    def keep(self, execution: Execution) -> None:
        self._held[execution.run.id] = execution
        self._busy.set()

    def let_go(self, execution: Execution) -> None:
        if self._held.get(execution.run.id) is execution:
            del self._held[execution.run.id]

    async def _renew(self) -> None:
        while True:
            await self._runtime.sleep(self._interval)
            held = {execution.run.id: execution for execution in list(self._held.values())}
            self._listen_to_the_loop(list(held.values()))
            if not held:
                continue
            sent = self._runtime.monotonic()
            try:
                answers = await self._store.renew([execution.lease for execution in held.values()], self._lease)
            except StoreError as error:
                # Told here, since the commits that wait for the store meanwhile say nothing: each would say the same.
                self._tell_of(error)
                continue
            except Exception:
                logger.exception("leases could not be renewed; trying again")
                continue
            for answer in answers:
                execution = held[answer.run_id]
                if answer.held:
                    execution.ours_until = ours_until(sent, self._lease)
                    if answer.cancel_requested:
                        self._tell(execution, "cancel")
                elif self._held.get(answer.run_id) is execution:
                    self._tell(execution, "lease_lost")

    def _tell_of(self, error: StoreError) -> None:
        async def tell() -> None:
            await self._report(error)

        def on_the_main_loop() -> None:
            self._runtime.spawn(tell(), name="perdure-store-away")

        try:
            self._loop.call_soon_threadsafe(on_the_main_loop)
        except RuntimeError:
            pass  # the main loop has ended: nobody listens any more

    def _tell(self, execution: Execution, reason: AbortReason) -> None:
        try:
            self._loop.call_soon_threadsafe(execution.abort, reason)
        except RuntimeError:
            pass  # the main loop has ended, and with it the execution

    def _listen_to_the_loop(self, held: list[Execution]) -> None:
        """Ask the main loop for a sign of life, and name what runs when the last sign is overdue."""
        now = self._runtime.monotonic()
        if self._beat_asked is not None:
            if not self._warned and now - self._beat_asked >= self._interval:
                self._warned = True
                named = "; ".join(f"run {each.run.id}: {each.activity.what}" for each in held if each.activity) or "nothing that is known"
                logger.warning(
                    "The event loop has been blocked for %.1f s. Leases are kept, but nothing else moves. Running: %s. Make the tool's body async, "
                    "or a plain `def`, which runs in a thread.",
                    now - self._beat_asked,
                    named,
                )
            return
        self._beat_asked = now
        try:
            self._loop.call_soon_threadsafe(self._beat)
        except RuntimeError:
            pass  # the main loop has ended

    def _beat(self) -> None:
        self._beat_asked, self._warned = None, False

    async def _stop_what_is_over(self) -> None:
        pause = self._lease.total_seconds() * LEASE_MARGIN / 2
        while True:
            if not self._held:
                self._busy.clear()
                await self._busy.wait()
            await self._runtime.sleep(pause)
            now = self._runtime.monotonic()
            for execution in list(self._held.values()):
                if now >= execution.ours_until:
                    execution.abort("lease_lost")
