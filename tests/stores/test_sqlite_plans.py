"""No query reads what it does not need: claim, sweep and lists use indexes, whatever else is stored."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.stores.sqlite import SqliteStore
from perdure.stores.sqlite._connection import QUERIES


async def made(path: Path) -> None:
    async with SqliteStore(path):
        pass


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """The schema with many rows in it, so that a scan would be seen by the planner too."""
    asyncio.run(made(tmp_path / "a.db"))
    connection = sqlite3.connect(tmp_path / "a.db")
    yield connection
    connection.close()


def plan(database: sqlite3.Connection, name: str) -> list[str]:
    """The planner's lines for a query, its parameters unknown."""
    text = QUERIES[name]
    parameters = dict.fromkeys(_names(text))
    return [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {text}", parameters)]


def _names(text: str) -> set[str]:
    return set(re.findall(r":(\w+)", text))


SCANS_ALLOWED = {
    "count_runs": "counts every status from a covering index",
    "list_waits": "lists closed rows too, in the order of their number",
    "list_effects": "lists settled effects too, in the order of their number",
    "list_runs": "lists all runs, in the order of their number",
}
"""Queries whose very point is to walk a whole table in the order that they answer in; all have a limit or an index that holds all they read."""


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_no_query_scans_a_table(database: sqlite3.Connection, name: str) -> None:
    """Every table is searched by an index or its key. What a recursive query has found so far is no table."""
    found = {f"SCAN {each}" for each in re.findall(r"WITH RECURSIVE (\w+)", QUERIES[name])}
    lines = [
        line
        for line in plan(database, name)
        if line.startswith("SCAN") and line not in found and "VIRTUAL TABLE" not in line and "CONSTANT ROW" not in line and "(subquery" not in line
    ]
    assert name in SCANS_ALLOWED or all("COVERING INDEX" in line and "LIMIT" in QUERIES[name] for line in lines), lines


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("list_claimable", "run_claim"), ("make_due", "run_due"), ("list_claimed", "run_token"), ("list_expired_leases", "run_lease"),
        ("list_expired_waits", "wait_expiry"), ("list_passed_deadlines", "run_deadline"), ("list_runs_of_agent", "run_agent"),
        ("list_runs_of_status", "run_status"), ("list_runs_of_thread", "run_thread"), ("list_runs_of_parent", "run_parent"), ("list_open_waits", "wait_question"),
        ("list_current_waits", "wait_run"), ("list_waits_for_effect", "wait_effect"), ("list_open_waits_of_all", "wait_open"),
        ("list_due_notices", "wait_notice"), ("list_effects_of_claim", "effect_claim"), ("list_open_effects", "effect_open"),
        ("list_family", "run_parent"), ("list_room_waits", "wait_room"),
    ],
)  # fmt: skip
def test_a_query_uses_the_index_that_was_made_for_it(database: sqlite3.Connection, name: str, index: str) -> None:
    """And none of them is there for nothing."""
    assert any(f"INDEX {index} " in f"{line} " for line in plan(database, name)), plan(database, name)


@pytest.mark.parametrize(
    "name", ["list_claimable", "list_runs_of_agent", "list_runs_of_status", "list_events", "list_steps", "last_checkpoint", "list_open_waits_of_all"]
)
def test_a_bounded_list_is_not_sorted(database: sqlite3.Connection, name: str) -> None:
    """The index is in the order of the answer, so a limit stops the walk."""
    assert not any("TEMP B-TREE" in line for line in plan(database, name)), plan(database, name)
