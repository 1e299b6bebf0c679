"""The real command line, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from perdure.core.commit import RunFilter, SweepRequest
from perdure.core.limits import LEASE_DEFAULT
from perdure.stores.sqlite import SqliteStore

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


def until_in_a_tool(folder: Path) -> None:
    """Return once a run has said something from inside its tool."""

    async def look() -> None:
        async with SqliteStore(folder / "shop.db") as store:
            while not [event for run in await store.runs(RunFilter()) for event in await store.events(run.id) if event.type == "log"]:
                # Nobody tells what other processes write into the file, so it is asked again and again.
                await asyncio.to_thread(os.sched_yield)

    asyncio.run(look())


def until_recovered(folder: Path) -> None:
    """Let the store's clock pass the lease of a dead command's run, and take the run from it, as another worker's tick does."""

    async def sweep() -> None:
        async with SqliteStore(folder / "shop.db") as store:
            await store.move_clock(LEASE_DEFAULT)
            assert (await store.sweep(SweepRequest(limit=10, deaths_max=5))).recovered

    asyncio.run(sweep())


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    """A command in the background, whose tool never ends."""
    (folder / "hold").touch()
    line = [sys.executable, "-m", "perdure.cli", *command]
    return subprocess.Popen(line, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
