"""Short words for the tests: admit, own, commit, park, answer."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from perdure.core.codec import fingerprint
from perdure.core.commit import (
    CancelRequest,
    ClaimRequest,
    Commit,
    Committed,
    Lease,
    NewRun,
    Outcome,
    Park,
    Release,
    Resolve,
    Resolved,
    RetryRequest,
    Settle,
    SweepRequest,
    Swept,
)  # fmt: skip
from perdure.core.effect import EffectState, EffectWrite, effect_key
from perdure.core.run import Run, RunError, RunStatus
from perdure.core.trigger import TriggerEnvelope
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint, WaitWrite
from perdure.stores import Store

LEASE: Final = timedelta(seconds=30)
LATER: Final = timedelta(hours=1)
"""Longer than any lease, time limit or grace of these tests."""

DRAIN: Final = Release("drain")
TOKENS: Final = itertools.count(1)
ENVELOPE: Final = frozenset({"source", "trigger", "payload", "key", "concurrency_key", "thread", "attachments", "received_at"})


def new_run(run_id: str = "r1", *, agent: str = "agent", **fields: Any) -> NewRun:
    """A run to admit: fields of the envelope and of `NewRun` by name."""
    envelope: dict[str, Any] = {"source": "python", "trigger": agent, "payload": {"of": "anyone"}}
    envelope |= {name: fields.pop(name) for name in ENVELOPE & fields.keys()}
    trigger = TriggerEnvelope(id=f"trigger-{run_id}", **envelope)
    return NewRun(run_id, agent, trigger, fingerprint(trigger.payload), **fields)


def approval(wait_id: str = "w1", **fields: Any) -> WaitWrite:
    return wait_row(wait_id, kind="approval", **fields)


def wait_row(wait_id: str, *, question: str | None = None, index: int = 1, **fields: Any) -> WaitWrite:
    return WaitWrite(id=wait_id, question=question or f"q:{wait_id}", index=index, **fields)


def said(decision: str | None = "approve", **fields: Any) -> Resolution:
    return Resolution(ResolutionKind.ANSWER, decision, **fields)


def effect(state: EffectState, run_id: str = "r1", *, generation: int = 1, index: int = 1, position: int = 0, **fields: Any) -> EffectWrite:
    fields.setdefault("tool", "pay")
    return EffectWrite(effect_key(run_id, generation, index, position), state, index, position, tool_call_id=f"call-{position}", **fields)


class Owner:
    """One claim and the commits made under it."""

    def __init__(self, store: Store, run: Run) -> None:
        assert run.claim_token is not None
        self.store, self.run_id, self.epoch, self.token, self.commit_no = store, run.id, run.epoch, run.claim_token, run.commit_no

    def next(self, **fields: Any) -> Commit:
        """The next commit, not sent."""
        return Commit(self.run_id, self.epoch, self.token, self.commit_no + 1, **fields)

    async def send(self, **fields: Any) -> Committed:
        """Send the next commit and count it if it is applied."""
        answer = await self.store.commit(self.next(**fields))
        if answer.outcome is Outcome.APPLIED:
            self.commit_no += 1
        return answer

    async def commit(self, **fields: Any) -> Committed:
        """Send the next commit, which must be applied."""
        answer = await self.send(**fields)
        assert answer.outcome is Outcome.APPLIED, answer
        return answer

    async def park(self, *waits: WaitWrite, **fields: Any) -> Committed:
        return await self.commit(waits=waits, ending=Park(), **fields)

    async def complete(self, output: Any = "done", **fields: Any) -> Committed:
        return await self.commit(ending=Settle(RunStatus.COMPLETED, output=output), **fields)

    async def fail(self, code: str = "internal", **fields: Any) -> Committed:
        return await self.commit(ending=Settle(RunStatus.FAILED, error=RunError(code, "It failed.")), **fields)

    @property
    def lease(self) -> Lease:
        return Lease(self.run_id, self.epoch, self.token)


class Bench:
    """A store with the short words around it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def request(self, *agents: str, limits: dict[str, int | None] | None = None, **fields: Any) -> ClaimRequest:
        named = limits or dict.fromkeys(agents or ("agent",))
        return replace(ClaimRequest("worker-1", "host-1", f"token-{next(TOKENS)}", named, LEASE), **fields)

    async def admit(self, run_id: str = "r1", **fields: Any) -> Run:
        return (await self.store.admit(new_run(run_id, **fields))).run

    async def claim(self, *agents: str, **fields: Any) -> list[str]:
        """Ids of the runs that one claim takes."""
        return [run.id for run in await self.store.claim(self.request(*agents, **fields))]

    async def own(self, run_id: str = "r1", **fields: Any) -> Owner:
        """Claim this run, which must be free."""
        agent = (await self.run(run_id)).agent
        runs = await self.store.claim(self.request(agent, run_id=run_id, **fields))
        assert [run.id for run in runs] == [run_id], "the run can't be claimed"
        return Owner(self.store, runs[0])

    async def start(self, run_id: str = "r1", **fields: Any) -> Owner:
        """Admit and claim."""
        await self.admit(run_id, **fields)
        return await self.own(run_id)

    async def run(self, run_id: str = "r1") -> Run:
        run = await self.store.get(run_id)
        assert run is not None, run_id
        return run

    async def status(self, run_id: str = "r1") -> RunStatus:
        return (await self.run(run_id)).status

    async def events(self, run_id: str = "r1") -> list[str]:
        return [event.type for event in await self.store.events(run_id)]

    async def wait(self, wait_id: str) -> WaitPoint:
        wait = await self.store.wait(wait_id)
        assert wait is not None, wait_id
        return wait

    async def effect_state(self, key: str = "r1:1:1:0") -> EffectState:
        loaded = await self.store.load(key.split(":")[0])
        return next(each.state for each in (*loaded.effects, *loaded.held) if each.key == key)

    async def answer(self, wait_id: str = "w1", decision: str | None = "approve", **fields: Any) -> Resolved:
        return await self.store.resolve(Resolve(wait_id, said(decision, **fields)))

    async def sweep(self, *, limit: int = 100, deaths_max: int = 5) -> Swept:
        return await self.store.sweep(SweepRequest(limit, deaths_max))

    async def cancel(self, run_id: str = "r1", settlement: int | None = None) -> str:
        return (await self.store.cancel(CancelRequest(run_id, settlement=settlement))).outcome

    async def retry(self, run_id: str = "r1", mode: Any = "resume", **fields: Any) -> str:
        settlement = fields.pop("settlement", (await self.run(run_id)).settlement)
        return (await self.store.retry(RetryRequest(run_id, mode, settlement, **fields))).outcome

    async def in_status(self, status: RunStatus, run_id: str = "r1", **admit: Any) -> Owner | None:
        """Bring a new run into this status by the shortest way; answers its last owner."""
        await self.admit(run_id, **admit)
        if status is RunStatus.PENDING:
            return None
        owner = await self.own(run_id)
        match status:
            case RunStatus.WAITING:
                await owner.park(approval(f"w-{run_id}"))
            case RunStatus.INTERRUPTED:
                await owner.commit(ending=DRAIN)
            case RunStatus.COMPLETED | RunStatus.FAILED | RunStatus.CANCELLED:
                await owner.commit(ending=Settle(status))
            case _:
                pass
        return owner
