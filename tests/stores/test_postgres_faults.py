"""Connections break, servers restart, others are in the way: every call is told the truth all the same."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from wiretap import When, Wiretap

from perdure.core.commit import Outcome, Park, ResolveOutcome, RunFilter, Signal
from perdure.core.effect import EffectState
from perdure.core.errors import ConfigurationError, Conflict, ReadOnlyStore, SchemaTooNew, StoreError, StoreUnavailable
from perdure.core.event import Delta, Reset
from perdure.core.run import RunStatus
from perdure.core.runtime import RealRuntime
from perdure.stores import Hint
from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres import _listen as listening
from perdure.stores.postgres._connection import SCHEMA
from perdure.testing.conformance._bench import LEASE, Bench, Owner, approval, effect, new_run, wait_row
from perdure.testing.postgres import PostgresServer

NAMES = itertools.count(1)


@pytest.fixture
def schema(postgres: PostgresServer) -> Iterator[str]:
    """A schema for one test."""
    name = f"fault_{next(NAMES)}"
    yield name
    sql(postgres, f"DROP SCHEMA IF EXISTS {name} CASCADE")


def sql(server: PostgresServer, text: str) -> list[tuple[Any, ...]]:
    """One statement from outside."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


async def outside(server: PostgresServer, text: str) -> list[tuple[Any, ...]]:
    return await asyncio.to_thread(sql, server, text)


# ── replies that are lost ──────────────────────────────────────────────────────────────────────────────────
@asynccontextmanager
async def tapped(postgres: PostgresServer, schema: str) -> AsyncIterator[tuple[Wiretap, PostgresStore]]:
    """A store behind a wiretap, whose every statement has been prepared once by the time it matters."""
    async with Wiretap(postgres.folder) as tap, PostgresStore(tap.dsn, schema=schema, pool_max=1, pooler=True) as store:
        yield tap, store


COMMITTING = b"COMMIT\x00"
"""The statement as it goes over the wire, and not the end of `READ COMMITTED`."""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_whose_reply_is_lost_is_told_the_truth(postgres: PostgresServer, schema: str, when: When) -> None:
    """Not applied: it is applied now. Applied: it says so. Either way rows and numbers are those of one commit."""
    async with tapped(postgres, schema) as (tap, store):
        owner = await Bench(store).start()
        tap.cut(COMMITTING, when)
        answer = await store.commit(owner.next(effects=(effect(EffectState.STARTED),)))
        assert answer.outcome is (Outcome.APPLIED if when == "before" else Outcome.ALREADY)
        assert tap.pending == 0
        run = await Bench(store).run()
        assert (run.commit_no, len((await store.load("r1")).effects)) == (1, 1)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_every_verb_is_safe_to_repeat(postgres: PostgresServer, schema: str, when: When) -> None:
    """Admit, claim, park, resolve, signal, cancel, retry: the connection breaks at each one's COMMIT, and each happens once."""
    async with tapped(postgres, schema) as (tap, store):
        bench = Bench(store)

        async def broken(call: Awaitable[Any]) -> Any:
            tap.cut(COMMITTING, when)
            answer = await call
            assert tap.pending == 0
            return answer

        assert (await broken(store.admit(new_run()))).run.id == "r1"
        [run] = await broken(store.claim(bench.request()))
        owner = Owner(store, run)
        await broken(store.commit(owner.next(waits=(approval("w1"), wait_row("w2", kind="event", name="paid")), ending=Park())))
        assert (await broken(bench.answer("w1"))).outcome in (ResolveOutcome.RESOLVED, ResolveOutcome.ALREADY)
        await broken(store.signal(Signal("s1", "r1", "paid")))
        assert await bench.status() is RunStatus.PENDING
        await broken(bench.cancel(settlement=0))
        assert await bench.status() is RunStatus.CANCELLED
        await broken(bench.retry(settlement=1))
        assert await bench.events() == [
            "run.created", "run.claimed", "wait.opened", "wait.opened", "run.waiting", "wait.resolved", "signal.received", "wait.resolved", "run.settled",
            "run.retried",
        ]  # fmt: skip


async def test_a_call_waits_for_a_server_that_restarts(postgres: PostgresServer, schema: str) -> None:
    """Every session is ended in mid-air; a hundred commits of ten runs are there once each."""
    async with PostgresStore(postgres.dsn, schema=schema, pool_max=4) as store:
        bench = Bench(store)
        owners = [await bench.start(f"r{at}") for at in range(10)]

        async def work(owner: Owner) -> None:
            for _ in range(10):
                answer = await store.commit(owner.next())
                assert answer.outcome is not Outcome.LOST
                owner.commit_no += 1

        async def trouble() -> None:
            for mode in ("fast", "immediate"):
                await asyncio.to_thread(postgres.restart, mode)

        await asyncio.gather(trouble(), *(work(owner) for owner in owners))
        assert {(await bench.run(owner.run_id)).commit_no for owner in owners} == {10}


async def test_sessions_that_an_administrator_ends_are_replaced(postgres: PostgresServer, schema: str) -> None:
    """The next call opens another one; nobody hears of it."""
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        owner = await Bench(store).start()
        for _ in range(3):
            await outside(postgres, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure'")
            await owner.commit()


class Impatient(RealRuntime):
    """The machine, but for its sleep: pauses are noted and take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self.clock = 0.0
        self._slept = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock += seconds
        self._slept.set()
        await asyncio.sleep(0)

    def monotonic(self) -> float:
        return self.clock

    async def paused(self, times: int) -> None:
        """Until it has slept so often."""
        while len(self.pauses) < times:
            self._slept.clear()
            await self._slept.wait()


async def test_a_server_that_stays_away_is_unavailable_in_the_end(postgres: PostgresServer, schema: str) -> None:
    """With growing pauses between, and in words that name the address without its secrets."""
    async with Wiretap(postgres.folder) as tap:
        runtime = Impatient()
        async with PostgresStore(tap.dsn, runtime, schema=schema, pooler=True) as store:
            owner = await Bench(store).start()
            tap.closed_to_new = True
            tap.cut_all()
            with pytest.raises(StoreUnavailable, match="can't be reached"):
                await store.commit(owner.next())
            assert 5 < tap.connections < 100
            tap.closed_to_new = False
            assert (await store.commit(owner.next())).outcome is Outcome.APPLIED


async def test_a_cancelled_caller_leaves_the_pool_as_it_was(postgres: PostgresServer, schema: str) -> None:
    """Its write goes on, its connection comes back clean, and the next caller of a pool of one is served."""
    async with PostgresStore(postgres.dsn, schema=schema, pool_max=1) as store:
        owner = await Bench(store).start()
        for _ in range(20):
            task = asyncio.ensure_future(store.commit(owner.next()))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            answer = await store.commit(owner.next())
            assert answer.outcome in (Outcome.APPLIED, Outcome.ALREADY)
            owner.commit_no += 1
        assert (await Bench(store).run()).commit_no == 20


# ── connections ────────────────────────────────────────────────────────────────────────────────────────────
async def test_a_pool_of_two_serves_fifty_callers(postgres: PostgresServer, schema: str) -> None:
    """No more than two sessions for calls and one that listens, and none idle in a transaction afterwards."""  # case I4
    async with PostgresStore(postgres.dsn, schema=schema, pool_max=2) as store:
        await asyncio.gather(*(store.admit(new_run(f"r{at}")) for at in range(50)))
        states = await outside(postgres, "SELECT state FROM pg_stat_activity WHERE application_name = 'perdure' AND pid <> pg_backend_pid()")
        assert len(states) <= 3 and {state for (state,) in states} == {"idle"}
        assert len(await store.runs(RunFilter(limit=100))) == 50


async def test_renewals_come_from_a_thread_of_their_own(postgres: PostgresServer, schema: str) -> None:
    """On a connection of that thread's loop, while the main loop is blocked."""
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        owner = await Bench(store).start()
        before = (await Bench(store).run()).lease_expires_at

        def renew() -> bool:
            return asyncio.run(store.renew([owner.lease], LEASE * 10))[0].held

        # Blocking on purpose: nothing of this loop runs until the thread is done.
        assert await asyncio.to_thread(renew)
        after = (await Bench(store).run()).lease_expires_at
        assert before is not None and after is not None and after - before > LEASE * 8


async def test_a_statement_longer_than_any_buffer_arrives_whole(postgres: PostgresServer, schema: str) -> None:
    """Twenty megabytes in one batch, sent and read back."""
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        data = b"0123456789" * 2_000_000
        stored = await store.put_artifact(data, media_type="application/octet-stream")
        assert (await store.get_artifact(stored.id))[1] == data


# ── the schema ─────────────────────────────────────────────────────────────────────────────────────────────
MIGRATE = """
import asyncio, sys
from perdure.stores.postgres import PostgresStore
from perdure.testing.conformance._bench import new_run

async def main(dsn, schema, name):
    async with PostgresStore(dsn, schema=schema) as store:
        await store.admit(new_run(name))

asyncio.run(main(*sys.argv[1:]))
"""


def test_five_replicas_start_at_once_on_an_empty_database(postgres: PostgresServer, schema: str) -> None:
    """One makes the tables, the others wait for it, all work."""  # case I7
    commands = [[sys.executable, "-c", MIGRATE, postgres.dsn, schema, f"r{at}"] for at in range(5)]
    replicas = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    assert [replica.communicate(timeout=120)[1] for replica in replicas] == [""] * 5
    assert sql(postgres, f"SELECT count(*) FROM {schema}.run") == [(5,)]


async def test_a_newer_schema_is_refused(postgres: PostgresServer, schema: str) -> None:
    """By both versions; nothing is touched."""
    async with PostgresStore(postgres.dsn, schema=schema):
        pass
    await outside(postgres, f"UPDATE {schema}.meta SET value = {SCHEMA + 1} WHERE name = 'schema'")
    with pytest.raises(SchemaTooNew):
        async with PostgresStore(postgres.dsn, schema=schema):
            pass


async def test_without_leave_to_migrate_an_empty_database_is_refused(postgres: PostgresServer, schema: str) -> None:
    """`perdure migrate` is named."""
    with pytest.raises(StoreUnavailable, match="perdure migrate"):
        async with PostgresStore(postgres.dsn, schema=schema, migrate=False):
            pass


async def test_this_release_goes_on_while_the_next_one_adds_a_column(postgres: PostgresServer, schema: str) -> None:
    """A deploy migrates under running workers: their prepared statements are made anew."""  # case L2, # case L6
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        owner = await Bench(store).start()
        for at in range(3):
            await owner.commit()
            await store.load("r1")
            await outside(postgres, f"ALTER TABLE {schema}.run ADD COLUMN later_{at} TEXT")
        await owner.complete()
        assert await Bench(store).status() is RunStatus.COMPLETED


@pytest.mark.parametrize("name", ["Upper", "with space", 'quote"', "1st", "", "x" * 60])
def test_a_schema_name_that_needs_quoting_is_refused(name: str) -> None:
    """Before anything is connected to."""
    with pytest.raises(ConfigurationError):
        PostgresStore("postgresql:///x", schema=name)


@pytest.mark.parametrize("dsn", ["postgresql://host:not-a-port/x", "no address", "postgresql://h/x?nonsense=1"])
async def test_an_address_that_is_none_is_refused(dsn: str) -> None:
    """Without a try to connect, or with the first."""
    with pytest.raises((ConfigurationError, StoreError)):
        async with PostgresStore(dsn):
            pass


async def test_secrets_are_in_no_message(postgres: PostgresServer) -> None:
    """The password is in neither the error nor the description."""
    store = PostgresStore(f"postgresql://nobody:hunter2@/nowhere?host={postgres.folder}")
    assert "hunter2" not in str(store.info())
    with pytest.raises(StoreError) as caught:
        async with store:
            pass
    assert "hunter2" not in str(caught.value) and "nowhere" in str(caught.value)


async def test_a_user_who_may_only_read_is_told_so(postgres: PostgresServer, schema: str) -> None:
    """Lists work; the first write names the reason."""
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        await store.admit(new_run())
    await outside(postgres, f"CREATE ROLE reader_{schema} LOGIN; GRANT USAGE ON SCHEMA {schema} TO reader_{schema}")
    await outside(postgres, f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader_{schema}")
    try:
        async with PostgresStore(postgres.dsn.replace("postgres@", f"reader_{schema}@"), schema=schema) as store:
            assert await Bench(store).status() is RunStatus.PENDING
            with pytest.raises(ReadOnlyStore):
                await store.admit(new_run("r2"))
    finally:
        await outside(postgres, f"DROP OWNED BY reader_{schema}; DROP ROLE reader_{schema}")


# ── the clock ──────────────────────────────────────────────────────────────────────────────────────────────
class Skewed(RealRuntime):
    """A machine whose wall clock is wrong."""

    def __init__(self, by: timedelta) -> None:
        super().__init__()
        self._by = by

    def now(self) -> datetime:
        return super().now() + self._by


async def test_only_the_databases_clock_counts(postgres: PostgresServer, schema: str) -> None:
    """Replicas ten minutes ahead and behind: nobody takes a live lease, and times of waits are right."""  # case H5
    ten = timedelta(minutes=10)
    async with PostgresStore(postgres.dsn, Skewed(ten), schema=schema) as ahead, PostgresStore(postgres.dsn, Skewed(-ten), schema=schema) as behind:
        await Bench(behind).start("r1")
        assert (await Bench(ahead).sweep()).count == 0
        assert abs(await ahead.now() - await behind.now()) < timedelta(seconds=30)
        await behind.move_clock(LEASE * 2)
        assert (await Bench(behind).sweep()).recovered == ("r1",)


# ── at once ────────────────────────────────────────────────────────────────────────────────────────────────
async def crowd(postgres: PostgresServer, schema: str, count: int, work: Callable[[PostgresStore], Awaitable[Any]]) -> list[Any]:
    """The same work through as many stores at once, each with connections of its own."""
    stores = [PostgresStore(postgres.dsn, schema=schema, pool_max=1, pooler=True) for _ in range(count)]
    for store in stores:
        await store.__aenter__()
    try:
        return await asyncio.gather(*(work(store) for store in stores), return_exceptions=True)
    finally:
        for store in stores:
            await store.__aexit__()


async def test_racing_duplicates_of_a_trigger_start_one_run(postgres: PostgresServer, schema: str) -> None:
    """Eight replicas take the same key at once; those with another payload are refused."""
    numbers = itertools.count()
    admitted = await crowd(postgres, schema, 8, lambda store: store.admit(new_run(f"r{next(numbers)}", key="k")))
    assert len({each.run.id for each in admitted}) == 1 and [each.created for each in admitted].count(True) == 1
    refused = await crowd(postgres, schema, 4, lambda store: store.admit(new_run(f"s{next(numbers)}", key="k", payload="another")))
    assert all(isinstance(each, Conflict) for each in refused)


async def test_a_child_that_settles_while_its_parent_begins_to_wait_wakes_it(postgres: PostgresServer, schema: str) -> None:
    """Whichever comes first, the answer is not lost: no parent waits for a settled child."""
    async with PostgresStore(postgres.dsn, schema=schema) as one, PostgresStore(postgres.dsn, schema=schema) as two:
        for at in range(30):
            parent = await Bench(one).start(f"p{at}")
            child = await Bench(two).start(f"c{at}", parent_run=f"p{at}")
            waiting = parent.park(wait_row(f"w{at}", kind="event", child=f"c{at}"))
            await asyncio.gather(waiting, child.complete({"at": at}))
            assert await Bench(one).status(f"p{at}") is RunStatus.PENDING
            answered = (await Bench(one).wait(f"w{at}")).resolution
            assert answered is not None and answered.value["output"] == {"at": at}


async def test_a_call_that_waits_for_a_business_key_hears_how_it_ended(postgres: PostgresServer, schema: str) -> None:
    """The holder is done at the moment at which another run begins to wait for it."""
    async with PostgresStore(postgres.dsn, schema=schema) as one, PostgresStore(postgres.dsn, schema=schema) as two:
        for at in range(30):
            holder, other = await Bench(one).start(f"h{at}"), await Bench(two).start(f"o{at}")
            started = effect(EffectState.STARTED, f"h{at}", claim=f"agent:pay:{at}")
            await holder.commit(effects=(started,))
            done = holder.commit(effects=(effect(EffectState.DONE, f"h{at}", claim=f"agent:pay:{at}", result=at),))
            waiting = other.park(wait_row(f"w{at}", kind="effect", effect_key=started.key))
            await asyncio.gather(done, waiting)
            assert await Bench(one).status(f"o{at}") is RunStatus.PENDING


async def test_of_starts_under_one_business_key_at_once_one_is_first(postgres: PostgresServer, schema: str) -> None:
    """Eight runs on eight replicas begin the same deed: one may, the others are told who."""
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        for round_ in range(5):
            owners = [await Bench(store).start(f"r{round_}-{at}") for at in range(8)]
            free = iter(owners)

            def begin(other: PostgresStore, free: Iterator[Owner] = free, round_: int = round_) -> Awaitable[Any]:
                owner = next(free)
                return other.commit(owner.next(effects=(effect(EffectState.STARTED, owner.run_id, claim=f"agent:pay:{round_}"),)))

            answers = await crowd(postgres, schema, 8, begin)
            assert [isinstance(answer, Conflict) for answer in answers].count(False) == 1, answers


async def test_of_runs_that_share_a_key_one_runs_at_a_time_whoever_claims(postgres: PostgresServer, schema: str) -> None:
    """Eight claimers and thirty runs of three keys: at no moment do two of one key run."""
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        for at in range(30):
            await Bench(store).admit(f"r{at}", concurrency_key=f"k{at % 3}")

    running: dict[str, str] = {}
    done: list[str] = []

    async def work(store: PostgresStore) -> None:
        bench = Bench(store)
        while len(done) < 30:
            for run in await store.claim(bench.request(limit=4)):
                key = run.concurrency_key
                assert key is not None and key not in running, (run.id, running)
                running[key] = run.id
                await asyncio.sleep(0)
                del running[key]
                await Owner(store, run).complete()
                done.append(run.id)

    assert await crowd(postgres, schema, 8, work) == [None] * 8
    assert sorted(done) == sorted(f"r{at}" for at in range(30))


async def test_answers_of_many_people_at_once_have_one_winner(postgres: PostgresServer, schema: str) -> None:
    """Ten replicas, half of them say yes: one resolution, one step, one resume."""  # case B1
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        await (await Bench(store).start()).park(approval())
    words = itertools.cycle(["approve", "deny"])
    answers = await crowd(postgres, schema, 10, lambda store: Bench(store).answer(decision=next(words)))
    assert [each.outcome for each in answers].count(ResolveOutcome.RESOLVED) == 1
    assert {each.wait.resolution.decision for each in answers} <= {"approve", "deny"} and len(
        {each.wait.resolution.decision for each in answers}
    ) == 1
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        assert (await Bench(store).events()).count("wait.resolved") == 1


# ── news ───────────────────────────────────────────────────────────────────────────────────────────────────
async def heard(store: PostgresStore) -> None:
    """Until its listener hears."""
    assert store._listener is not None
    await asyncio.wait_for(store._listener.connected.wait(), 20)


async def test_other_replicas_hear_of_work_and_news(postgres: PostgresServer, schema: str) -> None:
    """A run that is admitted here may be claimed there at once."""
    async with PostgresStore(postgres.dsn, schema=schema) as here, PostgresStore(postgres.dsn, schema=schema) as there:
        await heard(there)
        hints: asyncio.Queue[Hint] = asyncio.Queue()
        there.on_hint(hints.put_nowait)
        await here.admit(new_run())
        got = {await asyncio.wait_for(hints.get(), 20), await asyncio.wait_for(hints.get(), 20)}
        assert got == {Hint("work"), Hint("run", "r1")}


async def test_streaming_text_reaches_other_replicas_whole_and_in_order(postgres: PostgresServer, schema: str) -> None:
    """Longer than a notification may be, and never told back to its sender."""
    async with PostgresStore(postgres.dsn, schema=schema) as here, PostgresStore(postgres.dsn, schema=schema) as there:
        await heard(there)
        echo: list[Any] = []
        here.on_delta(echo.append)
        got: asyncio.Queue[Delta | Reset] = asyncio.Queue()
        there.on_delta(got.put_nowait)
        text = "".join(f"{at} 🦭 " for at in range(3_000))
        await here.send_deltas([Reset("r1", 1, 1, 1), Delta("r1", 1, 1, 1, "text", text), Delta("r1", 1, 1, 1, "reasoning", "end")])
        told: list[Delta | Reset] = []
        while not (told and isinstance(told[-1], Delta) and told[-1].kind == "reasoning"):
            told.append(await asyncio.wait_for(got.get(), 20))
        assert told[0] == Reset("r1", 1, 1, 1)
        assert "".join(each.text for each in told if isinstance(each, Delta) and each.kind == "text") == text
        assert echo == []


async def test_a_listener_that_was_cut_off_hears_again(postgres: PostgresServer, schema: str) -> None:
    """It says `work` once it is back, because it may have missed some."""
    async with PostgresStore(postgres.dsn, schema=schema) as store:
        await heard(store)
        hints: asyncio.Queue[Hint] = asyncio.Queue()
        store.on_hint(hints.put_nowait)
        assert store._listener is not None
        store._listener.connected.clear()
        await outside(postgres, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure' AND query LIKE 'LISTEN%'")
        await heard(store)
        assert await asyncio.wait_for(hints.get(), 20) == Hint("work")


async def test_a_listener_does_not_spin_while_the_server_is_away(postgres: PostgresServer, schema: str) -> None:
    """Its pauses grow up to the limit."""
    async with Wiretap(postgres.folder) as tap:
        runtime = Impatient()
        async with PostgresStore(tap.dsn, runtime, schema=schema) as store:
            await heard(store)
            runtime.pauses.clear()
            tap.closed_to_new = True
            tap.cut_all()
            await asyncio.wait_for(runtime.paused(12), 20)
            assert runtime.pauses[0] < 0.5 and runtime.pauses[-1] >= listening.RECONNECT_SECONDS_MAX / 2
            assert max(runtime.pauses) <= listening.RECONNECT_SECONDS_MAX * 1.5
            tap.closed_to_new = False
            await heard(store)


def test_news_is_sent_in_chunks_that_postgres_takes() -> None:
    """Everything arrives, in order, in payloads below the limit."""
    news = [["run", f"{at}" * 10] for at in range(2_000)]
    chunks = list(listening._chunks("me", news))
    assert all(len(chunk.encode()) < 8_000 for chunk in chunks) and len(chunks) > 3
    got: list[Hint] = []
    ears = listening.Ears("you", got.append, lambda delta: None)
    for chunk in chunks:
        ears.hear(chunk)
    assert [hint.run_id for hint in got] == [run_id for _, run_id in news]
