"""With fifty thousand runs stored, no query reads a table from end to end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure.stores.postgres import PostgresStore
from perdure.stores.postgres._connection import QUERIES, statements_in
from perdure.testing.postgres import PostgresServer

SCHEMA = "plans"
RUNS = 50_000

FILL = f"""
INSERT INTO plans.run (
    id, agent, status, priority, concurrency_key, thread, parent_run, forked, format, claim_token, lease_host, lease_expires_at, executions, usage, created_at,
    updated_at, available_at, due_at, deadline
)
SELECT 'r' || n, 'agent-' || n % 20, status, n % 3, CASE WHEN n % 10 = 0 THEN 'k' || n % 1000 END, CASE WHEN n % 5 = 0 THEN 't' || n % 5000 END,
    CASE WHEN n % 7 = 0 THEN 'r' || n / 7 END, 0, 1, CASE WHEN status <> 'pending' THEN 'token-' || n END, 'host', CASE WHEN status = 'running' THEN n END,
    n % 2, '[0,0,0,0,0,0,"0"]', n, n, n, CASE WHEN status = 'pending' AND n % 4 = 0 THEN n END, CASE WHEN n % 3 = 0 THEN n END
FROM (
    SELECT n, CASE WHEN n % 100 = 0 THEN 'pending' WHEN n % 100 = 1 THEN 'running' WHEN n % 100 = 2 THEN 'waiting' WHEN n % 1000 = 3 THEN 'interrupted'
        WHEN n % 9 = 0 THEN 'failed' ELSE 'completed' END AS status
    FROM generate_series(1, {RUNS}) n
) made;
INSERT INTO plans.run_body (run, trigger, budget, labels) SELECT seq, '{{}}', '{{}}', '{{}}' FROM plans.run;
INSERT INTO plans.label (name, value, run) SELECT 'team', 't' || seq % 50, seq FROM plans.run;
INSERT INTO plans.trigger_key (agent, key, run_id, payload_hash, retention, expires_at) SELECT agent, 'k' || seq, id, 'h', 1, seq FROM plans.run;
INSERT INTO plans.hold (kind, name, slot, run, taken) SELECT 'agent', agent, -seq, seq, 1 FROM plans.run WHERE status = 'running';
INSERT INTO plans.event (run, seq, type, at) SELECT seq, n, 'log', n FROM plans.run, generate_series(1, 3) n;
INSERT INTO plans.step (run, seq, generation, idx, kind, name) SELECT seq, n, 1, n, 'llm', 'model' FROM plans.run, generate_series(1, 2) n;
INSERT INTO plans.checkpoint (run, generation, idx, base, length, format, created_at) SELECT seq, 1, n, 0, n, 1, n FROM plans.run, generate_series(0, 1) n;
INSERT INTO plans.message (run, generation, base, position, body) SELECT seq, 1, 0, n, '' FROM plans.run, generate_series(0, 1) n;
INSERT INTO plans.effect (run, generation, idx, position, state, tool, tool_call_id, unknown, try_no, permit, claim)
SELECT seq, 1, 1, 0, CASE WHEN seq % 100 = 1 THEN 'unknown' ELSE 'done' END, 'pay', 'c', 'ask', 1, 0, CASE WHEN seq % 10 = 1 THEN 'agent:' || seq END FROM plans.run;
INSERT INTO plans.wait (id, run, generation, kind, question, idx, on_expiry, created_at, expires_at, resolved_at, notice_at, child, effect_key)
SELECT 'w' || seq, seq, 1, 'approval', 'q', 1, 'deny', seq, seq, CASE WHEN status <> 'waiting' THEN seq END, seq, CASE WHEN seq % 11 = 0 THEN 'r' || seq END,
    CASE WHEN seq % 13 = 0 THEN 'r' || seq || ':1:1:0' END
FROM plans.run;
INSERT INTO plans.wait_token (wait, hash) SELECT seq, 'h' FROM plans.wait;
INSERT INTO plans.signal (run, seq, id, name, at) SELECT seq, 1, 's', 'paid', 1 FROM plans.run WHERE seq % 5 = 0;
INSERT INTO plans.reservation (run, epoch, step, tokens, cost) SELECT seq, 1, 1, 10, '0' FROM plans.run WHERE seq % 3 = 0;
INSERT INTO plans.thread_head (thread, run_id) SELECT 't' || n, 'r' || n FROM generate_series(0, 4999) n;
INSERT INTO plans.artifact (id, media_type, size, created_at, body) SELECT 'a' || n, 'text/plain', 1, 1, 'x' FROM generate_series(1, 5000) n;
ANALYZE;
"""

WHOLE_TABLE = {
    "count_runs": "counts every status",
    "clock": "a table of two rows",
    "move_clock": "a table of two rows",
    "count_runs_of_agent": "counts all of an agent's runs, from the index alone where the pages are known to be visible",
}
"""Queries whose very point is to look at everything."""


@pytest.fixture(scope="module")
def full(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a schema with many rows in every table."""

    async def make() -> None:
        async with PostgresStore(postgres.dsn, schema=SCHEMA):
            pass

    asyncio.run(make())
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(FILL.encode())
        yield connection
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE".encode())


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan's nodes, from the top."""
    yield plan
    for each in plan.get("Plans", []):
        yield from nodes(each)


def plan_of(connection: psycopg.Connection[Any], name: str, schema: str = SCHEMA) -> list[dict[str, Any]]:
    """The plan that holds for any parameters: the one that a prepared statement comes to."""
    statement = statements_in(schema)[name]
    pgconn = connection.pgconn
    result = pgconn.exec_(b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + statement.text)
    text = result.get_value(0, 0)
    assert text is not None, result.error_message
    return list(nodes(json.loads(text)[0]["Plan"]))


@pytest.mark.parametrize("name", sorted(QUERIES.keys() - WHOLE_TABLE.keys()))
def test_no_query_reads_a_whole_table(full: psycopg.Connection[Any], name: str) -> None:
    """Claim, renew, commit, sweep, lists: each finds what it needs by an index."""
    scans = [node["Relation Name"] for node in plan_of(full, name) if node["Node Type"] == "Seq Scan" and "Relation Name" in node]
    assert set(scans) <= {"hold", "thread_head", "meta"}, f"{scans}"


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("list_claimable", "run_claim"), ("make_due", "run_due"), ("list_claimed", "run_token"), ("list_expired_leases", "run_lease"),
        ("list_expired_waits", "wait_expiry"), ("list_passed_deadlines", "run_deadline"), ("list_runs_of_agent", "run_agent"),
        ("list_runs_of_status", "run_status"), ("list_due_notices", "wait_notice"), ("list_effects_of_claim", "effect_claim"),
    ],
)  # fmt: skip
def test_a_query_uses_the_index_that_was_made_for_it(full: psycopg.Connection[Any], name: str, index: str) -> None:
    """In its order where it has one, so that a limit stops the walk."""
    found = {node.get("Index Name") for node in plan_of(full, name)}
    assert index in found, found


@pytest.fixture(scope="module")
def night(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a schema whose statistics are from an hour when nothing ran. Ids are as long as real ones, and so is their index."""

    async def make() -> None:
        async with PostgresStore(postgres.dsn, schema="night"):
            pass

    asyncio.run(make())
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(
            b"INSERT INTO night.run (id, agent, status, priority, forked, format, usage, created_at, updated_at, available_at, finished_at) "
            b"SELECT '01890000-0000-7000-8000-' || lpad(n::text, 12, '0'), 'agent', 'completed', 0, 0, 1, '{}', n, n, n, n FROM generate_series(1, 20000) n"
        )
        connection.execute(b"VACUUM ANALYZE night.run")
        yield connection
        connection.execute(b"DROP SCHEMA night CASCADE")


@pytest.mark.parametrize("name", ["lock_run", "expect_run", "get_run", "get_kin"])
def test_one_run_is_found_by_its_id_whatever_the_statistics_say(night: psycopg.Connection[Any], name: str) -> None:
    """The index of what runs is short at night. In the morning each commit would read all that runs through it."""
    found = {node.get("Index Name") for node in plan_of(night, name, "night") if node.get("Relation Name") == "run"}
    assert found == {"run_id_key"}


@pytest.mark.parametrize("name", ["list_claimable", "list_runs_of_agent", "list_runs_of_status", "list_events", "list_steps", "last_checkpoint"])
def test_a_bounded_list_is_not_sorted(full: psycopg.Connection[Any], name: str) -> None:
    """The index is in the order of the answer."""
    assert not any(node["Node Type"] in ("Sort", "Incremental Sort") for node in plan_of(full, name))


def test_a_commit_is_a_heap_only_update(full: psycopg.Connection[Any], postgres: PostgresServer) -> None:
    """The row of a run changes with every commit, and none of its thirteen indexes does."""
    full.execute(b"SELECT pg_stat_reset_single_table_counters('plans.run'::regclass)")
    for at in range(200):
        full.execute(b"UPDATE plans.run SET commit_no = commit_no + 1, usage = '[1,2,3,4,5,6,\"0\"]' WHERE seq = %s", (at + 1,))
    full.execute(b"SELECT pg_stat_force_next_flush()")
    row = full.execute(b"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'plans' AND relname = 'run'").fetchone()
    assert row is not None
    updated, heap_only = row
    assert updated == 200 and heap_only > 150
