"""Ctrl-C and SIGTERM: the first one asks, the second one does not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from perdure.cli._exit import STOPPED


@contextmanager
def stop_on_signals(asked: Callable[[], None]) -> Generator[None]:
    """Call `asked` on the running loop at the first SIGTERM or SIGINT; a second one ends the process there and then.

    Plain handlers and not the loop's own: a tool that blocks the loop must not keep the second one away. Outside the main thread, where
    Python allows no handlers, nothing is installed: whoever runs that thread stops the engine by `drain`.
    """
    loop = asyncio.get_running_loop()
    heard = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1
        if heard > 1:
            # The terminal gets its cursor back; everything else is what a crash would leave, which is what the store is made for.
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h\n")
            os._exit(STOPPED)
        loop.call_soon_threadsafe(asked)

    before: dict[signal.Signals, Any] = {}
    try:
        for each in (signal.SIGTERM, signal.SIGINT):
            before[each] = signal.signal(each, handle)
    except ValueError:
        pass
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
