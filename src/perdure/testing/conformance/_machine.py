"""A random walk over the verbs that runs a store beside the memory store and compares every answer and every row.

Two workers (and owners who lost their claim long ago), lost replies that are repeated, moved clocks. All durations are odd hours and the clock moves by
even ones, so that the moments between which two stores read their clocks never decide anything.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from perdure.core.budget import Budget, Usage
from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import (
    CancelRequest,
    ClaimRequest,
    Commit,
    EffectFilter,
    Lease,
    NewRun,
    Outcome,
    Park,
    PruneRequest,
    Release,
    Resolve,
    RetryRequest,
    RunFilter,
    Settle,
    SettleEffect,
    Signal,
    SweepRequest,
    WaitFilter,
)  # fmt: skip
from perdure.core.effect import EFFECT_MOVES, Effect, EffectState, EffectWrite, effect_key
from perdure.core.errors import PerdureError
from perdure.core.event import EventWrite
from perdure.core.family import ReservationEnds, Reserve
from perdure.core.run import Activity, Run, RunError, RunStatus
from perdure.core.step import StepWrite
from perdure.core.wait import Resolution, ResolutionKind, WaitPoint, WaitWrite
from perdure.stores import Store
from perdure.stores.memory import MemoryStore
from perdure.testing.conformance._bench import new_run
from perdure.testing.conformance._kit import Kit

HOUR: Final = timedelta(hours=1)
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:[+-]\d\d:\d\d|Z)")
RUNS: Final = ("r0", "r1", "r2", "r3")
ODD: Final = st.sampled_from([HOUR, 3 * HOUR, 7 * HOUR])
LOST: Final = st.booleans()
"""Whether the reply is lost, so that the caller repeats the call."""
ADMITS: Final = st.fixed_dictionaries(
    {
        "agent": st.sampled_from("ab"),
        "key": st.sampled_from([None, None, "k"]),
        "payload": st.integers(1, 2),
        "concurrency_key": st.sampled_from([None, None, "c"]),
        "thread": st.sampled_from([None, None, "t"]),
        "priority": st.integers(0, 1),
        "delay": st.sampled_from([None, None, None, HOUR]),
        "budget": st.sampled_from([Budget(), Budget(deadline=7 * HOUR), Budget(max_tokens=100), Budget(max_tokens=40, max_cost=Decimal(1))]),
        "source": st.sampled_from(["python", "fork"]),
    }
)
KINDS: Final = ("approval", "approval", "event", "event", "timer", "effect", "budget", "attention")
WORDS: Final[dict[str, tuple[str | None, ...]]] = {
    "approval": ("approve", "approve", "deny"),
    "effect": ("done", "run", "fail"),
    "budget": ("top_up", "stop"),
    "attention": ("resume", "fail"),
}
ENDS: Final = {
    "park": Park(),
    "drain": Release("drain"),
    "retry after": Release("retry_after", HOUR),
    "complete": Settle(RunStatus.COMPLETED, output=1, finish_reason="stop"),
    "fail": Settle(RunStatus.FAILED, error=RunError("internal", "It failed.")),
    "cancel": Settle(RunStatus.CANCELLED),
}
ENDINGS: Final = st.sampled_from([*[None] * 6, *["park"] * 4, *ENDS]).map(lambda name: None if name is None else ENDS[name])

Call = Callable[[Store], Awaitable[Any]]


class StoreMachine(RuleBasedStateMachine):
    """Subclass it, answer a fresh kit from `make_kit`, and run its `TestCase`."""

    def make_kit(self) -> Kit:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.Runner()
        self._kit = self.make_kit()
        self._store = self._kit.open()
        self._model = MemoryStore()
        self._base: dict[int, datetime] = {}
        self._owners: list[Lease] = []
        self._requests: list[ClaimRequest] = []
        self._sent: list[Commit] = []
        self._counter = 0
        self._runs: list[Run] = []
        self._waits: list[WaitPoint] = []
        self._effects_seen: list[Effect] = []

    @initialize(data=st.data())
    def opened(self, data: st.DataObject) -> None:
        async def open_both() -> None:
            for store in (self._store, self._model):
                await store.__aenter__()
                self._base[id(store)] = await store.now()

        self._run(open_both())
        for run_id in RUNS[:2]:
            self._admit(data.draw(ADMITS, label="first"), run_id, None, lost=False)
        self._claimed(self._request({"a": None, "b": None}, limit=2), lost=False)

    def teardown(self) -> None:
        async def close_both() -> None:
            for store in (self._store, self._model):
                await store.__aexit__(None, None, None)

        self._run(close_both())
        self._loop.close()

    # ── both at once ───────────────────────────────────────────────────────────────────────────────────────
    def _run(self, work: Any) -> Any:
        return self._loop.run(work)

    def _both(self, call: Call, *, lost: bool = False) -> Any:
        """Ask both, compare the answers, then all rows. With a lost reply the store is asked twice and the model once: the rows must not tell."""
        expected = self._run(_answer(self._model, call))
        told = self._run(_answer(self._store, call))
        _same(self._plain(self._store, told), self._plain(self._model, expected))
        if lost:
            self._again(call, told)
        self._compare_rows()
        return expected

    def _again(self, call: Call, told: Any) -> None:
        again = self._run(_answer(self._store, call))
        if isinstance(told, PerdureError):
            assert self._plain(self._store, again) == self._plain(self._store, told)
        elif getattr(told, "outcome", None) is Outcome.APPLIED:
            assert again == replace(told, outcome=Outcome.ALREADY)

    def _compare_rows(self) -> None:
        subject = self._run(_rows(self._store))
        model = self._run(_rows(self._model))
        _same(self._plain(self._store, subject), self._plain(self._model, model))
        self._runs, self._waits, self._effects_seen = list(model["runs"]), list(model["waits"]), list(model["effects"])

    def _some_run(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([run.id for run in self._runs] * 4 + ["none"]), label="run")

    def _any(self, *statuses: RunStatus) -> bool:
        return any(run.status in statuses for run in self._runs)

    def _plain(self, store: Store, value: Any) -> Any:
        """`value` with every moment as whole hours since the store was opened."""
        return _with_hours(value, self._base[id(store)])

    def _model_run(self, run_id: str) -> Run | None:
        return self._run(self._model.get(run_id))

    def _moment(self, store: Store, hours: int) -> datetime:
        return self._base[id(store)] + hours * HOUR

    def _fresh(self, name: str) -> str:
        self._counter += 1
        return f"{name}{self._counter}"

    # ── rules ──────────────────────────────────────────────────────────────────────────────────────────────
    @rule(data=st.data(), fields=ADMITS, run_id=st.sampled_from(RUNS), lost=LOST)
    def admit(self, data: st.DataObject, fields: dict[str, Any], run_id: str, lost: bool) -> None:
        parent = data.draw(st.sampled_from([None, None, *(run.id for run in self._runs)]), label="parent")
        self._admit(fields, run_id, parent, lost=lost)

    def _admit(self, fields: dict[str, Any], run_id: str, parent: str | None, *, lost: bool) -> None:
        fields = {**fields, "source": "fork" if fields["source"] == "fork" and parent else "python"}
        new = new_run(run_id, parent_run=parent, key_retention=3 * HOUR, **fields)
        self._both(lambda store: store.admit(new), lost=lost)

    @precondition(lambda self: self._any(RunStatus.PENDING, RunStatus.INTERRUPTED))
    @rule(
        agents=st.sampled_from([{"a": None, "b": None}, {"a": None, "b": None}, {"a": 1, "b": 2}, {"b": None}]), limit=st.integers(1, 3),
        worker=st.sampled_from(["one", "two"]), lease=ODD, run_id=st.sampled_from([None, None, None, *RUNS]), lost=LOST,
    )  # fmt: skip
    def claim(self, agents: dict[str, int | None], limit: int, worker: str, lease: timedelta, run_id: str | None, lost: bool) -> None:
        self._claimed(self._request(agents, limit=limit, worker=worker, lease=lease, run_id=run_id), lost=lost)

    @precondition(lambda self: self._any(RunStatus.PENDING, RunStatus.INTERRUPTED))
    @rule(lost=LOST)
    def claim_all(self, lost: bool) -> None:
        self._claimed(self._request({"a": None, "b": None}, limit=4), lost=lost)

    def _request(self, agents: dict[str, int | None], **fields: Any) -> ClaimRequest:
        request = replace(ClaimRequest("one", "host", self._fresh("token"), agents, 7 * HOUR), **fields)
        self._requests.append(request)
        return request

    def _claimed(self, request: ClaimRequest, *, lost: bool) -> None:
        taken = self._both(lambda store: store.claim(request), lost=lost)
        self._owners += [Lease(run.id, run.epoch, request.token) for run in taken]
        del self._owners[:-6]

    @precondition(lambda self: self._owners)
    @rule(lease=ODD, active=st.booleans(), lost=LOST)
    def renew(self, lease: timedelta, active: bool, lost: bool) -> None:
        async def renewed(store: Store) -> Any:
            activity = Activity(1, "tool pay", self._moment(store, 1)) if active else None
            return await store.renew([replace(owner, activity=activity) for owner in self._owners], lease)

        self._both(renewed, lost=lost)

    @precondition(lambda self: self._any(RunStatus.RUNNING))
    @rule(data=st.data(), lost=LOST)
    def commit(self, data: st.DataObject, lost: bool) -> None:
        running = [run for run in self._runs if run.status is RunStatus.RUNNING]
        self._commit(data, [Lease(run.id, run.epoch, cast(str, run.claim_token)) for run in running], lost=lost)

    @precondition(lambda self: self._any(RunStatus.RUNNING))
    @rule(data=st.data(), lost=LOST)
    def commit_again(self, data: st.DataObject, lost: bool) -> None:
        self.commit(data, lost)

    @precondition(lambda self: self._old_owners())
    @rule(data=st.data(), lost=LOST)
    def an_old_owner_commits(self, data: st.DataObject, lost: bool) -> None:
        self._commit(data, self._old_owners(), lost=lost)

    def _old_owners(self) -> list[Lease]:
        """Those whose run was not forgotten since."""
        there = {run.id for run in self._runs}
        return [owner for owner in self._owners if owner.run_id in there]

    def _commit(self, data: st.DataObject, owners: list[Lease], *, lost: bool) -> None:
        owner = data.draw(st.sampled_from(owners), label="owner")
        run = cast(Run, self._model_run(owner.run_id))
        commit = Commit(owner.run_id, owner.epoch, owner.token, run.commit_no + data.draw(st.sampled_from([1, 1, 1, 1, 1, 0, 2]), label="number"))
        commit = replace(
            commit,
            usage=data.draw(st.none() | st.builds(Usage, input_tokens=st.integers(0, 99))),
            checkpoint=self._checkpoint(data, run),
            steps=tuple(StepWrite("tool", index, "t") for index in data.draw(st.lists(st.integers(0, 2), max_size=2), label="steps")),
            effects=tuple(self._effects(data, run)),
            children=tuple(self._children(data)),
            events=tuple(EventWrite("log", {"n": at}) for at in range(data.draw(st.integers(0, 2), label="events"))),
            ending=data.draw(ENDINGS, label="ending"),
            progress=data.draw(st.booleans(), label="progress"),
            reservation=data.draw(st.none() | st.none() | st.builds(ReservationEnds, st.just(self._eldest(run)), st.booleans()), label="reservation"),
        )
        asks = self._asks(data, run)

        async def committed(store: Store) -> Any:
            return await store.commit(replace(commit, waits=tuple(ask(store) for ask in asks)))

        self._sent = [*self._sent[-3:], commit]
        self._both(committed, lost=lost)

    def _eldest(self, run: Run) -> str:
        above = None if run.forked or run.parent_run is None else self._model_run(run.parent_run)
        return run.id if above is None or above.seq > run.seq else self._eldest(above)

    @precondition(lambda self: self._any(RunStatus.RUNNING))
    @rule(data=st.data(), tokens=st.integers(0, 60), step=st.integers(1, 2), lost=LOST)
    def reserve(self, data: st.DataObject, tokens: int, step: int, lost: bool) -> None:
        running = [run for run in self._runs if run.status is RunStatus.RUNNING]
        run = data.draw(st.sampled_from(running), label="run")
        number = run.commit_no - data.draw(st.sampled_from([0, 0, 0, 1]), label="behind")
        ask = Reserve(run.id, run.epoch, cast(str, run.claim_token), number, step, tokens, Decimal(tokens) / 100)
        told = self._both(lambda store: store.reserve(ask))
        if lost:
            assert self._run(_answer(self._store, lambda store: store.reserve(ask))) == told or isinstance(told, PerdureError)

    def _checkpoint(self, data: st.DataObject, run: Run) -> CheckpointWrite | None:
        if not data.draw(st.booleans(), label="checkpoint"):
            return None
        last = self._run(self._model.checkpoint(run.id))
        text = self._fresh("message").encode()
        if last is None or data.draw(st.booleans(), label="new base"):
            base = 0 if last is None else last.base + 1
            return CheckpointWrite(0 if last is None else last.index + 1, base, 0, (text,))
        if data.draw(st.booleans(), label="next index"):
            return CheckpointWrite(last.index + 1, last.base, last.length, (text,))
        before = self._run(self._model.checkpoint(run.id, index=last.index - 1))
        floor = before.length if before is not None and before.base == last.base else 0
        return CheckpointWrite(last.index, last.base, data.draw(st.integers(floor, last.length), label="keep"), (text,))

    def _effects(self, data: st.DataObject, run: Run) -> list[EffectWrite]:
        stored = {effect.key: effect for effect in self._run(self._model.load(run.id)).effects}
        writes: list[EffectWrite] = []
        for position in data.draw(st.sets(st.integers(0, 2), max_size=2), label="effects"):
            key = effect_key(run.id, run.generation, 1, position)
            state = stored[key].state if key in stored else EffectState.PLANNED
            to = data.draw(st.sampled_from(sorted({after for before, after in EFFECT_MOVES if before is state} | {state, EffectState.STARTED})))
            writes.append(
                EffectWrite(
                    key,
                    to,
                    1,
                    position,
                    "pay",
                    f"call-{position}",
                    "retry" if position == 1 else "ask",
                    input=position,
                    result=7,
                    time_limit=3600.0,
                    claim="agent:pay:1" if position == 2 else None,
                )
            )
        return writes

    def _children(self, data: st.DataObject) -> list[NewRun]:
        run_id = data.draw(st.sampled_from([None, None, None, *RUNS]), label="child")
        return [] if run_id is None else [new_run(run_id, agent="a", thread=data.draw(st.sampled_from([None, "t"])))]

    def _asks(self, data: st.DataObject, run: Run) -> list[Callable[[Store], WaitWrite]]:
        asks: list[Callable[[Store], WaitWrite]] = []
        for kind in data.draw(st.lists(st.sampled_from(KINDS), max_size=2), label="waits"):
            wait_id = self._fresh("w")
            questions = ["room:1", "room:2", "q1"] if kind == "budget" else ["q1", "q2", wait_id]
            row = WaitWrite(wait_id, kind, data.draw(st.sampled_from(questions)), 1, input_hash="h", **self._about(data, run, kind))
            hours = data.draw(st.sampled_from([None, -9, 5, 15, 31]) if kind != "timer" else st.sampled_from([-9, 5, 15]), label="hours")
            asks.append(lambda store, row=row, hours=hours: self._with_end(store, row, hours))
        return asks

    def _with_end(self, store: Store, row: WaitWrite, hours: int | None) -> WaitWrite:
        # Odd hours of the place's own clock; the warning two before.
        end = None if hours is None else self._moment(store, hours)
        return replace(row, expires_at=end, warn_at=None if end is None else end - 2 * HOUR)

    def _about(self, data: st.DataObject, run: Run, kind: str) -> dict[str, Any]:
        match kind:
            case "approval":
                policy = data.draw(st.sampled_from([{}, {"policy": {"quorum": 2}}]))
                return {"tool": "pay", "on_expiry": data.draw(st.sampled_from(["deny", "fail"])), "data": policy}
            case "event":
                return data.draw(st.sampled_from([{"name": "paid"}, *({"child": run_id} for run_id in RUNS)]))
            case "effect":
                named = data.draw(st.sampled_from(RUNS))
                return {"effect_key": effect_key(named, run.generation if named == run.id else 1, 1, 2)}
            case "budget":
                of = data.draw(st.sampled_from([None, None, *RUNS]), label="of")
                seen = data.draw(st.sampled_from([Budget().to_json(), run.budget.to_json()]))
                return {"name": self._eldest(run), "data": {"budget": seen, **({} if of is None else {"of": of})}}
            case _:
                return {}

    @precondition(lambda self: self._waits)
    @rule(data=st.data(), lost=LOST)
    def resolve(self, data: st.DataObject, lost: bool) -> None:
        wait = data.draw(st.sampled_from([*self._waits, *[wait for wait in self._waits if wait.open] * 8]), label="row")
        answer = Resolution(
            data.draw(st.sampled_from([ResolutionKind.ANSWER] * 4 + [ResolutionKind.EVENT, ResolutionKind.EXPIRED])),
            data.draw(st.sampled_from([*WORDS.get(wait.kind, (None,)) * 3, *("approve", "fail", None)]), label="word"), data.draw(st.sampled_from([None, {"max_steps": 9}, {"max_tokens": 200}])),
            by=data.draw(st.sampled_from([None, "ana", "bo"])),
        )  # fmt: skip
        request = Resolve(
            wait.id, answer, input_hash=data.draw(st.sampled_from([None, "h", "x"])), token_hash=data.draw(st.sampled_from([None, None, "s"]))
        )
        self._both(lambda store: store.resolve(request), lost=lost)

    @precondition(lambda self: self._waits)
    @rule(data=st.data(), hours=st.sampled_from([None, 5, 15, 31, 61]), lost=LOST)
    def extend(self, data: st.DataObject, hours: int | None, lost: bool) -> None:
        wait_id = data.draw(st.sampled_from([wait.id for wait in self._waits]), label="row")
        self._both(lambda store: store.extend(wait_id, None if hours is None else self._moment(store, hours)), lost=lost)

    @precondition(lambda self: self._any(RunStatus.FAILED, RunStatus.CANCELLED))
    @rule(data=st.data(), mode=st.sampled_from(["resume", "full"]), behind=st.sampled_from([0, 0, 0, 1]), deadline=st.none() | ODD, lost=LOST)
    def retry(self, data: st.DataObject, mode: Any, behind: int, deadline: timedelta | None, lost: bool) -> None:
        stopped = [run for run in self._runs if run.status in (RunStatus.FAILED, RunStatus.CANCELLED)]
        run = data.draw(st.sampled_from(stopped * 4 + self._runs), label="run")
        budget = data.draw(st.sampled_from([None, None, Budget(max_tokens=500)]), label="budget")
        request = RetryRequest(run.id, mode, run.settlement - behind, budget=budget, deadline=deadline)
        self._both(lambda store: store.retry(request), lost=lost)

    @rule(data=st.data(), name=st.sampled_from(["paid", "paid", "other"]), at=st.integers(0, 5), lost=LOST)
    def signal(self, data: st.DataObject, name: str, at: int, lost: bool) -> None:
        run_id = self._some_run(data)
        self._both(lambda store: store.signal(Signal(f"s{at}", run_id, name, at)), lost=lost)

    @precondition(lambda self: self._effects_seen)
    @rule(data=st.data(), decision=st.sampled_from(["done", "run", "fail"]), lost=LOST)
    def settle_effect(self, data: st.DataObject, decision: Any, lost: bool) -> None:
        key = data.draw(st.sampled_from([effect.key for effect in self._effects_seen] * 4 + ["none"]), label="effect")
        request = SettleEffect(key, decision, result=1, by="ana")
        self._both(lambda store: store.settle_effect(request), lost=lost)

    @rule(deaths_max=st.integers(1, 3), limit=st.sampled_from([1, 100]), hours=st.sampled_from([0, 2, 10]))
    def sweep(self, deaths_max: int, limit: int, hours: int) -> None:
        self.time_passes(hours)
        self._both(lambda store: _swept(store, SweepRequest(limit, deaths_max)))

    @rule(hours=st.sampled_from([2, 4, 10]))
    def time_passes(self, hours: int) -> None:
        self._model.offset += hours * HOUR
        self._kit.advance(hours * HOUR)

    @rule(data=st.data(), what=st.sampled_from(["cancel", "claim again", "delayed copy", "claim notices", "note notice", "prune"]), lost=LOST)
    def now_and_then(self, data: st.DataObject, what: str, lost: bool) -> None:
        """What would drown the rest if it came as often."""
        match what:
            case "cancel":
                self._cancel(data, lost=lost)
            case "claim again":
                self._claimed(data.draw(st.sampled_from(self._requests[-3:])), lost=lost)
            case "delayed copy" if self._sent:
                commit = data.draw(st.sampled_from(self._sent))
                self._both(lambda store: store.commit(commit))
            case "claim notices":
                self._both(_notices_claimed)
            case "prune":
                self._both(lambda store: store.prune(PruneRequest(3 * HOUR)))
            case "note notice" if self._waits:
                self._note_notice(data, lost=lost)
            case _:
                pass

    def _cancel(self, data: st.DataObject, *, lost: bool) -> None:
        run_id = self._some_run(data)
        run = self._model_run(run_id)
        named = data.draw(st.sampled_from([None, 0, 1]), label="settlement")
        if lost and run is not None:
            named = run.settlement  # a caller who may have to repeat it names the life that is meant
        self._both(lambda store: store.cancel(CancelRequest(run_id, "why", "ana", named)), lost=lost)

    def _note_notice(self, data: st.DataObject, *, lost: bool) -> None:
        wait_id = data.draw(st.sampled_from([wait.id for wait in self._waits]), label="row")
        accepted, warning = data.draw(st.booleans(), label="accepted"), data.draw(st.booleans(), label="warning")
        retry_in = None if accepted else 3 * HOUR

        async def noted(store: Store) -> None:
            await store.note_notice(wait_id, tries=2, accepted=accepted, warning=warning, retry_in=retry_in, token_hash="s")

        self._both(noted, lost=lost)


def _same(store: Any, model: Any) -> None:
    different = list(_differences(store, model, ""))
    assert not different, "the store differs from the model:\n" + "\n".join(different)


def _differences(store: Any, model: Any, path: str) -> Iterator[str]:
    """Each place where two plain values differ."""
    if isinstance(store, dict) and isinstance(model, dict):
        one, two = cast(dict[str, Any], store), cast(dict[str, Any], model)
        for name in sorted({*one, *two}, key=str):
            yield from _differences(one.get(name, "(missing)"), two.get(name, "(missing)"), f"{path}.{name}")
    elif isinstance(store, list) and isinstance(model, list) and len(cast(list[Any], store)) == len(cast(list[Any], model)):
        for at, (one, two) in enumerate(zip(cast(list[Any], store), cast(list[Any], model), strict=True)):
            yield from _differences(one, two, f"{path}[{at}]")
    elif store != model:
        yield f"  {path}: store {store!r}, model {model!r}"


async def _answer(store: Store, call: Call) -> Any:
    """The answer, or the error that is one."""
    try:
        return await call(store)
    except PerdureError as error:
        return error


async def _swept(store: Store, request: SweepRequest) -> dict[str, Any]:
    """Passes until nothing is due: what one of them does and what is left to the next is a store's own affair."""
    done: set[tuple[str, str]] = set()
    while (swept := await store.sweep(request)).count:
        for what in ("recovered", "poisoned", "expired", "woken", "deadlines"):
            done |= {(what, run_id) for run_id in getattr(swept, what)}
    return {"done": sorted(done), "next_due": swept.next_due}


async def _notices_claimed(store: Store) -> list[WaitPoint]:
    return sorted(await store.claim_notices(limit=100, hold=HOUR), key=lambda wait: wait.id)  # in which order is not promised


async def _rows(store: Store) -> dict[str, Any]:
    """All that can be read."""
    runs = await store.runs(RunFilter())
    rows: dict[str, Any] = {"runs": runs, "counts": await store.counts(), "keys": [await store.find(agent, "k") for agent in "ab"]}
    rows["waits"] = await store.waits(WaitFilter(open=None, limit=1_000))
    rows["effects"] = await store.effects(EffectFilter(limit=1_000))
    for run in runs:
        checkpoints = [await store.checkpoint(run.id, generation=generation) for generation in range(1, run.generation + 1)]
        rows[run.id] = (await store.load(run.id), await store.events(run.id), await store.steps(run.id), checkpoints)
    return rows


def _with_hours(value: Any, base: datetime) -> Any:
    match value:
        case datetime():
            return (value - base) // HOUR
        case str():
            return TIME.sub(lambda found: str((datetime.fromisoformat(found[0]) - base) // HOUR), value)
        case dict():
            return {name: _with_hours(each, base) for name, each in cast(dict[str, Any], value).items()}
        case list() | tuple():
            return [_with_hours(each, base) for each in cast(list[Any], value)]
        case PerdureError():
            return [type(value).__name__, value.code, _with_hours(value.details, base)]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {"type": type(value).__name__} | {field.name: _with_hours(getattr(value, field.name), base) for field in fields(value)}
        case _:
            return value
