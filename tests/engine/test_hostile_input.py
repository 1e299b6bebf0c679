"""What a caller may give that is nothing of the kind: it is refused by its field, in words, before anything is stored."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from pydantic_ai import Agent

from perdure import Budget, DurableAgent, Engine, RunStatus, Wait, approve, plain
from perdure.core.commit import ResolveOutcome, RunFilter
from perdure.core.wait import ResolutionKind
from perdure.errors import ConfigurationError, InvalidTrigger, NotFound
from perdure.testing.models import ScriptedModel, call, say

Ask = Callable[[Engine, DurableAgent[Any, Any]], Awaitable[Any]]
ID = "01890a5d-ac96-774b-bcce-b302099a8057"


class Mute:
    """Nothing that could be said of it can be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


class Leaving(BaseModel):
    """A type whose validator ends the process, or tries to."""

    how: str

    @field_validator("how")
    @classmethod
    def leave(cls, how: str) -> str:
        raise SystemExit(3) if how == "exit" else RuntimeError(how)


@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/perdure.db"


def asked(address: str, ask: Ask, *, input: Any = Any) -> tuple[BaseException | None, int]:
    """What an engine that executes nothing says to this, and how many runs it holds then."""

    async def main() -> tuple[BaseException | None, int]:
        engine = Engine(address, workers=0)
        shop = engine.agent(Agent(ScriptedModel([say("done")]), name="shop"), input=input)
        async with engine:
            said: BaseException | None = None
            try:
                async with asyncio.timeout(120):
                    await ask(engine, shop)
            except Exception as error:
                said = error
            return said, len(await engine.runs(RunFilter(limit=5)))

    return asyncio.run(main())


NO_TEXTS: list[Any] = [5, True, b"x", "", [], object(), Mute(), "x" * 513, 1.5]
OPTIONS: list[tuple[str, Any]] = [
    *((field, value) for field in ("key", "concurrency_key", "thread") for value in NO_TEXTS),
    *(("run_id", value) for value in (5, "", "x", b"x", ID.encode(), ID.upper(), "../etc/passwd", "\x00", "x" * 5_000, object())),
    *(("labels", value) for value in (["team"], "team", 5, {1: "x"}, {"": "x"}, {"a": None}, {"a": b"x"}, {"a": "x" * 513}, {"a": Mute()})),
    ("labels", {f"name {n}": "x" for n in range(101)}),
    *(("delay", value) for value in (5, "soon", timedelta(seconds=-1), timedelta.max, timedelta.min, float("nan"), datetime(2030, 1, 1))),
    *(("budget", value) for value in (5, "small", {"max_steps": 3}, object())),
    *(("priority", value) for value in (1.5, "high", True, 10**9, float("nan"), None)),
    *(("attachments", value) for value in (5, None, "abc", b"abc", ["abc"], [5], [("a",)], [("a", "b")], [(5, b"x")], [("", b"x")])),
    *(("attachments", value) for value in ([("a", b"x", 5)], [("a", b"x", "no\ntype")], [Path("/")], [Path("/nowhere")], [("good", b"x"), 5])),
]


@pytest.mark.parametrize("option", OPTIONS, ids=[f"{at}-{each[0]}" for at, each in enumerate(OPTIONS)])
def test_an_option_of_a_start_that_is_none_is_refused_by_its_name(address: str, option: tuple[str, Any]) -> None:
    """Whatever its type: the field is named, in the message too, and no run is there."""
    name, value = option
    said, runs = asked(address, lambda _engine, shop: shop.start({}, **{name: value}))
    assert isinstance(said, InvalidTrigger), repr(said)
    assert said.details["field"] == name
    assert said.message.startswith(f"{name}: ")
    assert runs == 0


PAYLOADS: list[tuple[str, Callable[[], Any]]] = [
    ("payload", object),
    ("payload", lambda: b"\xff"),
    ("payload.self[0].self", cyclic),
    ("payload[0][0][0]", lambda: nested(10_000)),
    ("payload[0][0][0]", lambda: nested(101)),
    ("payload", lambda: (n for n in range(3))),
    ("payload.rows", lambda: {"rows": itertools.count()}),
    ("payload", lambda: asyncio.sleep),
    ("payload", lambda: ValueError("x")),
    ("payload", lambda: range(3)),
    ("payload.n", lambda: {"n": 10**5000}),
    ("payload", lambda: {(1, 2): 3}),
    ("payload", lambda: "x" * 5_000_000),
    ("payload", Mute),
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=[str(at) for at in range(len(PAYLOADS))])
def test_a_payload_that_has_no_json_form_is_refused_by_its_path(address: str, payload: tuple[str, Callable[[], Any]]) -> None:
    """Cycles, what is read only once, what is too deep: none of them hangs, and none is stored as something else."""
    said, runs = asked(address, lambda _engine, shop: shop.start(payload[1]()))
    assert isinstance(said, InvalidTrigger), repr(said)
    assert str(said.details["field"]).startswith(payload[0])
    assert runs == 0


@pytest.mark.parametrize("value", [itertools.count(), cyclic(), nested(10_000), {"a": iter([1])}], ids=["endless", "cyclic", "deep", "once"])
def test_a_typed_payload_is_not_read_without_end(address: str, value: Any) -> None:
    """Pydantic would read an iterator to its end before it says a word."""
    said, runs = asked(address, lambda _engine, shop: shop.start({"rows": value}), input=dict[str, Any])
    assert isinstance(said, InvalidTrigger), repr(said)
    assert str(said.details["field"]).startswith("payload")
    assert runs == 0


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_a_validator_of_the_payload_that_raises_anything_refuses_the_payload(address: str, how: str) -> None:
    """An error in the caller's own type is the payload's, `sys.exit()` included."""
    said, runs = asked(address, lambda _engine, shop: shop.start({"how": how}), input=Leaving)
    assert isinstance(said, InvalidTrigger), repr(said)
    assert "SystemExit" in said.message or "RuntimeError" in said.message
    assert runs == 0


@pytest.mark.parametrize("timeout", ["soon", float("nan"), True, b"1", object(), [1]], ids=lambda each: type(each).__name__)
def test_a_time_to_wait_that_is_none_is_refused_before_the_run_is_there(address: str, timeout: Any) -> None:
    """`run(…, timeout=…)` starts nothing that nobody would wait for."""
    said, runs = asked(address, lambda _engine, shop: shop.run({}, timeout=timeout))
    assert isinstance(said, InvalidTrigger), repr(said)
    assert said.details["field"] == "timeout"
    assert runs == 0


@pytest.mark.parametrize("timeout", [0, -1, -(10**9), timedelta(seconds=-1), timedelta.min])
async def test_no_time_to_wait_is_an_answer_at_once(timeout: Any) -> None:
    """A time that is over is no error: the run stands as it stands."""
    engine = Engine("memory://", workers=0)
    shop = engine.agent(Agent(ScriptedModel([say("done")]), name="shop"))
    async with engine:
        run = await shop.start({})
        assert (await engine.settled(run.id, timeout)).status is RunStatus.PENDING


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**400, timedelta.max], ids=["inf", "float", "int", "timedelta"])
async def test_a_time_beyond_every_calendar_is_as_long_as_it_takes(timeout: Any) -> None:
    """It neither overflows nor ends at once."""
    engine = Engine("memory://")
    shop = engine.agent(Agent(ScriptedModel([say("done")]), name="shop"))
    async with engine:
        assert await (await shop.start({})).result(timeout) == "done"


BUDGETS: list[tuple[str, Any]] = [
    *(("max_steps", value) for value in (None, "3", -1, 1.5, True, float("nan"), 10**5000)),
    *(("max_tokens", value) for value in ("3", -1, 1.5, True, 10**400)),
    *(("max_cost", value) for value in ("0.5", -1, Decimal("NaN"), Decimal("Infinity"), float("nan"), True, object())),
    *((field, value) for field in ("timeout", "deadline") for value in (5, "1h", timedelta(0), timedelta(-1), timedelta.max, datetime(2030, 1, 1))),
    *(("on_limit", value) for value in ("stopp", 5, b"stop", [])),
    *(("unknown_price", value) for value in ("guess", None)),
]


@pytest.mark.parametrize("limit", BUDGETS, ids=[f"{at}-{each[0]}" for at, each in enumerate(BUDGETS)])
def test_a_limit_that_is_none_is_refused_where_it_is_written(limit: tuple[str, Any]) -> None:
    """A budget that can't be compared or stored never reaches a run."""
    with pytest.raises(ConfigurationError, match=limit[0]):
        Budget(**{limit[0]: limit[1]})


def test_a_price_may_be_written_as_a_number() -> None:
    """It is taken as it prints, not as the float that it is."""
    assert Budget(max_cost=0.1).max_cost == Decimal("0.1")  # type: ignore[arg-type]


LOOKS: dict[str, Ask] = {
    "run": lambda engine, _shop: engine.run(5),  # type: ignore[arg-type]
    "run object": lambda engine, _shop: engine.run(object()),  # type: ignore[arg-type]
    "run nul": lambda engine, _shop: engine.run("a\x00b"),
    "run lone": lambda engine, _shop: engine.run("\ud800"),
    "settled": lambda engine, _shop: engine.settled(None),  # type: ignore[arg-type]
    "steps": lambda engine, _shop: engine.steps([]),  # type: ignore[arg-type]
    "messages": lambda engine, _shop: engine.messages(5),  # type: ignore[arg-type]
    "messages step": lambda engine, _shop: engine.messages(ID, step="two"),  # type: ignore[arg-type]
    "requests limit": lambda engine, _shop: engine.requests(limit="all"),  # type: ignore[arg-type]
    "requests kind": lambda engine, _shop: engine.requests(kind=5),  # type: ignore[arg-type]
    "effects limit": lambda engine, _shop: engine.effects(limit=0),
    "cancel": lambda engine, _shop: engine.cancel(5),  # type: ignore[arg-type]
    "retry": lambda engine, _shop: engine.retry(5),  # type: ignore[arg-type]
    "retry mode": lambda engine, _shop: engine.retry(ID, "again"),  # type: ignore[arg-type]
    "retry steps": lambda engine, _shop: engine.retry(ID, max_steps="9"),  # type: ignore[arg-type]
    "retry cost": lambda engine, _shop: engine.retry(ID, max_cost=Decimal("NaN")),
    "retry budget": lambda engine, _shop: engine.retry(ID, budget=5),  # type: ignore[arg-type]
    "retry deadline": lambda engine, _shop: engine.retry(ID, deadline=timedelta.max),
    "fork": lambda engine, _shop: engine.fork(5),  # type: ignore[arg-type]
    "fork step": lambda engine, _shop: engine.fork(ID, "two"),  # type: ignore[arg-type]
    "signal": lambda engine, _shop: engine.signal(5, "paid"),  # type: ignore[arg-type]
    "signal name": lambda engine, _shop: engine.signal(ID, 5),  # type: ignore[arg-type]
    "signal no name": lambda engine, _shop: engine.signal(ID, ""),
    "signal id": lambda engine, _shop: engine.signal(ID, "paid", id=5),  # type: ignore[arg-type]
    "signal payload": lambda engine, _shop: engine.signal(ID, "paid", cyclic()),
    "resolve": lambda engine, _shop: engine.resolve(5, "approve"),  # type: ignore[arg-type]
    "resolve decision": lambda engine, _shop: engine.resolve(ID, 5),  # type: ignore[arg-type]
    "resolve value": lambda engine, _shop: engine.resolve(ID, "done", object()),
    "resolve by": lambda engine, _shop: engine.resolve(ID, "approve", by=5),  # type: ignore[arg-type]
    "resolve token": lambda engine, _shop: engine.resolve(ID, "approve", token=5),  # type: ignore[arg-type]
    "approve input": lambda engine, _shop: engine.approve(ID, input=[1]),  # type: ignore[arg-type]
    "deny reason": lambda engine, _shop: engine.deny(ID, reason=b"no"),  # type: ignore[arg-type]
    "extend": lambda engine, _shop: engine.extend(5, timedelta(1)),  # type: ignore[arg-type]
    "extend within": lambda engine, _shop: engine.extend(ID, timedelta.max),
    "extend back": lambda engine, _shop: engine.extend(ID, timedelta(-1)),
    "extend int": lambda engine, _shop: engine.extend(ID, 5),  # type: ignore[arg-type]
    "settle": lambda engine, _shop: engine.settle(5, "done"),  # type: ignore[arg-type]
    "settle decision": lambda engine, _shop: engine.settle("key", "maybe"),  # type: ignore[arg-type]
    "settle result": lambda engine, _shop: engine.settle("key", "done", cyclic()),
    "external": lambda engine, _shop: engine.resolve_external(5),  # type: ignore[arg-type]
    "start by name": lambda engine, _shop: engine.start("shop", {}, parent=5),
}


@pytest.mark.parametrize("name", LOOKS)
def test_what_nobody_can_ask_is_refused_by_its_field(address: str, name: str) -> None:
    """Looking, answering, moving: no driver's error, no half of a write."""
    said, runs = asked(address, LOOKS[name])
    assert isinstance(said, InvalidTrigger), repr(said)
    assert said.message.startswith(str(said.details["field"]).partition(".")[0])
    assert runs == 0


MISSING: dict[str, Ask] = {
    "run": lambda engine, _shop: engine.run(ID),
    "settled": lambda engine, _shop: engine.settled(ID, 1),
    "steps": lambda engine, _shop: engine.steps(ID),
    "messages": lambda engine, _shop: engine.messages(ID),
    "events": lambda engine, _shop: anext(engine.events(ID)),  # type: ignore[arg-type]
    "signal": lambda engine, _shop: engine.signal(ID, "paid"),
    "cancel": lambda engine, _shop: engine.cancel(ID),
    "retry": lambda engine, _shop: engine.retry(ID),
    "fork": lambda engine, _shop: engine.fork(ID),
    "approve": lambda engine, _shop: engine.approve(ID),
    "approve edited": lambda engine, _shop: engine.approve(ID, input={}),
    "extend": lambda engine, _shop: engine.extend(ID, timedelta(1)),
    "settle": lambda engine, _shop: engine.settle(ID, "done"),
    "start": lambda engine, _shop: engine.start("shopp", {}),
    "artifact": lambda engine, _shop: engine.artifact(ID),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_not_there_is_named(address: str, name: str) -> None:
    """Nothing waits for a run that nobody started."""
    said, _runs = asked(address, MISSING[name])
    assert isinstance(said, NotFound), repr(said)


# ── answers ────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("word", ["Approve", "yes", "done", "run", "", "top_up"])
def test_a_word_that_a_request_does_not_know_is_no_answer(sim: Any, word: str) -> None:
    """A slip must not count as a denial: the request stays open, and those who can be said are told."""
    calls: list[str] = []

    async def main() -> None:
        engine = sim.engine()
        agent = Agent(ScriptedModel([call("pay"), say("paid")]), name="shop")

        @agent.tool_plain(metadata=plain() | approve())
        def pay() -> str:
            calls.append("pay")
            return "ok"

        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            while await run.status() is not RunStatus.WAITING:
                await sim.runtime.sleep(0.1)
            [request] = await run.requests()
            said = await request.answer(word)
            assert said.outcome is ResolveOutcome.REFUSED
            assert "approve, deny" in (said.message or "")
            [request] = await run.requests()
            await request.approve()
            assert await run.result(60) == "paid"

    sim.run(main)
    assert calls == ["pay"]


def test_an_event_takes_no_decision(sim: Any) -> None:
    """`approve` on a row that waits for a payload would hand the tool nothing."""

    async def main() -> None:
        engine = sim.engine()
        agent = Agent(ScriptedModel([call("wait"), say("done")]), name="shop")

        @agent.tool_plain(metadata=plain())
        def wait() -> str:
            raise Wait.event("payment")

        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            while await run.status() is not RunStatus.WAITING:
                await sim.runtime.sleep(0.1)
            [request] = await run.requests()
            assert (await request.approve()).outcome is ResolveOutcome.REFUSED
            said = await request.answer(None, {"cents": 5})
            assert said.outcome is ResolveOutcome.RESOLVED
            assert said.wait.resolution is not None
            assert said.wait.resolution.kind is ResolutionKind.EVENT
            assert await run.result(60) == "done"

    sim.run(main)


@pytest.mark.parametrize("value", [None, 5, [], {"max_steps": "9"}, {"max_steps": -1}, {"steps": 9}, {"timeout": "1h"}, {"max_cost": "NaN"}])
def test_a_top_up_that_is_none_leaves_the_request_open(sim: Any, value: Any) -> None:
    """The run would come back and find no limit that it can read."""

    async def main() -> None:
        engine = sim.engine()
        agent = Agent(ScriptedModel([call("look"), say("done")]), name="shop")

        @agent.tool_plain(metadata=plain())
        def look() -> str:
            return "ok"

        shop = engine.agent(agent, budget=Budget(max_steps=1, on_limit="pause"))
        async with engine:
            run = await shop.start({})
            while await run.status() is not RunStatus.WAITING:
                await sim.runtime.sleep(0.1)
            [request] = await run.requests()
            assert (await request.answer("top_up", value)).outcome is ResolveOutcome.REFUSED
            assert (await request.answer("top_up", {"max_steps": 5})).outcome is ResolveOutcome.RESOLVED
            assert await run.result(60) == "done"

    sim.run(main)
