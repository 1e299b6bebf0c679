"""The one way in which an execution writes: commits in a row, each told its truth.

One commit of a claim is in flight at a time. A reply that is lost is asked for again under the same number until the store tells what became of it,
or until the lease is no longer ours to speak of. A caller that is cancelled does not take its write back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from perdure.core.budget import Usage
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.codec import clean, clean_text
from perdure.core.commit import Commit, Committed, Ending, NewRun, Outcome
from perdure.core.effect import EffectWrite
from perdure.core.errors import LeaseLostError, StoreError, StoreUnavailable, Suspend, UnserializableError
from perdure.core.event import Event, EventWrite
from perdure.core.run import Run
from perdure.core.runtime import Runtime
from perdure.core.step import StepWrite
from perdure.core.wait import WaitWrite
from perdure.engine._together import RolledBack
from perdure.stores import Store

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
        task = self._runtime.spawn(self._write(write, through), name=f"commit {self._run.id}")
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
            )
            answer = await (self._until_told(commit) if through is None else self._once(commit, through))
            self.last = answer
            if answer.outcome is Outcome.LOST:
                self.ended = True
                raise LeaseLost(LeaseLostError(self._run.id, held=self._run.epoch, current=answer.epoch))
            self._commit_no = commit.commit_no
            for _ in logs:
                self._logs.popleft()
            if write.ending is not None:
                self.ended = True
            self._publish(commit.events, answer)
            if answer.cancel_requested and not self.ended:
                self._on_cancel()
            return answer

    async def _once(self, commit: Commit, through: Through) -> Committed:
        """A commit that can't be sent again, because the rows beside it can't.

        Where its answer is lost or an error, its number is sent with nothing to write: it waits for the row, and is told what the row came to.
        """
        try:
            return await through(commit)
        except StoreError as error:
            answer = await self._until_told(Commit(commit.run_id, commit.epoch, commit.token, commit.commit_no, usage=commit.usage))
            if answer.outcome is not Outcome.APPLIED:
                return answer
            self._commit_no = commit.commit_no
            raise RolledBack(str(error)) from error

    async def _until_told(self, commit: Commit) -> Committed:
        tried = 0
        while True:
            try:
                return await self._store.commit(commit)
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


def _seen(task: asyncio.Task[Committed]) -> None:
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
