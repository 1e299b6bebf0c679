"""A codec stands between every stored value and its bytes; what the engine asks for stays clear."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg

from perdure.core.checkpoint import CheckpointWrite
from perdure.core.commit import Park, Settle, Signal
from perdure.core.effect import EffectState
from perdure.core.event import EventWrite
from perdure.core.run import RunError, RunStatus
from perdure.core.step import StepWrite
from perdure.stores import Store
from perdure.stores.postgres import PostgresStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.conformance._bench import Bench, approval, effect, new_run, wait_row
from perdure.testing.postgres import PostgresServer

SECRET = "a-secret-that-nobody-may-read"


class Scrambled:
    """Not encryption, but enough to see whether something went past it."""

    def encode(self, data: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in data)

    def decode(self, data: bytes) -> bytes:
        return self.encode(data)


async def a_life(store: Store) -> None:
    """A run that says the secret wherever something is stored."""
    bench = Bench(store)
    owner = await bench.start("r1", payload={"of": SECRET})
    step = StepWrite("llm", 1, "model", input={"i": SECRET}, output={"o": SECRET}, text=SECRET, error={"message": SECRET})
    await owner.commit(
        checkpoint=CheckpointWrite(0, 0, 0, (SECRET.encode(),)), steps=(step,), events=(EventWrite("log", {"message": SECRET}),),
        effects=(effect(EffectState.STARTED, input={"i": SECRET}),),
    )  # fmt: skip
    await owner.commit(effects=(effect(EffectState.DONE, input={"i": SECRET}, result=SECRET, error={"message": SECRET}),))
    await owner.commit(waits=(approval(input={"i": SECRET}, data={"d": SECRET}), wait_row("w2", kind="event", name="paid")), ending=Park())
    await bench.answer(value={"v": SECRET}, reason=SECRET)
    await store.signal(Signal("s1", "r1", "paid", {"p": SECRET}))
    await (await bench.own()).commit(ending=Settle(RunStatus.FAILED, output={"o": SECRET}, error=RunError("internal", SECRET)))
    await store.put_artifact(SECRET.encode(), media_type="text/plain")
    await all_read_back(store)


async def all_read_back(store: Store) -> None:
    """Every value comes back as it was said."""
    run = await store.get("r1")
    assert run is not None and run.trigger.payload == {"of": SECRET} and run.output == {"o": SECRET}
    assert run.error is not None and run.error.message == SECRET
    loaded = await store.load("r1")
    assert loaded.checkpoint is not None and loaded.checkpoint.messages == (SECRET.encode(),)
    assert loaded.effects[0].row.result == SECRET and loaded.waits[0].row.data == {"d": SECRET}
    first = (await store.steps("r1"))[0].row
    assert (first.input, first.output, first.text, first.error) == ({"i": SECRET}, {"o": SECRET}, SECRET, {"message": SECRET})


def whole(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


async def test_nothing_goes_past_the_codec_into_a_sqlite_file(tmp_path: Path) -> None:
    """The secret is in neither the file nor its log, and the status still is."""  # case M3
    path = tmp_path / "a.db"
    async with SqliteStore(path, codec=Scrambled()) as store:
        await a_life(store)
        stored = whole(tmp_path)
    assert SECRET.encode() not in stored and b"internal" not in stored
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT status, agent FROM run").fetchall() == [("failed", "agent")]
    raw.close()


async def test_nothing_goes_past_the_codec_into_postgres(postgres: PostgresServer) -> None:
    """No column of any table holds the secret."""  # case M3
    try:
        async with PostgresStore(postgres.dsn, schema="codec", codec=Scrambled()) as store:
            await a_life(store)
        assert SECRET.encode() not in dumped(postgres, "codec")
    finally:
        with psycopg.connect(postgres.dsn) as connection:
            connection.execute("DROP SCHEMA codec CASCADE")


def dumped(postgres: PostgresServer, schema: str) -> bytes:
    """Every row of every table, in its binary form."""
    stored = b""
    with psycopg.connect(postgres.dsn) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        for (table,) in tables:
            with connection.cursor().copy(f"COPY {schema}.{table} TO STDOUT (FORMAT binary)".encode()) as copy:
                stored += b"".join(bytes(chunk) for chunk in copy)
    assert b"failed" in stored, "the search finds nothing: it is broken"
    return stored


async def test_without_a_codec_people_can_read_what_is_stored(tmp_path: Path) -> None:
    """The default is plain JSON: the shell of the database shows it."""
    async with SqliteStore(tmp_path / "a.db") as store:
        await store.admit(new_run(payload={"of": SECRET}))
    with sqlite3.connect(tmp_path / "a.db") as raw:
        ((text,),) = raw.execute("SELECT CAST(trigger AS TEXT) FROM run_body").fetchall()
    raw.close()
    assert f'"payload":{{"of":"{SECRET}"}}' in text
