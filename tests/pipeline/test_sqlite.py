"""What the SQLite storage adds to the promises of every storage: durability where it counts, one file for many, errors that say what to do."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from pipeline_worlds import START

from perdure.core.errors import ConfigurationError, NotADatabase, ReadOnlyStore, SchemaTooNew, StoreError, StoreFull
from perdure.pipeline import Checkpoint, LogEntry, Outcome, SqliteStorage


async def test_outcomes_are_synced_and_claims_are_not(tmp_path: Path) -> None:
    """However they alternate: what is promised durable runs on a connection that syncs."""
    async with SqliteStorage(tmp_path / "jobs.db") as storage:
        for _ in range(3):
            for access, level in (("durable", 2), ("write", 1), ("durable", 2), ("read", 1)):
                found = await storage._thread.call(lambda connection: connection.execute("PRAGMA synchronous").fetchone()[0], access)
                assert found == level, access
    async with SqliteStorage(tmp_path / "jobs.db", synchronous="NORMAL") as storage:
        assert await storage._thread.call(lambda connection: connection.execute("PRAGMA synchronous").fetchone()[0], "durable") == 1


async def test_one_refused_call_of_a_group_leaves_the_others(tmp_path: Path) -> None:
    """Twenty calls share commits; the one that fails hears of it alone."""
    async with SqliteStorage(tmp_path / "jobs.db") as storage:

        def bad(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO pipeline_jobs (job_id) VALUES ('half')")
            connection.execute("INSERT INTO pipeline_jobs (job_id, status) VALUES ('x', 'nonsense')")

        calls = [storage.set_status(f"j{n}", "running") for n in range(20)]
        answers = await asyncio.gather(*calls[:10], storage._thread.call(bad), *calls[10:], return_exceptions=True)
        [error] = [answer for answer in answers if answer is not None]
        assert isinstance(error, StoreError) and isinstance(error.__cause__, sqlite3.IntegrityError)
        assert len(await storage.list_running()) == 20 and await storage.get_job("half") is None


async def test_a_caller_that_is_cancelled_does_not_take_its_write_back(tmp_path: Path) -> None:
    """Nor does it disturb those that wait beside it."""
    async with SqliteStorage(tmp_path / "jobs.db") as storage:
        task = asyncio.ensure_future(storage.set_status("j", "running"))
        beside = asyncio.ensure_future(storage.set_status("k", "running"))
        await asyncio.wait({beside}, timeout=0)
        task.cancel()
        await asyncio.wait({task})
        await beside
        assert list(await storage.list_running()) == ["j", "k"]


async def test_several_pipelines_share_a_file_by_prefix(tmp_path: Path) -> None:
    """The same job id in each."""
    path = tmp_path / "jobs.db"
    async with SqliteStorage(path, prefix="a_") as one, SqliteStorage(path, prefix="b_") as two:
        await one.set_status("j", "running")
        assert await two.get_job("j") is None
    for prefix in ("a b", "1x", "x;--", ""):
        with pytest.raises(ConfigurationError, match="prefix"):
            SqliteStorage(path, prefix=prefix)


# case I7
async def test_many_handles_may_make_the_tables_at_once(tmp_path: Path) -> None:
    """Each has its own thread and connection; all open, all write."""
    storages = [SqliteStorage(tmp_path / "jobs.db") for _ in range(8)]
    await asyncio.gather(*(storage.set_status(f"j{n}", "running") for n, storage in enumerate(storages)))
    assert len(await storages[0].list_running()) == 8
    await asyncio.gather(*(storage.close() for storage in storages))


async def test_bad_files_have_named_errors(tmp_path: Path) -> None:
    """Not a database, a folder that is not there, a newer layout; nothing is changed."""
    text = tmp_path / "notes.db"
    text.write_text("these are notes, " * 100)
    with pytest.raises(NotADatabase, match="is not an SQLite database"):
        await SqliteStorage(text).get_job("j")
    assert text.read_text().startswith("these are notes")
    with pytest.raises(StoreError, match="does its folder exist"):
        await SqliteStorage(tmp_path / "nowhere" / "jobs.db").get_job("j")
    async with SqliteStorage(tmp_path / "jobs.db") as storage:
        await storage.set_status("j", "running")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as database:
        database.execute("UPDATE pipeline_meta SET schema = 99")
        database.commit()
    with pytest.raises(SchemaTooNew, match="layout 99"):
        await SqliteStorage(tmp_path / "jobs.db").get_job("j")


async def test_a_full_disk_keeps_nothing_of_the_write(tmp_path: Path) -> None:
    """And the job can go on once there is room."""
    async with SqliteStorage(tmp_path / "jobs.db") as storage:
        assert await storage.commit_outcome(Outcome("j", 0, status="running", checkpoint=Checkpoint("a", 1, START))) == 1
        big = Outcome("j", 1, checkpoint=Checkpoint("b", "x" * 200_000, START), log=(LogEntry(START, "moved"),), advance=timedelta(0))
        pages = await storage._thread.call(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
        await storage._thread.call(lambda connection: connection.execute(f"PRAGMA max_page_count={pages + 1}").fetchone())
        with pytest.raises(StoreFull):
            await storage.commit_outcome(big)
        job = await storage.get_job("j")
        assert job is not None and job.version == 1 and job.checkpoint is not None and job.checkpoint.next_phase == "a"
        assert await storage.get_log("j") == [] and await storage.next_advance("j") is None
        await storage._thread.call(lambda connection: connection.execute("PRAGMA max_page_count=100000").fetchone())
        assert await storage.commit_outcome(big) == 2


async def test_a_database_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """As on a read-only mount."""
    async with SqliteStorage(tmp_path / "jobs.db") as storage:
        await storage._thread.call(lambda connection: connection.execute("PRAGMA query_only=1").fetchone())
        with pytest.raises(ReadOnlyStore, match="can't be written"):
            await storage.set_status("j", "running")


async def test_a_claim_reads_and_locks_in_proportion_to_one_job(tmp_path: Path) -> None:
    """The plans of the statements that run all the time use an index."""
    async with SqliteStorage(tmp_path / "jobs.db") as storage:
        for name in ("get_job", "claim_job", "renew_lease", "commit_outcome", "get_log", "list_jobs", "list_running", "due_advance", "take_advances"):
            statement = storage._sql[name]
            names = {word.strip(":(),;") for word in statement.replace("(", " (").split() if word.strip("(,").startswith(":")}

            def plan(connection: sqlite3.Connection, statement: str = statement, names: set[str] = names) -> list[str]:
                return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", dict.fromkeys(names, 1))]

            for line in await storage._thread.call(plan, "read"):
                assert not line.startswith("SCAN") or "USING INDEX" in line or "USING COVERING INDEX" in line or name == "list_jobs", (
                    f"{name}: {line}"
                )
