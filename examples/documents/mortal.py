"""A process that is killed at a given write, for real: SIGKILL, no clean-up, no last word."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

from perdure.core.runtime import RealRuntime
from perdure.pipeline import SqliteStorage

WRITES = ("commit_outcome", "claim_job", "renew_lease", "put_advance", "take_advances", "drop_advance")


class Later(RealRuntime):
    """The machine's clock, set forward: the next process need not sit out the lease of the one that was killed."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._shift = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._shift


class MortalStorage(SqliteStorage):
    """Counts the moments before and after each of its writes, and kills the process at one of them."""

    def __init__(self, path: Any, *, dies_at: int | None, runtime: RealRuntime) -> None:
        super().__init__(path, runtime=runtime)
        self._left = dies_at

    def _moment(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _mortal(name: str) -> Callable[..., Awaitable[Any]]:
    async def write(self: MortalStorage, *args: Any, **kwargs: Any) -> Any:
        self._moment()
        answer = await getattr(SqliteStorage, name)(self, *args, **kwargs)
        self._moment()
        return answer

    return write


for _name in WRITES:
    setattr(MortalStorage, _name, _mortal(_name))


UNFINISHED = 3


def in_a_process(work: Callable[[], Coroutine[Any, Any, bool]]) -> int | None:
    """Run `work` in a process of its own. None: it was killed. 0 or `UNFINISHED`: what `work` answered; 1: it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if asyncio.run(work()) else UNFINISHED
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
