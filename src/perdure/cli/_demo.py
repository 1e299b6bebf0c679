"""`perdure demo`: a run that is killed, waits for a person, and goes on. Everything in it happens for real, in processes of their own."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer
from rich.text import Text

from perdure.cli import _exit
from perdure.cli._load import DEBUG_VARIABLE
from perdure.cli._open import STORE_VARIABLE
from perdure.cli._output import Output
from perdure.core.commit import RunFilter, WaitFilter
from perdure.core.errors import PerdureError, StoreError
from perdure.core.runtime import RealRuntime, run_main
from perdure.stores import Store
from perdure.stores.sqlite import SqliteStore

T = TypeVar("T")
KEY: Final = "complaint-1"
START: Final = ("run", "app.py", "refunds", '{"order": "KL-1042"}', "--key", KEY)
LOOK: Final = 0.1
"""Seconds between two looks at the database."""
PATIENCE: Final = 120.0
"""Seconds after which a demo that does not get where it should says so."""


class DemoFailed(PerdureError):
    """The demo did not go as it should: a bug, or a very slow machine."""


def demo(keep: Annotated[bool, typer.Option("--keep", help="Keep the folder, to look at it and play with it.")] = False) -> int:
    """Watch a run being killed, waiting for a person, and going on.

    It takes half a minute and needs no key: the model is scripted. It works in a temporary folder.

    [bold]Examples[/bold]

    $ perdure demo

    $ perdure demo --keep
    """
    output = Output()
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    try:
        return run_main(lambda: Demo(folder, output).play(keep=keep))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


class Demo:
    """The folder, and what is done in it. It types the commands that a person would type, and looks into the database in between."""

    def __init__(self, folder: Path, output: Output) -> None:
        self._folder, self._output = folder, output
        self._runtime = RealRuntime()

    async def play(self, *, keep: bool) -> int:
        app = files("perdure.cli").joinpath("demo_app.txt").read_text()
        (self._folder / "app.py").write_text(app)
        self._say("The model is scripted, the rest is real. In the folder: app.py, an agent that pays refunds, and soon perdure.db.")
        await self._start_and_kill()
        await self._start_again()
        await self._answer()
        await self._go_on()
        self._sum_up(keep=keep)
        return _exit.DONE

    # ── the four scenes ────────────────────────────────────────────────────────────────────────────────────
    async def _start_and_kill(self) -> None:
        self._title(1, "A run starts, and its process is killed in the middle of a tool.")
        process = await self._type(*START)
        await self._until(self._in_a_tool)
        # So that there is something to see.
        await self._runtime.sleep(1)
        process.kill()
        await process.wait()
        if self._output.rich:
            self._output.print("\x1b[?25h", end="")  # the dead process can't give the cursor back
        self._output.print()
        self._output.print(Text("✗ kill -9", style="bold red"))

    async def _start_again(self) -> None:
        self._title(2, "The same command again. It finds its run by the key, waits until the dead process's lease has run out, and goes on.")
        await self._expect(_exit.UNFINISHED, *START)

    async def _answer(self) -> None:
        self._title(3, "Nothing runs now, and nothing is held. Days later, somebody answers, with less money.")
        [wait] = await self._look(lambda store: store.waits(WaitFilter(open=True)))
        await self._expect(_exit.DONE, "approvals", "approve", wait.id[-8:], "--input", '{"order": "KL-1042", "cents": 4000}', "--by", "eva")

    async def _go_on(self) -> None:
        self._title(4, "And the run goes on, in whatever process.")
        await self._expect(_exit.DONE, "continue", "app.py", "last")

    def _sum_up(self, *, keep: bool) -> None:
        paid = (self._folder / "bank.txt").read_text().splitlines()
        self._output.print()
        self._output.print(Text(f"The bank paid {'once' if len(paid) == 1 else f'{len(paid)} times'}:", style="bold"))
        for line in paid:
            self._output.print(Text(f"  {line}"), soft_wrap=True)
        if keep:
            self._say(f"Kept in {self._folder}. Look around there: perdure runs show last")

    # ── typing and looking ─────────────────────────────────────────────────────────────────────────────────
    async def _type(self, *command: str) -> asyncio.subprocess.Process:
        self._output.print(Text("$ ", style="bright_black").append(shlex.join(("perdure", *command)), style="bold"), soft_wrap=True)
        environment = {name: value for name, value in os.environ.items() if name not in (STORE_VARIABLE, DEBUG_VARIABLE)}
        return await asyncio.create_subprocess_exec(sys.executable, "-m", "perdure.cli", *command, cwd=self._folder, env=environment)

    async def _expect(self, code: int, *command: str) -> None:
        process = await self._type(*command)
        try:
            async with asyncio.timeout(PATIENCE):
                found = await process.wait()
        except TimeoutError:
            process.kill()
            raise DemoFailed(f"`{shlex.join(('perdure', *command))}` took longer than {PATIENCE:.0f} s.") from None
        if found != code:
            raise DemoFailed(f"`{shlex.join(('perdure', *command))}` ended with exit code {found} and not {code}.")

    async def _look(self, read: Callable[[Store], Awaitable[T]]) -> T:
        async with SqliteStore(self._folder / "perdure.db", migrate=False) as store:
            return await read(store)

    async def _in_a_tool(self) -> bool:
        """Whether the first response is stored: then its tool runs."""
        if not (self._folder / "perdure.db").exists():
            return False
        try:
            runs = await self._look(lambda store: store.runs(RunFilter(limit=1)))
            return bool(runs) and bool(await self._look(lambda store: store.steps(runs[0].id)))
        except StoreError:
            return False  # it is being made

    async def _until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        until = self._runtime.monotonic() + PATIENCE
        while not await holds():
            if self._runtime.monotonic() > until:
                raise DemoFailed(f"The run did not get anywhere within {PATIENCE:.0f} s.")
            await self._runtime.sleep(LOOK)

    # ── telling ────────────────────────────────────────────────────────────────────────────────────────────
    def _title(self, number: int, text: str) -> None:
        self._output.print()
        self._output.print(Text(f"{number}  ", style="bold cyan").append(text, style="bold"))

    def _say(self, text: str) -> None:
        self._output.print()
        self._output.print(Text(text, style="bright_black"))
