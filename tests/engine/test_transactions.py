"""Rows of the user's and ours in one transaction, through the engine: an effect's record, and the start of a run (E7, G4)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic_ai import Agent

from perdure import Engine, RunHandle, RunStatus, Wait, current_run, effect, plain
from perdure.core.effect import EffectState
from perdure.core.errors import ConfigurationError, Conflict
from perdure.stores.memory import MemoryStore
from perdure.stores.postgres import PostgresStore
from perdure.testing.models import ScriptedModel, call, say
from perdure.testing.postgres import PostgresServer

NAMES = itertools.count(1)
LONG = 30.0
"""Seconds that nothing here should ever take."""

Body = Callable[["Shop"], Awaitable[Any]]


class Shop:
    """The user's table beside our schema, and an agent that orders."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server, self.name = server, name
        self.bodies = 0

    def insert(self, order: str = "o1") -> bytes:
        return f"INSERT INTO orders_{self.name} VALUES ('{order}')".encode()

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    async def orders(self) -> list[str]:
        return [order for (order,) in await asyncio.to_thread(self.sql, f"SELECT id FROM orders_{self.name} ORDER BY id")]

    async def end_transactions(self) -> None:
        """End every session that has a transaction open, as an administrator would."""
        await asyncio.to_thread(
            self.sql, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure' AND state = 'idle in transaction'"
        )

    def agent(self, body: Body, metadata: dict[str, Any], **options: Any) -> Agent[None, str]:
        agent = Agent(ScriptedModel([call("order"), say("done")]), name="shop")

        @agent.tool_plain(metadata=metadata, **options)
        async def order() -> Any:
            self.bodies += 1
            return await body(self)

        return agent

    @asynccontextmanager
    async def engine(self, body: Body, metadata: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Engine]:
        engine = Engine(PostgresStore(self.server.dsn, schema=self.name, pool_max=2), **options)
        engine.agent(self.agent(body, effect("transaction") if metadata is None else metadata))
        async with engine:
            yield engine


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[Shop]:
    """An empty shop."""
    shop = Shop(postgres, f"together_{next(NAMES)}")
    shop.sql(f"CREATE TABLE orders_{shop.name} (id TEXT PRIMARY KEY)")
    yield shop
    shop.sql(f"DROP TABLE orders_{shop.name}; DROP SCHEMA IF EXISTS {shop.name} CASCADE")


async def buy(shop: Shop) -> str:
    """The tool as a user writes it."""
    async with current_run().transaction() as connection:
        await connection.execute(shop.insert())
    return "ordered o1"


async def record(engine: Engine, run: RunHandle[Any]) -> tuple[EffectState, Any]:
    """What the ledger says of the run's one effect."""
    [row] = await engine.effects(run_id=run.id, state=None)
    return row.state, row.row.result


async def told(run: RunHandle[Any]) -> str:
    """What the model was told of its call."""
    [step] = [step for step in await run.steps() if step.kind == "tool"]
    return "" if step.row.error is None else step.row.error["message"]


# ── an effect's record ─────────────────────────────────────────────────────────────────────────────────────
async def test_the_row_and_the_record_become_visible_together(shop: Shop) -> None:
    """While the body runs there is neither; afterwards both, with the tool's result."""
    seen: list[Any] = []

    async def body(shop: Shop) -> str:
        answer = await buy(shop)
        rows = await engine.effects(run_id=current_run().id, state=None)
        seen.append((await shop.orders(), rows))
        return answer

    async with shop.engine(body) as engine:
        run = await engine.start("shop", {})
        assert await run.result(LONG) == "done"
        assert seen == [([], [])]
        assert await shop.orders() == ["o1"] and await record(engine, run) == (EffectState.DONE, "ordered o1")


async def test_an_error_leaves_neither_and_the_model_is_told(shop: Shop) -> None:
    """In the block, after it, or by the database: it did not happen, so nobody is asked."""

    async def after(shop: Shop) -> str:
        await buy(shop)
        raise RuntimeError("changed its mind")

    async with shop.engine(after) as engine:
        run = await engine.start("shop", {})
        assert await run.result(LONG) == "done"
        assert await shop.orders() == [] and (await record(engine, run))[0] is EffectState.FAILED
        assert "changed its mind" in await told(run)


async def test_the_tools_own_table_may_refuse(shop: Shop) -> None:
    """A row that is there already fails the call at its statement, once."""
    shop.sql(f"INSERT INTO orders_{shop.name} VALUES ('o1')")
    async with shop.engine(buy) as engine:
        run = await engine.start("shop", {})
        assert await run.result(LONG) == "done"
        assert shop.bodies == 1 and (await record(engine, run))[0] is EffectState.FAILED and "UniqueViolation" in await told(run)


async def test_a_tool_may_catch_what_its_block_raised(shop: Shop) -> None:
    """Then it wrote no rows, and is done without any."""

    async def body(shop: Shop) -> str:
        try:
            async with current_run().transaction() as connection:
                await connection.execute(shop.insert())
                raise LookupError("sold out")
        except LookupError:
            return "sold out"

    async with shop.engine(body) as engine:
        run = await engine.start("shop", {})
        assert await run.result(LONG) == "done"
        assert await shop.orders() == [] and await record(engine, run) == (EffectState.DONE, "sold out")


async def test_a_body_that_takes_too_long_has_written_nothing(shop: Shop) -> None:
    """Whether it is still in its block or has left it: its rows are gone, and its outcome is known."""

    async def body(shop: Shop) -> str:
        await buy(shop)
        await asyncio.Event().wait()
        return "never"

    async with shop.engine(body, effect("transaction", timeout=timedelta(seconds=0.2))) as engine:
        run = await engine.start("shop", {})
        assert await run.result(LONG) == "done"
        assert await shop.orders() == [] and (await record(engine, run))[0] is EffectState.FAILED


@pytest.mark.parametrize("moment", ["in the block", "after the block"])
async def test_a_session_that_ends_before_the_commit_is_tried_again(shop: Shop, moment: str) -> None:
    """The database took the rows back, so the body may run again, under the same key."""
    keys: list[str | None] = []

    async def body(shop: Shop) -> str:
        keys.append(current_run().key)
        async with current_run().transaction() as connection:
            await connection.execute(shop.insert())
            if len(keys) == 1 and moment == "in the block":
                await shop.end_transactions()
                await connection.execute(b"SELECT 1")
        if len(keys) == 1:
            await shop.end_transactions()
        return "ordered o1"

    async with shop.engine(body) as engine:
        run = await engine.start("shop", {})
        assert await run.result(LONG) == "done"
        assert await shop.orders() == ["o1"] and await record(engine, run) == (EffectState.DONE, "ordered o1")
        assert len(keys) == 2 and len(set(keys)) == 1


async def test_an_owner_that_was_replaced_keeps_no_rows(shop: Shop) -> None:
    """Its lease was over and somebody else took the run: the rows of the first body go, those of the second stay. # case H1"""
    first = asyncio.Event()
    both = asyncio.Event()

    async def body(shop: Shop) -> str:
        mine = shop.bodies
        async with current_run().transaction() as connection:
            if mine == 1:
                await connection.execute(shop.insert("from the first"))
                first.set()
                await both.wait()
            else:
                await connection.execute(shop.insert("from the second"))
        return f"ordered by {mine}"

    async with shop.engine(body, lease=timedelta(seconds=60), tick=None) as engine:
        run = await engine.start("shop", {})
        await first.wait()
        shop.sql(f"UPDATE {shop.name}.meta SET value = value + 120000000 WHERE name = 'clock_offset'")
        # Another process: it finds the lease over and takes the run.
        async with shop.engine(body, lease=timedelta(seconds=60), tick=None) as other:
            while (await other.tick()).count == 0:
                pass
            assert await other.handle(run.id).result(LONG) == "done"
            both.set()
            await engine.drain(timedelta(seconds=LONG))
        assert await shop.orders() == ["from the second"]


async def test_a_second_transaction_in_one_call_is_refused(shop: Shop) -> None:
    """There is one commit a call; what was written before the error is gone."""

    async def body(shop: Shop) -> str:
        await buy(shop)
        return await buy(shop)

    async with shop.engine(body) as engine:
        run = await engine.start("shop", {})
        assert await run.result(LONG) == "done"
        assert await shop.orders() == [] and "One transaction a call" in await told(run)


async def test_ten_calls_at_once_do_not_wait_for_each_others_connections(shop: Shop) -> None:
    """With two connections for calls and two for transactions, tools that write to the store inside their block all finish."""

    async def body(shop: Shop) -> str:
        async with current_run().transaction() as connection:
            await current_run().artifacts.put(b"receipt")
            await connection.execute(shop.insert(current_run().id))
        return "ordered"

    async with shop.engine(body, workers=10) as engine:
        runs = [await engine.start("shop", {}) for _ in range(10)]
        for run in runs:
            assert await run.result(LONG) == "done"
        assert len(await shop.orders()) == 10


async def test_a_tool_that_asks_may_join_too(shop: Shop) -> None:
    """With another declaration the record is in the rows' commit just so; what else it does outside stays a question after an error."""

    async def fails(shop: Shop) -> str:
        await buy(shop)
        raise RuntimeError("the bank hung up")

    async with shop.engine(buy, effect()) as engine:
        run = await engine.start("shop", {})
        assert await run.result(LONG) == "done"
        assert await shop.orders() == ["o1"] and (await record(engine, run))[0] is EffectState.DONE
    shop.sql(f"DELETE FROM orders_{shop.name}")
    async with shop.engine(fails, effect()) as engine:
        run = await engine.start("shop", {})
        while await run.status() is not RunStatus.WAITING:  # noqa: ASYNC110 - as a user would look
            await asyncio.sleep(0)
        assert await shop.orders() == [] and (await record(engine, run))[0] is EffectState.UNKNOWN


async def test_a_tool_that_waits_writes_nothing_before(shop: Shop) -> None:
    """It ends with a wait, so it is planned again; the rows of this time are taken back."""

    async def body(shop: Shop) -> str:
        await buy(shop)
        raise Wait.event("paid")

    async with shop.engine(body) as engine:
        run = await engine.start("shop", {})
        while await run.status() is not RunStatus.WAITING:  # noqa: ASYNC110 - as a user would look
            await asyncio.sleep(0)
        assert await shop.orders() == []
        await run.signal("paid", "yes")
        assert await run.result(LONG) == "done"


@pytest.mark.parametrize("where", ["plain tool", "memory", "outside"])
async def test_elsewhere_it_says_what_is_needed(shop: Shop, where: str) -> None:
    """In a plain tool, on another store, outside a run: named, and nothing is written."""
    if where == "outside":
        with pytest.raises(ConfigurationError, match="only inside a run"):
            current_run().transaction()
        return
    if where == "plain tool":
        async with shop.engine(buy, plain()) as engine:
            run = await engine.start("shop", {})
            assert await run.result(LONG) == "done"
            assert "effect('transaction')" in await told(run)
        return
    async with Engine(MemoryStore()) as engine:
        engine.agent(shop.agent(buy, effect("transaction")))
        run = await engine.start("shop", {})
        assert await run.result(LONG) == "done"
        assert "Postgres" in await told(run) and (await record(engine, run))[0] is EffectState.FAILED


def test_two_declarations_of_one_tool_are_as_strict_as_the_stricter() -> None:
    """A rule by pattern that asks takes the promise of the transaction away: its errors are no proof."""
    from perdure.effects import EFFECT

    ours, theirs = effect("transaction")[EFFECT], effect()[EFFECT]
    assert ours.joined(ours).transaction and not ours.joined(theirs).transaction and ours.joined(theirs).unknown == "ask"


# ── the start of a run ─────────────────────────────────────────────────────────────────────────────────────
async def idle(shop: Shop) -> str:
    return "nothing to do"


async def test_a_run_starts_with_the_users_transaction_or_not_at_all(shop: Shop) -> None:
    """Rolled back: neither is there. Committed: both, and the run executes."""
    async with shop.engine(idle) as engine, await psycopg.AsyncConnection.connect(shop.server.dsn) as own:
        await own.execute(shop.insert())
        lost = await engine.start("shop", {}, connection=own)
        await own.rollback()
        assert await shop.orders() == [] and await engine.store.get(lost.id) is None
        kept = await engine.durable("shop").start({}, connection=own, key="o1")
        await own.execute(shop.insert())
        assert await engine.store.get(kept.id) is None
        await own.commit()
        assert await shop.orders() == ["o1"] and await kept.result(LONG) == "done"


async def test_a_block_of_the_drivers_own_is_joined(shop: Shop) -> None:
    """`async with connection.transaction()` on a connection that commits by itself otherwise; an error takes both back."""
    async with shop.engine(idle) as engine, await psycopg.AsyncConnection.connect(shop.server.dsn, autocommit=True) as own:
        async with own.transaction():
            run = await engine.start("shop", {}, connection=own)
            await own.execute(shop.insert())
        assert await run.result(LONG) == "done" and await shop.orders() == ["o1"]
        with pytest.raises(psycopg.errors.UniqueViolation):
            async with own.transaction():
                await engine.start("shop", {}, connection=own)
                await own.execute(shop.insert())
        assert [each.id for each in await engine.runs()] == [run.id]


async def test_a_tool_may_start_a_run_with_its_own_transaction(shop: Shop) -> None:
    """The row, the record and the next run are one commit."""
    started: list[RunHandle[Any]] = []

    async def body(shop: Shop) -> str:
        if current_run().input == "child":
            return "nothing to do"
        async with current_run().transaction() as connection:
            await connection.execute(shop.insert())
            started.append(await engine.start("shop", "child", connection=connection))
            assert await engine.store.get(started[0].id) is None
        return "ordered"

    async with shop.engine(body) as engine:
        assert await (await engine.start("shop", {})).result(LONG) == "done"
        assert await started[0].result(LONG) == "done" and await shop.orders() == ["o1"]


async def test_a_key_that_was_seen_answers_its_run_inside_a_transaction_too(shop: Shop) -> None:
    """And another payload is refused without harm to the user's rows."""
    async with shop.engine(idle) as engine, await psycopg.AsyncConnection.connect(shop.server.dsn) as own:
        first = await engine.start("shop", {"n": 1}, key="k")
        again = await engine.start("shop", {"n": 1}, key="k", connection=own)
        assert (again.id, again.created) == (first.id, False)
        with pytest.raises(Conflict):
            await engine.start("shop", {"n": 2}, key="k", connection=own)
        await own.execute(shop.insert())
        await own.commit()
        assert await shop.orders() == ["o1"]


async def test_a_start_that_can_join_nothing_says_why(shop: Shop, tmp_path: Path) -> None:
    """Another store, another driver's connection, no transaction: refused before anything is stored."""
    async with shop.engine(idle) as engine:
        with pytest.raises(ConfigurationError, match="psycopg"):
            await engine.start("shop", {}, connection=object())
        async with await psycopg.AsyncConnection.connect(shop.server.dsn, autocommit=True) as own:
            with pytest.raises(ConfigurationError, match="no transaction open"):
                await engine.start("shop", {}, connection=own)
        assert sum((await engine.store.counts()).values()) == 0
    for store in ("memory://", f"sqlite:///{tmp_path}/runs.db"):
        async with Engine(store) as other:
            other.agent(shop.agent(idle, effect()))
            with pytest.raises(ConfigurationError, match="Postgres"):
                await other.start("shop", {}, connection=object())
