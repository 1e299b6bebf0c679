"""Bugs that the simulator has to find: each is one small change to the store or to the engine, of a kind that real engines have shipped with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pydantic_ai.messages import ModelRequest, ModelResponse, ToolReturnPart

from perdure.core.commit import Admitted, Commit, Committed, Loaded, NewRun, Outcome, Park, Resolve, Resolved, SweepRequest, Swept
from perdure.core.effect import EffectWrite
from perdure.core.event import EventWrite
from perdure.core.family import Reserve, Reserved, Room
from perdure.core.run import RunStatus
from perdure.engine._journal import Write
from perdure.stores import Store
from perdure.stores.memory import MemoryStore
from perdure.testing.simulation import SimRuntime


# ── in the store ───────────────────────────────────────────────────────────────────────────────────────────
class EpochDropped(MemoryStore):
    """(1) The epoch is not in the commit's condition: whoever speaks, the run's present claim is written under."""

    async def commit(self, commit: Commit) -> Committed:
        run = await self.get(commit.run_id)
        if run is not None and run.status is RunStatus.RUNNING and run.epoch != commit.epoch:
            commit = replace(commit, epoch=run.epoch, token=run.claim_token or "", commit_no=run.commit_no + 1)
        return await super().commit(commit)


class StaleSweep(MemoryStore):
    """(2) A sweep acts on a list that another one read: what was expired then is taken now, whoever owns it by now."""

    def __init__(self, runtime: SimRuntime) -> None:
        super().__init__(runtime)
        self._stale: list[str] = []

    async def sweep(self, request: SweepRequest) -> Swept:
        now = self._moves.now()
        running = {run_id: row for run_id, row in self._moves.rows.items() if row.run.status is RunStatus.RUNNING}
        for run_id in self._stale:
            if run_id in running:
                row = running[run_id]
                row.run = replace(row.run, lease_expires_at=now)
        self._stale = [run_id for run_id, row in running.items() if row.run.lease_expires_at is not None and row.run.lease_expires_at <= now]
        return await super().sweep(request)


class NoCommitNumber(MemoryStore):
    """(6) A write that is repeated after its reply was lost is applied again: nobody looks at `commit_no`."""

    async def commit(self, commit: Commit) -> Committed:
        run = await self.get(commit.run_id)
        if run is not None and run.status is RunStatus.RUNNING and run.epoch == commit.epoch:
            commit = replace(commit, commit_no=run.commit_no + 1)
        return await super().commit(commit)


class AnswersAtTheEnd(MemoryStore):
    """(7) An answer is accepted at `expires_at` itself, and a little after: nobody asks the clock."""

    async def resolve(self, request: Resolve) -> Resolved:
        row, wait = self._moves.wait_row(request.wait_id)
        end = wait.row.expires_at
        if end is None or not wait.open or end + timedelta(milliseconds=200) < self._moves.now():
            return await super().resolve(request)
        row.waits[wait.id] = replace(wait, row=replace(wait.row, expires_at=end + timedelta(seconds=1)))
        answer = await super().resolve(request)
        row.waits[wait.id] = replace(row.waits[wait.id], row=replace(row.waits[wait.id].row, expires_at=end))
        return answer


class StalePark(MemoryStore):
    """(8) Park decides by what the last claim read: an answer that came since is not seen, and the run waits for ever."""

    async def commit(self, commit: Commit) -> Committed:
        answer = await super().commit(commit)
        row = self._moves.rows[commit.run_id]
        if answer.ok and isinstance(commit.ending, Park) and row.run.status is RunStatus.PENDING and row.current_waits():
            row.run = replace(row.run, status=RunStatus.WAITING)
        return answer


class HeadAtAdmission(MemoryStore):
    """(12) A turn reads its thread's head when it is admitted; what is said between that and its claim is not there for it."""

    async def admit(self, new: NewRun) -> Admitted:
        answer = await super().admit(new)
        row = self._moves.rows[answer.run.id]
        if answer.created and row.run.thread is not None:
            row.run = replace(row.run, head=self._moves.heads.get(row.run.thread))
            row.head_generation = row.run.generation
        return answer


class BlindToChildren(MemoryStore):
    """(13) A shared cap is compared with what the run itself has spent: nobody looks at its family."""

    async def reserve(self, ask: Reserve) -> Reserved:
        told = await super().reserve(ask)
        return replace(told, room=Room.RESERVED) if told.room in (Room.FULL, Room.REACHED) else told


# ── in the engine ──────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def patched(owner: Any, name: str, new: Any) -> Generator[None]:
    """`owner.name` is another one for a while."""
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


def started_beside_the_body() -> Any:
    """(3) *Started* is sent, and the body begins without waiting for the acknowledgement."""
    from perdure.engine._tools import ToolDesk

    old = ToolDesk._perform

    async def hasty(self: ToolDesk, *arguments: Any) -> Any:
        save = self._save_reply

        async def later(write: Write) -> None:
            self._execution.runtime.spawn(save(write), name="late started")

        self._save_reply = later
        try:
            return await old(self, *arguments)
        finally:
            self._save_reply = save

    return patched(ToolDesk, "_perform", hasty)


def done_is_buffered() -> Any:
    """(4) *Done* of one effect is kept for the step's last write while the next effect starts."""
    from perdure.engine._tools import ToolDesk

    async def lazy(self: ToolDesk, row: EffectWrite, event: EventWrite) -> None:
        self._effects[row.key] = row
        self._late_effects.append(row)
        self._late_events.append(event)

    return patched(ToolDesk, "_record", lazy)


def shown_before_commit() -> Any:
    """(5) Listeners hear of events when they are sent to the store, not when they are stored."""
    from perdure.engine._journal import Journal

    old = Journal._commit

    async def hasty(self: Journal, commit: Commit) -> Committed:
        run = await self._store.get(commit.run_id)
        assert run is not None
        self._publish(commit.events, Committed(Outcome.APPLIED, run.epoch, run.status, False, first_event=run.next_event))
        return await old(self, commit)

    return patched(Journal, "_commit", hasty)


def lease_from_the_reply() -> Any:
    """(9) The local deadline of a lease counts from the moment of the reply, however long that was on its way."""
    from perdure.engine import _lease, _worker

    def late(sent: float, lease: timedelta) -> float:
        return asyncio.get_running_loop().time() + lease.total_seconds() * 0.9

    stack = ExitStack()
    stack.enter_context(patched(_lease, "ours_until", late))
    stack.enter_context(patched(_worker, "ours_until", late))
    return stack


def partial_tail_is_a_request() -> Any:
    """(10) A history whose last response is answered in part is taken for one that waits for the model."""
    from perdure.engine._attempt import AgentJob

    old = AgentJob._read_history

    def careless(self: AgentJob, loaded: Loaded) -> Any:
        messages = old(self, loaded)
        if isinstance(messages, list) and messages and isinstance(messages[-1], ModelResponse):
            answered = [step.row for step in loaded.steps if step.kind == "tool" and step.row.error is None]
            parts = [ToolReturnPart(row.name, row.output, tool_call_id=row.tool_call_id or "") for row in answered]
            if parts and len(parts) < len(messages[-1].tool_calls):
                return [*messages, ModelRequest(parts=parts)]
        return messages

    return patched(AgentJob, "_read_history", careless)


def child_not_keyed() -> Any:
    """(11) A child is started under a key of its own each time: a call that is entered again starts another one."""
    from perdure.engine._tools import ToolDesk

    old = ToolDesk.child_key

    def another(self: ToolDesk, current: Any) -> str:
        return f"{old(self, current)}/{self._execution.runtime.new_id()}"

    return patched(ToolDesk, "child_key", another)


@dataclass(frozen=True)
class Bug:
    """A planted bug: where it is, and the promises that it breaks first on some seed."""

    name: str
    breaks: tuple[str, ...]
    seeds: tuple[int, ...]
    """Seeds that show it, those that do so soonest first."""
    store: Callable[[SimRuntime], Store] | None = None
    patch: Callable[[], Any] | None = None


BUGS = (
    Bug("1 epoch dropped from the commit's condition", ("StaleWritesChangeNothing",), seeds=(32, 26, 17), store=EpochDropped),
    Bug("2 sweep acts on a stale list", ("LeasesRunOut",), seeds=(4, 5, 1), store=StaleSweep),
    Bug("3 started not acknowledged before the body", ("StartedBeforeBody", "EffectsHappenOnce"), seeds=(5, 2, 3), patch=started_beside_the_body),
    Bug("4 done of an effect buffered while the next starts", ("EffectsOneAtATime",), seeds=(5, 2, 0), patch=done_is_buffered),
    Bug("5 event shown before COMMIT", ("ShownAfterCommit",), seeds=(3, 2, 5), patch=shown_before_commit),
    Bug("6 lost reply retried without commit_no", ("StaleWritesChangeNothing",), seeds=(12, 3, 37), store=NoCommitNumber),
    Bug("7 answer accepted at expires_at", ("ExpiryHolds",), seeds=(50, 45), store=AnswersAtTheEnd),
    Bug("8 park decides from a stale read", ("RestIsOneRule",), seeds=(13, 31, 35), store=StalePark),
    Bug("9 lease deadline counted from the reply", ("WorkStopsInTime",), seeds=(9, 32, 17), patch=lease_from_the_reply),
    Bug(
        "10 partial tail treated as a request",
        ("AnswersAreReal", "HistoriesStayValid", "SpendAddsUp", "EverythingComesToRest", "OnlyExplainedFailures"),
        seeds=(1, 2, 6),
        patch=partial_tail_is_a_request,
    ),
    Bug("11 child start not keyed", ("OrdersAreFilledOnce",), seeds=(14, 69, 79), patch=child_not_keyed),
    Bug("12 thread head read at admission", ("ThreadsGoOn",), seeds=(9, 4, 7), store=HeadAtAdmission),
    Bug("13 a shared cap is asked of the run alone", ("FamiliesStayInBudget",), seeds=(9, 14, 19), store=BlindToChildren),
)
"""The bugs, by the numbers of the list that the project keeps of them."""
