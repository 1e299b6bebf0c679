"""One claimed stretch of a run in this process: its journal, its signal to stop, and what it is doing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from perdure.core.commit import Lease
from perdure.core.event import Delta, Reset
from perdure.core.run import Activity, Run
from perdure.core.runtime import Runtime
from perdure.engine._journal import Journal
from perdure.events import Hub
from perdure.stores import Store

if TYPE_CHECKING:
    from perdure.core.event import Event

AbortReason = Literal["cancel", "drain", "lease_lost", "timeout", "deadline", "step_timeout", "ended"]
STRENGTH: Final[dict[str, int]] = {"ended": 0, "drain": 1, "step_timeout": 2, "timeout": 2, "deadline": 3, "cancel": 4, "lease_lost": 5}
"""Of two reasons to stop, the stronger one decides what is written."""


class StopSignal:
    """Fires once; a stronger reason may replace a weaker one. Readable from any thread."""

    def __init__(self) -> None:
        self.reason: AbortReason | None = None
        self._changed = asyncio.Event()
        self._threads = threading.Event()

    def fire(self, reason: AbortReason) -> None:
        if self.reason is None or STRENGTH[reason] > STRENGTH[self.reason]:
            self.reason = reason
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
        self._threads.set()

    async def wait(self) -> str:
        """Wait until it has fired, and answer the reason."""
        while self.reason is None:
            await self._changed.wait()
        return self.reason

    async def changed(self) -> None:
        """Wait until it fires, or fires for a stronger reason."""
        await self._changed.wait()

    def blocking_wait(self, timeout: float | None = None) -> bool:
        return self._threads.wait(timeout)


@dataclass(eq=False)
class Execution:
    """What a job type gets to work with.

    `ours_until` is monotonic time: before it nobody else can own the run. It is moved by the renewal thread. `claimed_at` is the monotonic time at which the
    claim was sent.
    """

    run: Run
    store: Store
    runtime: Runtime
    hub: Hub
    engine: Any
    ours_until: float
    claimed_at: float
    lease_length: timedelta | None = None
    on_event: Callable[[Event], None] | None = None
    stop: StopSignal = field(default_factory=StopSignal)
    activity: Activity | None = None
    last_news: datetime | None = None
    announce: Callable[[Delta | Reset], None] | None = None
    log_came: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.journal = Journal(
            self.store,
            self.runtime,
            self.run,
            on_cancel=lambda: self.abort("cancel"),
            still_ours=lambda: self.runtime.monotonic() < self.ours_until,
            on_event=self.on_event,
        )

    @property
    def lease(self) -> Lease:
        assert self.run.claim_token is not None
        return Lease(self.run.id, self.run.epoch, self.run.claim_token, self.activity)

    def store_now(self) -> datetime:
        """About what the store's clock shows: what it stamped on the claim, and the time since. Deadlines of waits count from it, never from this machine's
        wall clock, which may be an hour off."""
        stamped = self.run.updated_at
        if stamped is None:
            return self.runtime.now()
        return stamped + timedelta(seconds=self.runtime.monotonic() - self.claimed_at)

    def abort(self, reason: AbortReason) -> None:
        """Ask the execution to stop. On the loop; from a thread through `call_soon_threadsafe`."""
        self.stop.fire(reason)

    def must_stop(self) -> bool:
        """Whether nothing new may start: it was told to stop, or its time is over. Asked right before each model call and each body, because whoever was
        stopped by the machine wakes up before the watch that would have told it."""
        if self.stop.reason is None and self.runtime.monotonic() >= self.ours_until:
            self.abort("lease_lost")
        return self.stop.reason is not None

    def doing(self, step: int, what: str) -> None:
        """What people see as the run's activity, from the next renewal on."""
        self.activity = Activity(step, what, self.runtime.now())

    def stream(self, item: Delta | Reset) -> None:
        """Text as it comes, unless this execution has been told to stop."""
        if self.stop.reason not in (None, "drain"):
            return
        self.hub.stream(item)
        if self.announce is not None:
            self.announce(item)

    def log(self, level: str, message: str, data: dict[str, Any]) -> None:
        """A log line for the next commit. From any thread."""
        self.journal.log(level, message, data)
        try:
            self._loop.call_soon_threadsafe(self.log_came.set)
        except RuntimeError:
            pass  # the loop has ended; the line is lost, as lines may be
