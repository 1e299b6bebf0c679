"""The wire between one replica and the shared store, where faults happen and where everything is written down.

`FaultyStore` is a `Store`. Each call travels there, is applied in one piece, and travels back; a fault may strike on the way out, on the way
back or after. What was asked and answered is recorded outside of the replica, for checkers that trust nobody's word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol, Self, TypeVar, cast

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
from perdure.core.errors import StoreUnavailable
from perdure.core.event import Delta, Event, Reset
from perdure.core.family import Reserve, Reserved
from perdure.core.run import Run
from perdure.core.step import Step
from perdure.core.wait import WaitPoint
from perdure.stores import Hint, Store
from perdure.testing.simulation._loop import Replica, SimLoop, SimulationError, current_strand

T = TypeVar("T")

WRITES: Final = frozenset(
    {"admit", "claim", "renew", "commit", "resolve", "extend", "cancel", "retry", "sweep", "signal", "settle_effect", "claim_notices", "note_notice", "put_artifact", "prune",
     "reserve"}
)  # fmt: skip
"""The verbs that may change a row."""

CallFaultKind = Literal["crash_before", "reply_lost", "crash_after", "error_before", "error_after", "slow_request", "slow_reply"]
"""`crash_before`: the replica dies before the call reached the store. `reply_lost`: the call was applied, the replica dies before it hears so.
`crash_after`: it hears so and dies at its next pause. `error_before`, `error_after`: `StoreUnavailable`, not applied or applied. `slow_…`: delayed."""


@dataclass(frozen=True, slots=True)
class CallFault:
    """What happens to one call. `seconds` is for the slow ones."""

    kind: CallFaultKind
    seconds: float = 0.0


@dataclass(slots=True)
class Call:
    """One call, as seen from outside. `answer` is None until it was applied; `delivered` once the caller got it."""

    number: int
    replica: str
    verb: str
    request: tuple[Any, ...]
    asked_at: float
    fault: CallFault | None = None
    applied_at: float | None = None
    answer: Any = None
    error: Exception | None = None
    delivered: bool = False

    @property
    def applied(self) -> bool:
        """It reached the store and was not refused with an error."""
        return self.applied_at is not None and self.error is None

    @property
    def write(self) -> bool:
        return self.verb in WRITES

    def __str__(self) -> str:
        what = ", ".join(_brief(each) for each in self.request)
        told = f"raised {type(self.error).__name__}" if self.error else _brief(self.answer) if self.applied else "not applied"
        fault = f"  [{self.fault.kind}]" if self.fault else ""
        return f"{self.asked_at:10.4f} {self.replica:<8} {self.verb}({what}) -> {told}{fault}"


class Faults(Protocol):
    """Decides what goes wrong on one replica's wire."""

    def on_call(self, verb: str, number: int) -> CallFault | None:
        """The fate of this replica's call `number`, from 1."""
        ...

    def on_claimed(self) -> CallFault | None:
        """The fate of the answer to a claim that took something: only what can still happen to an answer."""
        ...

    def on_hint(self) -> Sequence[float]:
        """Delays of the copies of one hint that arrive: none is a lost hint, two are a duplicated one."""
        ...


class NoFaults:
    """A wire on which nothing goes wrong."""

    def on_call(self, verb: str, number: int) -> CallFault | None:
        return None

    def on_claimed(self) -> CallFault | None:
        return None

    def on_hint(self) -> Sequence[float]:
        return (0.0,)


@dataclass(slots=True)
class Record:
    """Every call of every replica, in the order in which they were asked."""

    calls: list[Call] = field(default_factory=list[Call])
    on_applied: list[Callable[[Call], None]] = field(default_factory=list[Callable[[Call], None]])
    """Called right after a call was applied, before anything else can happen."""

    def open(self, replica: str, verb: str, request: tuple[Any, ...], at: float) -> Call:
        call = Call(len(self.calls) + 1, replica, verb, request, at)
        self.calls.append(call)
        return call


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never has to wait: a call of a store that lives in this process.

    Raises:
        SimulationError: It did have to wait, so another replica could have got in between.
    """
    try:
        work.send(None)
    except StopIteration as stop:
        return cast(T, stop.value)
    work.close()
    raise SimulationError("A shared store has to answer without waiting, or its calls would not be atomic here.")


class FaultyStore:
    """A store as one replica sees it.

    Args:
        store: The store behind the wire. Shared ones (`MemoryStore`) answer at once; with `own=True` it belongs to this replica (its own
            connection to a file) and is opened and closed by it.
        latency: Seconds that each way takes, as a function, for scheduling by seed.
    """

    def __init__(
        self, store: Store, replica: Replica, loop: SimLoop, *, record: Record, faults: Faults | None = None, own: bool = False,
        latency: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self._store, self._replica, self._loop, self._record = store, replica, loop, record
        self._faults: Faults = faults or NoFaults()
        self._own = own
        self._latency = latency or (lambda: 0.0)
        self.calls = 0
        """Calls asked so far."""

    @property
    def inner(self) -> Store:
        """The store behind the wire."""
        return self._store

    async def __aenter__(self) -> Self:
        if self._own:
            await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._own:
            await self._store.__aexit__(*exc)

    async def _ask(self, verb: str, work: Callable[[], Coroutine[Any, Any, T]], *request: Any) -> T:
        self.calls += 1
        fault = self._faults.on_call(verb, self.calls)
        kind = fault.kind if fault else None
        call = self._record.open(self._replica.name, verb, request, self._loop.time())
        call.fault = fault
        await asyncio.sleep(self._latency() + (fault.seconds if fault and kind == "slow_request" else 0.0))
        if kind == "crash_before":
            await self._crash()
        if kind == "error_before":
            raise StoreUnavailable("The simulated store can't be reached.")
        answer = await self._apply(call, work)
        if verb == "claim" and answer and fault is None:
            fault = call.fault = self._faults.on_claimed()
            kind = fault.kind if fault else None
        if kind == "reply_lost":
            await self._crash()
        if kind == "error_after":
            raise StoreUnavailable("The simulated store was lost before it answered.")
        await asyncio.sleep(self._latency() + (fault.seconds if fault and kind == "slow_reply" else 0.0))
        call.delivered = True
        if kind == "crash_after":
            self._replica.doomed = True
        if call.error is not None:
            raise call.error
        return cast(T, answer)

    async def _apply(self, call: Call, work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        try:
            call.answer = await work() if self._own else at_once(work())
        except SimulationError:
            raise
        except Exception as error:
            call.error = error
        call.applied_at = self._loop.time()
        for tell in self._record.on_applied:
            tell(call)
        return call.answer

    async def _crash(self) -> None:
        self._replica.kill()
        await self._loop.create_future()  # a dead replica hears nothing any more

    # ── moves ──────────────────────────────────────────────────────────────────────────────────────────────
    async def migrate(self) -> int:
        return await self._ask("migrate", self._store.migrate)

    async def admit(self, new: NewRun) -> Admitted:
        return await self._ask("admit", lambda: self._store.admit(new), new)

    async def claim(self, request: ClaimRequest) -> Sequence[Run]:
        return await self._ask("claim", lambda: self._store.claim(request), request)

    async def renew(self, leases: Sequence[Lease], lease: timedelta) -> Sequence[Renewed]:
        return await self._ask("renew", lambda: self._store.renew(leases, lease), tuple(leases), lease)

    async def commit(self, commit: Commit) -> Committed:
        return await self._ask("commit", lambda: self._store.commit(commit), commit)

    async def reserve(self, ask: Reserve) -> Reserved:
        return await self._ask("reserve", lambda: self._store.reserve(ask), ask)

    async def resolve(self, request: Resolve) -> Resolved:
        return await self._ask("resolve", lambda: self._store.resolve(request), request)

    async def extend(self, wait_id: str, expires_at: datetime | None) -> Resolved:
        return await self._ask("extend", lambda: self._store.extend(wait_id, expires_at), wait_id, expires_at)

    async def cancel(self, request: CancelRequest) -> Cancelled:
        return await self._ask("cancel", lambda: self._store.cancel(request), request)

    async def retry(self, request: RetryRequest) -> Retried:
        return await self._ask("retry", lambda: self._store.retry(request), request)

    async def sweep(self, request: SweepRequest) -> Swept:
        return await self._ask("sweep", lambda: self._store.sweep(request), request)

    async def prune(self, request: PruneRequest) -> Pruned:
        return await self._ask("prune", lambda: self._store.prune(request), request)

    async def signal(self, signal: Signal) -> bool:
        return await self._ask("signal", lambda: self._store.signal(signal), signal)

    async def settle_effect(self, request: SettleEffect) -> Effect:
        return await self._ask("settle_effect", lambda: self._store.settle_effect(request), request)

    # ── notifications ──────────────────────────────────────────────────────────────────────────────────────
    async def claim_notices(self, *, limit: int, hold: timedelta) -> Sequence[WaitPoint]:
        return await self._ask("claim_notices", lambda: self._store.claim_notices(limit=limit, hold=hold), limit, hold)

    async def note_notice(
        self, wait_id: str, *, tries: int, accepted: bool, warning: bool, retry_in: timedelta | None, token_hash: str | None
    ) -> None:
        def work() -> Coroutine[Any, Any, None]:
            return self._store.note_notice(wait_id, tries=tries, accepted=accepted, warning=warning, retry_in=retry_in, token_hash=token_hash)

        await self._ask("note_notice", work, wait_id, accepted, warning)

    # ── reads ──────────────────────────────────────────────────────────────────────────────────────────────
    async def now(self) -> datetime:
        return await self._ask("now", self._store.now)

    async def load(self, run_id: str) -> Loaded:
        return await self._ask("load", lambda: self._store.load(run_id), run_id)

    async def get(self, run_id: str) -> Run | None:
        return await self._ask("get", lambda: self._store.get(run_id), run_id)

    async def find(self, agent: str, key: str) -> Run | None:
        return await self._ask("find", lambda: self._store.find(agent, key), agent, key)

    async def runs(self, where: RunFilter) -> Sequence[Run]:
        return await self._ask("runs", lambda: self._store.runs(where), where)

    async def counts(self, agent: str | None = None) -> dict[str, int]:
        return await self._ask("counts", lambda: self._store.counts(agent), agent)

    async def steps(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Step]:
        return await self._ask("steps", lambda: self._store.steps(run_id, after=after, limit=limit), run_id, after)

    async def events(self, run_id: str, *, after: int = 0, limit: int = 1_000) -> Sequence[Event]:
        return await self._ask("events", lambda: self._store.events(run_id, after=after, limit=limit), run_id, after)

    async def checkpoint(self, run_id: str, *, generation: int | None = None, index: int | None = None) -> Checkpoint | None:
        return await self._ask("checkpoint", lambda: self._store.checkpoint(run_id, generation=generation, index=index), run_id, generation, index)

    async def waits(self, where: WaitFilter) -> Sequence[WaitPoint]:
        return await self._ask("waits", lambda: self._store.waits(where), where)

    async def wait(self, wait_id: str) -> WaitPoint | None:
        return await self._ask("wait", lambda: self._store.wait(wait_id), wait_id)

    async def effects(self, where: EffectFilter) -> Sequence[Effect]:
        return await self._ask("effects", lambda: self._store.effects(where), where)

    # ── artifacts ──────────────────────────────────────────────────────────────────────────────────────────
    async def put_artifact(self, data: bytes, *, media_type: str, filename: str | None = None) -> Artifact:
        return await self._ask("put_artifact", lambda: self._store.put_artifact(data, media_type=media_type, filename=filename), media_type)

    async def get_artifact(self, artifact_id: str) -> tuple[Artifact, bytes]:
        return await self._ask("get_artifact", lambda: self._store.get_artifact(artifact_id), artifact_id)

    # ── hints ──────────────────────────────────────────────────────────────────────────────────────────────
    def on_hint(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        strand = current_strand() or self._replica.main

        def forward(hint: Hint) -> None:
            # In the listener's own context: the hint comes from whoever wrote, and must not run as part of that replica.
            for delay in self._faults.on_hint():
                self._loop.call_later(delay, callback, hint, context=strand.context)

        return self._store.on_hint(forward)

    async def send_deltas(self, deltas: Sequence[Delta | Reset]) -> None:
        if not self._own:
            at_once(self._store.send_deltas(deltas))
        else:
            await self._store.send_deltas(deltas)

    def on_delta(self, callback: Callable[[Delta | Reset], None]) -> Callable[[], None]:
        strand = current_strand() or self._replica.main
        return self._store.on_delta(lambda delta: self._loop.call_soon(callback, delta, context=strand.context) and None)

    def info(self) -> dict[str, Any]:
        return self._store.info()


def _brief(value: Any) -> str:
    """One value in a few words, for traces."""
    if isinstance(value, Commit):
        parts = [f"{value.run_id[-6:]} e{value.epoch} n{value.commit_no}"]
        if value.checkpoint:
            parts.append(f"checkpoint {value.checkpoint.index}")
        parts += [f"{len(each)} {name}" for name in ("steps", "effects", "waits", "events") if (each := getattr(value, name))]
        if value.ending:
            parts.append(type(value.ending).__name__.lower() + (f":{status}" if (status := getattr(value.ending, "status", None)) else ""))
        return " ".join(parts)
    if isinstance(value, Committed):
        return f"{value.outcome} {value.status} e{value.epoch}" + (" cancel" if value.cancel_requested else "")
    if isinstance(value, Run):
        return f"{value.id[-6:]} {value.status} e{value.epoch} n{value.commit_no}"
    if isinstance(value, ClaimRequest):
        return f"{value.worker[-12:]} limit {value.limit}"
    if isinstance(value, NewRun):
        return f"{value.id[-6:]} {value.agent} key={value.trigger.key}"
    if isinstance(value, Admitted):
        return f"{value.run.id[-6:]} {'created' if value.created else 'known'}"
    if isinstance(value, Lease):
        return f"{value.run_id[-6:]} e{value.epoch}"
    if isinstance(value, Renewed):
        return f"{value.run_id[-6:]} {'held' if value.held else 'lost'}"
    if isinstance(value, Swept):
        return (
            " ".join(f"{name}:{len(ids)}" for name in ("recovered", "poisoned", "expired", "woken", "deadlines") if (ids := getattr(value, name)))
            or "nothing"
        )
    if isinstance(value, (CancelRequest, RetryRequest)):
        return f"{value.run_id[-6:]} settlement {value.settlement}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_brief(each) for each in cast(Sequence[Any], value)) + "]"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
