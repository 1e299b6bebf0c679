"""Every store passes the same suite."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.stores import Store
from perdure.stores.memory import MemoryStore
from perdure.testing.conformance import Kit, StoreConformance


class MemoryKit:
    """One memory, through as many handles as there are: they are the same object."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def open(self) -> Store:
        return self._store

    def advance(self, by: timedelta) -> None:
        self._store.offset += by


class TestMemory(StoreConformance):
    """The memory store."""

    @pytest.fixture
    def kit(self) -> Kit:
        return MemoryKit()
