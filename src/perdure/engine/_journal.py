"""The one way in which an execution writes: commits in a row, each told its truth.

One commit of a claim is in flight at a time. A reply that is lost is asked for again under the same number until the store tells what became of it,
or until the lease is no longer ours to speak of. A caller that is cancelled does not take its write back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from perdure.core.budget import Usage
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.codec import clean, clean_text
from perdure.core.commit import Commit, Committed, Ending, NewRun, Outcome
from perdure.core.effect import EffectWrite
from perdure.core.errors import LeaseLostError, StoreError, StoreUnavailable, Suspend, UnserializableError
from perdure.core.event import Event, EventWrite
from perdure.core.family import ReservationEnds, Reserve, Reserved, Room
from perdure.core.run import Run
from perdure.core.runtime import Runtime
from perdure.core.step import StepWrite
from perdure.core.wait import WaitWrite
from perdure.engine._together import RolledBack
from perdure.stores import Store

T = TypeVar("T")

LOGS_MAX = 1_000
Through = Callable[[Commit], Awaitable[Committed]]


class LeaseLost(Suspend):
    """The store answered `lost`: this execution writes nothing more."""

    def __init__(self, error: LeaseLostError) -> None:
        super().__init__(str(error))
        self.error = error


class WriteRefused(Suspend):
    """The store refused a write in the middle of a step: the execution ends with that error.

    Not an `Exception`: neither the model nor a tool may take it for what became of a tool.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Write:
    """What one commit should carry, before it has a number. Two are merged by `+`."""

    checkpoint: CheckpointWrite | None = None
    steps: tuple[StepWrite, ...] = ()
    effects: tuple[EffectWrite, ...] = ()
    waits: tuple[WaitWrite, ...] = ()
    children: tuple[NewRun, ...] = ()
    events: tuple[EventWrite, ...] = ()
    ending: Ending | None = None
    progress: bool = False
    version: str | None = None
    booked: bool = False
    """The usage tells what the model call has really cost: nothing need be reserved for it any more."""

    def __add__(self, later: Write) -> Write:
        return Write(
            checkpoint=_joined(self.checkpoint, later.checkpoint),
            steps=self.steps + later.steps,
            effects=self.effects + later.effects,
            waits=self.waits + later.waits,
            children=self.children + later.children,
            events=self.events + later.events,
            ending=later.ending or self.ending,
            progress=self.progress or later.progress,
            version=later.version or self.version,
            booked=self.booked or later.booked,
        )


def _joined(first: CheckpointWrite | None, later: CheckpointWrite | None) -> CheckpointWrite | None:
    """Two writes of one checkpoint as one: what the later one keeps may be what the first one adds."""
    if first is None or later is None or first.base != later.base:
        return later or first
    keep = min(first.keep, later.keep)
    return replace(later, keep=keep, append=first.append[: max(0, later.keep - first.keep)] + later.append)


class Journal:
    """The commits of one claim."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        run: Run,
        *,
        on_cancel: Callable[[], None],
        still_ours: Callable[[], bool],
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        assert run.claim_token is not None
        self._store, self._runtime, self._run = store, runtime, run
        self._token, self._commit_no = run.claim_token, run.commit_no
        self._on_cancel, self._still_ours, self._on_event = on_cancel, still_ours, on_event
        self._lock = asyncio.Lock()
        self._logs: deque[EventWrite] = deque(maxlen=LOGS_MAX)
        self._family: str | None = None
        """The family under whose budget room is reserved for a model call; None: none is."""
        self.calling = False
        """A model call is under way, whose cost nobody knows yet."""
        self.usage: Usage = run.usage
        self.ended = False
        self.last: Committed | None = None

    def log(self, level: str, message: str, data: dict[str, Any]) -> None:
        """Keep a log line for the next commit. Safe from any thread. What has no JSON form is kept as its `repr`: a line must not hold up the run."""
        self._logs.append(EventWrite("log", {"level": _printed(level), "message": _printed(message), **({"data": _loggable(data)} if data else {})}))

    @property
    def has_logs(self) -> bool:
        return bool(self._logs)

    async def write(self, write: Write, *, through: Through | None = None) -> Committed:
        """Commit and wait for the acknowledgement, even if the caller is cancelled meanwhile.

        Args:
            through: The way to the store where the commit belongs to a transaction with the user's own rows.

        Raises:
            LeaseLost: Somebody else owns the run, or this execution has ended it already.
            RolledBack: The transaction that it went through was taken back: nothing was written.
        """
        return await self._to_its_end(self._write(write, through), f"commit {self._run.id}")

    async def reserve(self, step: int, tokens: int, cost: Decimal) -> Reserved:
        """Ask for room for one model call under the budgets above this run. Ended by the commit that books the call, or by the one that ends the claim.

        Raises:
            LeaseLost: Somebody else owns the run, or this execution has ended it already.
        """
        return await self._to_its_end(self._reserve(step, tokens, cost), f"reservation {self._run.id}")

    async def _to_its_end(self, work: Coroutine[Any, Any, T], name: str) -> T:
        task = self._runtime.spawn(work, name=name)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # The write goes on; its answer is read before anything else is decided, because the lock is still held. What it came to is the journal's
            # business: a lost lease that is found now is told to whoever writes next.
            task.add_done_callback(_seen)
            raise

    async def settled(self) -> None:
        """Wait until no commit is in flight."""
        async with self._lock:
            pass

    async def _write(self, write: Write, through: Through | None) -> Committed:
        async with self._lock:
            if self.ended:
                raise LeaseLost(LeaseLostError(self._run.id, held=self._run.epoch, current=None))
            logs = tuple(self._logs)
            commit = Commit(
                run_id=self._run.id,
                epoch=self._run.epoch,
                token=self._token,
                commit_no=self._commit_no + 1,
                usage=self.usage,
                checkpoint=write.checkpoint,
                steps=write.steps,
                effects=write.effects,
                waits=write.waits,
                children=write.children,
                events=logs + write.events,
                ending=write.ending,
                progress=write.progress,
                version=write.version,
                reservation=self._reservation_ends(write),
            )
            answer = await (self._commit(commit) if through is None else self._once(commit, through))
            self.last = answer
            if answer.outcome is Outcome.LOST:
                self.ended = True
                raise LeaseLost(LeaseLostError(self._run.id, held=self._run.epoch, current=answer.epoch))
            self._commit_no = commit.commit_no
            if commit.reservation is not None:
                self._family = None
            for _ in logs:
                self._logs.popleft()
            if write.ending is not None:
                self.ended = True
            self._publish(commit.events, answer)
            if answer.cancel_requested and not self.ended:
                self._on_cancel()
            return answer

    async def _reserve(self, step: int, tokens: int, cost: Decimal) -> Reserved:
        async with self._lock:
            if self.ended:
                raise LeaseLost(LeaseLostError(self._run.id, held=self._run.epoch, current=None))
            ask = Reserve(self._run.id, self._run.epoch, self._token, self._commit_no, step, tokens, cost)
            answer = await self._until_told(lambda: self._store.reserve(ask))
            if answer.room is Room.LOST:
                self.ended = True
                raise LeaseLost(LeaseLostError(self._run.id, held=self._run.epoch, current=answer.epoch))
            if answer.room is Room.RESERVED:
                self._family = answer.family
            if answer.cancel_requested:
                self._on_cancel()
            return answer

    def _reservation_ends(self, write: Write) -> ReservationEnds | None:
        """What this commit says of the room that is reserved. Only a call that was not made, or whose cost is known, gives it back."""
        if self._family is None or not (write.booked or write.ending is not None):
            return None
        return ReservationEnds(self._family, kept=self.calling and not write.booked)

    async def _once(self, commit: Commit, through: Through) -> Committed:
        """A commit that can't be sent again, because the rows beside it can't.

        Where its answer is lost or an error, its number is sent with nothing to write: it waits for the row, and is told what the row came to.
        """
        try:
            return await through(commit)
        except StoreError as error:
            answer = await self._commit(Commit(commit.run_id, commit.epoch, commit.token, commit.commit_no, usage=commit.usage))
            if answer.outcome is not Outcome.APPLIED:
                return answer
            self._commit_no = commit.commit_no
            raise RolledBack(str(error)) from error

    async def _commit(self, commit: Commit) -> Committed:
        return await self._until_told(lambda: self._store.commit(commit))

    async def _until_told(self, ask: Callable[[], Awaitable[T]]) -> T:
        tried = 0
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                tried += 1
                if not self._still_ours() and tried > 3:
                    # Nobody may take a run before its lease is over, so until then the truth is worth waiting for. Afterwards the next owner finds it.
                    self.ended = True
                    raise LeaseLost(LeaseLostError(self._run.id, held=self._run.epoch, current=None)) from None
                await self._runtime.sleep(min(0.05 * 2**tried, 2.0))

    def _publish(self, events: Sequence[EventWrite], answer: Committed) -> None:
        if self._on_event is None:
            return
        at: datetime = self._runtime.now()
        for number, event in enumerate(events, start=answer.first_event):
            self._on_event(Event(self._run.id, number, event.type, event.data, at))


def _seen(task: asyncio.Task[Any]) -> None:
    """Take note of an error that nobody waits for any more, so that it is not reported as forgotten."""
    if not task.cancelled():
        task.exception()


def _loggable(data: dict[str, Any]) -> Any:
    try:
        return clean(data)
    except UnserializableError:
        return {clean_text(name): _kept(value) for name, value in data.items()}


def _kept(value: Any) -> Any:
    try:
        return clean(value)
    except UnserializableError:
        return _printed(value)


def _printed(value: Any) -> str:
    if isinstance(value, str):
        return clean_text(value)
    try:
        return clean_text(repr(value))
    except Exception:
        return f"<{type(value).__qualname__}>"
