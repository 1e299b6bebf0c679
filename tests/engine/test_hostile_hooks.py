"""Whatever an agent's own code raises, wherever it runs: its run ends with a word, the worker lives on, and nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from pydantic_ai import Agent, RunContext, TextOutput, ToolDefinition, ToolOutput
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from perdure import Engine, RunStatus, approve, effect, plain
from perdure.testing.models import ScriptedModel, call, say

Act = Callable[[], None]
Made = tuple[Agent[Any, Any], dict[str, Any]]
HOOKS: dict[str, Callable[[Act], Made]] = {}
ERRORS: list[Callable[[], BaseException]] = [
    lambda: SystemExit(3),
    GeneratorExit,
    asyncio.CancelledError,
    lambda: RuntimeError("a slip"),
    lambda: ValueError("lone \ud800, nul \x00"),
]


def hook(make: Callable[[Act], Made]) -> Callable[[Act], Made]:
    HOOKS[make.__name__] = make
    return make


def agent(*script: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(script or [say("done")]), **options)


# ── what the agent says ────────────────────────────────────────────────────────────────────────────────────
@hook
def system_prompt(act: Act) -> Made:
    made = agent()

    @made.system_prompt
    def _prompt() -> str:
        act()
        return "Be brief."

    return made, {}


@hook
def instructions(act: Act) -> Made:
    made = agent()

    @made.instructions
    async def _instructions() -> str:
        act()
        return "Be brief."

    return made, {}


@hook
def history_processor(act: Act) -> Made:
    def process(messages: list[ModelMessage]) -> list[ModelMessage]:
        act()
        return messages

    return agent(capabilities=[ProcessHistory(process)]), {}


@hook
def stream(act: Act) -> Made:
    async def say_it(_messages: Any, _info: Any) -> AsyncIterator[str]:
        yield "do"
        act()
        yield "ne"

    return Agent(FunctionModel(stream_function=say_it)), {}


# ── its output ─────────────────────────────────────────────────────────────────────────────────────────────
@hook
def output_validator(act: Act) -> Made:
    made = agent()

    @made.output_validator
    def _validate(text: str) -> str:
        act()
        return text

    return made, {}


@hook
def output_validator_async(act: Act) -> Made:
    made = agent()

    @made.output_validator
    async def _validate(text: str) -> str:
        act()
        return text

    return made, {}


@hook
def text_output(act: Act) -> Made:
    def shout(text: str) -> str:
        act()
        return text.upper()

    return agent(output_type=TextOutput(shout)), {}


@hook
def output_function(act: Act) -> Made:
    def hand_over(text: str) -> str:
        act()
        return text

    return agent(call("final_result", text="done"), output_type=hand_over), {}


@hook
def output_tool_async(act: Act) -> Made:
    async def hand_over(text: str) -> str:
        act()
        return text

    return agent(call("give", text="done"), output_type=ToolOutput(hand_over, name="give")), {}


@hook
def output_type(act: Act) -> Made:
    class Ticket(BaseModel):
        order: int

        @field_validator("order")
        @classmethod
        def look(cls, order: int) -> int:
            act()
            return order

    return agent(*[call("final_result", order=1)] * 5, output_type=Ticket), {}


# ── its tools ──────────────────────────────────────────────────────────────────────────────────────────────
@hook
def tool_prepare(act: Act) -> Made:
    made = agent()

    async def prepare(_ctx: RunContext[Any], tool: ToolDefinition) -> ToolDefinition:
        act()
        return tool

    made.tool_plain(name="look", prepare=prepare, metadata=plain())(lambda: "ok")
    return made, {}


@hook
def arguments_validator(act: Act) -> Made:
    made = agent(call("look", order=1), say("done"))

    def validate(_ctx: RunContext[Any], order: int) -> None:
        act()

    def look(order: int) -> str:
        return str(order)

    made.tool_plain(name="look", args_validator=validate, metadata=plain())(look)
    return made, {}


@hook
def approval_predicate(act: Act) -> Made:
    made = agent(call("pay"), say("done"))

    def when(_call: Any) -> bool:
        act()
        return False

    made.tool_plain(name="pay", metadata=plain() | approve(when=when))(lambda: "paid")
    return made, {}


@hook
def business_key(act: Act) -> Made:
    made = agent(call("pay"), say("done"))

    def key(_call: Any) -> str:
        act()
        return "one"

    made.tool_plain(name="pay", metadata=effect(key=key))(lambda: "paid")
    return made, {}


# ── what is opened for it ──────────────────────────────────────────────────────────────────────────────────
@hook
def deps(act: Act) -> Made:
    def make(_run: Any) -> None:
        act()

    return agent(), {"deps": make}


@hook
def deps_enter(act: Act) -> Made:
    @asynccontextmanager
    async def make(_run: Any) -> AsyncGenerator[None]:
        act()
        yield

    return agent(), {"deps": make}


@hook
def toolset_factory(act: Act) -> Made:
    def make(_run: Any) -> list[Any]:
        act()
        return []

    return agent(), {"toolset": make}


@hook
def render(act: Act) -> Made:
    def make(_trigger: Any) -> str:
        act()
        return "Hello."

    return agent(), {"render": make}


class Server(FunctionToolset[Any]):
    """A toolset that has to be opened and closed."""

    def __init__(self, *, enter: Act | None = None, leave: Act | None = None) -> None:
        super().__init__()
        self.enter, self.leave = enter, leave

    async def __aenter__(self) -> Server:
        if self.enter is not None:
            self.enter()
        await super().__aenter__()
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        if self.leave is not None:
            self.leave()
        return None


@hook
def toolset_enter(act: Act) -> Made:
    return agent(toolsets=[Server(enter=act)]), {}


@hook
def toolset_leave(act: Act) -> Made:
    return agent(toolsets=[Server(leave=act)]), {}


@hook
def deps_leave(act: Act) -> Made:
    @asynccontextmanager
    async def make(_run: Any) -> AsyncGenerator[None]:
        yield
        act()

    return agent(), {"deps": make}


HARMLESS = {"toolset_leave", "deps_leave"}
"""What the run came to is known by then."""
SEEN_BY_THE_MODEL = {"arguments_validator", "approval_predicate", "business_key", "output_type"}
"""Where an error may be a result, and the run goes on."""


@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/perdure.db"


@pytest.mark.parametrize("name", HOOKS)
async def test_whatever_a_hook_raises_ends_its_run_and_nothing_else(address: str, name: str) -> None:
    """One engine takes all of them, one after the other, and then a run whose hook says nothing."""
    engine = Engine(address, on_error=lambda error: None)
    # What deps raise on the way out is logged with its traceback, and not every log takes a lone surrogate.
    said: list[BaseException | None] = [make() for make in (ERRORS[:-1] if name in HARMLESS else ERRORS)] + [None]
    kinds: list[Any] = []
    for error in said:

        def act(error: BaseException | None = error) -> None:
            if error is not None:
                raise error

        made, options = HOOKS[name](act)
        kinds.append(engine.agent(made, name=f"{name} {len(kinds)}", **options))
    async with engine:
        for error, kind in zip(said, kinds, strict=True):
            settled = await engine.settled((await kind.start({})).id, 120)
            assert settled.status.final, (error, settled)
            assert (settled.deaths, settled.executions) == (0, 1)
            if error is None or name in HARMLESS:
                assert settled.status is RunStatus.COMPLETED, (error, settled.error)
            elif name not in SEEN_BY_THE_MODEL:
                assert settled.status is RunStatus.FAILED, error
                assert settled.error is not None
                word = "cancelled from inside" if isinstance(error, asyncio.CancelledError) else type(error).__name__
                assert word in settled.error.message or name == "output_type"


# ── hanging on the way out ─────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("failing", [False, True])
def test_deps_that_hang_on_the_way_out_hold_no_run(sim: Any, failing: bool) -> None:
    """What the run came to is written after a while, whether it is a result or an error; a second run finds its key free."""

    @asynccontextmanager
    async def hanging(_run: Any) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await sim.runtime.sleep(10_000_000)

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(
            agent(*([] if failing else [say("done")] * 2), name="shop") if not failing else agent(call("none"), name="shop"), deps=hanging
        )
        async with engine:
            for _ in range(2):
                run = await shop.start({}, concurrency_key="one")
                settled = await engine.settled(run.id, 600)
                assert settled.status is (RunStatus.FAILED if failing else RunStatus.COMPLETED)
                assert settled.deaths == 0

    sim.run(main)


def test_deps_that_hang_where_they_cant_be_opened_hide_no_error(sim: Any) -> None:
    """The toolset raises, the deps hang: the run says what the toolset raised."""

    @asynccontextmanager
    async def hanging(_run: Any) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await sim.runtime.sleep(10_000_000)

    def broken(_run: Any) -> list[Any]:
        raise RuntimeError("no such server")

    async def main() -> None:
        engine = sim.engine()
        shop = engine.agent(agent(name="shop"), deps=hanging, toolset=broken)
        async with engine:
            settled = await engine.settled((await shop.start({})).id, 600)
            assert settled.error is not None
            assert (settled.error.code, "no such server" in settled.error.message) == ("setup_failed", True)

    sim.run(main)


@pytest.mark.parametrize("how", ["cancel", "drain"])
def test_whoever_stops_a_run_that_is_closing_its_deps_does_not_change_what_it_came_to(sim: Any, how: str) -> None:
    """Completed stays completed: the effect is done, and its record is in that write."""

    @asynccontextmanager
    async def slow(_run: Any) -> AsyncGenerator[None]:
        yield
        leaving.append(1)
        await sim.runtime.sleep(20)

    leaving: list[int] = []

    async def main() -> None:
        engine = sim.engine(drain_grace=timedelta(0))
        made = agent(call("pay"), say("done"), name="shop")
        made.tool_plain(name="pay", metadata=effect())(lambda: "paid")
        shop = engine.agent(made, deps=slow)
        async with engine:
            run = await shop.start({})
            while not leaving:
                await sim.runtime.sleep(0.1)
            if how == "cancel":
                await run.cancel()
            else:
                await engine.drain(timedelta(0))
            settled = await engine.settled(run.id, 600)
            assert (settled.status, settled.output) == (RunStatus.COMPLETED, "done")

    sim.run(main)


# ── leaving the engine ─────────────────────────────────────────────────────────────────────────────────────
async def test_an_engine_whose_leaving_is_cancelled_leaves_nothing_behind() -> None:
    """A second Ctrl-C in the middle of the drain: loops and threads are stopped, the store is closed, and the run can be taken by others."""
    began, told = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
            await asyncio.Event().wait()
        return "never"

    engine = Engine("memory://", drain_grace=timedelta(0), on_error=lambda error: None)
    made = agent(call("stubborn"), say("done"), name="shop")
    made.tool_plain(metadata=plain())(stubborn)
    shop = engine.agent(made)
    before = asyncio.all_tasks()

    async def work() -> None:
        async with engine:
            await shop.start({})
            await began.wait()

    task = asyncio.ensure_future(work())
    await told.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    left = {each.get_name() for each in asyncio.all_tasks() - before if not each.cancelling()}
    assert not {name for name in left if name.startswith("perdure-")}, left
    async with engine:
        assert len(await engine.runs()) == 1
        assert await engine.requests() == []
