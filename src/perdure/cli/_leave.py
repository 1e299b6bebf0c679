"""Leaving the process, whatever hangs in it.

A tool that never comes back keeps asyncio, and after it Python, waiting for its task or its thread without end. By the time a command has said its last word the
store is closed and everything is handed back: what hangs is left behind, as a crash would leave it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

from perdure.core.runtime import RealRuntime, run_main

PATIENCE: Final = 2.0
"""Seconds for the loop's tasks and threads to end by themselves."""
EXIT_PATIENCE: Final = 10.0
"""Seconds for what a program does at its exit, such as sending the rest of its telemetry."""


def end_after(seconds: float, code: int) -> Callable[[], None]:
    """End the process with `code` after so long, unless it has ended by then. Answers the way to call it off."""
    called_off = threading.Event()

    def wait() -> None:
        if called_off.wait(seconds):
            return
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads it any more
        os._exit(code)

    RealRuntime().lane("perdure-exit").post(wait)
    return called_off.set


def run_and_leave(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a command to its end and answer its exit code, without waiting for what hangs then."""
    call_off: list[Callable[[], None]] = []

    async def work() -> int:
        code = await main()
        call_off.append(end_after(PATIENCE, code))
        return code

    try:
        return run_main(work)
    finally:
        for each in call_off:
            each()
