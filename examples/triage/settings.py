"""What can be set from outside, by environment variables with the prefix `TRIAGE_`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

HERE = Path(__file__).parent


def seconds(name: str, default: float) -> float:
    return float(os.environ.get(f"TRIAGE_{name}", default))


DATA = Path(os.environ.get("TRIAGE_DATA", HERE / "data"))
"""Where the databases are kept."""

CALLS = os.environ.get("TRIAGE_CALLS")
"""A file that gets a line for each request to the model; none by default."""

LEASE = timedelta(seconds=seconds("LEASE", 30))
"""How long a dead worker's runs wait for another one. The demo makes it short."""

GRACE = timedelta(seconds=seconds("GRACE", 30))
"""How long an effect of a dead worker may still be going on."""

LATENCY = seconds("LATENCY", 0.15)
"""Seconds that the shop, the bank and the help desk take for an answer."""

PACE = seconds("PACE", 0.02)
"""Seconds between two pieces of the scripted model's stream."""
