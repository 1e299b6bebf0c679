"""An engine that is used before, after or beside its life, on another loop, from many threads: a word at once, and never a wait without end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

from perdure import DurableAgent, Engine, plain
from perdure.core.runtime import RealRuntime, run_main
from perdure.errors import ConfigurationError, PerdureError
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.models import ScriptedModel, call, say

ID = "01890a5d-ac96-774b-bcce-b302099a8057"
Use = Callable[[Engine, DurableAgent[Any, Any]], Awaitable[Any]]


@pytest.fixture(params=["memory", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/perdure.db"


def made(address: str, **options: Any) -> tuple[Engine, DurableAgent[Any, Any]]:
    engine = Engine(address, **options)
    return engine, engine.agent(Agent(ScriptedModel([say("done")]), name="shop"))


USES: dict[str, Use] = {
    "start": lambda _engine, shop: shop.start({}),
    "run": lambda _engine, shop: shop.run({}, timeout=5),
    "look": lambda engine, _shop: engine.runs(),
    "one": lambda engine, _shop: engine.run(ID),
    "result": lambda engine, _shop: engine.handle(ID).result(5),
    "events": lambda engine, _shop: anext(engine.events(ID)),  # type: ignore[arg-type]
    "steps": lambda engine, _shop: engine.steps(ID),
    "messages": lambda engine, _shop: engine.messages(ID),
    "approve": lambda engine, _shop: engine.approve(ID),
    "signal": lambda engine, _shop: engine.signal(ID, "paid"),
    "settle": lambda engine, _shop: engine.settle("key", "done"),
    "cancel": lambda engine, _shop: engine.cancel(ID),
    "fork": lambda engine, _shop: engine.fork(ID),
    "requests": lambda engine, _shop: engine.requests(),
    "effects": lambda engine, _shop: engine.effects(),
    "drain": lambda engine, _shop: engine.drain(),
    "tick": lambda engine, _shop: engine.tick(),
    "execute": lambda engine, _shop: engine.execute(ID),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_engine_that_is_not_open_says_so(address: str, when: str, use: str) -> None:
    """On every store alike, before anything is stored that nobody would execute."""
    engine, shop = made(address)
    if when == "after":
        async with engine:
            pass
    with pytest.raises(ConfigurationError, match="engine is not open"):
        await USES[use](engine, shop)


@pytest.mark.parametrize("use", ["start", "run", "look", "result", "events", "approve", "signal"])
def test_an_engine_that_is_open_on_another_loop_says_so(address: str, use: str) -> None:
    """There it would work by chance: what wakes its loop is not for other threads."""
    engine, shop = made(address)
    said: list[BaseException] = []

    def elsewhere() -> None:
        try:
            run_main(lambda: asyncio.wait_for(USES[use](engine, shop), 120))  # type: ignore[arg-type]
        except PerdureError as error:
            said.append(error)

    async def main() -> None:
        async with engine:
            await RealRuntime().in_thread(elsewhere)
            assert await shop.run({}, timeout=120) == "done"

    run_main(main)
    assert [type(error) for error in said] == [ConfigurationError]
    assert "another event loop" in str(said[0])


@pytest.mark.parametrize("_round", range(5))
async def test_an_engine_that_is_left_at_once_is_left(address: str, _round: int) -> None:
    """The renewal's thread is told to stop before it has begun."""
    engine, shop = made(address)
    for _ in range(20):
        async with engine:
            pass
    async with engine:
        assert await shop.run({}, timeout=120) == "done"


async def test_an_engine_is_entered_once_at_a_time(address: str) -> None:
    """The second is refused, and takes nothing from the first."""
    engine, shop = made(address)
    async with engine:
        with pytest.raises(ConfigurationError, match="entered already"):
            async with engine:
                pass
        assert await shop.run({}, timeout=120) == "done"


async def test_an_engine_that_could_not_be_entered_can_be_entered_later(tmp_path: Path) -> None:
    """Nothing of the failed attempt is left in the way."""
    (tmp_path / "perdure.db").write_text("shopping list, " * 100)
    engine, shop = made(f"sqlite:///{tmp_path}/perdure.db")
    for _ in range(2):
        with pytest.raises(PerdureError, match="not a SQLite database"):
            async with engine:
                pass
    (tmp_path / "perdure.db").unlink()
    async with engine:
        assert await shop.run({}, timeout=120) == "done"


def test_synchronous_callers_share_one_engine(address: str) -> None:
    """Eight threads, three times each: every one gets its own answer, whoever came first and whoever leaves last."""
    _engine, shop = made(address)
    said: list[Any] = []

    def work() -> None:
        for _ in range(3):
            try:
                said.append(shop.run_sync({}, timeout=60))
            except BaseException as error:
                said.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert said == ["done"] * 24


def test_a_sync_tool_may_run_another_agent(address: str) -> None:
    """It is a guest of the engine that executes it, whether that was opened by a synchronous caller or not."""
    engine, inner = made(address)
    agent = Agent(ScriptedModel([call("ask"), say("outer")]), name="outer")
    heard: list[Any] = []

    @agent.tool_plain(metadata=plain())
    def ask() -> str:
        heard.append(inner.run_sync({}, timeout=60))
        return heard[-1]

    outer = engine.agent(agent)
    assert outer.run_sync({}, timeout=60) == "outer"

    async def main() -> None:
        async with engine:
            assert await outer.run({}, timeout=60) == "outer"

    run_main(main)
    assert heard == ["done", "done"]


def test_an_async_tool_that_blocks_its_own_loop_is_told(address: str) -> None:
    """It gets the error as its result, and the run goes on."""
    engine, inner = made(address)
    agent = Agent(ScriptedModel([call("ask"), say("outer")]), name="outer")
    told: list[str] = []

    @agent.tool_plain(metadata=plain())
    async def ask() -> str:
        try:
            return inner.run_sync({}, timeout=60)
        except ConfigurationError as error:
            told.append(error.message)
            raise

    assert engine.agent(agent).run_sync({}, timeout=60) == "outer"
    assert "own event loop" in told[0]


def test_a_guest_hears_that_the_engine_was_left(address: str) -> None:
    """Whoever waits in another thread is not left waiting, nor told of a cancellation that nobody asked for."""
    engine, shop = made(address, workers=0)
    said: list[BaseException] = []

    def wait() -> None:
        try:
            shop.run_sync({}, timeout=60)
        except Exception as error:
            said.append(error)

    thread = threading.Thread(target=wait)

    async def main() -> None:
        admitted = asyncio.Event()
        async with engine:
            engine.store.on_hint(lambda _: admitted.set())
            thread.start()
            await admitted.wait()

    run_main(main)
    thread.join()
    assert [type(error) for error in said] == [ConfigurationError]


async def test_two_engines_may_share_one_store(tmp_path: Path) -> None:
    """The first to leave does not close it for the other; on another loop it is refused."""
    for store in (MemoryStore(), SqliteStore(tmp_path / "perdure.db")):
        first, second = Engine(store), Engine(store)
        one = first.agent(Agent(ScriptedModel([say("one")]), name="one"))
        two = second.agent(Agent(ScriptedModel([say("two")]), name="two"))
        async with first:
            async with second:
                assert await two.run({}, timeout=120) == "two"
            assert await one.run({}, timeout=120) == "one"
        async with second:
            assert await two.run({}, timeout=120) == "two"


async def test_an_agent_that_is_registered_while_the_engine_works_is_served(address: str) -> None:
    """The worker looks for its runs from then on."""
    engine, _shop = made(address, poll=timedelta(minutes=5))
    async with engine:
        late = engine.agent(Agent(ScriptedModel([say("late")]), name="late"))
        assert await late.run({}, timeout=120) == "late"


@pytest.mark.parametrize(
    "store",
    ["", "perdure.db", "sqlite:///", "sqlite://perdure.db", "sqlite:///:memory:", "sqlite:///a\x00b.db", "sqlite:///" + "x" * 5_000, "mysql://x"],
    ids=range(8),
)
async def test_an_address_that_leads_nowhere_is_refused(store: str) -> None:
    """When the engine is made or entered; never by an error of the driver."""
    with pytest.raises(PerdureError) as caught:
        async with Engine(store):
            pass
    assert caught.value.code in ("configuration", "store_error")


@pytest.mark.parametrize("store", [5, None, b"sqlite:///perdure.db", Path("perdure.db"), object()], ids=lambda each: type(each).__name__)
def test_what_is_no_store_is_refused(store: Any) -> None:
    """With an example of an address."""
    with pytest.raises(ConfigurationError, match="such as 'sqlite:///perdure"):
        Engine(store)
