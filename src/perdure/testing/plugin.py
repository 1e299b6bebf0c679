"""The pytest plugin: fixtures for people who test their own agents. Loaded by itself once Perdure is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.testing.crash import CrashReport


@pytest.fixture
def crash_everywhere() -> Callable[..., CrashReport]:
    """Kill an agent at every store call and report what became of its run: see `perdure.testing.crash.crash_everywhere`."""
    # Imported here: a plugin is loaded in every test run of whoever has Perdure installed, and should cost nothing there.
    from perdure.testing.crash import crash_everywhere

    return crash_everywhere
