"""What a tool, a hook or a callback may do wrong, and what a run must make of it: it never sticks, spins, lies, or takes the process with it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import Engine, Happened, NotDone, RunStatus, Wait, current_run, effect, plain
from perdure.core.effect import EffectState
from perdure.errors import ConfigurationError, StoreFull
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.models import ScriptedModel, call, say

Body = Callable[[], Any]


def agent_with(body: Body, rule: dict[str, Any], *script: Any) -> Agent[None, Any]:
    agent = Agent(ScriptedModel(script or [call("deed"), say("done")]), name="hostile")
    agent.tool_plain(name="deed", metadata=rule)(body)
    return agent


def raises(error: BaseException) -> Body:
    async def deed() -> str:
        raise error

    return deed


def returns(make: Callable[[], Any]) -> Body:
    async def deed() -> Any:
        return make()

    return deed


class Mute(Exception):
    """An error whose words can't be had."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


ERRORS = [SystemExit(3), GeneratorExit(), asyncio.CancelledError(), Mute(), ValueError("lone \ud800, nul \x00"), ValueError("x" * 1_000_000)]
VALUES: list[Callable[[], Any]] = [
    cyclic,
    lambda: nested(150),
    lambda: nested(300),
    lambda: nested(100_000),
    lambda: 10**5000,
    lambda: b"\xff",
    object,
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
def test_whatever_a_plain_tool_raises_is_a_result_that_the_model_sees(sim: Any, error: BaseException) -> None:
    """One failing tool neither ends the process, nor fails the run, nor sends it round and round."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(raises(error), plain()))
        async with engine:
            run = await shop.start({})
            assert await run.result(60) == "done"
            [step] = [step for step in await run.steps() if step.kind == "tool"]
            assert step.row.error is not None
            assert step.row.error["outcome"] == "failed"
            assert (await run.run()).commit_no == 3

    sim.run(main)


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
def test_whatever_an_effect_raises_leaves_a_question(sim: Any, error: BaseException) -> None:
    """No exception is proof: the run waits for somebody's word, and the model is told nothing before."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(raises(error), effect()))
        async with engine:
            run = await shop.start({})
            while await run.status() is not RunStatus.WAITING:
                await sim.runtime.sleep(0.1)
            [request] = await run.requests()
            assert request.kind == "effect"
            await request.answer("done", "it happened")
            assert await run.result(60) == "done"

    sim.run(main)


@pytest.mark.parametrize("make", VALUES)
def test_an_effect_whose_result_cannot_be_stored_is_done_all_the_same(sim: Any, make: Callable[[], Any]) -> None:
    """The deed is recorded; the model hears that it was made, and why its result is missing."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(returns(make), effect()))
        async with engine:
            run = await shop.start({})
            assert await run.result(60) == "done"
            [row] = await engine.effects(run_id=run.id, state=None)
            assert row.state is EffectState.DONE
            [step] = [step for step in await run.steps() if step.kind == "tool"]
            assert "can't be stored" in str((await run.messages(step=step.row.index))[-1].parts)

    sim.run(main)


@pytest.mark.parametrize("depth", [100, 90])
def test_the_deepest_value_that_may_be_stored_can_be_read_and_shown(sim: Any, depth: int) -> None:
    """What the gate lets through, the history and the model's next request can hold."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(returns(lambda: nested(depth)), plain()))
        async with engine:
            run = await shop.start({})
            assert await run.result(60) == "done"
            [step] = [step for step in await run.steps() if step.kind == "tool"]
            assert step.row.error is None

    sim.run(main)


class Refusing:
    """A store whose commits fail on a full disk, as often as `left` says, once an effect is done or unknown."""

    def __init__(self, store: Any, states: set[EffectState]) -> None:
        self._store, self._states, self.left = store, states, 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def __aenter__(self) -> Any:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._store.__aexit__(*exc)

    async def commit(self, commit: Any) -> Any:
        if self.left and any(each.state in self._states for each in commit.effects):
            self.left -= 1
            raise StoreFull("There is no room left.")
        return await self._store.commit(commit)


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_a_disk_that_is_full_for_a_moment_never_makes_a_deed_look_failed(tmp_path: Path, where: str) -> None:
    """The record of an effect can't be written: the run ends and the effect is unknown; the model may not take it for a failure and do it again."""
    calls: list[str] = []

    async def deed() -> str:
        calls.append("done")
        raise ValueError("who knows")

    async def main() -> None:
        inner: Any = MemoryStore() if where == "memory" else SqliteStore(tmp_path / "perdure.db")
        engine = Engine(Refusing(inner, {EffectState.UNKNOWN}), on_error=lambda error: None)  # type: ignore[arg-type]
        shop = engine.agent(agent_with(deed, effect(), call("deed"), call("deed"), say("done twice")))
        async with engine:
            run = await shop.start({})
            settled = await engine.settled(run.id, 30)
            assert settled.status is RunStatus.FAILED
            assert settled.error is not None
            assert settled.error.code == "store_full"
            assert [row.state for row in await engine.effects(run_id=run.id, state=None)] == [EffectState.UNKNOWN]

    asyncio.run(main())
    assert calls == ["done"]


def ends_in_a_question(sim: Any, deed: Body, metadata: dict[str, Any]) -> None:
    """Run an agent with this effect until somebody is asked what became of it."""

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(deed, metadata))
        async with engine:
            run = await shop.start({})
            while await run.status() is not RunStatus.WAITING:
                await sim.runtime.sleep(0.1)
            assert [request.kind for request in await run.requests()] == ["effect"]

    sim.run(main)


@pytest.mark.parametrize("said", [True, 5, "yes", SystemExit(1), asyncio.CancelledError(), RuntimeError("away")], ids=repr)
def test_a_verify_that_gives_no_clear_word_asks_a_person(sim: Any, said: Any) -> None:
    """`True` could mean either: the effect never runs again on it."""
    calls: list[str] = []

    async def deed() -> str:
        calls.append("sent")
        raise ValueError("who knows")

    async def verify(_call: Any) -> Any:
        if isinstance(said, BaseException):
            raise said
        return said

    ends_in_a_question(sim, deed, effect(unknown=verify))
    assert calls == ["sent"]


def test_what_verify_found_is_done_even_where_its_result_cannot_be_stored(sim: Any) -> None:
    """It happened: what cannot be shown of it makes it no failure."""

    async def verify(_call: Any) -> Any:
        return Happened(object())

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(raises(ValueError("who knows")), effect(unknown=verify)))
        async with engine:
            run = await shop.start({})
            assert await run.result(60) == "done"
            assert [row.state for row in await engine.effects(run_id=run.id, state=None)] == [EffectState.DONE]

    sim.run(main)


@pytest.mark.parametrize("key", ["no_such_argument", lambda call: None, lambda call: object(), lambda call: sys.exit(1)])
def test_a_business_key_that_is_none_is_shared_by_nobody(sim: Any, key: Any) -> None:
    """Two calls that have no key in common are not one deed: neither runs, and both are told."""
    calls: list[int] = []

    async def main() -> None:
        engine = sim.engine()
        agent = Agent(ScriptedModel([call("deed", order=1), call("deed", order=2), say("done")]), name="hostile")

        @agent.tool_plain(metadata=effect(key=key, scope="agent"))
        async def deed(order: int) -> str:
            calls.append(order)
            return "sent"

        shop = engine.agent(agent)
        async with engine:
            run = await shop.start({})
            assert await run.result(60) == "done"
            outcomes = [step.row.error["outcome"] for step in await run.steps() if step.kind == "tool" and step.row.error]
            assert outcomes == ["failed", "failed"]

    sim.run(main)
    assert calls == []


@pytest.mark.parametrize(
    "value", [object(), ValueError("x"), "lone \ud800", float("nan"), cyclic(), nested(300)], ids=lambda each: type(each).__name__
)
def test_a_log_line_never_holds_up_a_run(sim: Any, value: Any) -> None:
    """What has no JSON form is logged as it prints."""

    async def deed() -> str:
        current_run().log("look \x00 \ud800", what=value)
        return "ok"

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(deed, plain()))
        async with engine:
            run = await shop.start({})
            assert await run.result(60) == "done"
            events = [event async for event in run.events() if getattr(event, "type", "") == "log"]
            assert len(events) == 1

    sim.run(main)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Wait.until(datetime(2030, 1, 1)),
        lambda: Wait.until(timedelta.max),
        lambda: Wait.until(timedelta.min),
        lambda: Wait.until(5),  # type: ignore[arg-type]
        lambda: Wait.until(None),  # type: ignore[arg-type]
        lambda: Wait.event(""),
        lambda: Wait.event(5),  # type: ignore[arg-type]
        lambda: Wait.event(None),  # type: ignore[arg-type]
        lambda: Wait.event("x" * 1_000),
        lambda: Wait.event("x", expires="soon"),  # type: ignore[arg-type]
        lambda: Wait.event("x", expires=datetime(2030, 1, 1)),
        lambda: Wait.run(5),  # type: ignore[arg-type]
        lambda: Wait.run(""),
        lambda: Wait.run("a\x00b"),
    ],
)
def test_a_wait_that_means_nothing_is_refused_where_it_is_written(make: Callable[[], Wait]) -> None:
    """A time without a zone or beyond every calendar, an event without a name, a run that can be none."""
    with pytest.raises(ConfigurationError):
        make()


def test_a_wait_beyond_the_calendar_leaves_a_question_in_an_effect(sim: Any) -> None:
    """It is refused where the tool writes it; what the tool did before that line nobody knows."""

    async def deed() -> str:
        raise Wait.until(timedelta.max)

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(deed, effect()))
        async with engine:
            run = await shop.start({})
            while await run.status() is not RunStatus.WAITING:
                await sim.runtime.sleep(0.1)
            [request] = await run.requests()
            assert "SPAN_MAX" in str(request.wait.row.data["error"])
            await request.answer("fail")
            assert await run.result(60) == "done"
            assert (await run.run()).deaths == 0

    sim.run(main)


@pytest.mark.parametrize("error", [RuntimeError("exit"), SystemExit(4), None], ids=repr)
def test_deps_that_fail_on_leaving_take_nothing_back(sim: Any, error: BaseException | None) -> None:
    """The run is complete and its effect done, whatever its deps' exit raises or swallows."""

    @asynccontextmanager
    async def deps(_run: Any) -> AsyncGenerator[None]:
        try:
            yield None
        finally:
            if error is not None:
                raise error

    async def deed() -> str:
        return "sent"

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(deed, effect()), deps=deps)
        async with engine:
            run = await shop.start({})
            assert await run.result(60) == "done"
            assert [row.state for row in await engine.effects(run_id=run.id, state=None)] == [EffectState.DONE]

    sim.run(main)


def test_deps_that_swallow_an_error_do_not_hide_it_from_the_run(sim: Any) -> None:
    """A context manager that suppresses what passes through it leaves the run with its outcome."""

    @asynccontextmanager
    async def deps(_run: Any) -> AsyncGenerator[None]:
        try:
            yield None
        except BaseException:
            pass

    async def main() -> None:
        engine = sim.engine()
        failing = engine.agent(Agent(ScriptedModel([]), name="failing"), deps=deps)
        waiting = engine.agent(agent_with(raises(Wait.event("word")), plain()), deps=deps)
        async with engine:
            failed = await engine.settled((await failing.start({})).id, 60)
            assert failed.status is RunStatus.FAILED
            run = await waiting.start({})
            while await run.status() is not RunStatus.WAITING:
                await sim.runtime.sleep(0.1)
            await run.signal("word", 1)
            assert await run.result(60) == "done"

    sim.run(main)


@pytest.mark.parametrize("error", [RuntimeError("listener"), asyncio.CancelledError()], ids=repr)
def test_a_listener_that_raises_fails_no_run(sim: Any, error: BaseException) -> None:
    """It is dropped, whatever it raised."""

    def listener(_item: Any) -> None:
        raise error

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent_with(returns(lambda: 1), plain()))
        for kind in ("run.delta", "step.completed", "*"):
            engine.on(kind, listener)
        async with engine:
            assert await (await shop.start({})).result(60) == "done"

    sim.run(main)


def test_a_listener_that_nobody_would_await_is_refused(sim: Any) -> None:
    """An `async def` listener would do nothing, silently."""

    async def listener(_item: Any) -> None: ...

    with pytest.raises(ConfigurationError):
        sim.engine().on("*", listener)


def test_a_deed_that_verify_finds_undone_again_and_again_is_no_endless_loop(sim: Any) -> None:
    """After as many tries as are declared a person is asked."""
    calls: list[int] = []

    async def deed() -> str:
        calls.append(current_run().attempt)
        raise ValueError("who knows")

    async def verify(_call: Any) -> NotDone:
        return NotDone()

    ends_in_a_question(sim, deed, effect(unknown=verify))
    assert calls == [1, 2, 3]
