"""The real command line, in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

APP = str(Path(__file__).parent / "shop_app.py")


@dataclass(frozen=True)
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line on stderr of a command that was refused."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without what would change the answers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "OPENAI_", "ANTHROPIC_", "SHOP_", "TRIAGE_"))}
    return {**kept, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8", **(more or {})}


Cli = Callable[..., Said]
