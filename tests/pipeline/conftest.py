"""Every behaviour of the pipeline runs on every storage."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline_worlds import AGENTS, FULL, KINDS, Open, OpenKind, open_world


@pytest.fixture
def open_kind(request: pytest.FixtureRequest) -> OpenKind:
    """Opens a world of some kind. The server is started for those that need one."""
    return lambda kind, folder: open_world(kind, folder, request.getfixturevalue("postgres") if kind.startswith("postgres") else None)


@pytest.fixture(params=KINDS)
def world_of(request: pytest.FixtureRequest, tmp_path: Path, open_kind: OpenKind) -> Open:
    """Opens a world on each kind of storage."""
    return lambda: open_kind(request.param, tmp_path)


@pytest.fixture(params=FULL)
def full_world_of(request: pytest.FixtureRequest, tmp_path: Path, open_kind: OpenKind) -> Open:
    """Opens a world on each storage that has every capability."""
    return lambda: open_kind(request.param, tmp_path)


@pytest.fixture(params=AGENTS)
def agent_world_of(request: pytest.FixtureRequest, tmp_path: Path, open_kind: OpenKind) -> Open:
    """Opens a world on each kind that an agent phase could tell apart."""
    return lambda: open_kind(request.param, tmp_path)
