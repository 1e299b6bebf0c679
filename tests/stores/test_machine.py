"""Stores walk beside the memory store and never differ."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings
from kits import MemoryKit, SqliteKit

from perdure.testing.conformance import Kit, StoreMachine

WALK = settings(max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))


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
