"""Sessions are tested in both their shapes."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["alone", "among others"])
def company(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the session's hooks stand at both ends of the agent's own capabilities, or are one because there are none."""
    if request.param == "among others":
        monkeypatch.setattr("perdure.agents._capability._every_agents", frozenset[type])
