"""The storage that the docs show is short, and keeps the promises of every storage."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.testing.pipeline import StorageConformance

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "pipeline-storage.md"
LINES_MAX = 60


def shown() -> str:
    """The first Python block of the page."""
    found = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    assert found is not None
    return found[1]


def test_it_is_short_enough_to_write_before_lunch() -> None:
    """Imports and all."""
    assert len([line for line in shown().splitlines() if line.strip()]) <= LINES_MAX


def made() -> Any:
    """The class that the page defines."""
    names: dict[str, Any] = {"__name__": "docs"}
    exec(compile(shown(), str(PAGE), "exec"), names)
    return names["MyStorage"]


class TestMyStorage(StorageConformance):
    """As a reader would run it."""

    storage_type = made()

    @pytest.fixture
    def open_storage(self, tmp_path: Path) -> Callable[[], Any]:
        assert self.storage_type is not None
        return lambda: self.storage_type(tmp_path / "jobs.db")
