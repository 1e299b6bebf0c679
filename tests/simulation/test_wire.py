"""The wire and the watch, with a worker of thirty lines: faults strike where they are told to, and checkers see what they should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from small import STEPS, SmallWorker, SmallWorld, new_run

from perdure.core.commit import Commit, Committed, Outcome, SweepRequest, Swept
from perdure.core.run import RunStatus
from perdure.stores.memory import MemoryStore
from perdure.testing.simulation._loop import Shuffled
from perdure.testing.simulation._port import CallFault, CallFaultKind


class At:
    """One fault, at one call."""

    def __init__(self, number: int, kind: CallFaultKind, seconds: float = 0.0) -> None:
        self._number, self._fault = number, CallFault(kind, seconds)

    def on_call(self, verb: str, number: int) -> CallFault | None:
        return self._fault if number == self._number else None

    def on_claimed(self) -> CallFault | None:
        return None

    def on_hint(self) -> Sequence[float]:
        return (0.0,)


class AtCommit(At):
    """One fault, at the nth commit."""

    def __init__(self, number: int, kind: CallFaultKind, seconds: float = 0.0) -> None:
        super().__init__(number, kind, seconds)
        self._commits = 0

    def on_call(self, verb: str, number: int) -> CallFault | None:
        self._commits += verb == "commit"
        return self._fault if verb == "commit" and self._commits == self._number else None


def carried(world: SmallWorld) -> list[str]:
    """Run the world until everything settled; what was broken on the way."""
    world.loop.run_until_complete(world.settled())
    world.watch.rest()
    world.loop.close()
    assert world.loop.errors == []
    return [str(violation) for violation in world.watch.violations]


async def admit(world: SmallWorld, runs: int = 1) -> None:
    for _ in range(runs):
        await world.port.admit(new_run(world.runtime))


def test_a_run_goes_through() -> None:
    """Without faults the small worker settles its run and breaks nothing."""
    world = SmallWorld()
    world.loop.run_until_complete(admit(world, runs=2))
    world.worker("r1")
    assert carried(world) == []
    for rows in world.watch.rows.values():
        assert rows.run.status is RunStatus.COMPLETED
        assert rows.run.usage.requests == STEPS
        assert len(rows.steps) == STEPS


@pytest.mark.parametrize("kind", ["crash_before", "reply_lost", "crash_after", "error_before", "error_after"])
def test_a_fault_at_any_call_is_survived(kind: CallFaultKind) -> None:
    """Whatever strikes whichever call of a worker, another worker finishes the run and no promise is broken."""
    finished = 0
    for number in range(1, 12):
        world = SmallWorld()
        world.loop.run_until_complete(admit(world))
        doomed, _ = world.worker("doomed", At(number, kind))
        world.worker("other", step_seconds=0.5)
        assert carried(world) == [], f"{kind} at call {number}"
        struck = any(call.fault for call in world.record.calls)
        assert doomed.alive == (not struck or kind.startswith("error"))
        [rows] = world.watch.rows.values()
        finished += rows.run.status is RunStatus.COMPLETED
    assert finished == 11


def test_a_lost_reply_is_repeated_and_told_the_truth() -> None:
    """A commit that was applied and whose reply was lost is answered already applied, and counted once."""
    world = SmallWorld()
    world.loop.run_until_complete(admit(world))
    world.worker("r1", AtCommit(2, "error_after"))
    assert carried(world) == []
    answers = [call.answer.outcome for call in world.record.calls if call.verb == "commit"]
    assert answers == [Outcome.APPLIED, Outcome.APPLIED, Outcome.ALREADY, Outcome.APPLIED]


def test_a_worker_that_slept_through_its_lease_is_told_lost() -> None:
    """A pause longer than the lease costs the run's ownership, not the run."""
    world = SmallWorld()
    world.loop.run_until_complete(admit(world))
    sleeper, worker = world.worker("sleeper")

    async def nap() -> None:
        await world.runtime.sleep(1.5)
        sleeper.pause(60)
        await world.runtime.sleep(5)
        world.worker("other")
        await world.runtime.sleep(100)

    world.loop.run_until_complete(nap())
    assert carried(world) == []
    assert worker.answered == [Outcome.APPLIED, Outcome.LOST]


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────
class NoEpochInTheCondition(MemoryStore):
    """Bug: a commit is applied whatever its epoch."""

    async def commit(self, commit: Commit) -> Committed:
        run = await self.get(commit.run_id)
        assert run is not None
        if run.status is RunStatus.RUNNING and run.epoch != commit.epoch:
            commit = replace(commit, epoch=run.epoch, token=run.claim_token or "", commit_no=run.commit_no + 1)
        return await super().commit(commit)


class SweepsAStaleList(MemoryStore):
    """Bug: a sweep takes what it remembers to be expired, without asking again."""

    _list: tuple[str, ...] = ()

    async def sweep(self, request: SweepRequest) -> Swept:
        for run_id in self._list:
            row = self._moves.rows[run_id]
            if row.run.status is RunStatus.RUNNING:
                row.run = replace(row.run, lease_expires_at=self._moves.now())
        self._list = tuple(run_id for run_id, row in self._moves.rows.items() if row.run.status is RunStatus.RUNNING)
        return await super().sweep(request)


class ForgetsCommitNumbers(MemoryStore):
    """Bug: a commit that is repeated is applied again."""

    async def commit(self, commit: Commit) -> Committed:
        run = await self.get(commit.run_id)
        assert run is not None
        if run.status is RunStatus.RUNNING:
            commit = replace(commit, commit_no=run.commit_no + 1)
        return await super().commit(commit)


class AcknowledgesAndForgets(MemoryStore):
    """Bug: every third commit is acknowledged and not kept."""

    _commits = 0

    async def commit(self, commit: Commit) -> Committed:
        self._commits += 1
        if self._commits % 3:
            return await super().commit(commit)
        run = await self.get(commit.run_id)
        assert run is not None
        return Committed(Outcome.APPLIED, run.epoch, run.status, False, run.next_event)


class Impatient(SmallWorker):
    """Bug: when a reply is lost, the write is made anew under the next number."""

    async def write(self, commit: Commit) -> Outcome:
        try:
            return (await self.store.commit(commit)).outcome
        except Exception:
            commit = replace(commit, commit_no=commit.commit_no + 1, steps=(), events=())
            return (await self.patiently(lambda: self.store.commit(commit))).outcome


@pytest.mark.parametrize(
    ("store", "checker"),
    [
        (NoEpochInTheCondition, "StaleWritesChangeNothing"),
        (SweepsAStaleList, "LeasesRunOut"),
        (ForgetsCommitNumbers, "StaleWritesChangeNothing"),
        (AcknowledgesAndForgets, "NothingAcknowledgedIsLost"),
    ],
)  # fmt: skip
def test_a_broken_store_is_found(store: type[MemoryStore], checker: str) -> None:
    """Each planted bug breaks the promise that it should break, on some seed."""
    found: set[str] = set()
    for seed in range(6):
        world = SmallWorld(store=store(), schedule=Shuffled(seed))
        world.loop.run_until_complete(admit(world))
        sleeper, _ = world.worker("sleeper", AtCommit(1 + seed % 3, "error_after"))
        world.worker("other", lease=timedelta(seconds=5), step_seconds=15.0)

        async def nap(world: SmallWorld = world, sleeper=sleeper) -> None:  # type: ignore[no-untyped-def]
            await world.runtime.sleep(1.5)
            sleeper.pause(30)
            await world.runtime.sleep(60)

        world.loop.run_until_complete(nap())
        world.loop.close()
        found |= {violation.checker for violation in world.watch.violations}
    assert checker in found
