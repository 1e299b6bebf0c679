"""Every store passes the same suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from kits import MemoryKit, SqliteKit

from perdure.testing.conformance import Kit, StoreConformance


class TestMemory(StoreConformance):
    """The memory store."""

    @pytest.fixture
    def kit(self) -> Kit:
        return MemoryKit()


class TestSqlite(StoreConformance):
    """The SQLite store."""

    @pytest.fixture
    def kit(self, tmp_path: Path) -> Kit:
        return SqliteKit(tmp_path / "perdure.db")
