"""Every behaviour of the pipeline runs on every storage."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_worlds import AGENTS, FULL, KINDS, Open, open_world


@pytest.fixture(params=KINDS)
def world_of(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a world on each kind of storage."""
    return lambda: open_world(request.param, tmp_path)


@pytest.fixture(params=FULL)
def full_world_of(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a world on each storage that has every capability."""
    return lambda: open_world(request.param, tmp_path)


@pytest.fixture(params=AGENTS)
def agent_world_of(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a world on each kind that an agent phase could tell apart."""
    return lambda: open_world(request.param, tmp_path)
