"""Bugs of the real engine that the simulator found: each is a small plan that broke a promise once."""

from __future__ import annotations

import pytest

from perdure.testing.simulation import Fault, Plan, Play
from perdure.testing.simulation._casts import cast_for
from perdure.testing.simulation._loop import tidy

PLANS: dict[str, tuple[int, Plan]] = {
    # A response had come, and the execution was stopped before it was stored: its cost stayed, the response was asked for again.
    "a response that came is stored": (
        97,
        (
            Fault("claim_error_after", 1, 1),
            Fault("crash_before", 1, 4),
            Fault("model_cut", 0, 1),
            Fault("pause", 0, 1698, 10.069),
            Fault("pause", 2, 597, 9.265),
            Fault("tool_dies", 0, 13),
        ),
    ),
    # The answer to a claim came after its lease had run out, and work began under it.
    "nothing starts under a late claim": (1, tuple(Fault("claim_slow_reply", slot, n, 13.0) for slot in range(3) for n in range(1, 6))),
    # Reading the run failed for a moment, and the run was failed with `store_unavailable`.
    "a store that is away fails no run": (17, tuple(Fault("error_after", slot, n) for slot in range(3) for n in range(5, 60, 6))),
    # Replicas an hour off opened waits that ended an hour off.
    "waits end by the store's clock": (3, ()),
}


@pytest.mark.parametrize("found", PLANS)
def test_what_was_found_stays_mended(found: str) -> None:
    """The plan that once broke a promise breaks none."""
    seed, plan = PLANS[found]
    with tidy():
        result = Play(cast_for(seed), seed, plan).run()
    assert result.violations == [], "\n".join([*map(str, result.violations), *result.story])
    assert result.runs.total() == len(cast_for(seed).orders)
