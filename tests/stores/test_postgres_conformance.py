"""The Postgres store passes the suite of all stores, and walks beside the memory store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from perdure.stores import Store
from perdure.stores.postgres import PostgresStore
from perdure.testing.conformance import Kit, StoreConformance, StoreMachine
from perdure.testing.postgres import PostgresServer

SCHEMAS = itertools.count(1)


class PostgresKit:
    """One schema, a store with a pool of its own for each handle, and the clock in the schema."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.schema = dsn, f"test_{next(SCHEMAS)}"

    def open(self) -> Store:
        return PostgresStore(self.dsn, schema=self.schema, pool_max=2)

    def advance(self, by: timedelta) -> None:
        with psycopg.connect(self.dsn) as connection:
            micros = by // timedelta(microseconds=1)
            connection.execute(f"UPDATE {self.schema}.meta SET value = value + %s WHERE name = 'clock_offset'", (micros,))  # pyright: ignore[reportArgumentType]

    def size(self) -> int:
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(
                "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relkind = 'r'",
                (self.schema,),
            ).fetchone()
        assert row is not None
        return int(row[0])

    def drop(self) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")  # pyright: ignore[reportArgumentType]


class TestPostgres(StoreConformance):
    """The Postgres store, with a pool of two."""

    @pytest.fixture
    def kit(self, postgres: PostgresServer) -> Iterator[Kit]:
        kit = PostgresKit(postgres.dsn)
        yield kit
        kit.drop()


class PostgresMachine(StoreMachine):
    """The Postgres store beside the model."""

    dsn: str

    def make_kit(self) -> Kit:
        self._kit = PostgresKit(self.dsn)
        return self._kit

    def teardown(self) -> None:
        super().teardown()
        self._kit.drop()


@pytest.fixture(scope="session")
def walked(postgres: PostgresServer) -> None:
    """Tells the machine where the server is: it makes its own kits."""
    PostgresMachine.dsn = postgres.dsn


class LongPostgresMachine(PostgresMachine):
    """The same, for as long as it takes to meet what is rare."""


WALK = settings(deadline=None, suppress_health_check=list(HealthCheck))

# The same walks each time, so that a change is judged by itself; new ones are searched for nightly.
TestPostgresMachine = pytest.mark.usefixtures("walked")(PostgresMachine.TestCase)
TestPostgresMachine.settings = settings(WALK, max_examples=10, stateful_step_count=25, derandomize=True)
TestPostgresMachineAtLength = pytest.mark.nightly(pytest.mark.usefixtures("walked")(LongPostgresMachine.TestCase))
TestPostgresMachineAtLength.settings = settings(WALK, max_examples=300, stateful_step_count=50)
