"""What may be wrong with the file, and what is said about it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from perdure.core.commit import Outcome, RunFilter
from perdure.core.errors import ConfigurationError, NotADatabase, ReadOnlyStore, SchemaTooNew, StoreError, StoreFull, StoreUnavailable
from perdure.stores.sqlite import SqliteStore
from perdure.stores.sqlite._connection import MIGRATIONS, SCHEMA
from perdure.stores.sqlite._store import file_of
from perdure.testing.conformance._bench import LATER, Bench, new_run

NOBODY = 65534


async def error_of(path: Path, **settings: bool) -> Exception:
    """What opening says."""
    with pytest.raises((StoreError, ConfigurationError)) as caught:
        async with SqliteStore(path, **settings):
            pass
    return caught.value


# ── opening ────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("content", [b"no database, " * 100, b"SQLite format 3\x00" + b"\xff" * 2000, b"x"])
async def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    """The message names the file and says what to do; nothing of it is changed."""
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    error = await error_of(path)
    assert isinstance(error, NotADatabase) and str(path) in str(error)
    assert path.read_bytes() == content


async def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """Perdure makes no tables among other tables."""
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as shop:
        shop.execute("CREATE TABLE orders (id INTEGER)")
    shop.close()
    assert isinstance(await error_of(path), NotADatabase)
    with sqlite3.connect(path) as shop:
        assert shop.execute("SELECT name FROM sqlite_schema").fetchall() == [("orders",)]
        assert shop.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
    shop.close()


async def test_a_newer_schema_is_refused_and_not_touched(tmp_path: Path) -> None:
    """The message says both versions."""
    path = tmp_path / "a.db"
    async with SqliteStore(path):
        pass
    with sqlite3.connect(path) as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    raw.close()
    error = await error_of(path)
    assert isinstance(error, SchemaTooNew)
    assert (error.details["found"], error.details["known"]) == (SCHEMA + 1, SCHEMA)


async def test_without_leave_to_migrate_an_empty_file_is_refused(tmp_path: Path) -> None:
    """`perdure migrate` is named."""
    error = await error_of(tmp_path / "a.db", migrate=False)
    assert isinstance(error, StoreUnavailable) and "perdure migrate" in str(error)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """No folder is made up for a mistyped path."""
    error = await error_of(tmp_path / "nowhere" / "a.db")
    assert isinstance(error, ConfigurationError) and str(tmp_path / "nowhere") in str(error)
    assert not (tmp_path / "nowhere").exists()


async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """The message suggests a file in it."""
    assert isinstance(await error_of(tmp_path), ConfigurationError)


@pytest.mark.parametrize(
    ("url", "path"),
    [("sqlite:///a.db", "a.db"), ("sqlite:////var/a.db", "/var/a.db"), ("sqlite:///with%20space.db", "with space.db"), ("plain.db", "plain.db")],
)
def test_urls_name_files(url: str, path: str) -> None:
    """Three slashes are relative, four absolute."""
    assert file_of(url) == Path(path)


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://", "sqlite:///", "sqlite://host/a.db"])
def test_a_url_without_a_file_is_refused(url: str) -> None:
    """A mistyped URL does not become a file of that name."""
    with pytest.raises(ConfigurationError):
        file_of(url)


def test_a_mistyped_durability_is_refused() -> None:
    """The message lists what there is."""
    with pytest.raises(ConfigurationError, match="FULL"):
        SqliteStore("a.db", synchronous="full")  # type: ignore[arg-type]


async def test_another_process_that_leaves_takes_nothing_from_us(tmp_path: Path) -> None:
    """Whoever closes the file last deletes its log, so everybody who has it open must be seen by the others."""
    path = tmp_path / "a.db"
    async with SqliteStore(path) as store:
        await store.admit(new_run())
        assert len(await store.runs(RunFilter())) == 1
        visit = "import sqlite3, sys; raw = sqlite3.connect(sys.argv[1]); raw.execute('SELECT count(*) FROM run').fetchall(); raw.close()"
        subprocess.run([sys.executable, "-c", visit, str(path)], check=True)  # noqa: ASYNC221 - nothing else is to happen meanwhile
        assert path.with_name("a.db-wal").exists()
        await store.admit(new_run("r2"))
    async with SqliteStore(path) as store:
        assert len(await store.runs(RunFilter())) == 2


# ── rights ─────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user whom the file's rights bind: root is bound by none."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, and only we may write in."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def chmod(path: Path, mode: int) -> None:
    path.chmod(mode)


async def test_a_file_without_write_permission_is_refused(open_folder: Path) -> None:
    """Neither half a write nor a stack trace of the driver."""
    path = open_folder / "a.db"
    async with SqliteStore(path):
        pass
    chmod(path, 0o444), chmod(open_folder, 0o555)
    try:
        with unprivileged():
            assert isinstance(await error_of(path), ReadOnlyStore)
    finally:
        chmod(open_folder, 0o755)


async def test_a_file_that_may_only_be_read_can_be_read(open_folder: Path) -> None:
    """Lists work; the first write says why it does not."""
    path = open_folder / "a.db"
    async with SqliteStore(path) as store:
        await store.admit(new_run())
    chmod(path, 0o444), chmod(open_folder, 0o777)
    with unprivileged():
        async with SqliteStore(path) as store:
            assert await Bench(store).status() == "pending"
            with pytest.raises(ReadOnlyStore):
                await store.admit(new_run("r2"))


# ── room ───────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.nightly  # needs the right to mount a disk; the test with a bounded file says the same anywhere
async def test_a_full_disk_loses_nothing_and_work_goes_on_once_there_is_room(small_disk: Path) -> None:
    """Every acknowledged write is there, the refused one is not, and after some room was made the same commit is applied."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    async with SqliteStore(small_disk / "a.db") as store:
        owner = await Bench(store).start()
        kept: list[str] = []
        with pytest.raises(StoreFull) as caught:
            for at in range(200):
                kept.append((await store.put_artifact(bytes([at]) * 20_000, media_type="text/plain")).id)
        assert str(small_disk) in str(caught.value)
        with pytest.raises(StoreFull):
            for at in range(200):
                await store.put_artifact(bytes([at]) * 20_001, media_type="text/plain")
        for artifact_id in kept:
            await store.get_artifact(artifact_id)
        ballast.unlink()
        assert (await store.commit(owner.next())).outcome is Outcome.APPLIED
    assert len(kept) > 5


async def test_a_bounded_file_refuses_whole_writes(tmp_path: Path) -> None:
    """What does not fit is refused as a whole, with neighbours and later writes unharmed."""
    async with SqliteStore(tmp_path / "a.db") as store:
        bench = Bench(store)
        owner = await bench.start()
        assert store._writer is not None
        await store._writer.call(lambda connection: connection.execute(f"PRAGMA max_page_count = {_pages(tmp_path / 'a.db') + 8}"))
        big, small = (store.admit(new_run(name, payload="x" * size)) for name, size in (("big", 200_000), ("small", 10)))
        answers = await asyncio.gather(big, small, return_exceptions=True)
        assert isinstance(answers[0], StoreFull) and not isinstance(answers[1], BaseException)
        assert {run.id for run in await store.runs(RunFilter())} == {"r1", "small"}
        assert await bench.events("small") == ["run.created"]
        assert (await store.commit(owner.next())).outcome is Outcome.APPLIED


def _pages(path: Path) -> int:
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        (count,) = raw.execute("PRAGMA page_count").fetchone()
    raw.close()
    return count


# ── one machine a file ─────────────────────────────────────────────────────────────────────────────────────
async def test_a_live_lease_of_another_machine_refuses_the_claim(tmp_path: Path) -> None:
    """File locks don't hold between machines, so the second one is stopped, by name and with the time."""
    async with SqliteStore(tmp_path / "a.db") as store:
        bench = Bench(store)
        await bench.start("r1")
        await bench.admit("r2")
        with pytest.raises(ConfigurationError, match="host-1"):
            await store.claim(bench.request(host="host-2"))
        await store.move_clock(LATER)
        assert await bench.claim(host="host-2") == ["r2"], "a dead machine stops nobody"


# ── many processes ─────────────────────────────────────────────────────────────────────────────────────────
WORKER = """
import asyncio, sys
from perdure.core.commit import Settle
from perdure.core.run import RunStatus
from perdure.stores.sqlite import SqliteStore
from perdure.testing.conformance._bench import Bench, Owner, new_run

async def main(path, name, count):
    async with SqliteStore(path) as store:
        bench = Bench(store)
        for at in range(count):
            await store.admit(new_run(f"{name}-{at}"))
        done = 0
        while True:
            runs = await store.claim(bench.request(worker=name, token=f"{name}-{done}", limit=4))
            for run in runs:
                owner = Owner(store, run)
                await owner.commit()
                await owner.complete(output=name)
            done += len(runs)
            counts = await store.counts()
            if not runs and not counts["pending"]:
                return done

print(asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
"""


def test_eight_processes_share_one_file_from_its_first_moment(tmp_path: Path) -> None:
    """All start at once on no file at all: every run is claimed once, and nobody hears of a lock."""  # case I1
    path = tmp_path / "a.db"
    commands = [[sys.executable, "-c", WORKER, str(path), f"p{at}", "50"] for at in range(8)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands]
    said = [worker.communicate(timeout=300) for worker in workers]
    assert [error for _, error in said if error] == []
    assert sum(int(out) for out, _ in said) == 400
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT status, executions, count(*) FROM run GROUP BY 1, 2").fetchall() == [("completed", 1, 400)]
    raw.close()


KILLED = """
import asyncio, os, signal, sys
from perdure.stores.sqlite import SqliteStore
from perdure.testing.conformance._bench import new_run

async def main(path):
    async with SqliteStore(path) as store:
        acknowledged = 0
        async def admit(at):
            nonlocal acknowledged
            await store.admit(new_run(f"r{at}"))
            print(at, flush=True)
            acknowledged += 1
            if acknowledged == 150:
                os.kill(os.getpid(), signal.SIGKILL)
        async with asyncio.TaskGroup() as group:
            for at in range(400):
                group.create_task(admit(at))

asyncio.run(main(sys.argv[1]))
"""


def test_a_killed_process_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """SIGKILL between and within groups: what was answered is there, whole, and the next process goes on."""
    path = tmp_path / "a.db"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, text=True, check=False)
    acknowledged = [f"r{at}" for at in killed.stdout.split()]
    assert len(acknowledged) == 150 and killed.returncode == -9
    asyncio.run(_all_there(path, set(acknowledged)))


async def _all_there(path: Path, acknowledged: set[str]) -> None:
    async with SqliteStore(path) as store:
        bench = Bench(store)
        there = {run.id for run in await store.runs(RunFilter(limit=1_000))}
        assert acknowledged <= there
        for run_id in there:
            assert await bench.events(run_id) == ["run.created"]
        assert await bench.claim(limit=1)


async def test_a_lock_that_is_held_for_too_long_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program sits on the file: the caller is told so in our words, and the write works once it is gone."""
    monkeypatch.setattr("perdure.stores.sqlite._connection.BUSY_SECONDS_MAX", 0.1)
    path = tmp_path / "a.db"
    async with SqliteStore(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.admit(new_run())
        other.execute("ROLLBACK")
        other.close()
        assert (await store.admit(new_run())).created


# ── migrations ─────────────────────────────────────────────────────────────────────────────────────────────
def test_migrations_are_numbered_without_gaps() -> None:
    """The newest number is the schema that this version works with."""
    assert [step.number for step in MIGRATIONS] == list(range(1, SCHEMA + 1))


async def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it or nothing: the next start begins anew."""
    broken = [*MIGRATIONS[:-1], replace(MIGRATIONS[-1], text=MIGRATIONS[-1].text + "\nCREATE TABLE run (again INTEGER);")]
    path = tmp_path / "a.db"
    with monkeypatch.context() as patch:
        patch.setattr("perdure.stores.sqlite._connection.MIGRATIONS", broken)
        assert isinstance(await error_of(path), StoreError)
    async with SqliteStore(path) as store:
        assert await store.migrate() == SCHEMA
        assert (await store.admit(new_run())).created


async def test_every_process_sees_the_clock_that_a_test_has_moved(tmp_path: Path) -> None:
    """Thirty days later is later for all."""
    path = tmp_path / "a.db"
    async with SqliteStore(path) as one, SqliteStore(path) as two:
        before = await two.now()
        await one.move_clock(timedelta(days=30))
        assert timedelta(days=30) <= await two.now() - before < timedelta(days=31)
