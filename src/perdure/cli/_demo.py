"""`perdure demo`."""

from __future__ import annotations


def demo() -> int:
    """Show it."""
    return 0
