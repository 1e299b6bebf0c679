"""The user's rows and ours in one transaction: both are there, or neither."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from perdure.core.commit import Outcome
from perdure.core.effect import EffectState
from perdure.core.errors import Conflict
from perdure.stores.postgres import PostgresStore
from perdure.testing.conformance._bench import LATER, Bench, effect, new_run
from perdure.testing.postgres import PostgresServer

NAMES = itertools.count(1)


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[str]:
    """A schema of ours, and beside it the user's table of orders."""
    name = f"joined_{next(NAMES)}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE orders_{name} (id TEXT PRIMARY KEY)".encode())
    yield name
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"DROP TABLE orders_{name}; DROP SCHEMA IF EXISTS {name} CASCADE".encode())


class Shop:
    """The store and the user's table."""

    def __init__(self, dsn: str, name: str, store: PostgresStore) -> None:
        self.dsn, self.name, self.store, self.bench = dsn, name, store, Bench(store)

    def insert(self, order: str) -> bytes:
        return f"INSERT INTO orders_{self.name} VALUES ('{order}')".encode()

    async def orders(self) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            cursor = await connection.execute(f"SELECT id FROM orders_{self.name} ORDER BY id".encode())
            return [order for (order,) in await cursor.fetchall()]


@asynccontextmanager
async def opened(postgres: PostgresServer, name: str) -> AsyncIterator[Shop]:
    async with PostgresStore(postgres.dsn, schema=name, pool_max=2) as store:
        yield Shop(postgres.dsn, name, store)


async def test_a_row_and_a_run_are_there_together(postgres: PostgresServer, shop: str) -> None:
    """Nobody sees the run before the transaction ends; then it can be claimed."""
    async with opened(postgres, shop) as here:
        async with here.store.joined() as together:
            await together.connection.execute(here.insert("o1"))
            await together.admit(new_run())
            assert await here.store.get("r1") is None and await here.orders() == []
        assert await here.orders() == ["o1"] and await here.bench.claim() == ["r1"]


async def test_an_error_in_between_leaves_neither(postgres: PostgresServer, shop: str) -> None:
    """Whichever side it comes from."""
    async with opened(postgres, shop) as here:
        with pytest.raises(RuntimeError):
            async with here.store.joined() as together:
                await together.connection.execute(here.insert("o1"))
                await together.admit(new_run())
                raise RuntimeError("the shop changed its mind")
        assert await here.orders() == [] and await here.store.get("r1") is None


async def test_a_refused_start_leaves_the_transaction_open(postgres: PostgresServer, shop: str) -> None:
    """A conflict wrote nothing, so the user may go on or not."""
    async with opened(postgres, shop) as here:
        await here.store.admit(new_run(key="k"))
        async with here.store.joined() as together:
            with pytest.raises(Conflict):
                await together.admit(new_run("r2", key="k", payload="another"))
            await together.connection.execute(here.insert("o1"))
        assert await here.orders() == ["o1"]


async def test_the_deed_and_its_record_are_one(postgres: PostgresServer, shop: str) -> None:
    """An effect whose deed is a row in the same database is never unknown: `done` and the row are one commit."""
    async with opened(postgres, shop) as here:
        owner = await here.bench.start()
        await owner.commit(effects=(effect(EffectState.STARTED),))
        async with here.store.joined() as together:
            await together.connection.execute(here.insert("o1"))
            answer = await together.commit(owner.next(effects=(effect(EffectState.DONE, result="o1"),)))
            assert answer.outcome is Outcome.APPLIED
        assert await here.bench.effect_state() is EffectState.DONE and await here.orders() == ["o1"]


async def test_an_owner_who_lost_the_run_writes_nothing_of_either(postgres: PostgresServer, shop: str) -> None:
    """The answer is `lost`; leaving with an error takes the user's row back too."""
    async with opened(postgres, shop) as here:
        owner = await here.bench.start()
        await here.store.move_clock(LATER)
        await here.bench.sweep()
        with pytest.raises(LookupError):
            async with here.store.joined() as together:
                await together.connection.execute(here.insert("o1"))
                answer = await together.commit(owner.next())
                assert answer.outcome is Outcome.LOST
                raise LookupError("lost")
        assert await here.orders() == []


async def test_a_run_starts_in_a_transaction_that_the_user_opened_himself(postgres: PostgresServer, shop: str) -> None:
    """On his own connection, whatever its settings."""
    async with opened(postgres, shop) as here, await psycopg.AsyncConnection.connect(postgres.dsn) as own:
        await own.execute(here.insert("o1"))
        await here.store.joining(own).admit(new_run())
        await own.rollback()
        assert await here.orders() == [] and await here.store.get("r1") is None
        await own.execute(here.insert("o2"))
        await here.store.joining(own).admit(new_run())
        await own.commit()
        assert await here.orders() == ["o2"] and await here.bench.claim() == ["r1"]


async def test_other_replicas_hear_of_a_joined_start(postgres: PostgresServer, shop: str) -> None:
    """After the transaction has ended, not before."""
    async with opened(postgres, shop) as here:
        hints: list[str] = []
        here.store.on_hint(lambda hint: hints.append(hint.kind))
        async with here.store.joined() as together:
            await together.admit(new_run())
            assert "run" not in hints
        assert {"work", "run"} <= set(hints)
