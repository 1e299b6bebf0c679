"""A commit that only adds is one round trip, and what somebody did to the run meanwhile is never overlooked for it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import Outcome, Signal
from perdure.core.event import EventWrite
from perdure.core.run import RunStatus
from perdure.core.runtime import RealRuntime
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres import _foresight as foresight
from perdure.stores.postgres._wire import Wire
from perdure.testing.conformance._bench import LEASE, Bench, Owner
from perdure.testing.postgres import PostgresServer

NAMES = itertools.count(1)
EVENT = (EventWrite("log", {"message": "on the way"}),)


@pytest.fixture
def schema(postgres: PostgresServer) -> Iterator[str]:
    """A schema for one test."""
    name = f"foresight_{next(NAMES)}"
    yield name
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


class Later(RealRuntime):
    """The machine's clock, and what a test adds to it."""

    seconds = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


class Trips:
    """Round trips, counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        exchange = Wire.exchange

        async def counted(wire: Wire, statements: Any) -> Any:
            self._count += 1
            return await exchange(wire, statements)

        monkeypatch.setattr(Wire, "exchange", counted)

    def taken(self) -> int:
        """How many there were since the last time of asking."""
        count, self._count = self._count, 0
        return count


@asynccontextmanager
async def two_replicas(postgres: PostgresServer, schema: str, commits: int = 1) -> AsyncIterator[tuple[PostgresStore, PostgresStore, Owner]]:
    """The store of a run's owner, another one, and the owner: what the next commit may expect is known from its claim, or from the commit before it."""
    async with PostgresStore(postgres.dsn, schema=schema) as ours, PostgresStore(postgres.dsn, schema=schema) as theirs:
        owner = await Bench(ours).start()
        for _ in range(commits):
            await owner.commit(events=EVENT)
        yield ours, theirs, owner


after_each = pytest.mark.parametrize("commits", [0, 1], ids=["after its claim", "after a commit"])


async def numbers(store: PostgresStore) -> list[int]:
    return [event.seq for event in await store.events("r1")]


@after_each
async def test_a_commit_is_one_round_trip(postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, commits: int) -> None:
    """The first one of a claim, too; the renewals between them change nothing of that."""
    async with two_replicas(postgres, schema, commits) as (store, _, owner):
        trips = Trips(monkeypatch)
        for index in range(5):
            await owner.commit(checkpoint=CheckpointWrite(index=index + 1, base=0, keep=index, append=(b"{}",)), events=EVENT)
            assert trips.taken() == 1
            await store.renew([owner.lease], LEASE)
            trips.taken()
        checkpoint = await store.checkpoint("r1")
        assert checkpoint is not None and len(checkpoint.messages) == 5
        assert await numbers(store) == list(range(1, 8 + commits))


async def test_a_whole_run_takes_no_more_round_trips_than_it_needs(postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look of its own is one, and they are most of what a short run costs."""
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        bench = Bench(store)
        await bench.admit("r0")
        taken: dict[str, int] = {}
        trips = Trips(monkeypatch)
        await bench.admit("r1")
        taken["admit"] = trips.taken()
        [run] = [run for run in await store.claim(bench.request(limit=2)) if run.id == "r1"]
        taken["claim"], owner = trips.taken(), Owner(store, run)
        await store.load("r1")
        taken["load"] = trips.taken()
        await owner.commit(events=EVENT)
        taken["commit"] = trips.taken()
        await owner.complete()
        taken["settle"] = trips.taken()
        assert taken == {"admit": 3, "claim": 4, "load": 3, "commit": 1, "settle": 3}


async def test_a_claim_that_finds_nothing_looks_no_further(postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        await Bench(store).claim()
        trips = Trips(monkeypatch)
        assert await Bench(store).claim() == []
        assert trips.taken() == 3


@after_each
async def test_a_cancel_in_between_is_heard(postgres: PostgresServer, schema: str, commits: int) -> None:
    """From another replica: the very next commit says so."""
    async with two_replicas(postgres, schema, commits) as (_, theirs, owner):
        assert await Bench(theirs).cancel() == "cancelling"
        answer = await owner.commit(events=EVENT)
        assert answer.cancel_requested
        assert (await owner.commit(events=EVENT)).cancel_requested


@after_each
async def test_a_signal_in_between_keeps_its_number(postgres: PostgresServer, schema: str, commits: int) -> None:
    """Events are numbered without gaps and without twins, whoever adds them."""
    async with two_replicas(postgres, schema, commits) as (store, theirs, owner):
        for at in range(4):
            await theirs.signal(Signal(f"s{at}", "r1", "paid"))
            assert (await owner.commit(events=EVENT)).first_event == 4 + commits + 2 * at
        assert await numbers(store) == list(range(1, 3 + commits + 8))


@after_each
async def test_a_claim_that_was_lost_in_between_is_lost(postgres: PostgresServer, schema: str, commits: int) -> None:
    """Swept and taken by another worker: nothing of the old owner's is written."""
    async with two_replicas(postgres, schema, commits) as (_, theirs, owner):
        await theirs.move_clock(LEASE * 2)
        await Bench(theirs).sweep()
        assert await Bench(theirs).status() is RunStatus.PENDING
        assert (await owner.send(events=EVENT)).outcome is Outcome.LOST
        heir = await Bench(theirs).own()
        before = await numbers(theirs)
        assert (await owner.send(events=EVENT)).outcome is Outcome.LOST
        assert await numbers(theirs) == before
        await heir.commit(events=EVENT)


async def test_a_commit_that_is_sent_again_is_known(postgres: PostgresServer, schema: str) -> None:
    """The same number twice: applied once, although its owner's store remembers it as the last."""
    async with two_replicas(postgres, schema) as (store, _, owner):
        again = owner.next(events=EVENT)
        assert (await store.commit(again)).outcome is Outcome.APPLIED
        assert (await store.commit(again)).outcome is Outcome.ALREADY
        assert len(await numbers(store)) == 4


async def test_the_databases_clock_stays_the_one_that_counts(postgres: PostgresServer, schema: str) -> None:
    """It was set on, and back: what is written says the database's time."""
    async with two_replicas(postgres, schema) as (store, theirs, owner):
        for by in (timedelta(days=30), timedelta(days=-30)):
            before = (await store.events("r1"))[-1].at
            await theirs.move_clock(by)
            await owner.commit(events=EVENT)
            after = (await store.events("r1"))[-1].at
            assert abs(after - before - by) < timedelta(minutes=1)


async def test_a_clock_that_was_set_is_asked_for_once(postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit that finds the clock elsewhere learns where it is: those after it are one round trip again, however long the owner was busy between them."""
    runtime = Later()
    async with PostgresStore(postgres.dsn, runtime, schema=schema) as store:
        owner = await Bench(store).start()
        await owner.commit(events=EVENT)
        for by in (timedelta(days=30), timedelta(days=-30)):
            await store.move_clock(by)
            await owner.commit(events=EVENT)
            trips = Trips(monkeypatch)
            for _ in range(3):
                await store.move_clock(timedelta(seconds=5))
                runtime.seconds += 5.0
                trips.taken()
                await owner.commit(events=EVENT)
                assert trips.taken() == 1


async def test_times_of_a_run_do_not_go_back(postgres: PostgresServer, schema: str) -> None:
    """Whether a commit looked at the clock or knew it."""
    async with two_replicas(postgres, schema) as (store, theirs, owner):
        for at in range(10):
            if at % 3 == 0:
                await theirs.signal(Signal(f"s{at}", "r1", "paid"))
            await owner.commit(events=EVENT)
        told = [event.at for event in await store.events("r1") if event.type == "log"]
        assert told == sorted(told)


async def test_what_is_kept_is_bounded(postgres: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that others finished is not kept for ever, and one that made room goes on."""
    monkeypatch.setattr(foresight, "ROWS_MAX", 3)
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        owners = [await Bench(store).start(f"r{at}") for at in range(6)]
        for _ in range(3):
            for owner in owners:
                await owner.commit(events=EVENT)
        assert len(store._foresight._rows) == 3
        await owners[-1].complete()
        assert len(store._foresight._rows) == 2
