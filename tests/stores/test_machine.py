"""Stores walk beside the memory store and never differ."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from kits import MemoryKit, SqliteKit

from perdure.core.commit import Commit, Committed, Outcome, SweepRequest, Swept
from perdure.stores import Store
from perdure.stores.memory import MemoryStore
from perdure.testing.conformance import Kit, StoreMachine

WALK = settings(max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))


class MemoryMachine(StoreMachine):
    """The model beside itself: a lost reply must not tell, and the walk itself is sound."""

    def make_kit(self) -> Kit:
        return MemoryKit()


class SqliteMachine(StoreMachine):
    """The SQLite store beside the model."""

    def make_kit(self) -> Kit:
        self._folder = TemporaryDirectory()
        return SqliteKit(Path(self._folder.name) / "perdure.db")

    def teardown(self) -> None:
        super().teardown()
        self._folder.cleanup()


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = WALK
TestSqliteMachine = SqliteMachine.TestCase
TestSqliteMachine.settings = WALK


class TwiceStore(MemoryStore):
    """Applies a commit that is repeated once more."""

    async def commit(self, commit: Commit) -> Committed:
        told = await super().commit(commit)
        if told.outcome is Outcome.ALREADY and told.status == "running":
            await super().commit(replace(commit, commit_no=commit.commit_no + 1))
        return told


class DeafStore(MemoryStore):
    """Recovers nobody."""

    async def sweep(self, request: SweepRequest) -> Swept:
        return Swept()


@pytest.mark.parametrize("broken", [TwiceStore, DeafStore])
def test_the_walk_finds_a_store_that_differs(broken: type[MemoryStore]) -> None:
    """A walk that can't fail would prove nothing."""

    class BrokenKit:
        def __init__(self) -> None:
            self._store = broken()

        def open(self) -> Store:
            return self._store

        def advance(self, by: timedelta) -> None:
            self._store.offset += by

    class BrokenMachine(StoreMachine):
        def make_kit(self) -> Kit:
            return BrokenKit()

    found = settings(WALK, max_examples=60, phases=[Phase.generate], derandomize=True, database=None, report_multiple_bugs=False)
    with pytest.raises(AssertionError, match="differs from the model"):
        run_state_machine_as_test(BrokenMachine, settings=found)
